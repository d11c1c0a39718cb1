"""Published checkpoints in, other formats out."""
