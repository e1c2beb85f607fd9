"""Data in object storage: read as from a folder, with pictures that are kept nowhere."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from helpers import shapes, tiny, tiny_run
from helpers.s3 import s3_server
from mini_fsod import remote
from mini_fsod.config.load import resolve
from mini_fsod.data.pictures import PictureError, open_picture, picture_size
from mini_fsod.data.read import read
from mini_fsod.errors import UserError
from mini_fsod.files import default_cache_folder, is_file
from mini_fsod.mining.extra import extra_images
from mini_fsod.remote import RemotePath, as_path
from mini_fsod.runs.data import RunData

needs_s3fs = pytest.mark.skipif(
    importlib.util.find_spec("s3fs") is None, reason="needs the extra storage"
)


@pytest.fixture(autouse=True)
def nothing_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_storages", {})


@pytest.fixture
def upload(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Put a folder into storage in memory; gives its URL as a path."""
    memory = fsspec.filesystem("memory")

    def put(folder: Path) -> Path:
        for path in folder.rglob("*"):
            if path.is_file():
                memory.pipe_file(f"/{folder.name}/{path.relative_to(folder)}", path.read_bytes())
        return Path(f"memory://{folder.name}")

    memory.store.clear()
    yield put
    memory.store.clear()


def write_folder(folder: Path) -> Path:
    tiny.write_pictures(folder / "deep" / "er")
    return folder


def write_coco(folder: Path) -> Path:
    (folder / "annotations").mkdir(parents=True)
    tiny.write_coco(folder).rename(folder / "annotations" / "instances_train.json")
    return folder


@pytest.mark.parametrize("write", [write_coco, tiny.write_voc, tiny.write_yolo, write_folder])
def test_read_from_storage_equals_the_folder(
    write: Callable[[Path], Path], upload: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = write(tmp_path / "data")
    here, there = read(folder), read(upload(folder))
    assert str(there.root) == "memory://data"
    assert len(there) == 3
    for field in fields(here):
        ours, theirs = getattr(here, field.name), getattr(there, field.name)
        if field.name not in ("root", "boxes", "sizes", "subsets"):
            assert ours == theirs, field.name
    assert np.array_equal(here.sizes, there.sizes)
    assert here.digest == there.digest
    assert {n: i.tolist() for n, i in here.subsets.items()} == {
        n: i.tolist() for n, i in there.subsets.items()
    }
    assert picture_size(there.path(0)) == picture_size(here.path(0))


def test_read_a_file_in_storage(upload: Callable[[Path], Path], tmp_path: Path) -> None:
    url = upload(write_coco(tmp_path / "data"))
    data = read(url / "annotations" / "instances_train.json")
    assert is_file(data.path(0))


def test_pictures_in_storage_beside_annotations_here(
    upload: Callable[[Path], Path], tmp_path: Path
) -> None:
    tiny.write_pictures(tmp_path / "pictures" / "below")
    (tmp_path / "annotations").mkdir()
    path = tiny.write_coco(tmp_path / "annotations")
    for picture in path.parent.glob("*.png"):
        picture.unlink()
    data = read(path, root=upload(tmp_path / "pictures"))
    assert is_file(data.path(2))
    assert str(data.path(2)) == "memory://pictures/below/c.png"


def test_extra_images_in_storage(upload: Callable[[Path], Path], tmp_path: Path) -> None:
    data = shapes.write_data(tmp_path / "data")
    shapes.pictures(tmp_path / "extra", 3, seed=7)
    upload(tmp_path / "extra")
    config = tiny_run.config(data, mine__extra="memory://extra")
    assert config.mine.extra is not None
    found = extra_images(RunData(config, torch.device("cpu")), config.mine.extra)
    assert [str(found.path(i)) for i in range(3)] == [f"memory://extra/{i}.png" for i in range(3)]


def test_annotations_are_copied_again_when_they_change(
    upload: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write_voc(tmp_path / "data")
    url = upload(folder)
    read(url)
    copies = default_cache_folder() / "remote"
    first = {path for path in copies.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert first  # and no picture: annotations and lists of images alone
    assert not any(path.read_bytes().startswith(b"\x89PNG") for path in first)
    monkeypatch.setattr(remote, "_storages", {})
    xml = folder / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace("bird", "cow"))
    upload(folder)
    assert "cow" in read(url).classes


def test_remote_path_names_stay_urls(tmp_path: Path) -> None:
    path = as_path(Path("s3://bucket/voc"))
    assert isinstance(path, RemotePath)
    assert str(path / "a" / ".." / "b.jpg") == "s3://bucket/voc/a/../b.jpg"
    assert str(path.parent) == "s3://bucket"
    assert str((path / "x" / "y").relative_to(path)) == "x/y"
    assert not isinstance(as_path("C:/photos"), RemotePath)
    assert not isinstance(as_path(tmp_path), RemotePath)


def test_config_keeps_a_url_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "preset: voc-320\ndata: {root: s3://bucket/voc}\nmine: {extra: s3://bucket/more}\n"
    )
    config = resolve(str(tmp_path / "a.yaml"), [])
    assert str(config.data.root) == "s3://bucket/voc"
    assert str(config.mine.extra) == "s3://bucket/more"
    assert config.model_dump(mode="json")["data"]["root"] == "s3://bucket/voc"


def test_unknown_storage_is_one_message(
    upload: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="unknown kind of storage, foo://"):
        read(Path("foo://bucket/voc"))
    with pytest.raises(UserError, match="no such file or folder"):
        read(Path("memory://nothing/here"))
    with pytest.raises(UserError, match=r"a \.zip in object storage"):
        read(Path("memory://data/voc.zip"))
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match="needs a package that is not installed") as error:
        read(Path("s3://bucket/voc"))
    assert "mini-fsod[storage]" in error.value.fix


def test_picture_that_is_gone_is_missing(upload: Callable[[Path], Path], tmp_path: Path) -> None:
    data = read(upload(write_coco(tmp_path / "data")))
    fsspec.filesystem("memory").store.clear()
    with (
        pytest.raises(PictureError, match="the picture does not exist"),
        open_picture(data.path(0)),
    ):
        pass


@needs_s3fs
def test_s3_without_credentials_or_bucket(
    mini: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path) as (environment, _):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code, _, err = mini("check", "s3://nowhere/voc")
        assert code == 2
        assert "s3://nowhere/voc: no such file or folder" in err
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    code, _, err = mini("check", "s3://nowhere/voc2")
    assert code == 2
    assert "s3://nowhere/voc2: cannot be read" in err
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    code, _, err = mini("check", "s3://nowhere/voc3")
    assert code == 2
    assert "access denied" in err
    assert "AWS_ACCESS_KEY_ID" in err
    assert "Traceback" not in err


PIXELS = """
import sys
from pathlib import Path

import numpy as np

from mini_fsod.data.read import read
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.decode import decode

if __name__ == "__main__":
    here, there = (read(Path(root)) for root in sys.argv[1:])
    theirs = cached_pictures(there, Path("cache"), 48, 96, workers=2).pixels
    ours = [decode(here.path(i), 48, 96).ravel() for i in range(len(here))]
    assert len(ours) == 12
    assert np.array_equal(np.concatenate(ours), theirs)
"""


@needs_s3fs
def test_pictures_from_s3_are_decoded_by_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, whose workers have its environment."""
    data = shapes.write_data(tmp_path / "bucket" / "shapes")
    (tmp_path / "pixels.py").write_text(PIXELS)
    words = [sys.executable, "pixels.py", str(data), "s3://bucket/shapes"]

    def run() -> list[str]:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return sorted(line for line in asked if line.endswith((".png", ".json")))

    with s3_server(tmp_path) as (environment, asked):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        first = run()
        assert len([line for line in first if "json" in line]) == 2
        assert len([line for line in first if "png" in line]) == 12
        asked.clear()
        assert run() == []  # annotations are copied, pictures decoded
    places = (tmp_path / "cache", default_cache_folder() / "remote")
    kept = [name for place in places for _, _, names in os.walk(place) for name in names]
    assert kept
    assert not any(name.endswith(".png") for name in kept)


@pytest.mark.slow
@needs_s3fs
def test_run_from_s3_equals_the_run_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shapes.write_data(tmp_path / "bucket" / "shapes")
    changes: dict[str, object] = tiny_run.SHORT | {"data__loading": "stream"}
    here, there = tmp_path / "runs" / "here", tmp_path / "other" / "there"
    done = tiny_run.mini(tiny_run.words(data, here, **changes))
    assert done.returncode == 0, done.stderr
    with s3_server(tmp_path) as (environment, _):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        changes["data__root"] = "s3://bucket/shapes"
        done = tiny_run.mini(tiny_run.words(data, there, **changes))
        assert done.returncode == 0, done.stderr
    tiny_run.assert_same_weights(here, there, "transfer")
