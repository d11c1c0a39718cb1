"""Generating text: states, caches, sampling, sessions."""
