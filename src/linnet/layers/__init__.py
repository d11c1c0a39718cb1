"""What stands on a residual branch of a layer: the contract, and every mixer and feed-forward that keeps it."""
