"""Looking inside trained models."""
