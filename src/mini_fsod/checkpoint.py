"""A detector in one safetensors file: weights, settings, classes, and where it comes from.

The file's metadata has one key, "mini", with JSON: `format`, `settings` (`DetectorSettings`),
`labels`, `about` (the caller's plain values: stage, iterations, seed, weights ...), and in slim
files `left_out`. The same weights give the same bytes: no time of day, no host in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from mini_fsod.config.schema import STAGES
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import DetectorSettings
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, is_folder, real, write_bytes
from mini_fsod.labels import LabelMap

About = dict[str, str | int | float | None]

FORMAT = 1
NAME = "checkpoint.safetensors"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Frozen parameters that a slim file does not hold: they come back from `about["weights"]`."""

    tensors: tuple[str, ...]
    sha256: str  # `fingerprint` of them


@dataclass(frozen=True, slots=True)
class Header:
    """All that a checkpoint says without its tensors."""

    settings: DetectorSettings
    labels: LabelMap
    about: About
    left_out: LeftOut | None


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    detector: Detector
    labels: LabelMap
    about: About


@dataclass(frozen=True, slots=True)
class Slimmed:
    """What `slim` did."""

    left_out: int  # frozen parameters
    kept: str  # why frozen ones were kept; empty where they are left out, or nothing is frozen
    whole: tuple[str, ...]  # weights beyond float16's range


def save(path: Path, detector: Detector, labels: LabelMap, about: About) -> None:
    """Write the detector, whole or not at all. `about["weights"]` is what its backbone began as:
    the name or file given to `make_backbone`, None if nothing.
    """
    header = Header(detector.settings, labels, about, None)
    _write(path, detector.state_dict(), header)


def load(path: Path, weights: str | Path | None = None) -> Saved:
    """The detector on the CPU, as saved. Full files need nothing else.

    A slim file takes its frozen layers from `weights` if given, else from `about["weights"]`, a
    file of which may also lie beside the checkpoint; that they are the right ones is verified.
    Random numbers of the caller are not touched.
    """
    header, state = _read(path)
    if header.left_out is None:
        detector = _build(path, header.settings)
    else:
        source = weights if weights is not None else header.about.get("weights")
        detector = _rebuild_frozen(path, header.settings, header.left_out, source)
        whole = detector.state_dict()
        state = {name: whole[name] for name in header.left_out.tensors} | state
    _fill(path, detector, state)
    return Saved(detector, header.labels, header.about)


def read_header(path: Path) -> Header:
    """Settings, classes and origin; quick, no tensor is read."""
    return _read(path, tensors=False)[0]


def slim(path: Path, out: Path) -> Slimmed:
    """A smaller file that `load` takes too: weights in float16, frozen layers left out.

    Float16 is for the weights of convolutions and layers; biases, norms and whatever is beyond
    float16's range stay as they are. Frozen layers are left out only where `about["weights"]` is
    at hand and gives them back bit by bit.
    """
    if real(out) == real(path):
        raise UserError(f"{out}: the checkpoint itself would be lost.", "Choose another -o.")
    saved = load(path)
    detector = saved.detector
    small = detector.state_dict()
    frozen = _frozen(detector)
    left_out, kept = LeftOut(frozen, fingerprint(small[name] for name in frozen)), ""
    if frozen:
        try:
            _rebuild_frozen(path, detector.settings, left_out, saved.about.get("weights"))
        except UserError as error:
            left_out, kept = LeftOut((), ""), error.what
    for name in left_out.tensors:
        del small[name]
    whole = []
    for name, parameter in detector.named_parameters():
        if name in small and parameter.dim() > 1:
            half = parameter.half()
            if half.isfinite().all():
                small[name] = half
            else:
                whole.append(name)
    origin = left_out if left_out.tensors else None
    _write(out, small, Header(detector.settings, saved.labels, saved.about, origin))
    return Slimmed(len(left_out.tensors), kept, tuple(whole))


def find(run_or_checkpoint: Path) -> Path:
    """A checkpoint itself, that of a stage's folder, or that of a run's last finished stage."""
    place = run_or_checkpoint
    if is_file(place):
        return place
    if not is_folder(place):
        raise UserError(
            f"{place}: there is no such file or folder.", "Give a run's folder or a checkpoint."
        )
    if is_file(place / NAME):
        return place / NAME
    for stage in reversed(STAGES):
        given = _given(place / stage)
        known = [place / stage / NAME]
        if given is not None:  # the run's own may have moved with it
            known += [given, place / given.parent.name / NAME]
        for path in known:
            if is_file(path):
                return path
        if given is not None:  # an earlier stage's would be another detector
            raise UserError(
                f"{place}: the checkpoint of {stage} was given, and is not there: {given}.",
                "Put it back, or name the checkpoint you mean.",
            )
    raise UserError(
        f"{place}: no checkpoint in it. Looked for {NAME} there and in {', '.join(STAGES)}.",
        "Give the folder of a run with a finished stage, or a checkpoint.",
    )


def _given(stage: Path) -> Path | None:
    """The checkpoint of a stage that took a finished one, as its figures tell."""
    try:
        return Path(json.loads((stage / "metrics.json").read_bytes())["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """sha256 of the tensors' shapes and values, in this order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


# Writing and reading


def _write(path: Path, state: Mapping[str, Tensor], header: Header) -> None:
    if header.settings.num_classes != len(header.labels.classes):
        raise ValueError("the detector and the label map have different numbers of classes")
    said: dict[str, Any] = {
        "format": FORMAT,
        "settings": header.settings.to_json(),
        "labels": {"base": header.labels.base, "novel": header.labels.novel},
        "about": header.about,
    }
    if header.left_out:
        said["left_out"] = {
            "tensors": header.left_out.tensors,
            "sha256": header.left_out.sha256,
        }
    metadata = {"mini": json.dumps(said, sort_keys=True, allow_nan=False)}
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    write_bytes(path, to_bytes(tensors, metadata))


def _read(path: Path, tensors: bool = True) -> tuple[Header, dict[str, Tensor]]:
    if not is_file(path):
        raise UserError(
            f"{path}: there is no such checkpoint.", "Give the path of a .safetensors file."
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = _header(path, file.metadata() or {})
            names = file.keys() if tensors else []
            return header, {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise UserError(
            f"{path}: torn, or no safetensors file at all ({error}).",
            "Copy it again, or repeat the stage that wrote it.",
        ) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error}).", "Check its rights."
        ) from None


def _header(path: Path, metadata: Mapping[str, str]) -> Header:
    if "mini" not in metadata:
        raise UserError(
            f"{path}: a safetensors file, but no checkpoint of mini.",
            "Weights of a backbone belong into detector.weights.",
        )
    fix = "Copy it again, or repeat the stage that wrote it."
    try:
        said = json.loads(metadata["mini"])
        if said["format"] > FORMAT:
            raise UserError(
                f"written by a newer mini (format {said['format']}, this one knows {FORMAT}).",
                "Update mini.",
            )
        if "settings" not in said:
            raise UserError(
                "it holds weights of a backbone, not a detector.",
                "Give it as detector.weights or mine.discriminator, or name a checkpoint.",
            )
        settings = DetectorSettings.from_json(said["settings"])
        labels = LabelMap(tuple(said["labels"]["base"]), tuple(said["labels"]["novel"]))
        names = [name for name in labels.classes if isinstance(name, str)]
        if settings.num_classes != len(names):
            raise UserError(f"{len(names)} class names for {settings.num_classes} classes.", fix)
        gone = said.get("left_out")
        left_out = gone and LeftOut(tuple(gone["tensors"]), gone["sha256"])
        return Header(settings, labels, dict(said["about"]), left_out)
    except UserError as error:
        raise UserError(f"{path}: {error.what}", error.fix) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: its description cannot be read ({error!r}).", fix) from None


def _build(path: Path, settings: DetectorSettings, weights: str | Path | None = None) -> Detector:
    try:
        with torch.random.fork_rng(devices=[]):  # new weights are drawn, then written over
            return Detector(settings, weights)
    except UserError as error:
        raise UserError(f"{path}: {error.what}", error.fix) from None
    except Exception as error:  # torch and timm raise what they like on odd settings or weights
        raise UserError(
            f"{path}: no detector can be made of its settings ({error}).", "Copy it again."
        ) from None


def _fill(path: Path, detector: Detector, state: Mapping[str, Tensor]) -> None:
    """All tensors of the detector from the state, or an error with the first that does not fit."""
    wanted = detector.state_dict()
    wrong = [f"{name} is missing" for name in wanted if name not in state]
    wrong += [f"{name} is there and unknown" for name in state if name not in wanted]
    wrong += [
        f"{name} has shape {tuple(value.shape)} instead of {tuple(wanted[name].shape)}"
        for name, value in state.items()
        if name in wanted and value.shape != wanted[name].shape
    ]
    if wrong:
        others = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        raise UserError(
            f"{path}: the weights are not those of its settings: {wrong[0]}{others}.",
            "Copy it again, or repeat the stage that wrote it.",
        )
    detector.load_state_dict(dict(state))


# Frozen layers


def _frozen(detector: Detector) -> tuple[str, ...]:
    """Parameters of the frozen stages. Their norms' factors are not among them: they were computed
    and may differ in the last bit between machines, and they are small.
    """
    named = detector.backbone.named_parameters(prefix="backbone")
    return tuple(name for name, p in named if not p.requires_grad)


def _rebuild_frozen(
    path: Path,
    settings: DetectorSettings,
    left_out: LeftOut,
    weights: str | Path | int | float | None,
) -> Detector:
    """A detector whose frozen layers are those that were left out; all else is still random."""
    if not isinstance(weights, str | Path):
        raise UserError(
            f"{path}: it does not say which weights its frozen layers come from.",
            "Give the weights the backbone began with.",
        )
    source = _beside(path, weights)
    put = f"Put the {Path(weights).name} it was trained from beside the checkpoint."
    try:
        detector = _build(path, settings, source)
    except UserError as error:
        raise UserError(
            f"{error.what} The checkpoint is slim: its frozen layers come from there.",
            put if Path(weights).suffix else error.fix,
        ) from None
    state = detector.state_dict()
    try:
        found = fingerprint(state[name] for name in left_out.tensors)
    except KeyError as error:
        raise UserError(
            f"{path}: {error} was left out, but no detector has it.", "Copy it again."
        ) from None
    if found != left_out.sha256:
        raise UserError(
            f"{path}: {source} holds other weights than those its frozen layers come from.",
            put,
        )
    return detector


def _beside(path: Path, weights: str | Path) -> str | Path:
    """A file of weights where it was, else under the same name beside the checkpoint."""
    neighbour = path.parent / Path(weights).name
    return neighbour if not is_file(Path(weights)) and is_file(neighbour) else weights
