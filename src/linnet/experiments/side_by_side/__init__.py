"""Several models on one page: what is measured of each beside its likelihood, and what a paper says of others."""
