"""Picture files: unsupported formats and EXIF rotation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.commands.drawings import refuse_overwriting
from mini_fsod.data.check import picture_problems
from mini_fsod.data.file_names import stays_inside
from mini_fsod.data.pictures import PictureError, picture_size
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import UserError
from mini_fsod.limits import PICTURE_BYTES, PICTURE_SIDE
from mini_fsod.loader.decode import decode
from mini_fsod.predict.pictures import Picture

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


@pytest.mark.parametrize("kind", ["coco", "voc", "voc, named otherwise"])
def test_picture_size_reports_an_unsupported_format(tmp_path: Path, kind: str) -> None:
    if kind == "coco":
        content = tiny.coco()
        content["images"][0]["file_name"] = "a.HEIC"
        path, pictures = tiny.write_coco(tmp_path, content), tmp_path
    else:
        path = tiny.write_voc(tmp_path)
        pictures = path / "VOC2007" / "JPEGImages"
        if kind == "voc":
            xml = path / "VOC2007" / "Annotations" / "a.xml"
            xml.write_text(xml.read_text().replace("a.png", "a.HEIC"))
    (pictures / "a.png").unlink()
    (pictures / "a.HEIC").write_bytes(HEIC)
    data, problems = read_with_problems(path)
    assert problems == []
    (problem,), sizes = picture_problems(data, decode=True)
    assert problem.kind == "picture-format"
    assert problem.record.endswith("a.HEIC")
    assert problem.what == "unsupported picture format (.heic)"
    assert problem.fix.startswith("save the picture as JPEG or PNG")
    assert set(sizes) == {1, 2}


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_picture_size_reads_a_named_gif(tmp_path: Path, kind: str) -> None:
    """An animation's first picture, for one."""
    if kind == "coco":
        content = tiny.coco()
        content["images"][0]["file_name"] = "a.gif"
        path, pictures = tiny.write_coco(tmp_path, content), tmp_path
    else:
        path = tiny.write_voc(tmp_path)
        pictures = path / "VOC2007" / "JPEGImages"
        (pictures / "a.png").unlink()
    Image.new("P", tiny.SIZES["a"]).save(pictures / "a.gif")
    data = read(path)
    assert data.files[0].endswith("a.gif")
    assert picture_problems(data, decode=True)[0] == []


def turned(path: Path) -> None:
    """80 x 100 as stored, 100 x 80 as seen."""
    picture = Image.new("RGB", (80, 100))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(path, exif=exif)


def test_drawn_size_follows_exif_or_the_declared_size(tmp_path: Path) -> None:
    """A telephone's picture is stored lying and shown standing; annotations may mean either."""
    path = tiny.write_coco(tmp_path)
    turned(tmp_path / "a.png")  # declared as seen
    problems, sizes = picture_problems(read_with_problems(path)[0], decode=False)
    assert problems == []
    assert sizes[0] == (100, 80)
    alone = tmp_path / "alone"  # nobody has declared anything
    alone.mkdir()
    (tmp_path / "a.png").rename(alone / "a.png")
    assert picture_problems(read_with_problems(alone)[0], decode=False)[1] == {0: (100, 80)}


def test_picture_size_leaves_tiff_to_pillow(tmp_path: Path) -> None:
    for name in ("a.tif", "a.png"):
        turned(tmp_path / name)
    assert picture_size(tmp_path / "a.tif", decode=True) == (100, 80, False)
    assert picture_size(tmp_path / "a.png", decode=True) == (80, 100, True)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 80\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize("content", [POSTSCRIPT, b"P6 2 2 255\n" + bytes(12)])
def test_open_picture_decodes_only_the_formats_that_are_read(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An EPS called a.png would start Ghostscript."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(PictureError, match="not a picture in a supported format"):
        picture_size(path, decode=True)
    with pytest.raises(UserError, match="not a picture in a supported format"):
        decode(path, 100, 100)
    assert not is_drawing(path)


def is_drawing(path: Path) -> bool:
    """Whether `mini predict --draw` would overwrite the file."""
    try:
        refuse_overwriting(path.parent, [Picture(path.with_name("other"), path.name)])
    except UserError:
        return False
    return True


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp", "tif", "avif", "gif", "jp2"])
def test_open_picture_reads_formats_by_their_content(tmp_path: Path, suffix: str) -> None:
    Image.new("RGB", (40, 30), (200, 0, 0)).save(tmp_path / f"a.{suffix}")
    wrong = (tmp_path / f"a.{suffix}").rename(tmp_path / "a.jpeg")
    assert picture_size(wrong, decode=True) == (40, 30, False)
    assert decode(wrong, 100, 100).shape == (30, 40, 3)


def test_open_picture_refuses_pipes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    os.mkfifo(path)
    with pytest.raises(PictureError, match="not a regular file"):
        picture_size(path)
    with pytest.raises(UserError, match="not a regular file"):
        decode(path, 100, 100)
    assert not is_drawing(path)


def test_open_picture_refuses_huge_files(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 4)).save(path)
    os.truncate(path, PICTURE_BYTES + 1)  # sparse
    with pytest.raises(PictureError, match="larger than 1,024 MB") as caught:
        picture_size(path)
    assert caught.value.kind == "picture-too-large"


def test_open_picture_refuses_a_side_whose_resizing_takes_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (PICTURE_SIDE + 1, 2)).save(path)
    with pytest.raises(PictureError, match="a side is longer than 250,000 pixels") as caught:
        picture_size(path)
    assert caught.value.kind == "picture-too-large"


@pytest.mark.parametrize("name", ["a.png", ".", "a..b", "...", "x/a.png", "x/../a.png", "x\\a.png"])
def test_stays_inside_takes_names_below_the_folder(name: str) -> None:
    assert stays_inside(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../a.png",
        "x/../../a.png",
        "/a.png",
        "\\a",
        "C:a.png",
        "x\\..\\..\\a",
        "a\0",
        "\0",
    ],
)
def test_stays_inside_refuses_names_outside(name: str) -> None:
    assert not stays_inside(name)


def test_stays_inside_may_climb_to_the_root_of_the_data() -> None:
    assert stays_inside("..", up=1)
    assert stays_inside("../a.png", up=1)
    assert not stays_inside("../../a.png", up=1)
