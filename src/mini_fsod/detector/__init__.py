"""Faster R-CNN with torchvision's maths, over whole padded batches. Start reading at `model.py`."""
