"""Token mixers: one file or package for each `kind`."""
