"""Every kind of picture becomes RGB bytes; what cannot is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from mini_fsod.errors import UserError
from mini_fsod.loader import decode as decode_module
from mini_fsod.loader.decode import Job, decode, decode_to_file, worker_pool

NO_LIMIT = (10_000, 10_000)


def grey16(value: int) -> Image.Image:
    return Image.fromarray(np.full((2, 2), value, dtype=np.uint16))


def palette(transparent: bool) -> Image.Image:
    picture = Image.new("P", (2, 2), 1)
    picture.putpalette([0, 0, 0, 10, 20, 30])
    if transparent:
        picture.info["transparency"] = 1
    return picture


def rgb_with_transparent_colour() -> Image.Image:
    picture = Image.new("RGB", (2, 2), (10, 20, 30))
    picture.info["transparency"] = (10, 20, 30)
    return picture


@pytest.mark.parametrize(
    ("picture", "suffix", "colour"),
    [
        (Image.new("RGB", (2, 2), (10, 20, 30)), "png", (10, 20, 30)),
        (Image.new("L", (2, 2), 77), "png", (77, 77, 77)),
        (Image.new("1", (2, 2), 1), "png", (255, 255, 255)),
        (palette(transparent=False), "png", (10, 20, 30)),
        (palette(transparent=True), "png", (255, 255, 255)),  # shown on white
        (rgb_with_transparent_colour(), "png", (255, 255, 255)),
        (Image.new("RGBA", (2, 2), (10, 20, 30, 255)), "png", (10, 20, 30)),
        (Image.new("RGBA", (2, 2), (10, 20, 30, 0)), "png", (255, 255, 255)),
        (Image.new("RGBA", (2, 2), (0, 0, 0, 51)), "png", (204, 204, 204)),  # a fifth of black
        (Image.new("LA", (2, 2), (77, 255)), "png", (77, 77, 77)),
        (grey16(0x4D80), "png", (0x4D, 0x4D, 0x4D)),  # the upper byte
        (grey16(0x4D80), "tiff", (0x4D, 0x4D, 0x4D)),
        (Image.new("I", (2, 2), 70_000), "tiff", (255, 255, 255)),  # clipped to 16 bits
        (Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "tiff", (255, 0, 0)),
    ],
)
def test_decode_converts_every_mode_to_rgb(
    tmp_path: Path, picture: Image.Image, suffix: str, colour: tuple[int, int, int]
) -> None:
    path = tmp_path / f"picture.{suffix}"
    options = {k: v for k, v in picture.info.items() if k == "transparency"}
    picture.save(path, **options)
    pixels = decode(path, *NO_LIMIT)
    assert pixels.shape == (2, 2, 3)
    assert pixels.dtype == np.uint8
    assert pixels[1, 1].tolist() == list(colour)


@pytest.mark.parametrize(
    ("size", "limit", "shape"),
    [
        ((64, 32), (32, 1000), (32, 64)),  # as it is
        ((64, 32), (100, 1000), (32, 64)),  # never enlarged
        ((64, 32), (16, 1000), (16, 32)),
        ((64, 32), (32, 40), (20, 40)),  # the long side binds
        ((90, 301), (30, 1000), (100, 30)),  # 301 x 30 / 90 = 100.33
        ((1600, 800), (100, 1000), (100, 200)),  # JPEG decodes this at a quarter
    ],
)
def test_decode_reduces_large_pictures(
    tmp_path: Path, size: tuple[int, int], limit: tuple[int, int], shape: tuple[int, int]
) -> None:
    ramp = np.linspace(0, 255, size[0]).astype(np.uint8)
    Image.fromarray(np.tile(ramp, (size[1], 1))).convert("RGB").save(tmp_path / "a.jpg", quality=95)
    pixels = decode(tmp_path / "a.jpg", *limit)
    assert pixels.shape == (*shape, 3)
    wanted = 255 * (np.arange(shape[1]) + 0.5) / shape[1]  # still the same ramp
    assert np.abs(pixels[shape[0] // 2, :, 1] - wanted).max() < 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode_applies_exif_orientation(tmp_path: Path, orientation: int) -> None:
    """On that boxes are drawn; a size that fits the stored picture alone says otherwise."""
    stored = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    seen = {
        1: stored,
        2: stored[:, ::-1],
        3: np.rot90(stored, 2),
        4: stored[::-1],
        5: stored.transpose(1, 0, 2),
        6: np.rot90(stored, -1),
        7: np.rot90(stored, 2).transpose(1, 0, 2),
        8: np.rot90(stored),
    }[orientation]
    path = saved(tmp_path / "a.png", stored, orientation)
    assert (decode(path, *NO_LIMIT) == seen).all()
    assert (decode(path, *NO_LIMIT, size=seen.shape[:2]) == seen).all()
    if orientation < 5:
        with pytest.raises(UserError, match=r"declared 4 x 6, but the picture is 6 x 4"):
            decode(path, *NO_LIMIT, size=(6, 4))
    else:
        assert (decode(path, *NO_LIMIT, size=(4, 6)) == stored).all()
        assert decode(path, 2, 100, size=(6, 4)).shape == (3, 2, 3)
    square = saved(tmp_path / "square.png", stored[:, :4], orientation)
    with Image.open(square) as picture:
        wanted = np.asarray(ImageOps.exif_transpose(picture))
    assert (decode(square, *NO_LIMIT, size=(4, 4)) == wanted).all()


def saved(path: Path, pixels: np.ndarray, orientation: int) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, exif=exif)
    return path


def test_decode_rotates_tiff_once(tmp_path: Path) -> None:
    stored = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    path = tmp_path / "a.tiff"
    Image.fromarray(stored).save(path, tiffinfo={274: 6})
    assert (decode(path, *NO_LIMIT, size=(6, 4)) == np.rot90(stored, -1)).all()
    with pytest.raises(UserError, match="declared 6 x 4"):
        decode(path, *NO_LIMIT, size=(4, 6))


def test_decode_names_broken_pictures(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:600])
    (tmp_path / "text.jpg").write_text("no picture")
    Image.new("F", (2, 2)).save(tmp_path / "float.tiff")
    Image.new("1", (20_000, 6_000)).save(tmp_path / "bomb.png")
    for name, why in {
        "missing.jpg": "does not exist",
        "cut.jpg": "cannot be decoded",
        "text.jpg": "not a picture",
        "float.tiff": "floating-point",
        "bomb.png": "million pixels|decoded",
    }.items():
        with pytest.raises(UserError, match=f"{name}: .*({why})") as caught:
            decode(tmp_path / name, *NO_LIMIT)
        assert caught.value.fix


def test_decode_module_does_not_import_torch() -> None:
    """It would cost seconds and hundreds of megabytes in each of them."""
    script = "import sys, mini_fsod.loader.decode; sys.exit('torch' in sys.modules)"
    source = str(Path(decode_module.__file__).parents[2])
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": source}, check=True)


def test_worker_pool_keeps_the_message_and_fix_of_an_error(tmp_path: Path) -> None:
    (tmp_path / "pixels.bin").touch()
    job = Job(str(tmp_path / "missing.jpg"), (2, 2), 0)
    with worker_pool(1) as pool:
        work = pool.submit(decode_to_file, str(tmp_path / "pixels.bin"), [job], *NO_LIMIT)
        with pytest.raises(UserError, match=r"missing\.jpg: the picture does not exist") as caught:
            work.result()
    assert caught.value.fix == "Restore it or remove the image."


DECODE_LARGE = """
import resource, sys, warnings
from pathlib import Path
from mini_fsod.loader.decode import decode
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decode(Path(sys.argv[1]), 100, 100)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("mode", ["I;16", pytest.param("RGBA", marks=pytest.mark.slow)])
def test_decode_needs_little_more_memory_than_the_picture(tmp_path: Path, mode: str) -> None:
    side = 5000
    path = tmp_path / "large.png"
    shape, kind = ((side, side), np.uint16) if mode == "I;16" else ((side, side, 4), np.uint8)
    Image.fromarray(np.zeros(shape, dtype=kind)).save(path, compress_level=1)
    source = str(Path(decode_module.__file__).parents[2])
    command = [sys.executable, "-c", DECODE_LARGE, str(path)]
    run = subprocess.run(
        command, env={"PYTHONPATH": source}, check=True, capture_output=True, text=True
    )
    kilobytes = int(run.stdout)
    assert kilobytes * 1024 < 10 * side * side  # 8 bytes per pixel: the picture, and RGB
