"""Optimizers: which parameter is updated by what and how far, and the averages of the weights on the way."""
