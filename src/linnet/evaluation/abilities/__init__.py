"""Abilities, measured by generated questions: each with its sizes, a seed, the exact level of chance, exact answers."""
