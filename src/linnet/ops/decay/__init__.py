"""Sums of exponentially decaying quantities, each source token with a rate of its own."""
