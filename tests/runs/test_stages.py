"""Whole runs, as small as can be: what is run, what is not, and what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mini_fsod import checkpoint
from mini_fsod.config.load import Config, from_file, resolve
from mini_fsod.errors import UserError
from mini_fsod.runs import stages
from mini_fsod.runs.base import checkpoint_of
from mini_fsod.runs.data import Material
from mini_fsod.tfa import cached_features
from runs import small

STAGE_KEYS = {
    *("metric", "nAP50", "bAP50", "AP50", "per_class", "images", "detections"),
    "test_set",
    *("iterations", "seconds", "training_seconds", "test_seconds", "images_per_second"),
    "checkpoint_sha256",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


def config(data: Path, **changes: object) -> Config:
    source = data.parent / "small.yaml"
    source.touch()
    return resolve(str(source), small.sets(data, **changes))


def run(
    config: Config,
    out: Path,
    first: str | None = None,
    last: str | None = "transfer",
    command: str = "",
) -> Any:
    """The first two stages; the others have tests of their own."""
    return stages.run(config, out, first, last, command)


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    """A run with both stages. Not to be changed: see `copied`."""
    out = data.parent / "finished"
    run(config(data), out, command="mini run small")
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def stamps(out: Path) -> dict[str, int]:
    return {str(p.relative_to(out)): p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}


def weights(out: Path, stage: str) -> bytes:
    return (out / stage / "checkpoint.safetensors").read_bytes()


def same_weights(one: Path, other: Path, stage: str, **tolerance: float) -> None:
    a, b = (load_file(out / stage / "checkpoint.safetensors") for out in (one, other))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], **(tolerance or {"rtol": 0, "atol": 0}))


def test_what_a_run_leaves(data: Path, finished: Path) -> None:
    names = {path.relative_to(finished).as_posix() for path in finished.rglob("*")}
    names = {name for name in names if "tensorboard" not in name}
    inside = ("", "/checkpoint.safetensors", "/metrics.json", "/log.jsonl")
    wanted = {f"{stage}{name}" for stage in ("base", "transfer") for name in inside}
    # nothing to go on from, nothing torn
    assert names == wanted | {"config.yaml", "inputs.json", "results.json", ".lock"}
    assert from_file(finished / "config.yaml") == config(data)

    results = small.json_of(finished / "results.json")
    assert list(results) == [
        *("stages", "seed", "shots", "versions", "device", "command", "commit"),
    ]
    assert list(results["stages"]) == ["base", "transfer"]
    for stage, classes in (("base", ["red", "green"]), ("transfer", list(small.CLASSES))):
        figures = results["stages"][stage]
        assert set(figures) == STAGE_KEYS
        assert figures == small.json_of(finished / stage / "metrics.json")
        assert list(figures["per_class"]) == classes
        assert figures["images"] == 4
        assert figures["seconds"] >= figures["training_seconds"] > 0
        assert figures["images_per_second"] > 0
    assert results["stages"]["base"]["nAP50"] is None
    assert results["stages"]["transfer"]["nAP50"] is not None
    assert results["stages"]["base"]["iterations"] == 12
    assert results["seed"] == 0
    assert results["command"] == "mini run small"

    for stage, novel in (("base", ()), ("transfer", (small.NOVEL,))):
        header = checkpoint.read_header(finished / stage / "checkpoint.safetensors")
        assert (header.labels.base, header.labels.novel) == (("red", "green"), novel)
        assert header.about["stage"] == stage
        assert header.settings.test.min_size == 64
    log = (finished / "transfer" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [5, 10, 15, 20, 25]


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(data: Path, finished: Path, tmp_path: Path) -> None:
    run(config(data), tmp_path / "again")
    for stage in ("base", "transfer"):
        assert weights(tmp_path / "again", stage) == weights(finished, stage)
    other = tmp_path / "other"
    run(config(data, seed=1), other, last="base")
    assert weights(other, "base") != weights(finished, "base")


def test_transfer_changes_the_predictor_alone(finished: Path) -> None:
    base, few = (load_file(finished / s / "checkpoint.safetensors") for s in ("base", "transfer"))
    for name, value in base.items():
        if not name.startswith("predictor."):
            assert torch.equal(value, few[name]), name
    assert few["predictor.classifier.weight"].shape[0] == 1 + 3


def test_finished_stages_are_not_run_again(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(copied)
    again = run(config(data, device="cpu"), copied, command="another")
    assert {k: v for k, v in stamps(copied).items() if k != "config.yaml"} == {
        k: v for k, v in before.items() if k != "config.yaml"
    }
    assert again["command"] == "mini run small"  # which made these figures
    assert capsys.readouterr().err.splitlines() == [
        "base: finished already",
        "transfer: finished already",
    ]
    (copied / "results.json").unlink()
    assert run(config(data), copied)["stages"] == again["stages"]
    assert (copied / "results.json").exists()


def test_to_and_from(data: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run(config(data), out, last="base")
    assert list(first["stages"]) == ["base"]
    assert not (out / "transfer").exists()
    with pytest.raises(UserError, match="transfer cannot be repeated, since base is not finished"):
        run(config(data), tmp_path / "none", first="transfer")
    assert list(run(config(data), out)["stages"]) == ["base", "transfer"]
    before = stamps(out)
    changed = config(data, transfer__iterations=5)
    with pytest.raises(UserError, match=r"of transfer, which was.*: transfer\.iterations changed"):
        run(changed, out)
    assert stamps(out) == before
    results = run(changed, out, first="transfer")
    assert results["stages"]["transfer"]["iterations"] == 5
    after = stamps(out)
    assert {k for k in before if k.startswith("base/") and before[k] != after[k]} == set()
    assert weights(out, "transfer") != weights(finished, "transfer")
    assert run(config(data), out, first="base", last="base")["stages"].keys() == {"base"}
    assert not (out / "transfer").exists()  # made of a base that is gone
    assert weights(out, "base") == weights(finished, "base")


@pytest.mark.parametrize(
    ("first", "last", "what"),
    [
        ("transfr", "transfer", 'no stage "transfr". Did you mean "transfer"'),
        (None, "tone", 'no stage "tone". Did you mean "tune"'),
        ("transfer", "base", "--from transfer lies behind --to base"),
    ],
)
def test_stages_that_cannot_be(
    data: Path, tmp_path: Path, first: str | None, last: str | None, what: str
) -> None:
    with pytest.raises(UserError, match=what.replace("?", r"\?").replace(".", r"\.")):
        run(config(data), tmp_path / "run", first, last)
    assert not (tmp_path / "run").exists()


def test_nothing_is_cleared_away_before_the_data_is_known_to_do(data: Path, copied: Path) -> None:
    before = stamps(copied)
    for wrong in ({"data__root": data / "none"}, {"data__novel": "rde"}, {"shots__k": 50}):
        with pytest.raises(UserError):
            run(config(data, **wrong), copied, first="base")
        assert stamps(copied) == before


# A base detector from elsewhere


def test_a_base_detector_is_shared(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[tuple[str, ...]] = []
    score = Material.score

    def counted(self: Material, detector: Any, labels: Any, bf16: bool) -> dict[str, Any]:
        scored.append(labels.novel)
        return score(self, detector, labels, bf16)

    monkeypatch.setattr(Material, "score", counted)
    file = finished / "base" / "checkpoint.safetensors"
    ways = {"file": file, "run": finished, "stage": finished / "base"}
    for name, given in ways.items():
        assert checkpoint_of(given, "base") == file
        out = tmp_path / name
        results = run(config(data, base__checkpoint=given), out)
        assert weights(out, "transfer") == weights(finished, "transfer")
        ours, theirs = results["stages"]["base"], small.json_of(finished / "base" / "metrics.json")
        for key in ("training_seconds", "test_seconds"):  # spent there
            del theirs[key]
        spent = {"seconds": ours["seconds"], "images_per_second": None}
        assert ours == theirs | spent | {"checkpoint": str(file)}
        assert not (out / "base" / "checkpoint.safetensors").exists()
    assert scored == [(small.NOVEL,)] * 3  # what was given is not measured again


def test_figures_are_measured_where_none_come_along(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    theirs = small.json_of(finished / "base" / "metrics.json")

    def base_figures(name: str, given: Path, **changes: object) -> dict[str, Any]:
        settings = config(data, base__checkpoint=given, **changes)
        return run(settings, tmp_path / name, last="base")["stages"]["base"]

    alone = tmp_path / "alone.safetensors"
    shutil.copy(finished / "base" / "checkpoint.safetensors", alone)
    found = base_figures("no-metrics", alone)
    for key in ("bAP50", "per_class", "detections", "checkpoint_sha256"):
        assert found[key] == theirs[key]
    assert found["images_per_second"] is None
    assert "training_seconds" not in found
    # figures of another file, metric or way to test are not its figures
    (tmp_path / "metrics.json").write_text(json.dumps(theirs | {"checkpoint_sha256": "0"}))
    assert "training_seconds" not in base_figures("other-file", alone)
    (tmp_path / "metrics.json").write_text("{not figures")
    assert "training_seconds" not in base_figures("not-figures", alone)
    found = base_figures("other-metric", finished, data__metric="coco")
    assert found["metric"] == "coco"
    assert "AP75" in found
    fewer = base_figures("other-test", finished, detector__detections=1)
    assert fewer["detections"] <= 4 < theirs["detections"]


def test_a_slim_base_detector(data: Path, finished: Path, tmp_path: Path) -> None:
    small_file = tmp_path / "slim.safetensors"
    checkpoint.slim(finished / "base" / "checkpoint.safetensors", small_file)
    out = tmp_path / "run"
    run(config(data, base__checkpoint=small_file), out)
    same_weights(out, finished, "transfer", rtol=0.01, atol=0.01)


def test_how_it_is_tested_is_the_configurations(data: Path, finished: Path, tmp_path: Path) -> None:
    settings = config(data, base__checkpoint=finished, views__test=48, detector__score_cut=0.2)
    run(settings, tmp_path / "run")
    said = checkpoint.read_header(tmp_path / "run" / "transfer" / "checkpoint.safetensors").settings
    assert (said.test.min_size, said.test.score_cut) == (48, 0.2)


def test_a_base_detector_of_something_else(data: Path, finished: Path, tmp_path: Path) -> None:
    def refused(what: str, **changes: object) -> None:
        with pytest.raises(UserError, match=what):
            run(config(data, **changes), tmp_path / "run")

    refused(
        r"classes are not the base classes of this run: red, green instead of green, blue, light",
        base__checkpoint=finished,
        data__novel="red",
    )
    refused(
        "detector.channels is 16 there and 32 here; detector.width is 32 there and 64 here",
        base__checkpoint=finished,
        detector__channels=32,
        detector__width=64,
    )
    refused("there is no base detector", base__checkpoint=tmp_path / "nowhere")
    only_transfer = tmp_path / "only-transfer"
    shutil.copytree(finished / "transfer", only_transfer / "transfer")
    refused("there is no base detector", base__checkpoint=only_transfer)
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(weights(finished, "base")[:1000])
    refused("torn", base__checkpoint=torn)


@pytest.mark.slow
def test_a_base_detector_that_changed_since(data: Path, finished: Path, tmp_path: Path) -> None:
    given = tmp_path / "base.safetensors"
    shutil.copy(finished / "base" / "checkpoint.safetensors", given)
    out, settings = tmp_path / "run", config(data, base__checkpoint=given)
    run(settings, out)
    run(config(data, seed=1), tmp_path / "other", last="base")
    shutil.copy(tmp_path / "other" / "base" / "checkpoint.safetensors", given)
    with pytest.raises(UserError, match=r"base and transfer, .*the content of .* changed") as told:
        run(settings, out)
    assert "--from base" in told.value.fix
    run(settings, out, first="base")
    assert weights(out, "transfer") != weights(finished, "transfer")


def test_a_base_detector_that_was_thrown_away(data: Path, copied: Path) -> None:
    (copied / "base" / "checkpoint.safetensors").unlink()
    with pytest.raises(UserError, match="the detector of base is not there"):
        run(config(data), copied, first="transfer")


# Ways to feed and to fine-tune


@pytest.mark.slow
def test_streamed_pictures_give_the_same_weights(data: Path, tmp_path: Path) -> None:
    """With averaged weights, and iterations in two parts."""
    how = {"base__ema": 0.9, "base__accumulate": 2, "base__iterations": 4, "views__zoom": "[0.8,1]"}
    for feed in ("resident", "stream"):
        settings = config(data, data__feed=feed, **how)
        run(settings, tmp_path / feed, last="base")
    assert weights(tmp_path / "stream", "base") == weights(tmp_path / "resident", "base")
    plain = config(data, **how | {"base__ema": "null"})
    run(plain, tmp_path / "plain", last="base")
    assert weights(tmp_path / "plain", "base") != weights(tmp_path / "resident", "base")


@pytest.mark.slow
def test_fine_tuning_over_kept_features_is_the_plain_way(
    data: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared = {"base__checkpoint": finished}
    run(config(data, transfer__cached="false", **shared), tmp_path / "plain")
    same_weights(tmp_path / "plain", finished, "transfer", rtol=1e-4, atol=1e-6)

    # where memory does not suffice the plain way is taken by itself
    monkeypatch.setattr(cached_features, "free_memory", lambda device: 1000)
    capsys.readouterr()
    run(config(data, **shared), tmp_path / "little-memory")
    assert "transfer: features are not kept" in capsys.readouterr().err
    assert weights(tmp_path / "little-memory", "transfer") == weights(
        tmp_path / "plain", "transfer"
    )


def test_nothing_to_score_on(tmp_path: Path) -> None:
    data = small.write_data(tmp_path / "data", ("train",))
    results = run(config(data, base__iterations=2, transfer__iterations=2), tmp_path / "run")
    for figures in results["stages"].values():
        assert [figures[name] for name in ("nAP50", "bAP50", "AP50")] == [None] * 3
        assert figures["per_class"] == {}
        assert figures["images_per_second"] > 0


@pytest.mark.slow
def test_two_processes(data: Path, finished: Path, tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "mini_fsod", *small.words(data, tmp_path / "run")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = small.json_of(tmp_path / "run" / "results.json")
    assert list(results["stages"]) == ["base", "transfer"]
    assert done.stdout.count("stage ") == 1  # one table
    assert done.stderr.count("base: bAP50") == 1
    for stage in ("base", "transfer"):
        same_weights(tmp_path / "run", finished, stage, rtol=1e-2, atol=1e-3)


def test_a_file_of_shots_is_asked_for_when_it_is_needed(data: Path, tmp_path: Path) -> None:
    out, shots = tmp_path / "run", tmp_path / "shots.json"
    own = config(data, shots__file=shots, shots__k=4)
    assert stages.run(own, out, last="base")["shots"]["k"] == 4
    content = small.pictures(tmp_path, 3, seed=7, name="shot")
    shots.write_text(json.dumps(content))
    assert stages.run(own, out, last="transfer")["shots"]["k"] == 2  # as it has
    shots.unlink()
    assert stages.run(own, out, last="transfer")["shots"]["k"] == 2
