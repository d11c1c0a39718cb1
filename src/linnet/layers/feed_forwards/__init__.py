"""Every feed-forward: one file each, found by its `kind`."""
