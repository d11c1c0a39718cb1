"""Small layers that every model shares: norms, feed-forwards, linear maps, and what they cost."""
