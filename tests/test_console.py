"""Other people's words in a terminal: literally, harmlessly, whole."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.markup import render
from rich.table import Table

from mini_fsod import console
from mini_fsod.errors import Problem


@given(st.text() | st.sampled_from(["[red]x", "[/bold]", "a\\", "\\[b]", ":car:", "[link=x]"]))
def test_words_appear_literally(text: str) -> None:
    shown = render(f"[bold]{console.plain(text)}[/]", emoji=False).plain
    assert console.CONTROLS.search(shown) is None
    if console.CONTROLS.search(text) is None:
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", "a\\x1b\\[31mb"),
        ("a\r\nb", "a\\r\\nb"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
        ("\x9b2J", "\\x9b2J"),
    ],
)
def test_control_characters_are_harmless(text: str, shown: str) -> None:
    assert console.plain(text) in (shown, shown.replace("\\[", "["))


def said(monkeypatch: pytest.MonkeyPatch, name: str) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(console, name, Console(file=stream, width=80, highlight=False, emoji=False))
    return stream


def test_progress_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line now and then, and not an empty one."""
    stream = said(monkeypatch, "err")
    with console.progress("scanning", 2000) as told:
        told(7)
        assert stream.getvalue() == ""
        monkeypatch.setattr(console, "LINE_SECONDS", -1)
        told(1500)
    with console.progress("decoding") as told:
        told(3)
        told(4, 5)
    assert stream.getvalue() == "scanning: 1,500 of 2,000\ndecoding: 3\ndecoding: 4 of 5\n"


def test_tables_are_as_wide_as_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = said(monkeypatch, "out")
    table = Table("class", "boxes", box=None)
    table.add_row("long name " * 30, "17")
    console.table(table)
    head, row = stream.getvalue().splitlines()
    assert "long name " * 29 in row
    assert row.rstrip().endswith("17")
    assert head.split() == ["class", "boxes"]


def test_many_problems_of_a_kind_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = said(monkeypatch, "err")
    problems = [Problem("box-nan", "a.json", f"annotation {n}", "[/x]", "mend") for n in range(103)]
    console.show_problems(problems, " (--json lists all)")
    text = stream.getvalue()
    assert text.count("a.json, annotation") == 100
    assert "... and 3 more of this kind (--json lists all)" in text
    assert "a.json, annotation 99: [/x]" in text


def test_numbers_and_their_words() -> None:
    words = [
        console.count(n, w) for n, w in ((1, "box"), (2, "box"), (0, "class"), (1000, "image"))
    ]
    assert words == ["1 box", "2 boxes", "0 classes", "1,000 images"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (185, "3:05 min"),
        (3599.6, "1:00 h"),
        (7800, "2:10 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert console.duration(seconds) == said


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0.0 MiB"), (14 * 2**20, "14.0 MiB"), (2**30, "1.0 GiB")]
)
def test_sizes(number: int, text: str) -> None:
    assert console.size(number) == text
