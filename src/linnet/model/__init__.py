"""A model: its description, the decoder that it describes, its cost, its files."""
