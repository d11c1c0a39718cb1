"""One stream, one token at a time, on rows `[1, D]`: in as few operations as can be."""
