"""HTML and SVG elements as text. Everything is escaped but what these functions made."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from mini_fsod.console import CONTROLS

VOID = ("img", "line", "rect", "path")  # elements without content; those of SVG must be closed


NONE = "\N{EN DASH}"  # in place of a figure that is not known


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any text, shown as it is: class names and file names may hold anything.

    Characters that break lines or change the writing direction are spelled out.
    """
    if isinstance(value, Html):
        return value
    visible = CONTROLS.sub(lambda m: m[0].encode("unicode_escape").decode(), str(value))
    return Html(escape(visible, quote=True))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """<name attribute="...">content</name>; `class_` is class, `aria_label` is aria-label.

    Attributes that are None or False are left out. Lists of content are joined.
    """
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        shown.append(f" {word}" if value is True else f' {word}="{text(value)}"')
    opening = f"<{name}{''.join(shown)}"
    return Html(f"{opening}/>" if name in VOID else f"{opening}>{join(*content)}</{name}>")


def join(*content: object) -> Html:
    """The parts one after the other; None is nothing."""
    parts: list[Html] = []
    for part in content:
        if isinstance(part, list | tuple):
            parts.append(join(*part))
        elif part is not None:
            parts.append(text(part))
    return Html("".join(parts))


def data_table(
    caption: str, head: Sequence[object], rows: Sequence[Sequence[object]], numbers: int = 1
) -> Html:
    """A table whose first column names the rows; the others, from `numbers` on, are numbers.

    It scrolls by itself where the screen is narrow.
    """

    def cell(n: int, value: object) -> Html:
        if n == 0:
            return tag("th", value, scope="row")
        return tag("td", value, class_="number" if n >= numbers else None)

    heads = [
        tag("th", value, scope="col", class_="number" if n >= numbers else None)
        for n, value in enumerate(head)
    ]
    body = [tag("tr", [cell(n, value) for n, value in enumerate(row)]) for row in rows]
    inner = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", heads)),
        tag("tbody", body),
    )
    # a region that scrolls must be reachable with the keyboard
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def section(name: str, title: str, *content: object) -> Html:
    """A part of the page, with an anchor."""
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, join(*content), id=name, aria_labelledby=f"{name}-title")


def aside(*content: object) -> Html:
    return tag("p", *content, class_="note")


def details(summary: object, *content: object, open_: bool = False, printed: bool = False) -> Html:
    """Content that can be folded away; `printed` on paper in any case."""
    class_ = "printed" if printed else None
    return tag("details", tag("summary", summary), *content, open=open_, class_=class_)


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def page(title: str, body: Html) -> str:
    """The whole file: no scripts, nothing from the network, only the one style that is in it."""
    folder = files("mini_fsod.report") / "templates"
    style = (folder / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    template = Template((folder / "report.html").read_text(encoding="utf-8"))
    return template.substitute(title=text(title), policy=Html(policy), style=style, body=body)
