"""Pictures for the page."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mini_fsod.errors import UserError
from mini_fsod.review.crops import Gallery, View, view_of


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """400 x 300: the left half red, the right half blue."""
    picture = Image.new("RGB", (400, 300), (220, 20, 20))
    picture.paste((20, 20, 220), (200, 0, 400, 300))
    picture.save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def colours(content: bytes) -> tuple[tuple[int, int], list[int]]:
    """The size of a JPEG, and its mean colour."""
    picture = Image.open(io.BytesIO(content))
    return picture.size, np.asarray(picture).mean((0, 1)).round().astype(int).tolist()


def test_view_of_shows_the_box_with_its_surroundings() -> None:
    view = view_of((180, 130, 60, 60), (400, 300))
    assert view.x < 180
    assert view.x + view.width > 240
    assert view.width / view.height == pytest.approx(4 / 3, rel=0.02)


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ((0, 0, 400, 300), (400, 300)),
        ((0, 0, 1, 1), (400, 300)),
        ((399, 299, 1, 1), (400, 300)),
        ((-20, -20, 500, 500), (400, 300)),
        ((0, 0, 10, 300), (10, 300)),
        ((3, 0, 1, 1), (4, 1)),
        ((350.5, 10.25, 49.5, 200.1), (400, 300)),
    ],
)
def test_view_of_stays_inside_the_picture_and_holds_the_box(
    box: tuple[float, ...], size: tuple[int, int]
) -> None:
    view = view_of(box, size)
    assert view.x >= 0
    assert view.y >= 0
    assert view.width >= 1
    assert view.height >= 1
    assert view.x + view.width <= size[0]
    assert view.y + view.height <= size[1]
    x, y, width, height = box
    assert view.x <= max(x, 0) + 1
    assert view.y <= max(y, 0) + 1
    assert view.x + view.width >= min(x + width, size[0]) - 1
    assert view.y + view.height >= min(y + height, size[1]) - 1


def test_jpeg_shows_a_part_or_all_of_a_picture(photo: Path) -> None:
    gallery = Gallery([photo], [photo.parent])
    assert gallery.size(0) == (400, 300)
    size, (red, _, blue) = colours(gallery.jpeg(0, View(0, 0, 100, 75), 200, (0, 0)))
    assert size == (100, 75)  # never enlarged
    assert red > 200 > blue
    size, (red, _, blue) = colours(gallery.jpeg(0, View(300, 0, 100, 100), 64, (0, 0)))
    assert (size, red < 40, blue > 200) == ((64, 64), True, True)
    size, (red, _, blue) = colours(gallery.jpeg(0, None, 200, (0, 0)))
    assert size == (200, 150)
    assert abs(red - blue) < 6


def test_jpeg_has_a_size_within_limits(photo: Path) -> None:
    gallery = Gallery([photo], [photo.parent])
    assert colours(gallery.jpeg(0, None, 0, (0, 0)))[0] == (64, 48)
    assert colours(gallery.jpeg(0, None, 10**9, (0, 0)))[0] == (400, 300)


def test_jpeg_turns_pictures_as_viewers_do(photo: Path, tmp_path: Path) -> None:
    picture = Image.open(photo).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.jpg", exif=exif)
    gallery = Gallery([tmp_path / "turned.jpg"], [tmp_path])
    assert gallery.size(0) == (300, 400)
    # declared as stored: boxes refer to the stored picture
    stored = Gallery([tmp_path / "turned.jpg"], [tmp_path])
    assert stored.size(0, (400, 300)) == (400, 300)
    assert colours(gallery.jpeg(0, View(0, 0, 300, 100), 300, (0, 0)))[1][0] > 180  # red above


def test_gallery_refuses_links_that_leave_the_folder(photo: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "out.png").symlink_to(photo)
    (data / "deep" / "in.png").write_bytes(photo.read_bytes())
    (data / "in.png").symlink_to(data / "deep" / "in.png")
    (data / "folder").symlink_to(tmp_path)
    paths = [data / "out.png", data / "in.png", data / "folder" / "photo.png",
             data / ".." / "photo.png"]  # fmt: skip
    gallery = Gallery(paths, [data])
    assert gallery.outside() == 3
    assert gallery.size(1) == (400, 300)
    for number in (0, 2, 3):
        with pytest.raises(UserError, match="link to a place outside"):
            gallery.size(number)
        with pytest.raises(UserError, match="link to a place outside"):
            gallery.jpeg(number, None, 100, (0, 0))
    asked_for = Gallery(paths, [data], links=True)
    assert asked_for.outside() == 0
    assert asked_for.size(0) == (400, 300)


def test_gallery_shows_data_whose_folder_is_a_link(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(photo.parent, target_is_directory=True)
    root = tmp_path / "data"
    assert Gallery([root / "photo.png"], [root]).outside() == 0


@pytest.mark.parametrize("content", [None, b"", b"%!PS-Adobe", b"\x89PNG\r\n\x1a\n"])
def test_gallery_says_what_is_wrong_with_a_picture(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.png: "):
        Gallery([tmp_path / "a.png"], [tmp_path]).jpeg(0, None, 100, (0, 0))
