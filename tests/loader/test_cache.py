"""The decoded cache: whole or absent, stale when a picture changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.errors import UserError
from mini_fsod.loader import cache
from mini_fsod.loader.cache import cached_pictures, image_sizes
from mini_fsod.loader.decode import decode

SIZES = [(40, 30), (30, 40), (64, 48), (100, 20), (5, 7)]  # width, height


def pictures_in(root: Path, declared: bool = True) -> Dataset:
    """A data set of noise; pictures that are there already are left alone."""
    root.mkdir(exist_ok=True)
    random = np.random.RandomState(0)
    names = [f"{n}.png" for n in range(len(SIZES))]
    for name, (width, height) in zip(names, SIZES, strict=True):
        noise = random.randint(0, 256, (height, width, 3)).astype(np.uint8)
        if not (root / name).exists():
            Image.fromarray(noise).save(root / name)
    sizes = np.array(SIZES) if declared else np.zeros((len(SIZES), 2), dtype=np.int64)
    return Dataset(
        "coco", root, ("a",), (1,), tuple(range(len(names))), tuple(names), sizes, NO_BOXES,
        ("file",) * len(names),
    )  # fmt: skip


def assert_right(data: Dataset, pictures: cache.Pictures, short: int, long: int) -> None:
    for i in range(len(data)):
        (height, width), start = pictures.stored[i].tolist(), pictures.offset[i]
        held = pictures.pixels[start : start + 3 * height * width].reshape(height, width, 3)
        assert (held == decode(data.path(i), short, long)).all()


@pytest.mark.parametrize("declared", [True, False])
def test_cached_pictures_holds_the_decoded_bytes(tmp_path: Path, declared: bool) -> None:
    data = pictures_in(tmp_path / "data", declared)
    told: list[tuple[int, int]] = []
    pictures = cached_pictures(
        data, tmp_path / "cache", 24, 60, 2, lambda done, total: told.append((done, total))
    )
    assert_right(data, pictures, 24, 60)
    assert pictures.sizes.tolist() == [[h, w] for w, h in SIZES]
    assert pictures.stored.tolist() == [[24, 32], [32, 24], [24, 32], [12, 60], [7, 5]]
    assert told[-1] == (5, 5)


def test_cached_pictures_decodes_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures_in(tmp_path / "data")
    first = cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    monkeypatch.setattr(cache, "worker_pool", lambda n: pytest.fail("decoded again"))
    again = cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    assert (again.pixels == first.pixels).all()
    assert isinstance(again.pixels, np.memmap)


def test_cached_pictures_makes_a_new_cache_after_changes(tmp_path: Path) -> None:
    data = pictures_in(tmp_path / "data")
    cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    white = np.full((30, 40, 3), 255, dtype=np.uint8)
    Image.fromarray(white).save(data.path(0))
    changed = cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    assert (changed.pixels[: 3 * 24 * 32] == 255).all()
    cached_pictures(data, tmp_path / "cache", 30, 60, 1)
    assert len(list((tmp_path / "cache").glob("pictures-*/pixels.bin"))) == 3


def test_cached_pictures_ignores_what_a_killed_writer_left(tmp_path: Path) -> None:
    """The writer kills itself when the first pictures are in place; its workers end too."""
    script = """
import os, sys, signal, multiprocessing
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from mini_fsod.loader import cache
from test_cache import pictures_in
def stop(done, total):
    print(*[p.pid for p in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    root = Path(sys.argv[1])
    cache.cached_pictures(pictures_in(root / "data"), root / "cache", 24, 60, 1, stop)
"""
    (tmp_path / "script.py").write_text(script)
    process = start_script(tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    folder = tmp_path / "cache"
    assert [p.suffix for p in folder.glob("pictures-*") if p.is_dir()] == [".part"]
    for worker in output.split():
        wait_for_end(int(worker))
    data = pictures_in(tmp_path / "data")
    assert_right(data, cached_pictures(data, folder, 24, 60, 1), 24, 60)
    assert [p.suffix for p in folder.glob("pictures-*") if p.is_dir()] == [""]


def test_cached_pictures_removes_what_killed_writers_of_other_caches_left(tmp_path: Path) -> None:
    data, folder = pictures_in(tmp_path / "data"), tmp_path / "cache"
    (folder / "pictures-other.part").mkdir(parents=True)
    (folder / "pictures-other.part" / "pixels.bin").write_bytes(b"half")
    cache.cached_pictures(data, folder, 32, 32)
    assert not list(folder.glob("*.part"))


def test_cached_pictures_has_the_usual_permissions(tmp_path: Path) -> None:
    data, folder = pictures_in(tmp_path / "data"), tmp_path / "cache"
    before = os.umask(0o022)
    try:
        cache.cached_pictures(data, folder, 32, 32)
    finally:
        os.umask(before)
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def start_script(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, folder / "script.py", folder, Path(__file__).parent],
        env=os.environ | {"PYTHONPATH": str(Path(cache.__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_end(process: int) -> None:
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        threading.Event().wait(0.05)
    pytest.fail(f"worker {process} outlived its parent")


def test_cached_pictures_writes_once_for_two_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from mini_fsod.loader import cache
from test_cache import assert_right, pictures_in
def write_slowly(*arguments):
    print("writes", flush=True)
    time.sleep(0.5)
    write(*arguments)
if __name__ == "__main__":
    root = Path(sys.argv[1])
    data = pictures_in(root / "data")
    write, cache._write = cache._write, write_slowly
    assert_right(data, cache.cached_pictures(data, root / "cache", 24, 60, 1), 24, 60)
""")
    pictures_in(tmp_path / "data")
    processes = [start_script(tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sorted(output for output, _ in outputs) == [b"", b"writes\n"]


def test_cached_pictures_checks_the_free_space_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pictures_in(tmp_path / "data")
    monkeypatch.setattr("shutil.disk_usage", lambda p: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"take 0\.0 MiB, but only 0\.0 MiB are free"):
        cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


def test_cached_pictures_names_broken_pictures_and_leaves_no_files(tmp_path: Path) -> None:
    data = pictures_in(tmp_path / "data")
    whole = data.path(2).read_bytes()
    data.path(2).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"2\.png: cannot be decoded"):
        cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]
    data.path(2).unlink()
    with pytest.raises(UserError, match=r"2\.png: .* \(No such file"):
        cached_pictures(data, tmp_path / "cache", 24, 60, 1)


def test_cached_pictures_refuses_a_wrong_declared_size(tmp_path: Path) -> None:
    data = pictures_in(tmp_path / "data")
    data.sizes[1] = 40, 41
    with pytest.raises(UserError, match=r"1\.png: declared 40 x 41, but the picture is 30 x 40"):
        cached_pictures(data, tmp_path / "cache", 24, 60, 1)


def test_cached_pictures_refuses_an_empty_data_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pictures to decode"):
        cached_pictures(pictures_in(tmp_path).select([]), tmp_path / "cache", 24, 60, 1)


def test_cached_pictures_names_a_damaged_cache(tmp_path: Path) -> None:
    data = pictures_in(tmp_path / "data")
    cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    with next((tmp_path / "cache").glob("pictures-*/pixels.bin")).open("ab") as target:
        target.write(b"more")
    with pytest.raises(UserError, match=r"pictures-\w+: an incomplete cache"):
        cached_pictures(data, tmp_path / "cache", 24, 60, 1)


def test_take_shares_the_buffer(tmp_path: Path) -> None:
    data = pictures_in(tmp_path / "data")
    pictures = cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    part = data.select([3, 1])
    taken = pictures.take(part.files)
    assert taken.pixels is pictures.pixels
    assert_right(part, taken, 24, 60)


def test_image_sizes_reads_headers_where_nothing_is_declared(tmp_path: Path) -> None:
    data = pictures_in(tmp_path / "data", declared=False)
    assert image_sizes(data).tolist() == [[h, w] for w, h in SIZES]
    data.path(4).write_text("no picture")
    with pytest.raises(UserError, match=r"4\.png: not a picture"):
        image_sizes(data)


@pytest.mark.parametrize(
    "how",
    ["one number", "columns", "negative", "text", "empty", "pipe", "header", "sparse"],
)
def test_cached_pictures_names_damaged_sizes(tmp_path: Path, how: str) -> None:
    data = pictures_in(tmp_path / "data")
    cached_pictures(data, tmp_path / "cache", 24, 60, 1)
    path = next((tmp_path / "cache").glob("pictures-*/sizes.npy"))
    sizes = np.load(path)
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "empty":
        path.touch()
    elif how == "header":
        path.write_bytes(b"\x93NUMPY\x01\x00\x06\x00{'a(\0\n")  # NumPy raises a SyntaxError
    elif how == "sparse":
        np.save(path, sizes)
        os.truncate(path, 3 << 30)
    else:
        odd = {"one number": np.int64(3), "columns": sizes[:, :3], "negative": -sizes}
        np.save(path, odd.get(how, sizes.astype(str)))
    with pytest.raises(UserError, match=r"pictures-\w+: an incomplete cache"):
        cached_pictures(data, tmp_path / "cache", 24, 60, 1)
