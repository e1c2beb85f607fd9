"""Functions of tensors as CUDA graphs, one for each shape of their inputs.

A graph is started by the host in one go, whatever the number of kernels in it: with a few thousand
small kernels a step, the device would otherwise wait for the host most of the time. The first calls
of a shape run as written, while libraries choose their kernels; the next one is recorded. A replay
does what the function does, kernel by kernel. Off CUDA the function is simply called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

ORDINARY_CALLS = 2

Out = TypeVar("Out")


class _Recorded(NamedTuple, Generic[Out]):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Out


class Captured(Generic[Out]):
    """Calls `function(*tensors)`; what it returns is overwritten by the next call of that shape.

    The function must have fixed shapes and must not wait for the device. What it closes over
    (weights, a learning rate) is read where it lies at the time of recording: change it in place.
    """

    def __init__(self, function: Callable[..., Out], device: torch.device) -> None:
        self._function = function
        self._calls: dict[tuple[torch.Size, ...], int] = {}
        self._recorded: dict[tuple[torch.Size, ...], _Recorded[Out]] = {}
        self._on = device.type == "cuda"
        if self._on:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, *inputs: Tensor) -> Out:
        if not self._on:
            return self._function(*inputs)
        shapes = tuple(value.shape for value in inputs)
        recorded = self._recorded.get(shapes)
        if recorded is None:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls <= ORDINARY_CALLS:
                return self._ordinary(inputs)
            recorded = self._recorded[shapes] = self._record(inputs)
        for kept, value in zip(recorded.inputs, inputs, strict=True):
            kept.copy_(value, non_blocking=True)
        recorded.graph.replay()
        return recorded.output

    def _ordinary(self, inputs: tuple[Tensor, ...]) -> Out:
        """On the stream of the recordings, so that nothing moves between streams later."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            output = self._function(*inputs)
        here.wait_stream(self._stream)
        return output

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recorded[Out]:
        kept = tuple(value.clone() for value in inputs)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = self._function(*kept)
        return _Recorded(graph, kept, output)
