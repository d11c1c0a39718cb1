"""How well a model answers: multiple choice, pairs of sentences, generation; suites of tasks and their scores."""
