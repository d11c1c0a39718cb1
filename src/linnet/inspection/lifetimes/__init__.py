"""How long each token is remembered by layers of trainable exponential decays (TED, github.com/biuq/ted)."""
