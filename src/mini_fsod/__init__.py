"""Few-shot object detection: show it K boxes of a new class, and it finds that class."""

__version__ = "0.1.0"
