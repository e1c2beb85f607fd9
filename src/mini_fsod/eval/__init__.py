"""Scoring detections by the rules of PASCAL VOC and COCO, over novel, base and all classes."""
