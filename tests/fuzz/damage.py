"""Strategies that damage valid files, as disks, other tools and attackers do."""

from __future__ import annotations

import io
import json
import math
import os
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from PIL import Image

from fuzz.damage_onnx import damaged_onnx
from fuzz.damage_values import LARGE, MAGIC, TOKENS, VALUES


def json_text(value: Any) -> bytes:
    return json.dumps(value).encode()


def yaml_text(value: Any) -> bytes:
    return str(yaml.safe_dump(value, sort_keys=False)).encode(errors="replace")


@st.composite
def damaged(draw: st.DrawFn, content: bytes, name: str) -> bytes | str:
    """The content of a file with one to three damages; a word stands for a file of another kind.

    `name` is that of the file: its suffix says what is inside.
    """
    suffix = {".yml": ".yaml"}.get(Path(name).suffix, Path(name).suffix)
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.sampled_from(sorted(SPECIAL)))
    if kind == 1:
        return draw(st.sampled_from(_extremes(suffix)))
    inside = INSIDE.get(suffix)
    if inside is not None and kind < 13:
        with_structure = inside(draw, content)
        if with_structure is not None:
            content = with_structure
            if draw(st.integers(0, 3)):
                return content
    for _ in range(draw(st.integers(1, 3))):
        content = _bytes(draw, content, TOKENS.get({".jsonl": ".json"}.get(suffix, suffix), MAGIC))
    return content


def _bytes(draw: st.DrawFn, text: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """A stretch of bytes left out, doubled, exchanged, inserted or repeated many times."""
    at = draw(st.integers(0, max(len(text) - 1, 0)))
    if draw(st.booleans()):  # headers are at the beginning
        at = min(at, draw(st.integers(0, 200)))
    n = draw(st.integers(1, 12))
    kind = draw(st.integers(0, 7))
    part = text[at : at + n]
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + text[at + n :]
    if kind == 2:
        return text[: at + n] + text[at:]
    if kind == 3:
        return text[:at] + draw(st.binary(min_size=1, max_size=8)) + text[at + n :]
    if kind == 4:
        return text[:at] + bytes(255 - byte for byte in part) + text[at + n :]
    if kind == 5:
        return text[:at] + part * draw(st.sampled_from([3, 1000, LARGE // n])) + text[at:]
    return text[:at] + draw(st.sampled_from(tokens)) + text[at + n * (kind == 7) :]


def _extremes(suffix: str) -> list[bytes]:
    """Whole files that are very large, very deep, or of another kind."""
    n = LARGE
    anchors = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{k}: &a{k} [{','.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 10)
    )
    entities = "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 9}">' for k in range(1, 10))
    usual = [b"", b"\0" * 100, b"\xff" * 100, b"null", b"[]", b"{}", b"0", b'"a"', b"\n" * n]
    suffix = {".jsonl": ".json"}.get(suffix, suffix)
    texts = {
        ".json": [
            *(b"[" * n, b'{"a":' * n, b"[" + b"{}," * n + b"{}]", b"[" + b"1," * n + b"1]"),
            *(b"9" * 5000, b"[" * 900 + b"]" * 900, b'{"images": ' + b"[" * n, b"{}" * n),
            json_text({str(k): k for k in range(n // 10)}),
            json_text({"images": [{}] * (n // 10), "annotations": [{}] * n, "categories": []}),
        ],
        ".yaml": [
            *(b"[" * n, b"- " * 3000, anchors.encode(), b"a: " * 3000, b"? " * 3000, b"{" * n),
            *(b"names: [" + b"x, " * (n // 5) + b"]", b"&a [*a]", b"a: &a\n  b: *a\n"),
            b"".join(b"k%d: 1\n" % k for k in range(n // 5)),
        ],
        ".xml": [
            *(b"<a>" * n, b"<a" + b" b='c'" * 5000 + b"/>", b"<annotation/>", b"<a>&b;</a>"),
            f'<!DOCTYPE z [<!ENTITY a0 "x">{entities}]><z>&a9;</z>'.encode(),
            b"<annotation>" + b"<object/>" * (n // 4) + b"</annotation>",
        ],
        ".txt": [b"0 " * n, b"x\n" * n, b"0 .5 .5 .1 .1\n" * n, b"9" * n, b"/\n" * 1000],
        ".safetensors": [
            *(struct.pack("<Q", size) + b"{}" for size in (0, 2, 3, 2**31, 2**63, 2**64 - 1)),
            struct.pack("<Q", n) + b"[" * n,
        ],
    }
    return usual + texts.get(suffix, [b"x" * n, *MAGIC])


# Damage inside of a format


def _values(draw: st.DrawFn, content: Any) -> Any:
    """A JSON value with one or two of its parts exchanged, left out, renamed or repeated."""
    for _ in range(draw(st.integers(1, 2))):
        paths = _paths(content)
        if not paths:
            return deepcopy(draw(st.sampled_from(VALUES)))
        *way, last = draw(st.sampled_from(paths))
        part = content
        for key in way:
            part = part[key]
        kind = draw(st.integers(0, 9))
        if kind == 0:
            del part[last]
        elif kind == 1 and isinstance(part, list):
            part.insert(last, part[last])
        elif kind == 1:
            part[str(deepcopy(draw(st.sampled_from(VALUES))))[:50]] = part.pop(last)
        elif kind == 2:
            deep: Any = part[last]
            for _ in range(draw(st.sampled_from([1, 50, 400]))):
                deep = [deep]
            part[last] = deep
        elif kind == 3 and isinstance(part[last], int | float) and part[last] is not None:
            part[last] = part[last] * draw(st.sampled_from([-1, 0, 2, 1000, 0.5, 10**12]))
        else:
            part[last] = deepcopy(draw(st.sampled_from(VALUES)))  # it may be damaged further
    return content


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, dict | list):
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value[:20])
    found = []
    for key, part in items:
        found.append((*path, key))
        if len(path) < 8:
            found += _paths(part, (*path, key))
    return found


def _json(draw: st.DrawFn, content: bytes) -> bytes | None:
    try:
        value = json.loads(content)
    except ValueError:
        return None
    if draw(st.integers(0, 5)) == 0:
        return _key_twice(draw, content)
    return json_text(_values(draw, value))


def _json_lines(draw: st.DrawFn, content: bytes) -> bytes | None:
    """One line damaged, doubled, or many times there."""
    lines = content.split(b"\n")
    at = draw(st.integers(0, len(lines) - 1))
    times = draw(st.sampled_from([1, 1, 1, 2, 20_000]))
    line = _json(draw, lines[at]) if draw(st.integers(0, 3)) else lines[at]
    if line is None:
        return None
    return b"\n".join([*lines[:at], *[line] * (times if len(line) < 1000 else 1), *lines[at + 1 :]])


def _key_twice(draw: st.DrawFn, content: bytes) -> bytes:
    starts = [k + 1 for k in range(len(content)) if content[k : k + 2] == b'{"']
    if not starts:
        return content
    at = draw(st.sampled_from(starts))
    key = content[at : content.index(b'"', at + 1) + 1]
    return (
        content[:at]
        + key
        + b": "
        + json_text(deepcopy(draw(st.sampled_from(VALUES))))
        + b", "
        + content[at:]
    )


def _yaml(draw: st.DrawFn, content: bytes) -> bytes | None:
    try:
        value = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError):
        return None
    try:
        return yaml_text(_values(draw, value))
    except RecursionError:  # too deep for the writer
        return None


def _safetensors(draw: st.DrawFn, content: bytes) -> bytes | None:
    """The header with other values, and the JSON in its metadata too."""
    if len(content) < 8:
        return None
    (size,) = struct.unpack("<Q", content[:8])
    try:
        header = json.loads(content[8 : 8 + size])
        inner = header.get("__metadata__", {})
        if "mini" in inner and draw(st.integers(0, 2)):
            damaged_inner = _json(draw, inner["mini"].encode())
            inner["mini"] = (damaged_inner or b"").decode()
        else:
            header = _values(draw, header)
        text = json_text(header)
    except (ValueError, AttributeError):
        return None
    wrong = draw(st.sampled_from([0, 0, 0, 1, -1, 8]))
    return struct.pack("<Q", max(len(text) + wrong, 0)) + text + content[8 + size :]


class Hostile:
    """Unpickled freely, it makes a folder (`RAN`)."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (RAN,)

    def __deepcopy__(self, _: Any) -> Hostile:
        return self  # copying would make the folder, too


RAN = f"/tmp/mini-fuzz-ran-{os.getpid()}"

TORCH_VALUES = (
    *(*VALUES[:20], "x", [], {}, [1], torch.zeros(0), torch.zeros(2, 3), torch.tensor(1)),
    *(torch.tensor(math.nan), torch.zeros(1, dtype=torch.complex64), torch.zeros(2).to_sparse()),
    *(torch.zeros(3, dtype=torch.bool), torch.zeros(1).expand(10**6, 10**6), Hostile(), 10**400),
)


def _torch(draw: st.DrawFn, content: bytes) -> bytes | None:
    try:
        value = torch.load(io.BytesIO(content), weights_only=True)
    except Exception:
        return None
    kind = draw(st.integers(0, 9))
    if kind == 0:
        value = deepcopy(draw(st.sampled_from(TORCH_VALUES)))
    for _ in range(draw(st.integers(1, 3))):
        paths = _paths(value)
        if not paths:
            break
        *way, last = draw(st.sampled_from(paths))
        part = value
        for key in way:
            part = part[key]
        if draw(st.integers(0, 3)) == 0:
            del part[last]
        else:
            part[last] = deepcopy(draw(st.sampled_from(TORCH_VALUES)))
    target = io.BytesIO()
    torch.save(value, target, _use_new_zipfile_serialization=kind != 1)
    return target.getvalue()


def _npz(draw: st.DrawFn, content: bytes) -> bytes | None:
    """Arrays of other shapes and types, left out, or with a hostile pickle."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception:
        return None
    name = draw(st.sampled_from(sorted(arrays)))
    array = arrays[name]
    rows = np.atleast_1d(array)
    odd = [
        *(rows[:-1], rows[:0], array.reshape(-1), array[None], array.astype(str)),
        *(np.array(7), np.array(math.nan), np.full(array.shape, 10**6), np.array([Hostile()])),
        *(-np.ones(array.shape, np.int64), np.full(array.shape, np.nan), np.array([""])),
        np.zeros((3, 0)),
    ]
    if draw(st.integers(0, 5)) == 0:
        del arrays[name]
    else:
        arrays[name] = odd[draw(st.integers(0, len(odd) - 1))]
    target = io.BytesIO()
    np.savez(target, **arrays)
    if draw(st.integers(0, 5)) == 0:
        with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{name}2.npy", b"\0" * 10**7)
    return target.getvalue()


def _picture(draw: st.DrawFn, content: bytes) -> bytes | None:
    """Another picture: a size in the header, a mode, a format under a wrong name."""
    kind = draw(st.integers(0, 3))
    if kind == 0 and content[:4] == b"\x89PNG":
        sides = st.sampled_from([0, 1, 7, 30_000, 2**31 - 1, 2**32 - 1])
        size = struct.pack(">II", draw(sides), draw(sides))
        chunk = b"IHDR" + size + content[24:29]
        return content[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[33:]
    if kind == 1:
        rng = random.Random(draw(st.integers(0, 9)))
        mode = rng.choice(["1", "L", "P", "LA", "RGBA", "CMYK", "I;16", "F", "I"])
        form = "TIFF" if mode in ("CMYK", "I;16", "F", "I") else rng.choice(["PNG", "TIFF"])
        target = io.BytesIO()
        Image.new(mode, (rng.randint(1, 300), rng.randint(1, 300))).save(target, form)
        return target.getvalue()
    if kind == 2:
        return draw(st.sampled_from(MAGIC)) + content[draw(st.integers(0, 40)) :]
    return None


def _zip(draw: st.DrawFn, content: bytes) -> bytes | None:
    """An archive with one more entry that must not be unpacked, or with damaged annotations."""
    names = ["../x.json", "/tmp/x.json", "a/../../x.txt", "C:\\x.json", "a\0.json", "", "a" * 300]
    names += [
        "annotations.json/x.txt",
        "annotations.json",
        "export/annotations.json",
        "\udce4.json",
    ]
    target = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
            for entry in old.infolist():
                text = old.read(entry)
                suffix = Path(entry.filename).suffix
                if suffix in (".json", ".xml", ".txt") and draw(st.booleans()):
                    text = _bytes(draw, text, TOKENS[suffix])
                new.writestr(entry.filename, text)
            more = zipfile.ZipInfo(draw(st.sampled_from(names)).encode(errors="replace").decode())
            more.external_attr = draw(st.sampled_from([0, 0o120777, 0o010644, 0o060644])) << 16
            method = draw(st.sampled_from([0, 8, 12, 14]))
            text = draw(st.sampled_from([b"{}", b"/etc/passwd", b"0" * 10**7]))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a name given twice
                new.writestr(more, text, method)
    except (ValueError, OSError, zipfile.BadZipFile):
        return None
    return target.getvalue()


INSIDE: dict[str, Callable[[st.DrawFn, bytes], bytes | None]] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".onnx": lambda draw, content: damaged_onnx(draw, content, _json),
    ".yaml": _yaml,
    ".safetensors": _safetensors,
    ".pt": _torch,
    ".pth": _torch,
    ".npz": _npz,
    ".png": _picture,
    ".jpg": _picture,
    ".zip": _zip,
}

# Files of another kind


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def _unreadable(path: Path) -> None:
    path.write_bytes(b"{}")
    path.chmod(0)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "absent": lambda path: None,
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "broken link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "sparse": _sparse,
    "unreadable": _unreadable,
}


def replace(path: Path, content: bytes | str) -> None:
    """Put a damaged file in the place of a valid one."""
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        SPECIAL[content](path)
