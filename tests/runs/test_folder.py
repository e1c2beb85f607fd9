from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.config.load import Config, from_file, resolve
from mini_fsod.errors import UserError
from mini_fsod.files import digest
from mini_fsod.runs import folder, inputs

BOTH = ("base", "transfer")
FIGURES: dict[str, Any] = {"nAP50": 1.0, "per_class": {}, "seconds": 7.0}


def config(*sets: str) -> Config:
    return resolve("demo", sets)


def finish(out: Path, *stages: str, settings: Config | None = None, **more: Any) -> None:
    """What finished stages leave behind."""
    out.mkdir(parents=True, exist_ok=True)
    (out / folder.CONFIG).write_text((settings or config()).to_yaml())
    for stage in stages:
        (out / stage).mkdir()
        (out / stage / folder.METRICS).write_text(json.dumps(FIGURES | more))
        (out / stage / folder.CHECKPOINT).write_bytes(stage.encode())


@pytest.mark.parametrize(
    ("finished", "first", "wanted", "left"),
    [
        ((), None, BOTH, ["base", "transfer"]),
        ((), None, ("base",), ["base"]),
        (("base",), None, BOTH, ["transfer"]),
        (BOTH, None, BOTH, []),
        (BOTH, "transfer", BOTH, ["transfer"]),
        (BOTH, "base", BOTH, ["base", "transfer"]),
        (BOTH, "base", ("base",), ["base"]),
        ((), "base", BOTH, ["base", "transfer"]),
    ],
)
def test_what_is_to_do(
    tmp_path: Path,
    finished: tuple[str, ...],
    first: str | None,
    wanted: tuple[str, ...],
    left: list[str],
) -> None:
    finish(tmp_path, *finished)
    assert folder.to_do(tmp_path, first, wanted) == left


def test_a_stage_is_not_repeated_before_the_one_it_needs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="transfer cannot be repeated, since base is not finished"):
        folder.to_do(tmp_path, "transfer", BOTH)


@pytest.mark.parametrize(
    ("sets", "first", "stages", "keys", "fix"),
    [
        (["seed=1"], None, "base and transfer, which were", "seed", "base"),
        (["base.rate=0.1"], None, "base and transfer, which were", "base.rate", "base"),
        (
            ["views.test=100", "shots.k=7"],
            None,
            "base and transfer, which were",
            "shots.k, views.test",
            "base",
        ),
        (["shots.k=1"], None, "transfer, which was", "shots.k", "transfer"),
        (["transfer.cached=false"], None, "transfer, which was", "transfer.cached", "transfer"),
        (["base.rate=0.1", "shots.k=7"], "transfer", "base, which was", "base.rate", "base"),
    ],
)
def test_a_changed_configuration_is_told(
    tmp_path: Path, sets: list[str], first: str | None, stages: str, keys: str, fix: str
) -> None:
    finish(tmp_path, *BOTH)
    with pytest.raises(UserError) as told:
        folder.refuse_stale(tmp_path, config(*sets), first)
    assert f"not the one of {stages} run here: {keys} changed." in told.value.what
    assert told.value.fix.startswith(f"Repeat with --from {fix}, choose another folder with --out,")
    assert told.value.fix.endswith(f"mini run {tmp_path / 'config.yaml'} -o {tmp_path}")


@pytest.mark.parametrize(
    ("sets", "first"),
    [
        ([], None),
        (["device=cpu", "data.cache=elsewhere", "data.feed=stream", "base.save_seconds=1"], None),
        (["shots.k=1"], "transfer"),
        (["seed=1"], "base"),
    ],
)
def test_a_configuration_that_gives_the_same_is_taken(
    tmp_path: Path, sets: list[str], first: str | None
) -> None:
    finish(tmp_path, *BOTH)
    folder.refuse_stale(tmp_path, config(*sets), first)


def test_the_rate_of_a_batch_is_the_same_rate(tmp_path: Path) -> None:
    finish(tmp_path, *BOTH, settings=config("base.rate=0.005", "base.batch=4"))
    folder.refuse_stale(tmp_path, config("base.rate=null", "base.batch=4"), None)
    with pytest.raises(UserError, match=r"base\.batch, base\.rate changed"):
        folder.refuse_stale(tmp_path, config("base.rate=null"), None)


def test_the_same_place_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    out = tmp_path / "run"
    finish(out, *BOTH, settings=config("data.root=photos"))
    folder.refuse_stale(out, config(f"data.root={tmp_path / 'photos'}"), None)
    with pytest.raises(UserError, match=r"data\.root changed"):
        folder.refuse_stale(out, config("data.root=others"), None)


def test_what_changes_figures_alone_asks_for_no_training(tmp_path: Path) -> None:
    finish(tmp_path, *BOTH)
    with pytest.raises(UserError, match=r"data\.metric changed, and figures .* stay") as told:
        folder.refuse_stale(tmp_path, config("data.metric=coco"), None)
    assert f"mini predict {tmp_path} PICTURES --json" in told.value.fix
    with pytest.raises(UserError, match=r"data\.metric, seed changed"):
        folder.refuse_stale(tmp_path, config("data.metric=coco", "seed=1"), None)


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is the data's own folder"):
        folder.refuse_stale(tmp_path, config(f"data.root={tmp_path}"), None)
    (tmp_path / "train.json").touch()
    with pytest.raises(UserError, match="is the data's own folder"):
        folder.refuse_stale(tmp_path, config(f"data.root={tmp_path / 'train.json'}"), None)
    (tmp_path / "plan.json").touch()
    with pytest.raises(UserError, match="a study lies here"):
        folder.refuse_stale(tmp_path, config(), None)


def test_a_stage_that_began_counts_and_one_that_never_got_anywhere_does_not(tmp_path: Path) -> None:
    finish(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "log.jsonl").touch()
    folder.refuse_stale(tmp_path, config("seed=1"), None)
    (tmp_path / "base" / folder.PROGRESS).touch()
    with pytest.raises(UserError, match="seed changed"):
        folder.refuse_stale(tmp_path, config("seed=1"), None)


def test_a_given_base_detector_that_changed(tmp_path: Path) -> None:
    given = tmp_path / "given.safetensors"
    given.write_bytes(b"weights")
    settings = config(f"base.checkpoint={given}")
    said = {"checkpoint": str(given), "checkpoint_sha256": digest(given)}
    out = tmp_path / "run"
    finish(out, *BOTH, settings=settings, **said)
    folder.refuse_stale(out, settings, None)
    given.write_bytes(b"others")
    with pytest.raises(UserError, match=r"base and transfer, .*: the content of .* changed"):
        folder.refuse_stale(out, settings, None)
    folder.refuse_stale(out, settings, "base")
    given.unlink()  # what is finished does not need it any more
    folder.refuse_stale(out, settings, None)


def test_a_folder_of_nobody_knows_what(tmp_path: Path) -> None:
    finish(tmp_path, "base")
    (tmp_path / folder.CONFIG).unlink()
    with pytest.raises(UserError, match=r"no config\.yaml says how base came about"):
        folder.refuse_stale(tmp_path, config(), None)
    folder.refuse_stale(tmp_path, config(), "base")


def test_preparing_clears_what_is_repeated(tmp_path: Path) -> None:
    finish(tmp_path, *BOTH)
    (tmp_path / folder.RESULTS).write_text("{}")
    torn = tmp_path / "base" / ".checkpoint.safetensors.abc.part"
    torn.touch()
    folder.prepare(tmp_path, config("shots.k=1"), "transfer")
    assert (tmp_path / "base" / folder.CHECKPOINT).read_bytes() == b"base"
    assert not torn.exists()
    assert not (tmp_path / "transfer").exists()
    assert not (tmp_path / folder.RESULTS).exists()
    assert from_file(tmp_path / folder.CONFIG) == config("shots.k=1")
    folder.prepare(tmp_path, config(), "base")
    assert {path.name for path in tmp_path.iterdir()} == {folder.CONFIG, inputs.NAME}


def test_preparing_keeps_what_is_finished_or_begun(tmp_path: Path) -> None:
    finish(tmp_path, "base")
    (tmp_path / folder.RESULTS).write_text("{}")
    (tmp_path / "transfer").mkdir()
    (tmp_path / "transfer" / folder.PROGRESS).touch()
    folder.prepare(tmp_path, config(), None)
    assert (tmp_path / "base" / folder.METRICS).exists()
    assert (tmp_path / "transfer" / folder.PROGRESS).exists()
    assert (tmp_path / folder.RESULTS).exists()
    # a start that never got anywhere leaves no trace
    (tmp_path / "transfer" / folder.PROGRESS).rename(tmp_path / "transfer" / "events.old")
    folder.prepare(tmp_path, config(), None)
    assert not (tmp_path / "transfer").exists()


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(UserError, match="is no folder"):
        folder.refuse_stale(place, config(), None)
    with pytest.raises(UserError, match="cannot be written"):
        folder.prepare(place / "run", config(), None)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b'{"nAP50": 1}', b"\xff\xfe"])
def test_figures_that_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / folder.METRICS).write_bytes(content)
    with pytest.raises(UserError, match=r"metrics\.json: cannot be read") as told:
        folder.metrics(tmp_path / "base")
    assert told.value.fix == "Repeat the stage with --from base."
    assert folder.to_do(tmp_path, "base", BOTH) == ["base", "transfer"]


def test_results_are_those_of_the_finished_stages(tmp_path: Path) -> None:
    finish(tmp_path, "base")
    assert folder.results(tmp_path) is None
    written = folder.write_results(tmp_path, config("seed=3"), "mini run demo", "some CPU", 7)
    assert list(written) == [
        "stages",
        "seed",
        "shots",
        "versions",
        "device",
        "command",
        "commit",
    ]
    assert written["stages"] == {"base": FIGURES}
    assert written["seed"] == 3
    assert written["shots"] == config().shots.model_dump(mode="json") | {"k": 7}
    assert written["versions"].keys() == {"mini", "python", "torch", "torchvision", "numpy"}
    assert (written["device"], written["command"]) == ("some CPU", "mini run demo")
    assert json.loads((tmp_path / folder.RESULTS).read_text()) == written
    assert folder.results(tmp_path) == written
    finish(tmp_path, "transfer")
    assert folder.results(tmp_path) is None  # it does not tell of transfer
    (tmp_path / folder.RESULTS).write_text("[1]")
    assert folder.results(tmp_path) is None


def test_the_commit_is_ours_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    code = tmp_path / "mini_fsod" / "runs" / "folder.py"
    code.parent.mkdir(parents=True)
    code.write_text("1")
    monkeypatch.setattr(folder, "__file__", str(code))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert folder.commit() is None  # no checkout
    git("init")
    git("commit", "--allow-empty", "-m", "of something else")
    assert folder.commit() is None  # as an environment inside somebody's checkout
    git("add", ".")
    git("commit", "-m", "ours")
    assert folder.commit() == git("rev-parse", "--short=10", "HEAD")
    code.write_text("2")
    assert folder.commit() == git("rev-parse", "--short=10", "HEAD") + "+"


def test_a_file_with_other_content_is_another_file(tmp_path: Path) -> None:
    out, shots = tmp_path / "run", tmp_path / "shots.json"
    shots.write_text("[1]")
    own = config(f"shots.file={shots}")
    finish(out, *BOTH, settings=own)
    folder.prepare(out, own, None)
    folder.refuse_stale(out, own, None)
    shots.write_text("[1]")  # written again
    folder.refuse_stale(out, own, None)
    shots.write_text("[2]")
    with pytest.raises(UserError, match="not the one of transfer, which was run here: the content"):
        folder.refuse_stale(out, own, None)
    folder.refuse_stale(out, own, "transfer")  # it is repeated
    folder.refuse_stale(out, config(f"shots.file={shots}"), "base")
    folder.prepare(out, own, "transfer")
    folder.refuse_stale(out, own, None)
    shots.unlink()
    folder.refuse_stale(out, own, None)  # a stage that needs it will say so
    folder.prepare(out, config(), "base")
    assert "shots.file" not in inputs.read(out)


@pytest.mark.parametrize("change", ["edited", "new", "gone"])
def test_other_annotations_are_told(tmp_path: Path, change: str) -> None:
    """Of stages that began with the former ones; they may have been copied, so it is no error."""
    data, out = tmp_path / "data", tmp_path / "run"
    (data / "labels").mkdir(parents=True)
    for name in ("labels/a.txt", "labels/b.txt", "c.jpg"):
        (data / name).write_text("0 0.5 0.5 1 1")
    own = config(f"data.root={data}")
    assert not inputs.annotations_changed(out, data)  # nothing is known
    folder.prepare(out, own, None)
    (data / "c.jpg").write_text("")  # a picture
    folder.prepare(data / "runs" / "mine", own, None)
    assert not inputs.annotations_changed(out, data)
    if change == "edited":
        (data / "labels" / "a.txt").write_text("")
    elif change == "new":
        (data / "labels" / "d.txt").write_text("")
    else:
        (data / "labels" / "b.txt").unlink()
    assert inputs.annotations_changed(out, data)
    assert not inputs.annotations_changed(out, tmp_path / "other")
    finish(out, "base", settings=own)
    folder.prepare(out, own, "transfer")
    assert inputs.annotations_changed(out, data)  # base has seen the former ones
    folder.refuse_stale(out, own, None)
    folder.prepare(out, own, "base")
    assert not inputs.annotations_changed(out, data)


HOLDS = """
import sys, time
from pathlib import Path
from mini_fsod.files import digest
from mini_fsod.runs import folder, inputs
with folder.held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process is at work"), folder.held(tmp_path):
            pass
        other.kill()
    with folder.held(tmp_path):
        pass
