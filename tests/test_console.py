"""Terminal output: text from files is shown literally and in full."""

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
def test_plain_shows_text_literally(text: str) -> None:
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
def test_plain_spells_out_control_characters(text: str, shown: str) -> None:
    assert console.plain(text) in (shown, shown.replace("\\[", "["))


def captured(monkeypatch: pytest.MonkeyPatch, name: str) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(console, name, Console(file=stream, width=80, highlight=False, emoji=False))
    return stream


def test_progress_without_a_terminal_prints_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line before `LINE_SECONDS` have passed, and no empty line."""
    stream, now = captured(monkeypatch, "err"), [0.0]
    monkeypatch.setattr(console, "monotonic", lambda: now[0])
    with console.progress("scanning", 2000) as update:
        update(7)
        assert stream.getvalue() == ""
        monkeypatch.setattr(console, "LINE_SECONDS", -1)
        now[0] += 75
        update(1500)
    with console.progress("decoding") as update:
        update(3)
        update(4, 5)
    assert stream.getvalue() == (
        "scanning: 1,500 of 2,000, 25 s left\ndecoding: 3\ndecoding: 4 of 5, 0 s left\n"
    )


def test_table_is_as_wide_as_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = captured(monkeypatch, "out")
    table = Table("class", "boxes", box=None)
    table.add_row("long name " * 30, "17")
    console.table(table)
    head, row = stream.getvalue().splitlines()
    assert "long name " * 29 in row
    assert row.rstrip().endswith("17")
    assert head.split() == ["class", "boxes"]


def test_show_problems_counts_those_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = captured(monkeypatch, "err")
    problems = [Problem("box-nan", "a.json", f"annotation {n}", "[/x]", "mend") for n in range(103)]
    console.show_problems(problems, " (--json lists all)")
    text = stream.getvalue()
    assert text.count("a.json, annotation") == 100
    assert "... and 3 more of this kind (--json lists all)" in text
    assert "a.json, annotation 99: [/x]" in text


def test_count_uses_singular_and_plural() -> None:
    words = [
        console.count(n, w) for n, w in ((1, "box"), (2, "box"), (0, "class"), (1000, "image"))
    ]
    assert words == ["1 box", "2 boxes", "0 classes", "1,000 images"]


@pytest.mark.parametrize(
    ("seconds", "captured"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (185, "3:05 min"),
        (3599.6, "1:00 h"),
        (7800, "2:10 h"),
    ],
)
def test_duration_in_seconds_minutes_or_hours(seconds: float, captured: str) -> None:
    assert console.duration(seconds) == captured


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0.0 MiB"), (14 * 2**20, "14.0 MiB"), (2**30, "1.0 GiB")]
)
def test_size_in_mib_or_gib(number: int, text: str) -> None:
    assert console.size(number) == text
