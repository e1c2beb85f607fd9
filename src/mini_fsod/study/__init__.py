"""Studies: many runs as one plan that several processes share, and the tables of their results."""
