"""Shapes of models under a budget: search spaces, scores, evolutionary and exact search, what scores are worth."""
