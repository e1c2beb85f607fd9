"""Triton kernels for CUDA, each the twin of plain code in the room above it.

`pool.py` of `pooling.py`, `finish.py` of `backbone.py`, `nms.py` of `nms.py`. Tests compare them;
without a GPU they run the kernels in Triton's interpreter, and compile them for one. Import them
where CUDA is at hand only: Triton is not there for every platform.
"""
