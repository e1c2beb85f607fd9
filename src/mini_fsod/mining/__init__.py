"""Offline mining: finding unlabelled novel objects in the base images (paper, section 3.3)."""
