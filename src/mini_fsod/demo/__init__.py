"""The embedded data set: handwritten digits on photographs, drawn locally, without a download."""

from mini_fsod.demo.digits import CLASSES, LABELS, NOVEL
from mini_fsod.demo.scenes import write_demo_data

__all__ = ["CLASSES", "LABELS", "NOVEL", "write_demo_data"]
