"""How small a TED model's state can be before its predictions suffer."""
