"""The words of the corpus: people and animals, things, places, and what each is good for."""
