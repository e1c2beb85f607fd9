"""Detections in any pictures: by a run's detector with PyTorch, or by its ONNX file without."""
