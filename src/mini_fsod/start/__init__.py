"""`mini init`: from photos and a few boxes to a configuration that runs."""
