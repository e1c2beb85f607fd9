"""A promptable segmenter: where the object in a box ends, whatever its class (`mine.segmenter`)."""
