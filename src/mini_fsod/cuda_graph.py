"""Functions of tensors as CUDA graphs, one graph for each shape of their inputs.

The host launches a whole graph at once. Without graphs, a few thousand small kernels per step would
leave the device waiting for the host most of the time. For each shape, the first calls run eagerly,
while libraries choose their kernels; the next call is recorded, and later calls replay the
recording, kernel by kernel. Off CUDA the function is simply called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

EAGER_CALLS = 2

Out = TypeVar("Out")
Shapes = tuple[torch.Size | None, ...]


class _Recording(NamedTuple, Generic[Out]):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor | None, ...]
    output: Out


class Captured(Generic[Out]):
    """Calls `function(*inputs)`; the next call with the same shapes overwrites what it returned.

    An input is a tensor, None, or a tuple or NamedTuple of inputs. The function must have fixed
    shapes and must not wait for the device. What it closes over (weights, a learning rate) is read
    from the memory it had when it was recorded: change it in place.
    """

    def __init__(self, function: Callable[..., Out], device: torch.device) -> None:
        self._function = function
        self._calls: dict[Shapes, int] = {}
        self._recordings: dict[Shapes, _Recording[Out]] = {}
        self._on_cuda = device.type == "cuda"
        if self._on_cuda:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, *inputs: Any) -> Out:
        if not self._on_cuda:
            return self._function(*inputs)
        tensors = flatten(inputs)
        shapes = tuple(None if value is None else value.shape for value in tensors)
        recording = self._recordings.get(shapes)
        if recording is None:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls <= EAGER_CALLS:
                return self._call_eagerly(inputs)
            recording = self._recordings[shapes] = self._record(inputs)
        for static, value in zip(recording.inputs, tensors, strict=True):
            if static is not None and value is not None:
                static.copy_(value, non_blocking=True)
        recording.graph.replay()
        return recording.output

    def _call_eagerly(self, inputs: tuple[Any, ...]) -> Out:
        """Call it on the stream of the recordings, so that no tensor changes streams later."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            output = self._function(*inputs)
        current.wait_stream(self._stream)
        return output

    def _record(self, inputs: tuple[Any, ...]) -> _Recording[Out]:
        static = tuple(None if value is None else value.clone() for value in flatten(inputs))
        static_inputs = unflatten(inputs, static)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = self._function(*static_inputs)
        return _Recording(graph, static, output)


def flatten(inputs: Any) -> tuple[Tensor | None, ...]:
    """The tensors (and Nones) of nested tuples, in order."""
    if isinstance(inputs, tuple):
        return tuple(leaf for part in inputs for leaf in flatten(part))
    if inputs is not None and not isinstance(inputs, Tensor):
        raise TypeError(f"inputs must be tensors, None or tuples of them, not {type(inputs)}")
    return (inputs,)


def unflatten(like: Any, leaves: tuple[Tensor | None, ...]) -> Any:
    """Nested tuples of the structure and types of `like`, with these leaves."""
    return _rebuild(like, iter(leaves))


def _rebuild(like: Any, leaves: Iterator[Tensor | None]) -> Any:
    if not isinstance(like, tuple):
        return next(leaves)
    parts = [_rebuild(part, leaves) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
