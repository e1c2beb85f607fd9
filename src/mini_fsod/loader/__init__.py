"""From a data set on disk to batches on the device: decoding, order, canvases, views."""
