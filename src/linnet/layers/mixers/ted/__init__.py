"""TED: every past token decays at its own rate."""
