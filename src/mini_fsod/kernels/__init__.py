"""Triton kernels for CUDA. Each computes what plain PyTorch code computes on other devices:

`roi_align.py` for `detector/roi_align.py`, `epilogue.py` for `detector/convolution.py`, `nms.py`
for `detector/nms.py`, `augment.py` for `loader/augment.py`. The tests compare both; without a GPU
they run the kernels in Triton's interpreter and compile them for one. Import them only where a
tensor is on a CUDA device: Triton is not available on every platform.
"""
