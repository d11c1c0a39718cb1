"""One process or several that train one model: what they share, and what each has a part of."""
