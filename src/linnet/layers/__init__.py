"""Sublayers, the modules on a residual branch: their interface, and all mixers and feed-forwards."""
