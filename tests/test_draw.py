"""Drawn boxes and contact sheets: positions, colours, and degenerate input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mini_fsod import draw
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.labels import LabelMap

RED = (255, 0, 0)
WHITE = (255, 255, 255)
LABELS = LabelMap(("cat", "dog"), ("owl",))


def dataset(root: Path, images: int, boxes: list[tuple[int, str]], **flags: list[bool]) -> Dataset:
    """`images` pictures of 40 x 30 pixels; each box is (image, class) and lies in the middle."""
    classes = ("cat", "owl", "dog")
    return Dataset(
        kind="coco",
        root=root,
        classes=classes,
        category_ids=(1, 2, 3),
        ids=tuple(range(images)),
        files=tuple(f"{i}.png" for i in range(images)),
        sizes=np.tile([40, 30], (images, 1)),
        boxes=Boxes.of(
            [image for image, _ in boxes],
            [[10, 10, 20, 10]] * len(boxes),
            [classes.index(name) for _, name in boxes],
            **flags,
        ),
        sources=("x.json",) * images,
    )


def save_pictures(root: Path, count: int) -> None:
    for i in range(count):
        Image.new("RGB", (40, 30), WHITE).save(root / f"{i}.png")


def has(picture: Image.Image, colour: tuple[int, int, int]) -> bool:
    return bool((np.asarray(picture) == colour).all(axis=-1).any())


def test_draw_boxes_with_zero_boxes_returns_the_picture() -> None:
    picture = Image.new("L", (50, 40))
    assert draw.draw_boxes(picture, [], [], []) is picture
    assert draw.draw_boxes(picture, np.zeros((0, 4)), [], []) is picture


def test_draw_boxes_draws_lines_just_outside_the_box() -> None:
    picture = Image.new("RGB", (100, 100), WHITE)
    drawn = draw.draw_boxes(picture, [[20, 30, 60, 70]], [""], [RED])
    assert not has(picture, RED), "the picture given is not drawn on"
    red = (np.asarray(drawn) == RED).all(axis=-1)
    rows, columns = np.nonzero(red)
    # Lines of one pixel: columns 19 and 60, rows 29 and 70; the box itself is 20 to 59, 30 to 69.
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (19, 60, 29, 70)
    assert red.sum() == 2 * 42 + 2 * 40
    inside = np.asarray(drawn)[31:69, 21:59]
    assert (inside == 255).all()


def test_draw_boxes_scales_lines_with_the_picture() -> None:
    picture = Image.new("RGB", (800, 800), WHITE)
    drawn = draw.draw_boxes(picture, [[200, 300, 600, 700]], [""], [RED])
    red = (np.asarray(drawn) == RED).all(axis=-1)
    assert red[500].nonzero()[0].tolist() == [*range(195, 200), *range(600, 605)]


def test_draw_boxes_draws_dashed_lines_with_gaps() -> None:
    picture = Image.new("RGB", (100, 100), WHITE)
    drawn = draw.draw_boxes(picture, [[20, 30, 60, 70]], [""], [RED], dashed=[True])
    top = (np.asarray(drawn)[29, 19:61] == RED).all(axis=-1)
    assert "".join("-" if on else "." for on in top) == "----...." * 5 + "--"


@pytest.mark.parametrize(
    ("box", "shows"),
    [
        ((50, 50, 50, 50), True),  # no area
        ((60, 60, 40, 40), True),  # corners swapped
        ((-500, -500, 500, 500), True),  # larger than the picture
        ((100, 100, 100, 100), True),  # on the edge
        ((-30, -30, -10, -10), False),  # outside
        ((300, 10, 310, 20), False),
        ((float("nan"), 0, 10, 10), False),
        ((0, 0, float("inf"), 10), False),
    ],
)
@pytest.mark.parametrize("caption", ["", "a caption that is much wider than the picture " * 3])
def test_draw_boxes_accepts_degenerate_boxes(
    box: tuple[float, ...], shows: bool, caption: str
) -> None:
    picture = Image.new("RGB", (100, 100))
    drawn = draw.draw_boxes(picture, [box], [caption], [RED])
    assert drawn.size == picture.size
    assert has(drawn, RED) == shows


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3)])
def test_draw_boxes_accepts_tiny_pictures(size: tuple[int, int]) -> None:
    assert draw.draw_boxes(Image.new("L", size), [[0, 0, 1, 1]], ["x"], [RED]).size == size


number = st.integers(-50, 250)


@given(
    corner=st.tuples(number, number),
    extent=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    chip=st.tuples(st.integers(1, 200), st.integers(1, 150)),
)
def test_caption_position_stays_in_the_picture(
    corner: tuple[int, int], extent: tuple[int, int], chip: tuple[int, int]
) -> None:
    frame = (*corner, corner[0] + extent[0], corner[1] + extent[1])
    place = draw.caption_position(frame, chip, (200, 150), [frame], [])
    assert place is not None
    left, top, right, bottom = place
    assert (right - left, bottom - top) == chip
    assert 0 <= left < right <= 200
    assert 0 <= top < bottom <= 150


@pytest.mark.parametrize(
    ("frame", "taken", "place"),
    [
        ((50, 50, 80, 90), [], (50, 40, 70, 50)),  # above
        ((50, 4, 80, 90), [], (50, 90, 70, 100)),  # no room above: below
        ((50, 4, 80, 98), [], (80, 4, 100, 14)),  # nor below: beside
        ((50, 50, 80, 90), [(40, 30, 62, 60)], (60, 90, 80, 100)),  # others lie above, below left
        ((0, 0, 100, 100), [], (0, 0, 20, 10)),  # the box is all there is: inside
    ],
)
def test_caption_position_avoids_other_boxes(
    frame: draw.Rect, taken: list[draw.Rect], place: draw.Rect
) -> None:
    if taken:
        taken = [*taken, (45, 92, 58, 99)]
    assert draw.caption_position(frame, (20, 10), (100, 100), [frame, *taken], []) == place


def test_caption_position_never_covers_another_caption() -> None:
    size, chip = (100, 60), (40, 12)
    frames = [(10 + n, 20, 40 + n, 40) for n in range(20)]
    chips: list[draw.Rect] = []
    for frame in frames:
        place = draw.caption_position(frame, chip, size, frames, chips)
        if place is None:
            break
        left, top, right, bottom = place
        assert all(
            left >= other[2] or right <= other[0] or top >= other[3] or bottom <= other[1]
            for other in chips
        )
        chips.append(place)
    assert 2 <= len(chips) < len(frames)  # in a crowd some captions have no place


def test_sheet_of_shows_file_names(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1)
    one = dataset(tmp_path, 1, [(0, "cat")])
    sheet = np.asarray(draw.sheet_of(one, LABELS, [0], cell=(120, 90)))
    foot = sheet[-12 - draw.name_height((120, 90)) : -12]
    assert foot.max() > 100  # letters on a dark ground
    assert sheet[-12:].max() < 40


def test_ending_keeps_the_end_of_long_names() -> None:
    font = draw.font_for(12)
    assert draw.ending("a.png", font, 100) == "a.png"
    short = draw.ending(f"{'x' * 200}17.png", font, 100)
    assert short.startswith("...x")
    assert short.endswith("17.png")
    assert font.getlength(short) <= 100


def test_contact_sheet_is_an_even_grid() -> None:
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    cells = [Image.new("RGB", (20, 10), colour) for colour in colours]
    sheet = np.asarray(draw.contact_sheet(cells, 2, (100, 80), "Three", [("one", RED)]))
    places = [np.nonzero((sheet == colour).all(axis=-1)) for colour in colours]
    spans = [(x.min(), x.max(), y.min(), y.max()) for y, x in places]
    assert [len(y) for y, _ in places] == [100 * 50] * 3  # enlarged to the cell, none cut off
    assert spans[0][:2] == spans[2][:2]  # one column
    assert spans[0][2:] == spans[1][2:]  # one row
    assert spans[1][0] - spans[0][1] - 1 == 4  # the gap
    assert sheet.shape[1] == 12 + 100 + 4 + 100 + 12
    assert sheet.shape[0] - spans[2][3] - 1 == 12 + 15  # margin, and the well below the picture


@pytest.mark.parametrize("count", [0, 1, 5])
def test_contact_sheet_of_any_number_of_cells(count: int) -> None:
    cells = [Image.new("RGB", (30, 30), RED)] * count
    legend = [(f"class number {k}", RED) for k in range(20)]
    sheet = draw.contact_sheet(cells, 4, (60, 60), "A title too long for one line " * 4, legend)
    plain = draw.contact_sheet(cells, 4, (60, 60), "", [])
    assert sheet.width == plain.width
    assert sheet.height > plain.height


def test_sheet_of_colours_novel_and_base_boxes(tmp_path: Path) -> None:
    save_pictures(tmp_path, 2)
    both = dataset(tmp_path, 2, [(0, "cat"), (1, "owl")])
    base_cell = draw.sheet_of(both, LabelMap(("cat",), ()), [0], cell=(120, 90))
    assert has(base_cell, draw.BASE_COLOUR)
    assert not has(base_cell, draw.NOVEL_COLOUR)
    assert has(draw.sheet_of(both, LABELS, [1], cell=(120, 90)), draw.NOVEL_COLOUR)


def test_image_cell_scales_boxes_with_the_image(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1)
    one = dataset(tmp_path, 1, [(0, "owl")])
    # 40 x 30 in a cell of 400 x 300: the box 10, 10, 30, 20 becomes 100, 100, 300, 200.
    cell = np.asarray(draw.image_cell(one, LABELS, 0, (400, 300)))
    assert cell.shape == (300, 400, 3)
    novel = (cell == draw.NOVEL_COLOUR).all(axis=-1)
    assert novel[150].nonzero()[0].tolist() == [98, 99, 300, 301]


def test_image_cell_dashes_difficult_crowd_and_ignored_boxes(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1)
    lines = []
    for flag in ("difficult", "crowd", "ignore", None):
        flags = {flag: [True]} if flag else {}
        one = dataset(tmp_path, 1, [(0, "owl")], **flags)
        cell = np.asarray(draw.image_cell(one, LABELS, 0, (400, 300)))
        lines.append(int((cell[100:200, 99] == draw.NOVEL_COLOUR).all(axis=-1).sum()))
    assert lines[3] == 100
    assert all(30 < line < 70 for line in lines[:3])


def test_image_cell_scales_boxes_of_large_jpegs(tmp_path: Path) -> None:
    """They are decoded at a fraction of their size; boxes are in full-size pixels."""
    one = dataset(tmp_path, 1, [(0, "owl")])
    Image.new("RGB", (4000, 3000), WHITE).save(tmp_path / "0.png", format="JPEG")
    one.boxes.xywh[:] *= 100
    cell = np.asarray(draw.image_cell(one, LABELS, 0, (400, 300)))
    novel = (cell == draw.NOVEL_COLOUR).all(axis=-1)
    assert novel[150].nonzero()[0].tolist() == [98, 99, 300, 301]


def test_image_cell_with_many_boxes_captions_novel_ones_only(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1)

    def filled(names: list[str]) -> int:
        crowded = dataset(tmp_path, 1, [(0, name) for name in names])
        cell = np.asarray(draw.image_cell(crowded, LABELS, 0, (400, 300)))
        return int((cell == draw.BASE_COLOUR).all(axis=-1).sum())

    assert filled(["cat"] * 20) < filled(["cat"])


def test_sheet_of_shows_unreadable_images_as_grey_cells(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1)
    (tmp_path / "1.png").write_bytes(b"no picture")
    (tmp_path / "2.png").write_bytes((tmp_path / "0.png").read_bytes()[:60])
    broken = dataset(tmp_path, 4, [(i, "owl") for i in range(4)])  # 3.png is missing
    sheet = draw.sheet_of(broken, LABELS, [0, 1, 2, 3], columns=2, cell=(120, 90))
    assert sheet.size == draw.sheet_of(broken, LABELS, [0] * 4, columns=2, cell=(120, 90)).size
    for i in (1, 2, 3):
        cell = draw.image_cell(broken, LABELS, i, (120, 90))
        assert cell.size == (120, 90)
        assert cell.getpixel((0, 0)) == (58, 63, 71)


def test_sheet_of_no_images(tmp_path: Path) -> None:
    assert draw.sheet_of(dataset(tmp_path, 0, []), LABELS, []).width > 0


def test_class_legend_names_dashed_boxes(tmp_path: Path) -> None:
    plain = dataset(tmp_path, 1, [(0, "owl")])
    assert [text for text, _ in draw.class_legend(plain, LABELS)] == [
        "novel: owl",
        "base: cat, dog",
    ]
    for flag, word in (("difficult", "difficult"), ("crowd", "crowd"), ("ignore", "ignored")):
        marked = dataset(tmp_path, 1, [(0, "owl")], **{flag: [True]})
        assert draw.class_legend(marked, LABELS)[-1][0] == f"dashed: {word}"


def test_image_cell_leaves_out_infinite_boxes(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1)
    one = dataset(tmp_path, 1, [(0, "owl")])
    one.boxes.xywh[:] = 1e308
    assert not has(draw.image_cell(one, LABELS, 0, (400, 300)), draw.NOVEL_COLOUR)
