"""Scaling laws: published ones, laws fitted to runs, and plans of what a training budget buys."""
