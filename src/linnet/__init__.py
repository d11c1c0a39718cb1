"""Workshop for small language models."""
