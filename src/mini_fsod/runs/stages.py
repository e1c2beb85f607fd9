"""`mini run`: the stages of a configuration; the result of each is found or computed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from mini_fsod import checkpoint, console
from mini_fsod.config.schema import STAGES, TRAINED, Config
from mini_fsod.data.folder import pictures_below
from mini_fsod.device import torch_device
from mini_fsod.errors import UserError, nearest
from mini_fsod.files import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    DETECTOR_FILE,
    digest,
    is_file,
    is_folder,
    lock,
    real,
    write_bytes,
    write_json,
)
from mini_fsod.mining.choose import check_mining, mine
from mini_fsod.mining.scan import scan
from mini_fsod.online.retrain import online
from mini_fsod.runs import store
from mini_fsod.runs.base import base
from mini_fsod.runs.data import ALONE, RunData
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.identity import file_content, stage_key, stages_of
from mini_fsod.runs.pool import EXTRA_POOL, POOL, edits, refresh_pools
from mini_fsod.runs.results import advice, device_name, say_figures, write_results
from mini_fsod.runs.run import Run
from mini_fsod.tfa.transfer import transfer
from mini_fsod.tfa.tune import tune
from mini_fsod.train import state
from mini_fsod.train.distributed import (
    Team,
    broadcast_from_leader,
    device_of_process,
    team,
    wait_for_all,
)

STAGE = {
    "base": base, "transfer": transfer, "scan": scan, "mine": mine, "online": online, "tune": tune,
}  # fmt: skip
ON_ONE_PROCESS = ("mine",)  # seconds; the others share their work among all
PLAN = "plan.json"  # of a study


def run(
    config: Config,
    out: Path,
    first: str | None = None,
    last: str | None = None,
    command: str = "",
    results_store: Path | None = None,
    wait: bool = True,
) -> dict[str, Any]:
    """Find or compute the results of the stages up to `last`; from `first` on they are repeated.

    Results are kept in `results_store`, by default beside the run's folder. Where another process
    computes one of them, wait for it, or raise `store.Busy`. Returns the content of `results.json`;
    nothing in a process that torchrun started beside the first.
    """
    config.ready()
    for name in (first, last):
        if name is not None and name not in STAGES:
            raise UserError(
                f'There is no stage "{name}".{nearest(name, STAGES)}',
                f"Stages: {', '.join(STAGES)}.",
            )
    wanted = stages_of(config, last or STAGES[-1])
    if first is not None and first not in wanted:
        raise UserError(
            f"--from {first}: this run has no such stage before {wanted[-1]}.",
            f"Its stages are {', '.join(wanted)}.",
        )
    results_store = results_store or out.parent / store.STORE
    _check_folder(out, config, results_store)
    device = device_of_process(torch_device(config.device))
    with team(device) as together:
        console.err.quiet = not together.leads
        try:
            data = RunData(config, device)
            data.check(wanted)
            for stage in ("base", "transfer"):
                given = getattr(config, stage).checkpoint
                if stage in wanted and given is not None:
                    checkpoint.read_header(checkpoint.find(given, stage))
            if "mine" in wanted:
                check_mining(config)
            wait_for_all(together)  # nothing is written before all have found it in order
            with lock(out / ".lock") if together.leads else nullcontext(True) as alone:
                if not alone:
                    raise UserError(
                        f"{out}: another process works in this folder.",
                        "Wait until it ends, or choose another folder with --out.",
                    )
                pipeline = _Pipeline(config, out, results_store, data, device, together, command)
                return pipeline.run(wanted, first, wait)
        finally:
            console.err.quiet = False


def _check_folder(out: Path, config: Config, results_store: Path) -> None:
    root = config.data.root
    if is_file(out):
        raise UserError(f"{out}: is a file.", "Choose another folder with --out.")
    if root is not None and real(out) == real(root if is_folder(root) else root.parent):
        raise UserError(f"{out}: is the folder of the data.", "Choose another one with --out.")
    if is_file(out / PLAN):
        raise UserError(f"{out}: holds a study.", "Choose another folder with --out.")
    links = [out / stage for stage in STAGES if (out / stage).is_symlink()]
    folders = [out / stage for stage in STAGES if is_folder(out / stage)]
    if set(folders) - set(links):
        raise UserError(
            f"{out}: made by an older version of mini, or copied without its links.",
            "Choose another folder with --out.",
        )
    if links and not is_folder(results_store):
        raise UserError(
            f"{out}: its results are not here: {results_store} is missing.",
            f"Copy {store.STORE} along with the run, or delete the links in {out} to compute "
            "everything again.",
        )


class _Content:
    """The content of a run's data and files, for the hashes of its stages."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def data(self, part: str) -> str | None:
        if part == "classes":
            labels = self._run.data.labels
            return _hash([labels.base, labels.novel])
        return self._run.data.digest_of(part)

    def file(self, name: str | Path | None) -> str | None:
        return file_content(name)

    def extra(self, folder: Path | None) -> str | None:
        """Names and sizes of the pictures: to read all of them would take minutes."""
        if folder is None:
            return None
        names = pictures_below(folder, lambda _: None, lambda _: None)
        return _hash([[name, (folder / name).stat().st_size] for name in names])

    def pools(self) -> Sequence[str]:
        run = self._run
        paths = [path for path in (run.pool, run.extra_pool) if is_file(path)]
        candidates = run.folder("mine") / "candidates.json"
        if run.config.online.ignore_candidates and is_file(candidates):
            paths.append(candidates)
        return [digest(path) for path in paths]


class _Pipeline:
    """The stages of one run: where their results lie, and their figures."""

    def __init__(
        self,
        config: Config,
        out: Path,
        results_store: Path,
        data: RunData,
        device: torch.device,
        together: Team,
        command: str,
    ) -> None:
        self._config, self._out, self._store, self._command = config, out, results_store, command
        self._keys: dict[str, str] = {}
        self._figures: dict[str, dict[str, Any]] = {}
        self._run = Run(config, data, device, together, self._folder, out / POOL, out / EXTRA_POOL)
        self._content = _Content(self._run)

    def run(self, wanted: Sequence[str], first: str | None, wait: bool) -> dict[str, Any]:
        leads = self._run.team.leads
        if leads:
            self._out.mkdir(parents=True, exist_ok=True)
            store.remove_leftovers(self._out)
            write_bytes(self._out / CONFIG_FILE, self._config.to_yaml().encode())
        results: dict[str, Any] = {}
        for stage in wanted:
            self._key(stage)
            repeats = first is not None and STAGES.index(stage) >= STAGES.index(first)
            try:
                self._finish(stage, repeats, wait)
            except Exception as error:
                error.stage = stage  # type: ignore[attr-defined]  # for a study: who needs it too
                raise
            if leads:
                results = self._write_results()
        if leads:
            self._take_later_stages(wanted)
            results = self._write_results()
        return results

    def _folder(self, stage: str) -> Path:
        return store.result_folder(self._store, stage, self._keys[stage])

    def _key(self, stage: str) -> None:
        self._keys[stage] = stage_key(self._config, stage, self._keys, self._content)

    def _finish(self, stage: str, repeats: bool, wait: bool) -> None:
        """Find the result of a stage, or compute it; its scores too."""
        folder, leads = self._folder(stage), self._run.team.leads
        if leads:
            store.link(self._out, stage, folder)
        with store.computing(folder, wait) if leads else nullcontext():
            if leads and repeats:
                self._discard(stage, folder)
            is_done = leads and store.read_metrics(folder) is not None
            is_done = bool(broadcast_from_leader(int(is_done), self._run.team, self._run.device))
            if not is_done:
                self._compute(stage, folder)
            if leads:
                (folder / state.FILE).unlink(missing_ok=True)  # of no use any more
            figures = store.read_metrics(folder) or {}
            if stage in TRAINED:
                figures |= self._score(stage, folder, self._run.team)
        if stage == "mine" and leads:
            refresh_pools(self._out, folder)
            self._say_edits(folder)
        wait_for_all(self._run.team)
        self._figures[stage] = figures
        if leads and is_done:
            console.note(f"{stage}: found in {folder}")
        elif leads:
            say_figures(stage, figures)
            for line in advice(stage, self._figures):
                console.note(line)

    def _discard(self, stage: str, folder: Path) -> None:
        """Forget a result that is to be repeated, if it is this run's alone."""
        runs = self._store.parent
        users = store.users(runs, folder.name).get(folder.name, ())
        others = [name for name in users if real(runs / name) != real(self._out)]
        if others:
            raise UserError(
                f"--from: the result of {stage} is used by {', '.join(others)} too.",
                "Choose another seed (--set seed=1) for another training, or delete those runs.",
            )
        store.discard(folder)

    def _compute(self, stage: str, folder: Path) -> None:
        run = self._run
        begun = time.perf_counter()
        if run.team.leads:
            folder.mkdir(parents=True, exist_ok=True)
            store.remove_leftovers(folder)
        wait_for_all(run.team)
        given = self._given(stage)
        figures: dict[str, Any] = {}
        if given is not None:
            figures = {"checkpoint": str(given)}
            if run.team.leads:
                store.copy_file(given, folder / CHECKPOINT_FILE)
                for score in given.resolve().parent.glob("score-*.json"):
                    store.copy_file(score, folder / score.name)
        elif run.team.leads or stage not in ON_ONE_PROCESS:
            figures = STAGE[stage](run, folder)
        if run.team.leads:
            if stage in TRAINED:
                figures["checkpoint_sha256"] = digest(folder / CHECKPOINT_FILE)
            figures["seconds"] = time.perf_counter() - begun
            write_json(folder / store.METRICS, figures)
        wait_for_all(run.team)

    def _given(self, stage: str) -> Path | None:
        """The checkpoint that is the result of a stage without training."""
        given = getattr(getattr(self._config, stage, None), "checkpoint", None)
        if given is not None:
            return checkpoint.find(given, stage)
        if stage == "tune" and self._config.tune.data == "none":
            return self._folder("online") / CHECKPOINT_FILE
        return None

    def _score(self, stage: str, folder: Path, team: Team) -> dict[str, Any]:
        """The scores of a detector on the test set; kept beside it, a file for each test set."""
        run, config = self._run, self._config
        metrics = store.read_metrics(folder) or {}
        test = run.data.digest_of("test")
        detector_keys = config.detector.model_dump(mode="json", exclude={"weights"})
        views = config.views.model_dump(include={"test", "long"})
        parts = [metrics["checkpoint_sha256"], test, config.data.metric, detector_keys, views]
        path = folder / f"score-{_hash(parts)[:12]}.json"
        is_missing = team.leads and store.read_score(path) is None
        if broadcast_from_leader(int(is_missing), team, run.device):
            saved = load_detector(run, stage)
            begun = time.perf_counter()
            section = getattr(config, stage)
            detector = to_device(saved.detector, run.device)
            figures = run.data.score(detector, saved.labels, run.bf16(section), team)
            if team.leads:
                write_json(path, figures | {"test_seconds": time.perf_counter() - begun})
        wait_for_all(team)
        return store.read_score(path) or {}

    def _say_edits(self, mined: Path) -> None:
        about = edits(self._out, mined)
        if about["edited"]:
            console.note(
                f"edited pool: {about['boxes']:,} boxes, {about['removed']:,} removed, "
                f"{about['added']:,} added, {about['relabelled']:,} relabelled"
            )

    def _take_later_stages(self, wanted: Sequence[str]) -> None:
        """Stages after the last one wanted stay in the run while their results still fit."""
        whole = stages_of(self._config, STAGES[-1])
        fits = True
        for stage in (stage for stage in STAGES if stage not in wanted):
            fits = fits and (stage not in whole or self._is_kept(stage))
            if not fits or stage not in whole:
                store.unlink(self._out, stage)
        trained = [stage for stage in TRAINED if stage in self._figures]
        if trained:
            source = self._folder(trained[-1]) / CHECKPOINT_FILE
            store.copy_file(source, self._out / DETECTOR_FILE)
        else:
            (self._out / DETECTOR_FILE).unlink(missing_ok=True)

    def _is_kept(self, stage: str) -> bool:
        """Whether the run has the result of a stage already; its figures are read."""
        if not (self._out / stage).is_symlink():
            return False
        self._key(stage)
        folder = self._folder(stage)
        figures = store.read_metrics(folder)
        if figures is None or real(self._out / stage) != real(folder):
            return False
        self._figures[stage] = figures
        if stage in TRAINED:
            self._figures[stage] = figures | self._score(stage, folder, ALONE)  # the leader asks
        return True

    def _write_results(self) -> dict[str, Any]:
        config, data = self._config, self._run.data
        uses_shots = {"transfer", "mine", "tune"} & self._figures.keys()
        shots = data.shots_per_class if uses_shots else config.shots.k
        pool = edits(self._out, self._folder("mine")) if "mine" in self._figures else {}
        device = device_name(self._run.device)
        figures = {s: self._figures[s] for s in STAGES if s in self._figures}
        return write_results(
            self._out, config, figures, self._keys, pool, shots, self._command, device
        )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
