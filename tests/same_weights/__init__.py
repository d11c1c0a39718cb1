"""Transformers' own layers and ours on the same weights, at any size: what tests hold equal and benchmarks time."""
