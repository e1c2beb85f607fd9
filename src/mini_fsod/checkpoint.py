"""A detector in one safetensors file: weights, settings, classes and origin.

The file's metadata has one key, "mini", with JSON: `format`, `settings` (`DetectorSettings`),
`labels`, `about` (plain values of the caller: stage, iterations, seed, weights ...), and in slim
files `left_out`. Equal detectors give equal bytes: no date and no host name are stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from mini_fsod.config.schema import TRAINED
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import DetectorSettings
from mini_fsod.detector.weights import PICKLES, first_line, refuse_large, tensor_names
from mini_fsod.errors import UserError
from mini_fsod.files import CHECKPOINT_FILE, DETECTOR_FILE, is_file, is_folder, real, write_bytes
from mini_fsod.labels import LabelMap
from mini_fsod.state_files import Count, Finite, Kind, check_kind

About = dict[str, str | int | float | None]

FORMAT = 1
COPY_AGAIN = "Copy it again, or repeat the stage that wrote it."


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Frozen parameters that a slim file lacks; `load` takes them from `about["weights"]`."""

    tensors: tuple[str, ...]
    sha256: str  # `hash_tensors` of them


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in a checkpoint but its tensors."""

    settings: DetectorSettings
    labels: LabelMap
    about: About
    left_out: LeftOut | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A loaded checkpoint."""

    detector: Detector
    labels: LabelMap
    about: About


@dataclass(frozen=True, slots=True)
class Slimmed:
    """What `slim` did."""

    left_out: int  # number of frozen parameters left out
    kept: str  # why frozen parameters were kept; empty if left out, or if nothing is frozen
    float32: tuple[str, ...]  # weights kept in float32, being beyond the range of float16


def save(path: Path, detector: Detector, labels: LabelMap, about: About) -> None:
    """Write the detector, atomically.

    `about["weights"]` is what its backbone started from: the name or file given to
    `make_backbone`, None for random weights.
    """
    _write(path, detector.state_dict(), Header(detector.settings, labels, about))


def load(path: Path, weights: str | Path | None = None) -> Saved:
    """The detector on the CPU, as saved.

    A slim file takes its frozen layers from `weights` if given, else from `about["weights"]`; that
    file may also lie beside the checkpoint. Their hash is checked. A checkpoint makes nobody read a
    pickle: if it names one, the .safetensors file of the same name is read instead. The caller's
    random state does not change.
    """
    header, state = _read(path)
    _refuse_other_sizes(path, header, state)
    if header.left_out is None:
        detector = _build(path, header.settings)
    else:
        source = weights if weights is not None else _named_weights(header.about)
        detector = _rebuild_frozen(path, header.settings, header.left_out, source)
        rebuilt = detector.state_dict()
        state = {name: rebuilt[name] for name in header.left_out.tensors} | state
    _fill(path, detector, state)
    return Saved(detector, header.labels, header.about)


def read_header(path: Path) -> Header:
    """Settings, classes and origin, without reading tensors."""
    return _read(path, tensors=False)[0]


def slim(path: Path, out: Path) -> Slimmed:
    """Write a smaller file that `load` reads too: weights in float16, frozen layers left out.

    Biases, norms and weights beyond float16's range keep float32. Frozen layers are left out only
    if `about["weights"]` is available and holds exactly the same values.
    """
    if real(out) == real(path):
        raise UserError(f"{out}: this would overwrite the checkpoint itself.", "Choose another -o.")
    saved = load(path)
    detector = saved.detector
    state = detector.state_dict()
    # without the norms' scales and shifts: computed, so that their last bit may differ between
    # machines, and few
    named = detector.backbone.named_parameters(prefix="backbone")
    frozen = tuple(name for name, parameter in named if not parameter.requires_grad)
    left_out, kept = LeftOut(frozen, hash_tensors(state[name] for name in frozen)), ""
    if frozen:
        try:
            _rebuild_frozen(path, detector.settings, left_out, _named_weights(saved.about))
        except UserError as error:
            left_out, kept = LeftOut((), ""), error.what
    for name in left_out.tensors:
        del state[name]
    float32 = []
    for name, parameter in detector.named_parameters():
        if name in state and parameter.dim() > 1:
            half = parameter.half()
            if half.isfinite().all():
                state[name] = half
            else:
                float32.append(name)
    missing = left_out if left_out.tensors else None
    _write(out, state, Header(detector.settings, saved.labels, saved.about, missing))
    return Slimmed(len(left_out.tensors), kept, tuple(float32))


def find(path: Path, stage: str | None = None) -> Path:
    """The checkpoint that a file, a stage's folder or a run stands for.

    Of a run: that of the stage; without one its `detector.safetensors` if that has novel classes
    alone (`only_novel`), else that of its last trained stage. The two are the same otherwise, and a
    copied run may have kept the first alone.
    """
    if is_file(path):
        return path
    if not is_folder(path):
        raise UserError(f"{path}: does not exist.", "Give a run's folder or a checkpoint.")
    if stage is None and _is_novel_alone(path / DETECTOR_FILE):
        return path / DETECTOR_FILE
    stages = reversed(TRAINED) if stage is None else [stage]
    names = [CHECKPOINT_FILE, *(f"{name}/{CHECKPOINT_FILE}" for name in stages)]
    for name in names if stage else [*names, DETECTOR_FILE]:
        if is_file(path / name):
            return path / name
    raise UserError(
        f"{path}: there is no {stage or 'trained'} detector.",
        f"Give a checkpoint, or the folder of a run that has trained {stage or 'a detector'}.",
    )


def _is_novel_alone(path: Path) -> bool:
    try:
        return is_file(path) and not read_header(path).labels.base
    except UserError:  # whoever reads it says what is wrong
        return False


def hash_tensors(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the tensors' types, shapes and values, in this order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


# Writing and reading


class _Format(Kind):
    format: Count


class _Labels(Kind):
    base: list[str]
    novel: list[str]


class _LeftOut(Kind):
    tensors: list[str]
    sha256: str


class _Metadata(_Format):
    labels: _Labels
    about: dict[str, str | int | Finite | None]
    left_out: _LeftOut | None = None


def _write(path: Path, state: Mapping[str, Tensor], header: Header) -> None:
    if header.settings.num_classes != len(header.labels.classes):
        raise ValueError("the detector and the label map have different numbers of classes")
    known = {key: value for key, value in asdict(header).items() if value is not None}
    metadata = {"mini": json.dumps({"format": FORMAT, **known}, sort_keys=True, allow_nan=False)}
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    write_bytes(path, to_bytes(tensors, metadata))


def _read(path: Path, tensors: bool = True) -> tuple[Header, dict[str, Tensor]]:
    if not is_file(path):
        raise UserError(
            f"{path}: this checkpoint does not exist.", "Give the path of a .safetensors file."
        )
    try:
        refuse_large(path)
        with safe_open(path, framework="pt") as file:
            header = _header(path, file.metadata() or {})
            names = tensor_names(file) if tensors else []
            return header, {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise UserError(
            f"{path}: incomplete, or not a safetensors file ({error}).", COPY_AGAIN
        ) from None
    except (OSError, ValueError, MemoryError) as error:
        fix = "Check its permissions." if isinstance(error, OSError) else COPY_AGAIN
        raise UserError(f"{path}: cannot be read ({first_line(error)}).", fix) from None


def _header(path: Path, metadata: Mapping[str, str]) -> Header:
    if "mini" not in metadata:
        raise UserError(
            f"{path}: a safetensors file, but not a checkpoint of mini.",
            "If it holds weights of a backbone, set detector.weights instead.",
        )
    try:
        content = json.loads(metadata["mini"])
        if check_kind(content, _Format)["format"] > FORMAT:
            raise UserError(
                f"written by a newer mini (format {content['format']}; this one reads {FORMAT}).",
                "Update mini.",
            )
        if "settings" not in content:
            raise UserError(
                "it holds weights of a backbone, not a detector.",
                "Set it as detector.weights or discriminator.weights, or give a checkpoint.",
            )
        check_kind(content, _Metadata)
        settings = DetectorSettings.from_json(content["settings"])
        labels = LabelMap(tuple(content["labels"]["base"]), tuple(content["labels"]["novel"]))
        if settings.num_classes != len(set(labels.classes)):
            raise UserError(
                f"{len(set(labels.classes))} class names for {settings.num_classes} classes.",
                COPY_AGAIN,
            )
        frozen = content.get("left_out")
        left_out = frozen and LeftOut(tuple(frozen["tensors"]), frozen["sha256"])
        return Header(settings, labels, dict(content["about"]), left_out)
    except UserError as error:
        raise UserError(f"{path}: {error.what}", error.fix) from None
    except (ValueError, RecursionError) as error:
        why = str(error)[:200]
        raise UserError(f"{path}: its metadata cannot be read ({why}).", COPY_AGAIN) from None


def _build(path: Path, settings: DetectorSettings, weights: str | Path | None = None) -> Detector:
    try:
        with torch.random.fork_rng(devices=[]):  # random weights are drawn, then overwritten
            return Detector(settings, weights)
    except UserError as error:
        raise UserError(f"{path}: {error.what}", error.fix) from None
    except Exception as error:  # torch and timm raise anything on bad settings or weights
        raise UserError(
            f"{path}: no detector can be built from its settings ({error}).", COPY_AGAIN
        ) from None


def _refuse_other_sizes(path: Path, header: Header, state: Mapping[str, Tensor]) -> None:
    """Compare with a detector without memory: settings alone could ask for any amount of it."""
    try:
        with torch.device("meta"):
            wanted = _build(path, header.settings).state_dict()
    except UserError:  # also timm's models that need memory; `_build` says what is wrong
        return
    left_out = header.left_out.tensors if header.left_out else ()
    frozen = {name for name in left_out if name.startswith("backbone.")}
    _refuse_wrong(path, {n: value for n, value in wanted.items() if n not in frozen}, state)


def _refuse_wrong(path: Path, wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """UserError with the first tensor that does not fit the detector."""
    wrong = [f"{name} is missing" for name in wanted if name not in state]
    wrong += [f"{name} is unknown" for name in state if name not in wanted]
    wrong += [
        f"{name} has shape {tuple(value.shape)} instead of {tuple(wanted[name].shape)}"
        for name, value in state.items()
        if name in wanted and value.shape != wanted[name].shape
    ]
    if wrong:
        others = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        raise UserError(
            f"{path}: the weights do not fit its settings: {wrong[0]}{others}.", COPY_AGAIN
        )


def _fill(path: Path, detector: Detector, state: Mapping[str, Tensor]) -> None:
    _refuse_wrong(path, detector.state_dict(), state)
    detector.load_state_dict(dict(state))


# Frozen layers


def _named_weights(about: About) -> str | int | float | None:
    """The weights that a checkpoint names itself, never a pickle."""
    name = about.get("weights")
    if isinstance(name, str) and name.endswith(PICKLES):
        while name.endswith(PICKLES):  # .pth.tar
            name = name.rpartition(".")[0]
        name += ".safetensors"
    return name


def _rebuild_frozen(
    path: Path,
    settings: DetectorSettings,
    left_out: LeftOut,
    weights: str | Path | int | float | None,
) -> Detector:
    """A detector with the frozen layers that were left out; all others are still random."""
    if not isinstance(weights, str | Path):
        raise UserError(
            f"{path}: it does not name the weights that its frozen layers come from.",
            "Give the weights that the backbone started from.",
        )
    neighbour = path.parent / Path(weights).name
    is_beside = neighbour.suffix == ".safetensors" and is_file(neighbour)
    source = neighbour if is_beside and not is_file(Path(weights)) else weights
    fix = (
        f"Put {Path(weights).name}, from which it was trained, beside the checkpoint. A .pth file "
        "is read only if you give it, as detector.weights of a run."
    )
    try:
        detector = _build(path, settings, source)
    except UserError as error:
        raise UserError(
            f"{error.what} The checkpoint is slim: its frozen layers come from these weights.",
            fix if Path(weights).suffix else error.fix,
        ) from None
    state = detector.state_dict()
    try:
        found = hash_tensors(state[name] for name in left_out.tensors)
    except KeyError as error:
        raise UserError(
            f"{path}: {error} was left out, but the detector has no such tensor.", COPY_AGAIN
        ) from None
    if found != left_out.sha256:
        raise UserError(
            f"{path}: its frozen layers come from other weights than those in {source}.", fix
        )
    return detector
