"""Which experts are used: how often each is, over a text, in every layer that has some."""
