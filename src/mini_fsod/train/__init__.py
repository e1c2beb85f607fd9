"""Training: the step, and later the loop around it."""
