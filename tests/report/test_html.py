"""Escaping, and elements that are closed as HTML and SVG want it."""

from __future__ import annotations

import pytest

from mini_fsod.report.html import Html, data_table, join, tag, text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&quot;&#x27;"),
        (Html("<b>"), "<b>"),
        (3, "3"),
        ("a\u202eb\n", "a\\u202eb\\n"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_escapes_all_but_html(given: object, shown: str) -> None:
    assert text(given) == shown


def test_tag_escapes_content_and_attributes() -> None:
    made = tag("p", "<i>", tag("b", "x"), class_="a", title='"><script>', hidden=None, open=True)
    assert made == '<p class="a" title="&quot;&gt;&lt;script&gt;" open>&lt;i&gt;<b>x</b></p>'


def test_tag_closes_elements_without_content() -> None:
    assert tag("rect", x="1") == '<rect x="1"/>'
    assert tag("td") == "<td></td>"


def test_join_flattens_lists_and_leaves_none_out() -> None:
    assert join("a", None, [Html("<br>"), ("b", ["<"])]) == "a<br>b&lt;"


def test_data_table_has_headers_for_rows_and_columns() -> None:
    made = data_table("Caption", ["class", "AP"], [["bolt", "1"]])
    assert "<caption>Caption</caption>" in made
    assert '<th scope="col" class="number">AP</th>' in made
    assert '<th scope="row">bolt</th><td class="number">1</td>' in made
