"""Large JSON objects record by record, in constant memory.

COCO files may have a gigabyte, and a wrong file may have any size. The standard decoder builds all
of it in memory before its structure can be checked. Here, each record is parsed, yielded and
dropped, and the first syntax error ends the reading.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mini_fsod.files import open_regular

CHUNK = 1 << 22  # bytes read at a time
RECORD_LIMIT = 1 << 23  # characters of one record; real masks are far smaller
SEARCHED = 1 << 26  # bytes in which to find the keys of a COCO file
MOST_NON_OBJECTS = 1_000_000  # elements of one list that are not objects
DELIMITERS = set(" \t\n\r,:]}")
ENDS = "the file ends here, incomplete"

_not_space = re.compile(r"[^ \t\n\r]")
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class JsonError(Exception):
    """A syntax error, and the record it is in, such as "annotations[17]"."""

    def __init__(self, record: str, what: str) -> None:
        super().__init__(what)
        self.record = record
        self.what = what


def records(path: Path) -> Iterator[tuple[str, int, Any]]:
    """(key, index, element) of every top-level list, (key, -1, value) of every other value.

    An empty list is (key, -1, []).
    """
    with open_regular(path) as source:
        yield from _records(source)


def first_keys(path: Path, wanted: set[str], enough: int) -> set[str]:
    """The top-level keys, until `enough` of the `wanted` are found.

    A JsonError if they are not in the first SEARCHED bytes.
    """
    keys: set[str] = set()
    with open_regular(path) as source:
        for key, _, _ in _records(source):
            keys.add(key)
            if len(keys & wanted) >= enough:
                break
            if source.tell() > SEARCHED:
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
        text.expect(":", key)
        if text.next() != "[":
            yield key, -1, text.value(key)
            continue
        index = non_objects = 0
        while text.has_item(index, "]", f"{key}[{index - 1}]"):
            record = f"{key}[{index}]"
            value = text.value(record)
            non_objects += type(value) is not dict
            if non_objects > MOST_NON_OBJECTS:
                raise JsonError(record, "too many elements that are not objects")
            yield key, index, value
            index += 1
        if not index:
            yield key, -1, []
    if text.next():
        raise JsonError("", "more text after the end of the JSON object")


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
            if len(self.text) - self.at > RECORD_LIMIT:
                what = f"a value is longer than {RECORD_LIMIT >> 20} MB ({reason})"
                raise JsonError(record, what)
            self.grow(record)
