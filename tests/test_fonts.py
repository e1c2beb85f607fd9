"""Which font is taken for which letters, on machines with other fonts too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PIL import Image, ImageFont

from mini_fsod import draw, fonts


class Drawn(bytes):
    size = (1, 1)


class Has:
    """A font with these letters; all others are drawn as the same box."""

    def __init__(self, letters: str) -> None:
        self.letters = letters

    def getmask(self, text: str) -> Drawn:
        return Drawn((text if text in self.letters else "missing").encode())


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    fonts._with_most.cache_clear()
    yield
    fonts._with_most.cache_clear()


def machine(monkeypatch: pytest.MonkeyPatch, **has: str) -> None:
    monkeypatch.setattr(fonts, "NAMES", ("absent", *has))
    known = {name: Has(letters) for name, letters in has.items()}
    monkeypatch.setattr(fonts, "_opened", known.get)


def test_plain_letters_need_no_font_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert fonts.font_for(12, "bicycle 0.93", "").getname() == ("Aileron", "Regular")
    assert fonts.font_for(12).size == 12


def test_the_first_font_with_all_letters_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, latin="éü", chinese="自行车", all="éü自行车")
    assert fonts._with_most(frozenset("éü")) == "latin"
    assert fonts._with_most(frozenset("自车")) == "chinese"
    assert fonts._with_most(frozenset("é车")) == "all"


def test_where_none_has_all_the_one_with_most_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, latin="éü", chinese="自行车")
    assert fonts._with_most(frozenset("é自行")) == "chinese"
    assert fonts._with_most(frozenset("Я")) is None


def test_what_pillows_font_has_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, latin="·…é")
    assert fonts._with_most(frozenset("·…")) is None


def test_accents_are_drawn_where_the_machine_has_a_font() -> None:
    name = fonts._with_most(frozenset("éü"))
    if name is None:
        pytest.skip("this machine has none of the fonts that are looked for")
    font = fonts.font_for(20, "vélo", "Schlüssel")
    assert isinstance(font, ImageFont.FreeTypeFont)
    assert font.size == 20
    assert not fonts._missing(font, frozenset("éü"))


def test_captions_are_drawn_with_the_font_that_has_their_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []

    def font_for(size: int, *texts: str) -> fonts.Font:
        asked.append(texts)
        return ImageFont.load_default(size)

    monkeypatch.setattr(draw, "font_for", font_for)
    picture = Image.new("RGB", (90, 60))
    draw.draw_boxes(picture, [[10, 10, 40, 40]], ["vélo"], [(255, 0, 0)])
    draw.contact_sheet([picture], 1, (90, 60), "Räder", [("rosé", (0, 0, 0))])
    assert asked == [("vélo",), ("Räder", "rosé"), ("Räder", "rosé")]
