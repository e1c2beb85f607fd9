"""Kept results: links, locks, who uses what, and what may be deleted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.runs import store


def write_result(runs: Path, name: str, finished: bool = True) -> Path:
    folder = runs / store.STORE / name
    folder.mkdir(parents=True)
    (folder / "checkpoint.safetensors").write_bytes(b"weights")
    if finished:
        (folder / store.METRICS).write_text('{"seconds": 1.5}')
    return folder


def write_run(path: Path, **stages: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").touch()
    for stage, folder in stages.items():
        store.link(path, stage, folder)
    return path


HOLD = """
import sys
from pathlib import Path
from mini_fsod.runs import store
with store.computing(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def other_process(tmp_path: Path):
    """Another process that computes the result base-1 in `tmp_path`."""
    folder = tmp_path / store.STORE / "base-1"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_link_is_relative_and_replaced(tmp_path: Path) -> None:
    one, two = (write_result(tmp_path, name) for name in ("base-1", "base-2"))
    run = write_run(tmp_path / "first", base=one)
    assert str((run / "base").readlink()) == "../.stages/base-1"
    store.link(run, "base", two)
    assert (run / "base").resolve() == two.resolve()
    tmp_path.joinpath("runs").mkdir()
    for name in ("first", store.STORE):
        (tmp_path / name).rename(tmp_path / "runs" / name)
    assert (tmp_path / "runs" / "first" / "base" / store.METRICS).exists()
    store.unlink(tmp_path / "runs" / "first", "base")
    assert not (tmp_path / "runs" / "first" / "base").is_symlink()
    assert (tmp_path / "runs" / store.STORE / "base-2" / store.METRICS).exists()


def test_link_says_that_a_finished_result_is_computed_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "first", base=write_result(tmp_path, "base-1"))
    store.link(run, "base", write_result(tmp_path, "base-2"))
    assert capsys.readouterr().err == ""
    store.link(run, "base", write_result(tmp_path, "base-3", finished=False))
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("base: to be computed again")
    assert said.endswith("base-2")
    store.link(run, "base", write_result(tmp_path, "base-4", finished=False))
    assert capsys.readouterr().err == ""


def test_read_metrics_of_a_finished_result_alone(tmp_path: Path) -> None:
    assert store.read_metrics(write_result(tmp_path, "mine-1")) == {"seconds": 1.5}
    assert store.read_metrics(write_result(tmp_path, "base-2", finished=False)) is None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b'{"other": 1}', b"{no json", b"\xff", b"[" * 100_000, b'{"seconds": "1"}'),
        *(b'{"seconds": NaN}', b'{"seconds": 1, "nAP50": "1"}', b'{"seconds": 1, "extra": 3}'),
        b'{"seconds": 1' + b"0" * 400 + b"}",
        *(b'{"seconds": 1, "images": [2]}', b'{"seconds": 1, "candidates": "x"}'),
    ],
    ids=range(13),
)
def test_read_metrics_of_a_damaged_file_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    folder = write_result(tmp_path, "mine-1")
    (folder / store.METRICS).write_bytes(content)
    with pytest.raises(UserError, match=r"metrics\.json: cannot be read") as error:
        store.read_metrics(folder)
    assert "Delete the file" in error.value.fix


def test_read_metrics_of_a_trained_stage_needs_the_digest_of_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="checkpoint_sha256: Field required"):
        store.read_metrics(write_result(tmp_path, "base-1"))


def test_computing_is_refused_or_waits_while_another_process_computes(
    tmp_path: Path, other_process: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / store.STORE / "base-1"
    with pytest.raises(store.Busy) as busy, store.computing(folder, wait=False):
        pass
    assert busy.value.stage == "base"
    other_process.kill()  # a lock ends with its process
    with store.computing(folder, wait=True):
        pass


def test_kept_lists_size_users_and_unfinished_results(tmp_path: Path) -> None:
    base, left = write_result(tmp_path, "base-1"), write_result(tmp_path, "tune-9")
    half = write_result(tmp_path, "transfer-3", finished=False)
    write_run(tmp_path / "first", base=base, transfer=half)
    write_run(tmp_path / "tfa" / "cells" / "tfa-1shot", base=base)
    found = {item.name: item for item in store.kept(tmp_path)}
    assert list(found) == ["base-1", "transfer-3", "tune-9"]  # in the order of the stages
    assert found["base-1"].used_by == ("first", "tfa/cells/tfa-1shot")
    assert found["base-1"].bytes == len(b"weights") + len('{"seconds": 1.5}')
    assert not found["transfer-3"].finished
    assert found["tune-9"].used_by == ()
    assert found["tune-9"].folder == left
    assert store.kept(tmp_path / "nowhere") == []


def test_kept_says_what_another_process_works_on(
    tmp_path: Path, other_process: subprocess.Popen[str]
) -> None:
    write_result(tmp_path, "base-1", finished=False)
    item = store.kept(tmp_path)[0]
    assert item.busy
    store.prune(tmp_path, [item])
    assert item.folder.exists()


def test_prune_deletes_what_no_run_uses(tmp_path: Path) -> None:
    used, free, late = (write_result(tmp_path, f"base-{n}") for n in (1, 2, 3))
    write_run(tmp_path / "first", base=used)
    items = [item for item in store.kept(tmp_path) if not item.used_by]
    assert {item.name for item in items} == {"base-2", "base-3"}
    write_run(tmp_path / "second", base=late)  # since they were listed
    store.prune(tmp_path, items)
    assert (used.exists(), free.exists(), late.exists()) == (True, False, True)


def test_copy_file_survives_a_change_of_its_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_bytes(b"one")
    store.copy_file(source, target)
    store.copy_file(source, target)
    assert target.read_bytes() == b"one"
    (tmp_path / "new").write_bytes(b"two")
    (tmp_path / "new").replace(source)  # as mini writes files
    assert target.read_bytes() == b"one"
    store.copy_file(source, target)
    assert target.read_bytes() == b"two"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_discard_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    folder = write_result(tmp_path, "base-1")
    store.discard(folder)
    assert not folder.exists()
    store.discard(folder)


def test_read_score_of_an_endless_integer_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    path.write_text(json.dumps({"metric": "voc"})[:-1] + ', "n": ' + "9" * 5000 + "}")
    with pytest.raises(UserError, match="cannot be read"):
        store.read_score(path)
