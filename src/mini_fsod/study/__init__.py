"""Studies: many runs as one plan that several workers share, and the tables they end in."""
