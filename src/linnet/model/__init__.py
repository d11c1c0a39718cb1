"""Models: description, decoder, cost and files."""
