"""Many models: comparisons, studies, the demo."""
