"""Correcting what was mined: a local page, its decisions, and what they do to the pool."""
