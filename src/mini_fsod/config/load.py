"""The configuration of a run, and how a preset, a file and --set become one.

Paths are relative to the current folder, as on the command line, and kept as they were typed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, field_validator
from pydantic_core import ErrorDetails

from mini_fsod.config.presets import PRESETS, preset
from mini_fsod.config.schema import Base, Data, Detector, Mine, Online, Shots, Transfer, Tune, Views
from mini_fsod.config.values import NOTHING, Section, Whole, choice, sentence
from mini_fsod.data.text import number, shown
from mini_fsod.errors import DataError, Problem, UserError, nearest
from mini_fsod.files import open_regular
from mini_fsod.plain_yaml import Words

# In the order in which they run, and the sections that each is the first to depend on
OWN_SECTIONS = {
    "base": ("base",),
    "transfer": ("shots", "transfer"),
    "mine": ("mine",),
    "online": ("online",),
    "tune": ("tune",),
}
STAGES = tuple(OWN_SECTIONS)
# The key of a stage by which its result is taken from elsewhere
GIVEN = {"base": "checkpoint", "transfer": "checkpoint", "mine": "given", "online": "checkpoint"}
TRAINED = tuple(stage for stage in STAGES if stage != "mine")
ASKED_OF_MINE = ("images", "drop_on_base", "drop_nested")  # by the stage `online`

# Keys that say the same thing in two ways: who gives one takes the other back.
EITHER = (
    ("data.split", "data.novel"),
    ("shots.official", "shots.file"),
    *((f"{stage}.iterations", f"{stage}.minutes") for stage in TRAINED),
)
MOST_BYTES = 1 << 20  # of a file of keys
FIX = "correct it; mini presets photos shows every key, and what it means"

# pydantic's findings in words
PLAIN = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a word",
    "path_type": "must be a path",
    "too_short": "must hold at least one value",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}

Layer = tuple[str, Mapping[str, Any]]  # where its keys come from; the keys, nested or dotted
Found = tuple[tuple[int, int], Problem]  # a problem and its place in the order of the keys


class Config(Section):
    seed: Whole = 0  # of training and of new rows; shots have their own
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    data: Data = Data()
    shots: Shots = Shots()
    detector: Detector = Detector()
    views: Views = Views()
    base: Base = Base()
    transfer: Transfer = Transfer()
    mine: Mine = Mine()
    online: Online = Online()
    tune: Tune = Tune()

    @field_validator("device")
    @classmethod
    def _known(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", value):
            raise ValueError(choice(value, ["auto", "cpu", "cuda", "cuda:1"]))
        return value

    def ready(self) -> None:
        """What a run needs and no default can know."""
        keys, sets = [], []
        if self.data.root is None:
            keys.append("data.root")
            sets.append("--set data.root=FOLDER")
        if self.data.split is None and not self.data.novel:
            keys.append("data.split or data.novel")
            sets.append("--set data.split=voc-split1 (or data.novel=bird,bus)")
        if keys:
            raise UserError(
                f"The configuration lacks {' and '.join(keys)}.", f"Add {' '.join(sets)}."
            )

    def to_yaml(self) -> str:
        """Every key with its value, always in the same order."""
        table = self.model_dump(mode="json")
        return yaml.dump(
            table, None, _Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize
        )


def _keys(section: type[Section], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Every dotted key of a section in order, and whether it is a section itself."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        inner = kind if isinstance(kind, type) and issubclass(kind, Section) else None
        yield f"{prefix}{name}", inner is not None
        if inner is not None:
            yield from _keys(inner, f"{prefix}{name}.")


SECTIONS = tuple(key for key, is_section in _keys(Config) if is_section)
KEYS = tuple(key for key, is_section in _keys(Config) if not is_section)


def parts(config: Config, stage: str) -> dict[str, Any]:
    """What the result of a stage depends on, ready for JSON.

    A result that is given is what counts, not how one would come to it.
    """
    kept = config.model_dump(
        mode="json",
        exclude={
            "device": True,
            "data": {"cache", "feed"},
            **{stage: {"save_seconds"} for stage in TRAINED},
        },
    )
    for trained in TRAINED:
        kept[trained]["rate"] = getattr(config, trained).learning_rate
    for own, key in GIVEN.items():
        if kept[own][key] is not None:
            # re-training asks more of the section of mining than what was mined
            more = (*ASKED_OF_MINE, "extra") if own == "mine" else ()
            kept[own] = {name: kept[own][name] for name in (key, *more)}
        else:
            del kept[own][key]
    for later in STAGES[STAGES.index(stage) + 1 :]:
        if (stage, later) == ("mine", "online") and config.mine.rounds > 1:
            continue  # its earlier rounds re-train too
        for section in OWN_SECTIONS[later]:
            del kept[section]
    if stage in ("online", "tune") and "mine" not in stages_of(config, stage):
        kept["mine"] = config.mine.model_dump(include={*ASKED_OF_MINE})
        # one for every K, if it has no use for the shots either
        tuned = stage == "tune" and config.tune.data != "none"
        for section in ("base", "transfer", *([] if config.online.shots or tuned else ["shots"])):
            del kept[section]
    return kept


def stages_of(config: Config, last: str) -> tuple[str, ...]:
    """The stages that lead to the result of the last one, in order.

    An oracle that begins from nothing needs none before its training.
    """
    lead = STAGES[: STAGES.index(last) + 1]
    if "online" in lead and config.online.oracle and config.online.start == "weights":
        return lead[lead.index("online") :]
    return lead


def resolve(source: str, sets: Sequence[str] = ()) -> Config:
    """The configuration of a preset's name or a file, changed by `KEY=VALUE`s: the later wins."""
    problems: list[Found] = []
    layers = _of_preset(source) if source in PRESETS else _of_file(source, problems)
    layers += [layer for text in sets for layer in _of_set(text, problems)]
    return _build(layers, problems)


def from_file(path: Path) -> Config:
    problems: list[Found] = []
    return _build(_of_file(str(path), problems), problems)


def _of_preset(name: str) -> list[Layer]:
    return [(f"preset {name}", preset(name))]


def _of_file(name: str, problems: list[Found]) -> list[Layer]:
    """The keys of a file, and before them those of the preset it starts from."""
    try:
        with open_regular(Path(name)) as source:
            content = source.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError("far too large for a configuration")
        table = yaml.load(content.decode("utf-8-sig"), Words)
        if table in (None, *NOTHING):
            return []
        if not isinstance(table, dict):
            raise ValueError("not a table of keys, such as seed: 1")
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        if isinstance(error, FileNotFoundError):
            what = "no such file, nor a preset of this name" + sentence(nearest(name, PRESETS))
        problems.append(_found(name, "", what, "give a YAML file, or a name mini presets lists"))
        return []
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problems.append(_found(name, "", _broken(error)))
        return []
    start = table.pop("preset", None)
    if start is None:
        return [(name, table)]
    if not isinstance(start, str) or start not in PRESETS:
        near = sentence(nearest(str(start), PRESETS))
        problems.append(_found(name, "preset", f"no preset is called {shown(start)}{near}"))
        return [(name, table)]
    return [*_of_preset(start), (name, table)]


def _of_set(text: str, problems: list[Found]) -> list[Layer]:
    """`KEY=VALUE`. A value in brackets or quotes is YAML, any other is taken as it stands."""
    key, equals, word = (part.strip() for part in text.partition("="))
    source = f"--set {key}{equals}{word}"
    value: Any = word
    try:
        if not (key and equals):
            raise ValueError("not of the form KEY=VALUE")
        if word.startswith(("[", "{", '"', "'")):
            value = yaml.load(word, Words)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problems.append(_found(source, key if equals else "", _broken(error)))
        return []
    return [(source, {key: value})]


def _broken(error: Exception) -> str:
    """What is wrong with a text, in one line."""
    if isinstance(error, UnicodeDecodeError):
        return "not text in UTF-8"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"broken YAML in line {error.problem_mark.line + 1}: {error.problem}"
    words = " ".join(str(error).split())[:120]
    return words if type(error) is ValueError else f"broken YAML: {words}"


def _build(layers: Sequence[Layer], problems: list[Found]) -> Config:
    """One configuration of all layers, or every problem at once in the order of the keys."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}  # of keys, and of sections: who touched them last
    for source, table in layers:
        given = dict(_flat(table))
        for key in [key for key in given if key not in KEYS]:
            value = given.pop(key)
            if key not in SECTIONS:
                problems.append(_found(source, key, "no such key" + _near(key)))
            elif value != {} and value not in NOTHING:
                problems.append(_found(source, key, f"must hold keys, not {_shown(value)}"))
        touched = {*given, *(key[:dot] for key in given for dot in _dots(key))}
        for pair in EITHER:
            for one, other in (pair, pair[::-1]):
                if given.get(one) not in (None, [], *NOTHING):
                    given.setdefault(other, None)
            if touched & {*pair}:
                touched |= {*pair}
        values |= given
        sources |= dict.fromkeys(touched, source)
    config = None
    try:
        config = Config.model_validate(_nested(values))
    except ValidationError as error:
        for wrong in error.errors(include_url=False):
            words = [part for part in wrong["loc"] if isinstance(part, str)]
            tried = [".".join(words[:n]) for n in range(len(words), 0, -1)]
            key = next(key for key in tried if key in KEYS or key in SECTIONS)
            source = next(sources[key] for key in tried if key in sources)
            problems.append(_found(source, key, _words(wrong)))
    if problems or config is None:
        raise DataError([problem for _, problem in sorted(problems, key=lambda p: p[0])])
    return config


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; a section without keys is one itself."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in values.items():
        *sections, leaf = key.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return table


def _dots(key: str) -> list[int]:
    return [n for n, letter in enumerate(key) if letter == "."]


def _found(source: str, key: str, what: str, fix: str = FIX) -> Found:
    """A problem, with its place in the order of the keys: unknown ones after their section's."""
    section = key.partition(".")[0]
    sections = list(Config.model_fields)
    place = (
        sections.index(section) if section in sections else len(sections) if key else -1,
        KEYS.index(key) if key in KEYS else len(KEYS),
    )
    record = "" if source.startswith(f"--set {key}=") else key
    return place, Problem("config", source, record, what, fix)


def _near(key: str) -> str:
    """The key that may be meant: one of the same name in another section, else one spelt alike."""
    namesakes = [known for known in KEYS if known.rpartition(".")[2] == key.rpartition(".")[2]]
    if namesakes and ("." not in key or len(namesakes) == 1):
        return f'. Did you mean "{namesakes[0]}"?'
    return sentence(nearest(key, namesakes or [*KEYS, *SECTIONS]))


def _words(wrong: ErrorDetails) -> str:
    """pydantic's finding in plain words."""
    value, limits = wrong["input"], wrong.get("ctx", {})
    if wrong["type"] == "value_error":
        return str(limits["error"])
    if wrong["type"] == "literal_error":
        known = str(limits["expected"]).replace("'", "").replace(" or ", ", ").lower()
        return choice(value, known.split(", "))
    if wrong["type"] not in PLAIN:
        return wrong["msg"]
    return f"{PLAIN[wrong['type']].format(**limits)}, not {_shown(value)}"


def _shown(value: Any) -> str:
    """A value in a message. Numbers are words in files, and need no quotes."""
    if isinstance(value, str) and len(value) < 30:
        with suppress(ValueError):
            number(value)
            return value
    return shown(value)


class _Dumper(yaml.SafeDumper):
    """Lists in one line; line breaks escaped: PyYAML writes some that it then reads as blanks."""

    def represent_line(self, value: list[Any]) -> yaml.Node:
        return self.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)

    def represent_word(self, value: str) -> yaml.Node:
        style = None if value.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(list, _Dumper.represent_line)
_Dumper.add_representer(str, _Dumper.represent_word)
