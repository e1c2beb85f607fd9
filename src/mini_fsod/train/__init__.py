"""Training: one loop (`loop.py`) around one step (`step.py`), for every stage."""
