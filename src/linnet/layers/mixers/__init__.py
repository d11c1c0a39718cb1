"""Every token mixer: one file or package each, found by its `kind`."""
