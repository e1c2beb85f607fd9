"""How a preset, a file and --set become one configuration.

Relative paths in a file are relative to the file, those of --set to the current folder; the
configuration has them all from the current folder (`config/paths.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from mini_fsod.config.auto import AUTO, auto_values
from mini_fsod.config.inputs import Shots
from mini_fsod.config.paths import paths_for, paths_from
from mini_fsod.config.presets import PRESETS
from mini_fsod.config.schema import TRAINED, Config, Online, Train
from mini_fsod.config.values import NULLS, Section, explain, quoted
from mini_fsod.errors import DataError, Problem
from mini_fsod.files import CONFIG_FILE, is_file, read_bytes
from mini_fsod.limits import QUOTED, YAML_BYTES
from mini_fsod.plain_yaml import parse_yaml


def _walk(section: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section] | None]]:
    """Every dotted key of a section in order; of a section in it also the type."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        inner = kind if isinstance(kind, type) and issubclass(kind, Section) else None
        yield f"{prefix}{name}", inner
        if inner:
            yield from _walk(inner, f"{prefix}{name}.")


SECTIONS = {key: section for key, section in _walk(Config) if section}
KEYS = tuple(key for key, section in _walk(Config) if not section)

# A key of a stage that takes the value of `train` where no layer sets it
SHARED = {f"{stage}.{name}": f"train.{name}" for stage in TRAINED for name in Train.model_fields}

# Two keys that exclude each other: setting one unsets the other.
EITHER = [
    [f"{name}.{key}" for key in kind.either] for name, kind in SECTIONS.items() if kind.either
]
HINTS = 20  # most unknown keys of a file for which a similar one is searched: that is slow
FIX = "correct it; mini presets --keys explains every key"


class Layer(NamedTuple):
    """Keys from one source, nested or dotted. Values of later layers win."""

    source: str  # as it is named in messages
    keys: Mapping[str, Any]
    named_key: str = ""  # the key that `source` itself names, as that of --set does
    is_preset: bool = False


Found = tuple[tuple[int, int], Problem]  # a problem, and its position in the order of the keys


def resolve(
    source: str | Path | Mapping[str, Any],
    sets: Sequence[str] | Mapping[str, Any] = (),
    split: str | None = None,
    shots: int | None = None,
    seed: int | None = None,
) -> Config:
    """The configuration of a preset, a file or a table of keys, changed by `KEY=VALUE`s.

    A table may name a `preset`; its values, and those of a table of changes, may be any that the
    keys take. `split`, `shots` and `seed`, set last, are short for data.split, shots.k and
    shots.seed.
    """
    problems: list[Found] = []
    if isinstance(source, Mapping):
        layers = _table_layers("the keys", source, problems)
    elif str(source) in PRESETS:
        layers = [_preset_layer(str(source))]
    else:
        layers = _file_layers(str(source), problems)
    if isinstance(sets, Mapping):
        layers.append(Layer("the overrides", sets))
    else:
        layers += [layer for text in sets for layer in _set_layers(text, problems)]
    short = (
        ("split", "data.split", split),
        ("shots", "shots.k", shots),
        ("seed", "shots.seed", seed),
    )
    for option, key, value in short:
        if value is not None:
            layers.append(Layer(f"--{option} {value}", {key: value}, key))
    return _build(layers, problems)


def is_configuration(path: Path) -> bool:
    """Whether a YAML file has keys of ours, and is not the data.yaml of YOLO."""
    if path.suffix.lower() not in (".yaml", ".yml") or not is_file(path):
        return False
    try:
        table = parse_yaml(read_bytes(path, YAML_BYTES).decode("utf-8-sig"))
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return False
    ours = {"preset", "data", "shots"}
    return isinstance(table, dict) and "names" not in table and bool(ours & table.keys())


def for_folder(config: Config, folder: Path) -> Config:
    """The configuration as a file in this folder holds it: with paths from there."""
    keys = dict(_flat(config.model_dump(mode="json")))
    return Config.model_validate(_nested(paths_for(folder, keys)))


def _preset_layer(name: str) -> Layer:
    return Layer(f"preset {name}", PRESETS[name].keys, is_preset=True)


def _file_layers(name: str, problems: list[Found]) -> list[Layer]:
    """The keys of a file, after those of the preset that it names."""
    try:
        table = parse_yaml(read_bytes(Path(name), YAML_BYTES).decode("utf-8-sig"))
        if table in (None, *NULLS):
            return []
        if not isinstance(table, dict):
            raise ValueError("does not hold keys and values, such as seed: 1")
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        if isinstance(error, FileNotFoundError):
            what = "no such file or preset" + _did_you_mean(name, PRESETS)
        fix = "give a YAML file, or one of the presets that mini presets lists"
        problems.append(_problem(Layer(name, {}), "", what, fix))
        return []
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problems.append(_problem(Layer(name, {}), "", _syntax_error(error)))
        return []
    *preset, layer = _table_layers(name, table, problems)
    keys = paths_from(Path(name).parent, dict(_flat(layer.keys)))
    return [*preset, layer._replace(keys=keys)]


def run_folder(config: str) -> tuple[str, Path]:
    """The preset or file that `config` names, and the folder of its run unless another is given.

    The folder of a run stands for its configuration.
    """
    path = Path(config)
    if config not in PRESETS and is_file(path / CONFIG_FILE):
        return str(path / CONFIG_FILE), path
    return config, Path("runs") / path.stem


def _table_layers(name: str, given: Mapping[str, Any], problems: list[Found]) -> list[Layer]:
    """The keys of a table, after those of the preset that it names."""
    table = dict(given)
    start = table.pop("preset", None)
    layer = Layer(name, table)
    if start is None:
        return [layer]
    if not isinstance(start, str) or start not in PRESETS:
        what = f"no preset is named {quoted(start)}{_did_you_mean(str(start), PRESETS)}"
        problems.append(_problem(layer, "preset", what))
        return [layer]
    return [_preset_layer(start), layer]


def _set_layers(text: str, problems: list[Found]) -> list[Layer]:
    """`KEY=VALUE`. A value in brackets or quotes is YAML, any other is taken literally."""
    key, equals, word = (part.strip() for part in text.partition("="))
    given = f"{key}{equals}{word}"
    given = given if len(given) <= QUOTED else f"{given[: QUOTED - 3]}..."
    layer = Layer(f"--set {given}", {key: word}, key)
    try:
        if not (key and equals):
            raise ValueError("must be KEY=VALUE")
        if word.startswith(("[", "{", '"', "'")):
            return [layer._replace(keys={key: parse_yaml(word)})]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problems.append(_problem(layer, key if equals else "", _syntax_error(error)))
        return []
    return [layer]


def _syntax_error(error: Exception) -> str:
    """What is wrong with a text, in one line."""
    if isinstance(error, UnicodeDecodeError):
        return "not text in UTF-8"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"invalid YAML in line {error.problem_mark.line + 1}: {error.problem}"
    words = " ".join(str(error).split())[:120]
    return words if type(error) is ValueError else f"invalid YAML: {words}"


def _build(layers: Sequence[Layer], problems: list[Found]) -> Config:
    """One configuration of all layers, or all problems at once in the order of the keys."""
    values: dict[str, Any] = {}
    sources: dict[str, Layer] = {}  # of keys, and of sections: the last layer with a key in it
    for layer in layers:
        given = dict(_flat(layer.keys))
        for n, key in enumerate([key for key in given if key not in KEYS]):
            value = given.pop(key)
            if key not in SECTIONS:
                what = _unknown(key) if n < HINTS else f"unknown key `{key[:QUOTED]}`"
                problems.append(_problem(layer, key, what))
            elif value != {} and value not in NULLS:
                problems.append(_problem(layer, key, f"must hold keys, not {quoted(value)}"))
        touched = {*given, *(section for key in given for section in _sections_of(key))}
        for pair in EITHER:
            for one, other in (pair, pair[::-1]):
                if given.get(one) not in (None, [], *NULLS):
                    given.setdefault(other, None)
            if touched & {*pair}:
                touched |= {*pair}
        values |= given
        sources |= dict.fromkeys(touched, layer)
    _fill_auto(values)
    if values.get("shots.file") not in (None, *NULLS):
        k_is_given = "shots.k" in sources and not sources["shots.k"].is_preset
        values["shots.k"] = values["shots.k"] if k_is_given else None  # as many as the file has
    shared = {key: train for key, train in SHARED.items() if key not in values and train in values}
    values |= {key: values[train] for key, train in shared.items()}
    sources |= {key: sources[train] for key, train in shared.items()}
    config = None
    try:
        config = Config.model_validate(_nested(values))
    except ValidationError as error:
        errors = [(_key_of(each["loc"]), each) for each in error.errors(include_url=False)]
        wrong = {key for key, _ in errors}
        for key, each in errors:
            if shared.get(key) in wrong:
                continue  # the same value, reported once
            owners = [sources[part] for part in (key, *_sections_of(key)) if part in sources]
            # a preset's own keys are right: another key of the section made this one wrong
            layer = next((layer for layer in owners if not layer.is_preset), owners[0])
            problems.append(_problem(layer, key, explain(each)))
    if problems or config is None:
        raise DataError([problem for _, problem in sorted(problems, key=lambda p: p[0])])
    return config


def _fill_auto(values: dict[str, Any]) -> None:
    """Replace `auto` where it depends on K. An invalid K counts as 1: it is reported anyway."""
    try:
        k = Shots.model_validate({"k": values.get("shots.k", 1)}).k or 1
    except ValidationError:
        k = 1
    start = values.get("online.start", Online.model_fields["start"].default)
    for key, value in auto_values(k, start, values.get("data.split")).items():
        if values.get(key) == AUTO:
            values[key] = value


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; an empty section is yielded itself."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in values.items():
        *sections, leaf = key.split(".")
        section = table
        for name in sections:
            section = section.setdefault(name, {})
        section[leaf] = value
    return table


def _sections_of(key: str) -> list[str]:
    """online.mingle.rpn: online.mingle and online."""
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def _key_of(location: tuple[int | str, ...]) -> str:
    """The key or section in which pydantic found an error: its location goes into lists too."""
    path = ".".join(part for part in location if isinstance(part, str))
    return next(key for key in (path, *_sections_of(path)) if key in KEYS or key in SECTIONS)


def _problem(layer: Layer, key: str, what: str, fix: str = FIX) -> Found:
    """A problem and its position in the order of the keys: unknown keys end their section."""
    section = key.partition(".")[0]
    sections = list(Config.model_fields)
    position = (
        sections.index(section) if section in sections else len(sections) if key else -1,
        KEYS.index(key) if key in KEYS else len(KEYS),
    )
    is_in_source = key == layer.named_key or key not in (*KEYS, *SECTIONS, "preset")
    return position, Problem("config", layer.source, "" if is_in_source else key, what, fix)


def _unknown(key: str) -> str:
    """Suggests the key of this name in another section, else the most similar key."""
    namesakes = [known for known in KEYS if known.rpartition(".")[2] == key.rpartition(".")[2]]
    if namesakes and ("." not in key or len(namesakes) == 1):
        return f"unknown key `{key}`: did you mean `{namesakes[0]}`?"
    return f"unknown key `{key}`" + _did_you_mean(key, namesakes or [*KEYS, *SECTIONS])


def _did_you_mean(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    folded = {name.casefold(): name for name in known}
    close = get_close_matches(word[:QUOTED].casefold(), list(folded), n=1, cutoff=0.5)
    return f": did you mean `{folded[close[0]]}`?" if close else ""
