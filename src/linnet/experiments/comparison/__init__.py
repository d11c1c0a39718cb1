"""Training several models on the same text and comparing them, with the spread between seeds."""
