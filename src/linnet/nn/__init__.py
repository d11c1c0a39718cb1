"""Small modules that layers share: norms, linear maps, gates and convolutions, with their cost."""
