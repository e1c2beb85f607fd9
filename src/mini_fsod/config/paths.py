"""Paths in a configuration file are relative to the file, so that both can be moved together.

Those of --set and of presets are relative to the current folder, as everywhere on the command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mini_fsod.config.schema import Config
from mini_fsod.config.values import NULLS, TORCHVISION, NameOrFile, Section, UserPath
from mini_fsod.files import is_file
from mini_fsod.remote import URL


def _keys_of(kind: Any, section: type[Section] = Config, prefix: str = "") -> Iterator[str]:
    """The dotted keys that hold values of a kind, or null."""
    mark = get_args(kind)[1]  # the validator of paths
    for name, hint in get_type_hints(section, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _keys_of(kind, hint, f"{prefix}{name}.")
        for part in (hint, *get_args(hint)):
            arguments = get_args(part)
            if arguments[:1] == get_args(kind)[:1] and mark in arguments:
                yield f"{prefix}{name}"


PATH_KEYS = frozenset(_keys_of(UserPath))
NAME_KEYS = frozenset(_keys_of(NameOrFile))  # a file, MODEL:FILE, or a name that is no file


def paths_from(folder: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys of a file in this folder, with paths from the current folder."""

    def moved(path: str) -> str:
        return os.path.normpath(folder / path)

    return _moved(keys, folder, moved)


def paths_for(folder: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys with paths from the current folder, as a file in this folder holds them."""

    def moved(path: str) -> str:
        return os.path.relpath(path, folder)

    return _moved(keys, Path(), moved)


def _moved(keys: Mapping[str, Any], folder: Path, moved: Any) -> dict[str, Any]:
    """Relative paths, and names of files that are in the folder, are `moved`."""
    result = dict(keys)
    for key in PATH_KEYS & keys.keys():
        value = keys[key]
        if isinstance(value, str | Path) and str(value) not in NULLS and _is_relative(str(value)):
            result[key] = moved(str(value))
    for key in NAME_KEYS & keys.keys():
        text = str(keys[key])
        for name in (text, text.partition(":")[2]):
            if name and _is_relative(name) and is_file(folder / name):
                result[key] = text.removesuffix(name) + moved(name)
                break
    return result


def _is_relative(path: str) -> bool:
    return not (path.startswith(("/", "~", TORCHVISION)) or URL.match(path))
