"""What scores are worth: how well they order models that were trained."""
