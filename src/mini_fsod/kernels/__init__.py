"""Triton kernels for CUDA, each the twin of plain code elsewhere.

`pool.py` of `detector/pooling.py`, `finish.py` of `detector/convolution.py`, `nms.py` of
`detector/nms.py`, `views.py` of `feed/views.py`. Tests compare them;
without a GPU they run the kernels in Triton's interpreter, and compile them for one. Import them
where CUDA is at hand only: Triton is not there for every platform.
"""
