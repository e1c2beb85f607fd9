"""The commands of the quick start, the README, docs/own-photos.md and docs/deploy.md, and the cells
of the notebook, run as shown.

What is tiny here: the data, the detectors and the number of iterations. Pages of `mini review` end
at once. Those of other pages are parsed in test_documents.py.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import given
from helpers.shapes import NOVEL
from helpers.tiny_run import SETTINGS
from mini_fsod.config.load import for_folder, resolve
from mini_fsod.config.schema import Config
from mini_fsod.runs import stages

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "quick-start.ipynb"
MOST_NOTEBOOK_BYTES = 500_000
# Commands that need more than tiny data, by their first words; the pages say what they need.
NOT_RUN = ("mini study", "mini --version", "mini mine runs/photos --set mine.segmenter")
SHORT = (
    *("base.iterations=2", "transfer.iterations=2", "online.iterations=2", "tune.iterations=2"),
    *("mine.min_score=0.001", "data.test_most=8", "views.test=96"),
)
TINY = tuple(f"{k}={v}" for k, v in SETTINGS.items() if k.startswith(("detector.", "views.")))
SMALLER_DATA = {"mini demo-data digits": ("--scale", "0.2")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages name: photos, five.json, holiday; runs in it are short."""
    for package in ("skimage", "sklearn", "onnx", "onnxruntime"):
        pytest.importorskip(package, reason="needs mini-fsod[demo,onnx]")
    given.write_photos(tmp_path)
    five = tmp_path / "five.json"
    five.write_text(five.read_text().replace(NOVEL, "bolt"))
    (tmp_path / "holiday").mkdir()
    for name, picture in zip("ab", sorted((tmp_path / "photos").iterdir()), strict=False):
        shutil.copy(picture, tmp_path / "holiday" / f"{name}.jpg")
    detector = given.write_detector(tmp_path / "known.safetensors", ("red", "green"))
    run, called = stages.run, inspect.signature(stages.run)

    def short(*words: Any, **named: Any) -> dict[str, Any]:
        bound = called.bind(*words, **named)
        bound.arguments["config"] = shortened(bound.arguments["config"], detector)
        bound.arguments["anyway"] = True
        return run(*bound.args, **bound.kwargs)

    monkeypatch.setattr(stages, "run", short)
    monkeypatch.setattr("mini_fsod.review.app.serve", lambda app, listening, announce: announce())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(config: Config, detector: Path) -> Config:
    """The same run with a few iterations; one of photos also with a tiny detector."""
    path = Path("shortened.yaml")
    path.write_text(for_folder(config, Path()).to_yaml())
    sets = [*SHORT, "device=cpu", f"data.cache={Path('cache').resolve()}"]
    if config.base.checkpoint is not None:
        sets += [*TINY, f"base.checkpoint={detector}", "base.sure=0.35", "detector.weights=null"]
        sets += ["discriminator.weights=none", "detector.norm=group", "views.test=64"]
    if config.tune.data == "none":
        sets.remove("tune.iterations=2")
    return resolve(str(path), sets)


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    run = [line for line in lines if line.startswith(("mini ", "cp "))]
    return [line for line in run if not line.startswith(NOT_RUN)]


def run_line(line: str, mini: Callable[..., tuple[int, str, str]]) -> str:
    words = [*shlex.split(line)[1:], *SMALLER_DATA.get(line, ())]
    if line.startswith("cp "):
        shutil.copy(*words)
        return ""
    if words[0] == "init":
        words.append("--no-estimate")  # it measures the machine for half a minute
    code, out, err = mini(*words)
    assert code == 0, f"{line}\n{out}\n{err}"
    return out


@pytest.mark.slow
def test_commands_of_the_quick_start_and_the_readme_run(home: Path, mini: Any) -> None:
    lines = [line for page in ("docs/index.md", "README.md") for line in commands(page)]
    assert len(lines) > 12
    drawn = (home / "five.json").read_bytes()
    (home / "five.json").unlink()  # drawn in the browser by `mini review photos`
    for line in dict.fromkeys(lines):
        run_line(line, mini)
        if line.startswith("mini review photos"):
            (home / "five.json").write_bytes(drawn)
    for file in (
        *("runs/digits/mine/1-three.png", "runs/digits/report.html", "runs/better/results.json"),
        *("found.png", "digits.onnx", "photos.yaml", "runs/photos/report.html", "bolts.onnx"),
    ):
        assert (home / file).exists(), file
    assert len(list((home / "found").iterdir())) == 2


def add_to_pool(home: Path) -> None:
    """The shots' boxes: so short a run mines none."""
    path = home / "runs" / "photos" / "pool.json"
    drawn, pool = json.loads((home / "five.json").read_text()), json.loads(path.read_text())
    scored = [box | {"score": 0.9 - n / 10} for n, box in enumerate(drawn["annotations"])]
    categories = {key: drawn[key] for key in ("images", "categories")}
    path.write_text(json.dumps(pool | categories | {"annotations": scored}))


def export_of_label_studio(tasks: Path, out: Path) -> int:
    """As a person leaves them who accepts all predicted boxes but the last; the number of boxes."""
    content = json.loads(tasks.read_text())
    predicted = [task for task in content if task.get("predictions")]
    for task in predicted:
        (prediction,) = task.pop("predictions")
        task["annotations"] = [{"result": prediction["result"]}]
    predicted[-1]["annotations"][0]["result"].pop()
    out.write_text(json.dumps(content))
    return sum(len(task["annotations"][0]["result"]) for task in predicted)


@pytest.mark.slow
def test_commands_of_the_page_on_own_photos_run(home: Path, mini: Any) -> None:
    """And those on deploying, with the detector of that run."""
    nut = (home / "five.json").read_text().replace('"bolt"', '"nut"')
    (home / "nut.json").write_text(nut)
    lines = commands("docs/own-photos.md")
    assert len(lines) > 7
    for line in dict.fromkeys(lines):
        if line.startswith("mini convert runs/photos/pool.json"):
            add_to_pool(home)
        run_line(line, mini)
        if line.startswith("mini convert runs/photos/pool.json"):
            number = export_of_label_studio(home / "tasks.json", home / "exported.json")
    corrected = json.loads((home / "corrected.json").read_text())
    assert len(corrected["annotations"]) == number > 0
    pool = json.loads((home / "runs" / "photos" / "results.json").read_text())["pool"]
    assert (pool["edited"], pool["boxes"]) == (True, number)
    (home / "runs" / "bolts").symlink_to("photos")
    for line in commands("docs/deploy.md"):
        run_line(line, mini)
    assert len(list((home / "drawn").iterdir())) > 1


def cells() -> list[str]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_cells_of_the_notebook_run_in_order(
    home: Path, mini: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Jupyter runs them: lines that begin with ! are commands, the rest is Python."""
    names: dict[str, Any] = {}
    for cell in cells():
        shell = [line for line in cell.splitlines() if line.startswith("!")]
        for line in shell:
            run_line(line.removeprefix("!"), mini)
        exec("\n".join(line for line in cell.splitlines() if not line.startswith("!")), names)
    assert names["results"]["stages"].keys() == names["better"]["stages"].keys()
    assert names["shipped"].names == names["detector"].names


def test_notebook_is_small_and_names_nothing_of_this_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < MOST_NOTEBOOK_BYTES
    words = re.sub(r'"image/jpeg": "[^"]*"', "", text)
    assert not re.search(r"/(?:home|root|tmp|Users|work)/|\\u001b", words)


def test_pictures_of_the_documents_are_small() -> None:
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert len(pictures) >= 8
    for path in pictures:
        assert path.stat().st_size <= 150_000, path.name
