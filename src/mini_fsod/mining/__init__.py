"""Offline mining: novel objects that hide in the base images (paper, section 3.2)."""
