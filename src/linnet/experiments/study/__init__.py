"""A study of shapes: many are trained, and every score is held against what came out."""
