"""A run: stages into a folder, each done once. Start at `stages.py`."""
