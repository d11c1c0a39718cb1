"""Sums of exponentially decaying quantities, where each source token has its own rate."""
