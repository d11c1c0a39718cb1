"""The run folder: what a run leaves behind, and what is read again from it."""
