"""What the fuzzer damages, and what it then does with it: commands where there is one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image
from safetensors.torch import save_file

from fuzz.target import Target, every, mini
from fuzz.targets_commands import COMMANDS
from helpers import exports, shapes, tiny, training
from helpers.fake_study import example_study, finish_cells
from helpers.pairs import LABELS as PAIR_LABELS
from helpers.pairs import pairs_of, with_cosines, with_crops
from helpers.tiny_detector import LABELS, tiny_detector
from helpers.tiny_run import SETTINGS, SHORT, config
from mini_fsod import checkpoint
from mini_fsod.config.load import resolve
from mini_fsod.data.problems import UNREPAIRED
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged
from mini_fsod.detector.backbone import NARROW, make_backbone
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.discriminator.load import load_discriminator
from mini_fsod.errors import UserError
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.mining.pairs import Pairs
from mini_fsod.mining.pool_io import read_candidates, read_pool
from mini_fsod.runs import stages
from mini_fsod.study.plan import plan_study, read_plan, save_plan
from mini_fsod.study.tables import write_tables

# Data sets


def _check(folder: Path) -> None:
    """What `mini check --fix` writes has no problems but those that it names as not repaired."""
    fixed = folder / "fixed"
    mini("check", folder / "data", "--images", "--no-sheet", "--fix", fixed)
    if fixed.exists():
        try:
            with redirect_stdout(StringIO()) as said:
                mini("check", fixed, "--images", "--no-sheet", "--json")
        except UserError as error:
            raise AssertionError(f"the repaired copy is refused: {error}") from error
        found = {problem["kind"] for problem in json.loads(said.getvalue())["problems"]}
        assert found <= set(UNREPAIRED), f"the repaired copy has problems: {found}"


def _coco(folder: Path) -> Path:
    return tiny.write_coco(folder / "data")


def _folder(folder: Path) -> None:
    for suffix in (".jpg", ".png", ".webp", ".bmp", ".tif"):
        tiny.write_pictures(folder / "data" / suffix[1:], suffix)


def _elsewhere(folder: Path) -> None:
    tiny.write_pictures(folder / "photos")
    (folder / "a.json").write_text(json.dumps(tiny.coco()))


def _check_elsewhere(folder: Path) -> None:
    mini("check", folder / "a.json", "--root", folder / "photos", "--images", "--no-sheet")


def _decode(folder: Path) -> None:
    """Write the cache of decoded pictures, or use the one that is there."""
    cached_pictures(read(folder / "data" / "annotations.json"), folder / "cache", 24, 60, 1)


def _cache(folder: Path) -> None:
    _coco(folder)
    _decode(folder)


def _zips(folder: Path) -> None:
    """Archives of three layouts."""
    writers = {"coco": tiny.write_coco, "cvat": exports.write_cvat, "yolo": exports.write_darknet}
    for name, write in writers.items():
        with TemporaryDirectory() as made:
            write(Path(made) / "data")
            exports.zipped(Path(made) / "data", folder / f"{name}.zip", "export/")


def _read_zips(folder: Path) -> None:
    """The cache is below the folder, where nothing may be written but in it."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    try:
        every(
            *(
                lambda name=name: mini("check", folder / f"{name}.zip", "--images", "--no-sheet")
                for name in ("coco", "cvat", "yolo")
            )
        )
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        os.environ |= {"XDG_CACHE_HOME": before} if before else {}
    assert {path.name for path in folder.iterdir()} <= {"cache", "coco.zip", "cvat.zip", "yolo.zip"}


def _sample(folder: Path) -> None:
    _coco(folder)
    lists = {"0": {"1": {"bird": [10], "bus": [11], "car": [10]}}}
    (folder / "lists.json").write_text(json.dumps(lists))
    of_coco = {"1": {"bird": [["train", 10]], "bus": [["train", 11]], "car": [["val", 10]]}}
    (folder / "coco.json").write_text(json.dumps(of_coco))


def _shots_of_lists(folder: Path) -> None:
    words = ("sample", folder / "data" / "annotations.json", "--shots", 1, "--novel", "bird")
    every(
        *(
            lambda n=n: mini(
                *(*words, "--official", folder / n, "-o", folder / f"{n}-shots.json"),
            )
            for n in ("lists.json", "coco.json")
        )
    )


def _detections(folder: Path) -> None:
    _coco(folder)
    rows = [
        {"image_id": box["image_id"], "category_id": box["category_id"], "bbox": box["bbox"],
         "score": 0.5}
        for box in tiny.coco()["annotations"]
    ]  # fmt: skip
    (folder / "detections.json").write_text(json.dumps(rows))
    images = [
        {
            "file": "a.png",
            "detections": [{"bbox": [1, 2, 3, 4], "category": "bird", "score": 1}],
        }
    ]
    (folder / "predicted.json").write_text(json.dumps(images))


def _eval(folder: Path) -> None:
    words = ("eval", folder / "data" / "annotations.json", "--metric", "voc", "--novel", "bird")
    names = ("detections.json", "predicted.json")
    every(*(lambda n=n: mini(*words, "--detections", folder / n) for n in names))


# Mining


def _mined(folder: Path) -> None:
    """A pool and candidates of the tiny data set, and pairs with features."""
    content = tiny.coco()
    novel = [box | {"score": 0.5} for box in content["annotations"] if box["category_id"] != 7]
    _coco(folder)
    (folder / "pool.json").write_text(json.dumps(content | {"annotations": novel}))
    names = {image["id"]: image["file_name"] for image in content["images"]}
    rows = [
        {"file_name": names[box["image_id"]], "category": tiny.CLASSES[box["category_id"] - 5],
         "bbox": box["bbox"], "score": 0.5, "score_detector": 0.5, "cosine": 0.25}
        for box in novel
    ]  # fmt: skip
    (folder / "candidates.json").write_text(json.dumps(rows))
    pairs = pairs_of((0, 0, 0.5, (1, 2, 30, 40)), (1, 1, 0.7, (1, 2, 30, 40)))
    with_cosines(pairs, [0.25, 0.5]).save(folder / "products.npz")
    with_crops(pairs, 0).save(folder / "crops.npz")


def _read_mined(folder: Path) -> None:
    data = arranged(read(folder / "data" / "annotations.json"), PAIR_LABELS)
    readers: tuple[Callable[[], object], ...] = (
        lambda: read_pool(folder / "pool.json", data, PAIR_LABELS),
        lambda: read_candidates(folder / "candidates.json", data, PAIR_LABELS),
        lambda: Pairs.load(folder / "products.npz"),
        lambda: Pairs.load(folder / "crops.npz"),
    )
    every(*readers)


# Detectors


def _tiny() -> Detector:
    settings = replace(tiny_detector().settings, backbone=BackboneSettings(NARROW, "group"))
    return Detector(settings)


def _checkpoint(folder: Path) -> None:
    checkpoint.save(folder / "a.safetensors", _tiny(), LABELS, {"weights": None})
    (folder / "photos").mkdir()
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (40, 30), (90, 20, 200)).save(folder / "photos" / name)


def _use_checkpoint(folder: Path) -> None:
    file = folder / "a.safetensors"
    words = ("predict", file, folder / "photos", "--device", "cpu", "--score", 0.5)
    every(
        lambda: mini("checkpoint", "show", file),
        lambda: mini("checkpoint", "slim", file, "-o", folder / "slim.safetensors"),
        lambda: mini(*words, "--draw", folder / "drawn"),
    )


def _weights(folder: Path) -> None:
    torch.manual_seed(0)
    state = dict(make_backbone(BackboneSettings(NARROW, "group")).state_dict())
    for name in [name for name in state if name.endswith("bias")]:  # as BatchNorm's, of torchvision
        state[name.replace("bias", "running_mean")] = torch.zeros_like(state[name])
        state[name.replace("bias", "running_var")] = torch.ones_like(state[name])
    save_file(state, folder / "a.safetensors")
    torch.save(state, folder / "b.pth")
    of_moco = {f"module.encoder_q.{name}": value for name, value in state.items()}
    torch.save({"state_dict": of_moco, "epoch": 7}, folder / "c.pth")


def _use_weights(folder: Path) -> None:
    settings = BackboneSettings(NARROW, "frozen")
    every(
        *(lambda f=f: make_backbone(settings, f) for f in sorted(folder.iterdir())),
        *(lambda f=f: load_discriminator(f, torch.device("cpu")) for f in sorted(folder.iterdir())),
    )


# Runs and studies


def _progress(folder: Path) -> None:
    training.stopped(folder, 6, save_seconds=0)


def _whole_run(folder: Path) -> None:
    data = shapes.write_data(folder / "data")
    stages.run(config(data, **SHORT), folder / "runs" / "whole", anyway=True)


def _resume_run(folder: Path) -> None:
    every(
        lambda: mini("runs", folder / "runs"),
        lambda: mini("run", folder / "runs" / "whole", "--to", "tune", "--anyway"),
    )


def _study(folder: Path) -> None:
    (folder / "mine.yaml").write_text("detector: {backbone: resnet18}\ndata: {root: voc}\n")
    (folder / "study.yaml").write_text(
        "name: photos\nconfig: mine.yaml\nrows:\n  TFA: []\n  long: [transfer.iterations=8000]\n"
        "  base only: {set: [base.minutes=4], to: base}\nsplits: [1, 2]\nshots: [1, 5]\n"
        "seeds: 0..4\nto: transfer\nfigures: [nAP50, bAP50]\n"
    )
    study, out = example_study(), folder / "out"
    out.mkdir()
    plan = plan_study(study)
    save_plan(out, study, plan)
    figures = {"nAP50": 10.5, "bAP50": 70.25, "seconds": 4.0, "iterations": 10}
    of_cell = {"base": figures | {"nAP50": None}, "transfer": figures}
    finish_cells(
        out, plan, {cell.name: of_cell for cell in plan.cells}, device="cpu", commit="abc",
        versions={"torch": "2.9"},
    )  # fmt: skip


def _use_study(folder: Path) -> None:
    out, study = folder / "out", example_study()
    every(
        lambda: mini("study", "--list", folder / "study.yaml"),
        lambda: mini("study", folder / "study.yaml", "-o", folder / "new", "--dry-run"),
        lambda: write_tables(out, study, read_plan(out)),
        lambda: write_tables(out, study, plan_study(study).cells),
        lambda: save_plan(out, study, plan_study(study)),
    )


def _config(folder: Path) -> None:
    keys = {key: value for key, value in SETTINGS.items() if key != "data.novel"}
    lines = [f"{key}: {value}" for key, value in {**keys, "detector.weights": "null"}.items()]
    (folder / "flat.yaml").write_text("preset: photos\n" + "\n".join(lines))
    (folder / "nested.yaml").write_text(resolve("voc-320").to_yaml())


def _resolve(folder: Path) -> None:
    every(
        *(lambda n=n: mini("presets", folder / n) for n in ("flat.yaml", "nested.yaml")),
        *(lambda n=n: resolve(folder / n).to_yaml() for n in ("flat.yaml", "nested.yaml")),
    )


TARGETS = (
    Target("coco", _coco, ("data/*",), _check, 30),
    Target("voc", lambda f: tiny.write_voc(f / "data"), ("data/**/*",), _check, 30),
    Target("yolo", lambda f: tiny.write_yolo(f / "data"), ("data/**/*",), _check, 30),
    Target("cvat", lambda f: exports.write_cvat(f / "data"), ("data/*.xml",), _check),
    Target(
        "label studio", lambda f: exports.write_label_studio(f / "data"), ("data/*.json",), _check
    ),
    Target(
        "json-min",
        lambda f: exports.write_label_studio(f / "data", exports.label_studio_min()),
        ("data/*.json",),
        _check,
    ),
    Target("fiftyone", lambda f: exports.write_fiftyone(f / "data"), ("data/*.json",), _check),
    Target("darknet", lambda f: exports.write_darknet(f / "data"), ("data/**/*",), _check),
    Target("zip", _zips, ("*.zip",), _read_zips, 40),
    Target("pictures", _folder, ("data/*/*",), _check),
    Target("elsewhere", _elsewhere, ("*.json", "photos/*"), _check_elsewhere),
    Target("cache", _cache, ("cache/*/*",), _decode, 10),
    Target("lists", _sample, ("*.json",), _shots_of_lists),
    Target("detections", _detections, ("*.json",), _eval),
    Target("mined", _mined, ("*.json", "*.npz"), _read_mined, 40),
    Target("checkpoint", _checkpoint, ("*.safetensors", "photos/*"), _use_checkpoint, 10),
    Target("weights", _weights, ("*",), _use_weights, 8),
    Target("state", _progress, ("progress.pt", "log.jsonl"), training.run, 20),
    Target("study", _study, ("*.yaml", "out/**/*.json"), _use_study, 12),
    Target("config", _config, ("*.yaml",), _resolve, 12),
    Target(
        "run",
        _whole_run,
        ("runs/whole/*.json", "runs/whole/.pools.json", "runs/.stages/*/*.*"),
        _resume_run,
        3,
    ),
    *COMMANDS,
)  # fmt: skip
