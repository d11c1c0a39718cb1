"""Training: one loop, a run folder that can be stopped and resumed at any step."""
