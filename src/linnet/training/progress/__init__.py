"""A run while it goes: its figures, and who looks at them."""
