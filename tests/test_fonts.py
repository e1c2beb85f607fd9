"""The font chosen for a text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PIL import Image, ImageFont

from mini_fsod import draw, fonts


class Mask(bytes):
    size = (1, 1)


class FakeFont:
    """A font with these characters; it draws all others as the same box."""

    def __init__(self, characters: str) -> None:
        self.characters = characters

    def getmask(self, text: str) -> Mask:
        return Mask((text if text in self.characters else "missing").encode())


@pytest.fixture(autouse=True)
def clear_cache() -> Iterator[None]:
    fonts.best_font.cache_clear()
    yield
    fonts.best_font.cache_clear()


def system_fonts(monkeypatch: pytest.MonkeyPatch, **has: str) -> None:
    monkeypatch.setattr(fonts, "NAMES", ("absent", *has))
    known = {name: FakeFont(characters) for name, characters in has.items()}
    monkeypatch.setattr(fonts, "open_font", known.get)


def test_font_for_ascii_is_pillows_font(monkeypatch: pytest.MonkeyPatch) -> None:
    system_fonts(monkeypatch)
    assert fonts.font_for(12, "bicycle 0.93", "").getname() == ("Aileron", "Regular")
    assert fonts.font_for(12).size == 12


def test_best_font_is_the_first_with_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    system_fonts(monkeypatch, latin="éü", chinese="自行车", all="éü自行车")
    assert fonts.best_font(frozenset("éü")) == "latin"
    assert fonts.best_font(frozenset("自车")) == "chinese"
    assert fonts.best_font(frozenset("é车")) == "all"


def test_best_font_lacks_the_fewest_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    system_fonts(monkeypatch, latin="éü", chinese="自行车")
    assert fonts.best_font(frozenset("é自行")) == "chinese"
    assert fonts.best_font(frozenset("Я")) is None


def test_best_font_is_pillows_where_it_has_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    system_fonts(monkeypatch, latin="·…é")
    assert fonts.best_font(frozenset("·…")) is None


def test_font_for_accents_draws_them_if_the_system_has_a_font() -> None:
    name = fonts.best_font(frozenset("éü"))
    if name is None:
        pytest.skip("none of the known fonts is installed")
    font = fonts.font_for(20, "vélo", "Schlüssel")
    assert isinstance(font, ImageFont.FreeTypeFont)
    assert font.size == 20
    assert not fonts.missing_characters(font, frozenset("éü"))


def test_captions_and_legends_choose_a_font_by_their_texts(
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
