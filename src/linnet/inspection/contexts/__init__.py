"""How small the state of a model can be before its predictions suffer."""
