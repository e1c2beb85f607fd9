"""Large JSON objects record by record, in constant memory.

COCO files may have a gigabyte, and a wrong file may have any size. The standard decoder builds all
of it in memory before its structure can be checked. Here, each record is parsed, yielded and
dropped, and the first syntax error ends the reading.
"""

from __future__ import annotations

import codecs
import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mini_fsod.files import length_of, open_regular
from mini_fsod.limits import (
    COCO_BYTES,
    DETECTIONS_BYTES,
    FIRST_KEYS_BYTES,
    JSON_KEYS,
    JSON_NON_OBJECTS,
    RECORD_CHARACTERS,
)

CHUNK = 1 << 22  # bytes read at a time
DELIMITERS = set(" \t\n\r,:]}")
ENDS = "the file ends here, incomplete"

_not_space = re.compile(r"[^ \t\n\r]")


class RepeatedKey(dict[str, Any]):
    """An object in which `key` is given twice: what it means is not known."""

    key = ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) == len(pairs):
        return record
    repeated = RepeatedKey(record)
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            repeated.key = key
            break
        keys.add(key)
    return repeated


_scan: Any = json.JSONDecoder(object_pairs_hook=_object).scan_once  # type: ignore[attr-defined]


class JsonError(Exception):
    """A syntax error, and the record it is in, such as "annotations[17]"."""

    def __init__(self, record: str, what: str) -> None:
        super().__init__(what)
        self.record = record
        self.what = what


def records(path: Path) -> Iterator[tuple[str, int, Any]]:
    """(key, index, element) of every top-level list, (key, -1, value) of every other value.

    An empty list is (key, -1, []). An object with a key given twice is a RepeatedKey.
    """
    with _open(path, COCO_BYTES) as source:
        yield from _records(source)


def elements(path: Path, limit: int = DETECTIONS_BYTES) -> Iterator[Any]:
    """The elements of a file that is a list, such as detections."""
    with _open(path, limit) as source:
        text = _Text(source)
        if text.next() != "[":
            raise JsonError("", "not a JSON list, which starts with [")
        yield from (value for _, index, value in _elements(text, "") if index >= 0)
        _expect_end(text)


def _open(path: Path, limit: int) -> BinaryIO:
    source = open_regular(path)
    if length_of(source) > limit:
        source.close()
        raise OSError(errno.EFBIG, f"larger than {limit >> 30} GB")
    return source


def first_keys(path: Path, wanted: set[str], enough: int) -> set[str]:
    """The top-level keys, until `enough` of the `wanted` are found.

    A JsonError if they are not in the first FIRST_KEYS_BYTES.
    """
    keys: set[str] = set()
    with open_regular(path) as source:
        for key, _, _ in _records(source):
            keys.add(key)
            if len(keys & wanted) >= enough:
                break
            if source.tell() > FIRST_KEYS_BYTES:
                raise JsonError(key, "too large to find its keys")
    return keys


def _records(source: BinaryIO) -> Iterator[tuple[str, int, Any]]:
    text = _Text(source)
    if text.next() != "{":
        raise JsonError("", "not a JSON object, which starts with {")
    keys: set[str] = set()
    key = ""
    while text.has_item(len(keys), "}", key):
        key = text.value("the next key")
        if not isinstance(key, str):
            raise JsonError("", "a key of the object is not a string")
        if key in keys:
            raise JsonError(key, f'the key "{key}" appears twice')
        keys.add(key)
        if len(keys) > JSON_KEYS:
            raise JsonError("", f"more than {JSON_KEYS:,} keys")
        text.expect(":", key)
        if text.next() != "[":
            yield key, -1, text.value(key)
            continue
        yield from _elements(text, key)
    _expect_end(text)


def _elements(text: _Text, key: str) -> Iterator[tuple[str, int, Any]]:
    index = non_objects = 0
    while text.has_item(index, "]", f"{key}[{index - 1}]"):
        record = f"{key}[{index}]"
        value = text.value(record)
        non_objects += not isinstance(value, dict)
        if non_objects > JSON_NON_OBJECTS:
            raise JsonError(record, "too many elements that are not objects")
        yield key, index, value
        index += 1
    if not index:
        yield key, -1, []


def _expect_end(text: _Text) -> None:
    if text.next():
        raise JsonError("", "more text after the end of the JSON value")


class _Text:
    """A window on the text. It grows until the next value is complete, and drops what was read."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.at = 0
        self.ended = False

    def grow(self, record: str = "") -> None:
        # at least doubled, so that the number of scans of a long value stays small
        block = self.source.read(max(CHUNK, len(self.text) - self.at))
        self.ended = not block
        try:
            more = self.decoder.decode(block, final=self.ended)
        except UnicodeDecodeError as error:
            raise JsonError(record, f"not UTF-8 text ({error.reason})") from None
        self.text = self.text[self.at :] + more
        self.at = 0

    def next(self) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while not (found := _not_space.search(self.text, self.at)):
            self.at = len(self.text)
            if self.ended:
                return ""
            self.grow()
        self.at = found.start()
        return found[0]

    def has_item(self, count: int, end: str, record: str) -> bool:
        """Whether a list or object has another item after `count`; moves to it, or past the end.

        `record` is the item before it.
        """
        if count == 0:
            self.at += 1  # the opening bracket
        if self.next() == end:
            self.at += 1
            return False
        if count:
            self.expect(",", record)
        return True

    def expect(self, mark: str, record: str) -> None:
        found = self.next()
        if found != mark:
            what = f"expected {mark!r} after it, found {found!r}" if found else ENDS
            raise JsonError(record, what)
        self.at += 1

    def value(self, record: str) -> Any:
        if not self.next():
            raise JsonError(record, ENDS)
        while True:
            reason = ENDS
            try:
                value, end = _scan(self.text, self.at)
                # a number at the window's edge may be cut: 1.|5 reads as 1
                if self.ended or self.text[end : end + 1] in DELIMITERS:
                    self.at = end
                    return value
            except StopIteration:
                reason = "not a JSON value"
            except RecursionError:
                raise JsonError(record, "JSON nested too deep") from None
            except ValueError as error:
                reason = f"broken JSON: {getattr(error, 'msg', error)}"
            if self.ended:
                raise JsonError(record, reason)
            if len(self.text) - self.at > RECORD_CHARACTERS:
                what = f"a value is longer than {RECORD_CHARACTERS >> 20} MB ({reason})"
                raise JsonError(record, what)
            self.grow(record)
