"""Damage inside of an ONNX file: its metadata, its nodes, its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

OPERATORS = ("Loop", "If", "Scan", "Identity", "Range", "Tile", "Expand", "ConstantOfShape", "Nope")
SIZES = (0, -1, 1, 2, 2**31, 2**62)


def damaged_onnx(
    draw: st.DrawFn, content: bytes, damaged_json: Callable[[st.DrawFn, bytes], bytes | None]
) -> bytes | None:
    """One to three damages; None where the file cannot be parsed."""
    onnx: Any = __import__("onnx")
    try:
        model = onnx.load_from_string(content)
    except Exception:
        return None
    for _ in range(draw(st.integers(1, 3))):
        _DAMAGES[draw(st.integers(0, len(_DAMAGES) - 1))](draw, model, damaged_json)
    return bytes(model.SerializeToString())


def _metadata(draw: st.DrawFn, model: Any, damaged_json: Any) -> None:
    entry = next((e for e in model.metadata_props if e.key == "mini"), None)
    if entry is not None:
        text = damaged_json(draw, entry.value.encode()) or b""
        entry.value = text.decode(errors="replace")


def _node(draw: st.DrawFn, model: Any, _: Any) -> None:
    node = draw(st.sampled_from(model.graph.node))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        node.op_type = draw(st.sampled_from(OPERATORS))
    elif kind == 1 and node.input:
        node.input[0] = draw(st.sampled_from(["", "nowhere", "images"]))
    elif kind == 2:
        del node.attribute[:]
    else:
        model.graph.node.remove(node)


def _tensor(draw: st.DrawFn, model: Any, _: Any) -> None:
    """Values or shapes of a constant; or it names another file."""
    constants = [
        *model.graph.initializer,
        *(a.t for node in model.graph.node for a in node.attribute if a.name == "value"),
    ]
    tensor = draw(st.sampled_from(constants))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", draw(st.sampled_from(["/etc/passwd", "../a.onnx"]))
        tensor.data_location = 1
        tensor.ClearField("raw_data")
    elif kind == 1:
        del tensor.dims[:]
        tensor.dims.extend(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
    else:
        filler = draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x01"]))
        tensor.raw_data = filler * len(tensor.raw_data)


def _outputs(draw: st.DrawFn, model: Any, _: Any) -> None:
    """Outputs that are exchanged: other shapes and types under the known names."""
    outputs = model.graph.output
    one, other = (draw(st.integers(0, len(outputs) - 1)) for _ in range(2))
    names = outputs[one].name, outputs[other].name
    swap = dict(zip(names, names[::-1], strict=True))
    for node in model.graph.node:
        for k, name in enumerate(node.output):
            node.output[k] = swap.get(name, name)


_DAMAGES = (_metadata, _metadata, _node, _tensor, _outputs)
