"""How good a model is: likelihood and bits per byte, always causal."""
