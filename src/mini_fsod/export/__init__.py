"""ONNX files of detectors: the graph, writing it, and the proof that it equals the detector."""
