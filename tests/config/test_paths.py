"""Paths of a configuration file are relative to the file, and written so that they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod.config.load import for_folder, resolve
from mini_fsod.config.paths import NAME_KEYS, PATH_KEYS, paths_for, paths_from


def test_path_keys_are_all_keys_that_take_a_file_or_folder() -> None:
    files = """
        data.root data.pictures data.cache shots.file shots.root base.checkpoint transfer.checkpoint
        mine.pool mine.segmenter mine.detections mine.extra
    """
    assert sorted(PATH_KEYS) == sorted(files.split())
    assert sorted(NAME_KEYS) == ["detector.weights", "discriminator.weights", "shots.official"]


def test_resolve_takes_paths_of_a_file_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "w.safetensors").touch()
    (tmp_path / "project" / "photos.yaml").write_text(
        "preset: demo\n"
        "data: {root: photos, cache: ~/cache}\n"
        "shots: {file: ../shots.json}\n"
        "mine: {extra: /more}\n"
        "detector: {weights: w.safetensors, norm: frozen}\n"
        "discriminator: {weights: 'resnet50:w.safetensors'}\n"
    )
    config = resolve("project/photos.yaml", ["data.pictures=here"])
    assert config.data.root == Path("project/photos")
    assert config.data.cache == Path("~/cache").expanduser()
    assert config.data.pictures == Path("here")  # of --set: from the current folder
    assert config.shots.file == Path("shots.json")
    assert config.mine.extra == Path("/more")
    assert config.detector.weights == "project/w.safetensors"
    assert config.discriminator.weights == "resnet50:project/w.safetensors"
    named = resolve(tmp_path / "project" / "photos.yaml", ["detector.weights=IMAGENET1K_V2"])
    assert named.data.root == tmp_path / "project" / "photos"
    assert named.detector.weights == "IMAGENET1K_V2"
    assert resolve("demo").data.root == Path("runs/demo-data")  # of a preset: the same


def test_for_folder_is_read_back_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.safetensors").touch()
    config = resolve("demo", ["detector.norm=frozen", "detector.weights=w.safetensors"])
    out = tmp_path / "a" / "runs" / "first"
    out.mkdir(parents=True)
    (out / "config.yaml").write_text(for_folder(config, out).to_yaml())
    assert "root: ../../../runs/demo-data" in (out / "config.yaml").read_text()
    assert resolve("a/runs/first/config.yaml") == config
    monkeypatch.chdir(out)
    assert resolve("config.yaml").data.root == Path("../../../runs/demo-data")


def test_paths_stay_where_they_are_absolute_null_or_no_files(tmp_path: Path) -> None:
    keys = {"data.root": "/a", "data.cache": "~/b", "mine.pool": None, "shots.official": "voc"}
    assert paths_from(tmp_path, keys) == keys
    assert paths_for(tmp_path, keys) == keys
    wrong = {"data.root": ["a"], "shots.file": ""}  # reported as wrong values later
    assert paths_from(tmp_path, wrong) == wrong


def test_a_published_detector_is_a_name_in_a_file_of_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "torchvision:fasterrcnn_resnet50_fpn"
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "x.yaml"
    file.write_text(f"preset: photos\nbase: {{checkpoint: '{name}'}}\n")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / "x"
    out.mkdir(parents=True)
    for path in ("sub/x.yaml", file, "../" + str(file.relative_to(tmp_path.parent))):
        config = resolve(path)
        assert str(config.base.checkpoint) == name
        stored = for_folder(config, out).to_yaml()
        assert name in stored
        assert f"/{name}" not in stored
        (out / "config.yaml").write_text(stored)
        assert resolve("runs/x/config.yaml") == config
    # as runs stored it before
    (out / "config.yaml").write_text(stored.replace(name, f"../../{name}"))
    monkeypatch.chdir(out.parent)
    assert str(resolve("x/config.yaml").base.checkpoint) == name


def test_names_of_published_weights_stay_names_in_a_file_of_any_folder(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "preset: photos\n"
        "detector: {weights: IMAGENET1K_V2}\n"
        "discriminator: {weights: 'resnet50:IMAGENET1K_V1'}\n"
        "shots: {official: voc}\n"
    )
    config = resolve(file)
    assert config.detector.weights == "IMAGENET1K_V2"
    assert config.discriminator.weights == "resnet50:IMAGENET1K_V1"
    assert config.shots.official == "voc"
    stored = for_folder(config, tmp_path / "runs" / "x")
    assert stored.detector == config.detector
    assert stored.discriminator == config.discriminator
    assert stored.shots == config.shots
