"""Token mixers: the layers that move information between tokens, one file for each."""
