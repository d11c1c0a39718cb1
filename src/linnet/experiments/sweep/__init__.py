"""A sweep: one run, trained once for each value of one of its fields."""
