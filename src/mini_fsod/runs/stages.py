"""`mini run`: the stages of a configuration; the result of each is found or computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mini_fsod import checkpoint, console
from mini_fsod.config.load import for_folder
from mini_fsod.config.schema import STAGES, TRAINED, Config
from mini_fsod.device import torch_device
from mini_fsod.errors import HopelessError, UserError
from mini_fsod.eval.kept_detections import detections_file
from mini_fsod.files import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    DETECTOR_FILE,
    digest,
    is_file,
    lock,
    real,
    remove_leftovers,
    write_bytes,
    write_json,
)
from mini_fsod.mining.base_objects import file_for_shots, label_for_shots
from mini_fsod.mining.choose import mine
from mini_fsod.mining.scan import scan
from mini_fsod.online.retrain import online
from mini_fsod.report.causes_stages import stage_findings
from mini_fsod.runs import store
from mini_fsod.runs.base import base
from mini_fsod.runs.checks import check_folder, checked_data, wanted_stages
from mini_fsod.runs.content import RunContent, hash_of
from mini_fsod.runs.data import RunData
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.facts import write_data_facts
from mini_fsod.runs.given import copy_with_scores, save_novel, take_given
from mini_fsod.runs.hopeless import why_hopeless
from mini_fsod.runs.identity import needs, stage_key, stages_of
from mini_fsod.runs.pool import (
    EXTRA_POOL,
    POOL,
    accepted_boxes,
    boxes_of_pool,
    copy_pools,
    edits,
    refresh_pools,
)
from mini_fsod.runs.published_files import all_files_named
from mini_fsod.runs.results import device_name, say_figures, write_results
from mini_fsod.runs.run import Run
from mini_fsod.runs.scoring import score_test_set
from mini_fsod.runs.shots import uses_shots
from mini_fsod.temporary import temporary_folder
from mini_fsod.tfa.transfer import transfer
from mini_fsod.tfa.tune import tune
from mini_fsod.train import state
from mini_fsod.train.distributed import (
    ALONE,
    Team,
    broadcast_from_leader,
    device_of_process,
    team,
    wait_for_all,
)
from mini_fsod.train.loop import clock

STAGE = {
    "base": base, "transfer": transfer, "scan": scan, "mine": mine, "online": online, "tune": tune,
}  # fmt: skip
ON_ONE_PROCESS = ("mine",)  # seconds; the others share their work among all processes


def run(
    config: Config,
    out: Path,
    first: str | None = None,
    last: str | None = None,
    command: str = "",
    results_store: Path | None = None,
    wait: bool = True,
    anyway: bool = False,
) -> dict[str, Any]:
    """Find or compute the results of the stages up to `last`; from `first` on they are repeated.

    Results are kept in `results_store`, by default beside the run's folder. Where another process
    computes one of them, wait for it, or raise `store.Busy`. Where a stage leaves nothing to build
    on, raise `HopelessError`, or go on `anyway`. Returns the content of `results.json`; nothing in
    a process that torchrun started beside the first.
    """
    wanted = wanted_stages(config, first, last)
    results_store = results_store or out.parent / store.STORE
    check_folder(out, config, results_store)
    device = device_of_process(torch_device(config.device))
    with all_files_named(config, wanted), team(device) as together:
        console.err.quiet = not together.leads
        try:
            data = checked_data(config, device, wanted)
            wait_for_all(together)  # nothing is written before all have found it in order
            with lock(out / ".lock") if together.leads else nullcontext(True) as alone:
                if not alone:
                    raise UserError(
                        f"{out}: another process works in this folder.",
                        "Wait until it ends, or choose another folder with --out.",
                    )
                pipeline = _Pipeline(config, out, results_store, data, device, together, command)
                return pipeline.run(wanted, first, wait, anyway)
        finally:
            console.err.quiet = False


def find_results(
    config: Config, out: Path, first: str | None = None, last: str | None = None
) -> tuple[RunData, dict[str, Path | None]]:
    """The data of a run, and for each of its stages the folder of its result, if it is kept.

    Nothing is computed or written; what would make the run fail before its first stage is raised.
    """
    wanted = wanted_stages(config, first, last)
    results_store = out.parent / store.STORE
    check_folder(out, config, results_store)
    device = torch_device(config.device)
    data = checked_data(config, device, wanted)
    return data, _Pipeline(config, out, results_store, data, device, Team(), "").find(wanted, first)


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
        self._content = RunContent(self._run)

    def run(
        self, wanted: Sequence[str], first: str | None, wait: bool, anyway: bool
    ) -> dict[str, Any]:
        leads, self._run.anyway = self._run.team.leads, anyway
        if leads:
            self._out.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._out.rglob(".*.part"))
            stored = for_folder(self._config, self._out)
            write_bytes(self._out / CONFIG_FILE, stored.to_yaml().encode())
            data = self._run.data
            write_data_facts(self._out, data, self._config, uses_shots(self._config, wanted))
        results: dict[str, Any] = {}
        for stage in wanted:
            self._key(stage)
            repeats = first is not None and STAGES.index(stage) >= STAGES.index(first)
            try:
                computed = self._finish(stage, repeats, wait, needs_shots=len(wanted) > 1)
                if leads:
                    results = self._write_results()
                self._judge(stage, computed, is_last=stage == wanted[-1] or anyway)
            except Exception as error:
                error.stage = stage  # type: ignore[attr-defined]  # for a study: who needs it too
                raise
        if leads:
            self._take_later_stages(wanted)
            results = self._write_results()
        return results

    def find(self, wanted: Sequence[str], first: str | None) -> dict[str, Path | None]:
        """The folder of each stage's result, if it is kept and not to be repeated."""
        found: dict[str, Path | None] = dict.fromkeys(wanted)
        run = self._run
        with TemporaryDirectory(dir=temporary_folder()) as copies:
            copy_pools(self._out, Path(copies))
            run.pool, run.extra_pool = Path(copies) / POOL, Path(copies) / EXTRA_POOL
            for stage in wanted:
                if first is not None and STAGES.index(stage) >= STAGES.index(first):
                    break
                if any(found[name] is None for name in needs(self._config, stage)):
                    continue
                self._key(stage)
                folder = self._folder(stage)
                if store.read_metrics(folder) is None:
                    continue
                found[stage] = folder
                if stage == "mine":
                    refresh_pools(Path(copies), folder)
                if stage == "base" and len(wanted) > 1 and run.data.is_open:
                    if not is_file(file_for_shots(run, folder)):
                        break
                    run.data.found = label_for_shots(run, folder)
        return found

    def _folder(self, stage: str) -> Path:
        return store.result_folder(self._store, stage, self._keys[stage])

    def _key(self, stage: str) -> None:
        self._keys[stage] = stage_key(self._config, stage, self._keys, self._content)

    def _finish(self, stage: str, repeats: bool, wait: bool, needs_shots: bool) -> bool:
        """Find the result of a stage, or compute it; its scores too. Whether it was computed.

        A given base detector also finds the shots of base classes, if `needs_shots`.
        """
        folder, leads = self._folder(stage), self._run.team.leads
        if leads:
            store.link(self._out, stage, folder)
        with store.computing(folder, wait) if leads else nullcontext():
            if leads and repeats:
                self._discard(stage, folder)
            if leads:
                remove_leftovers(folder.rglob(".*.part"))
            is_done = leads and store.is_stage_finished(folder)
            is_done = bool(broadcast_from_leader(int(is_done), self._run.team, self._run.device))
            if not is_done:
                self._compute(stage, folder)
            if leads:
                state.delete_state(folder)
            figures = store.read_metrics(folder) or {}
            if stage in TRAINED:
                figures |= self._score(stage, folder, self._run.team)
            if stage == "base" and needs_shots and self._run.data.is_open:
                self._run.data.found = label_for_shots(self._run, folder)
        if stage == "mine" and leads:
            refresh_pools(self._out, folder)
            self._say_edits(folder)
        wait_for_all(self._run.team)
        self._figures[stage] = figures
        if leads and is_done:
            console.note(f"{stage}: found in {folder}")
        elif leads:
            say_figures(stage, figures)
        return not is_done

    def _judge(self, stage: str, computed: bool, is_last: bool) -> None:
        """Raise HopelessError where the stage left nothing to build on. Where it is the last, say
        so; otherwise what its scores say, once.
        """
        run, pool = self._run, 0
        if stage == "mine":
            pool = sum(map(boxes_of_pool, (run.pool, run.extra_pool)))
        trained = stage == "base" and self._config.base.checkpoint is None
        pictures = len(run.data.base) if trained else 0
        found = why_hopeless(stage, self._figures, self._config, pictures, pool)
        if found is not None and not is_last:
            raise HopelessError(
                found.what,
                f"{found.fix} What was computed is kept in {self._out}; to go on with it, add "
                "--anyway.",
            )
        if found is not None and run.team.leads:
            console.note(f"{found.what} {found.fix}")
        elif computed and run.team.leads:
            for finding in stage_findings(stage, self._figures):
                console.note(finding.line())

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
        begun = run.began = clock()
        if run.team.leads:
            folder.mkdir(parents=True, exist_ok=True)
        wait_for_all(run.team)
        given = self._given(stage)
        figures: dict[str, Any] = {}
        if stage == "base" and run.config.base.checkpoint is not None:
            if run.team.leads:
                figures = take_given(run.config, folder)
        elif given is not None:
            figures = {"checkpoint": str(given)}
            if run.team.leads:
                copy_with_scores(given, folder)
        elif run.team.leads or stage not in ON_ONE_PROCESS:
            figures = STAGE[stage](run, folder)
        if run.team.leads:
            if stage in TRAINED:
                figures["checkpoint_sha256"] = digest(folder / CHECKPOINT_FILE)
            figures["seconds"] = clock() - begun
            write_json(folder / store.METRICS, figures)
        wait_for_all(run.team)

    def _given(self, stage: str) -> Path | None:
        """The checkpoint that is the result of a stage as it is."""
        given = self._config.transfer.checkpoint
        if stage == "transfer" and given is not None:
            return checkpoint.find(given, stage)
        if stage == "tune" and self._config.tune.data == "none":
            return self._folder("online") / CHECKPOINT_FILE
        return None

    def _score(self, stage: str, folder: Path, team: Team) -> dict[str, Any]:
        """The scores of a detector on the test set; kept beside it, a file for each test set.

        So are its detections, and what it gets wrong ("errors" in the file alone), for reports. The
        processes of the team share the images.
        """
        run, config = self._run, self._config
        metrics = store.read_metrics(folder) or {}
        test = run.data.digest_of("test")
        detector_keys = config.detector.model_dump(mode="json", exclude={"weights"})
        views = config.views.model_dump(include={"test", "long"})
        parts = [metrics["checkpoint_sha256"], test, config.data.metric, detector_keys, views]
        path = folder / f"score-{hash_of(parts)[:12]}.json"
        is_missing = team.leads and store.read_score(path) is None
        if broadcast_from_leader(int(is_missing), team, run.device):
            saved = load_detector(run, stage)
            begun = clock()
            section = getattr(config, stage)
            detector = to_device(saved.detector, run.device)
            figures = score_test_set(
                config,
                run.data,
                detector,
                saved.labels,
                run.bf16(section),
                detections_file(path),
                team,
            )
            run.scored_in = clock() - begun
            if team.leads:
                write_json(path, figures | {"test_seconds": run.scored_in})
        wait_for_all(team)
        figures = store.read_score(path) or {}
        figures.pop("errors", None)
        return figures | {"score": path.name}

    def _say_edits(self, mined: Path) -> None:
        about = edits(self._out, mined)
        if about["edited"]:
            accepted = accepted_boxes(self._out)
            of_review = f"; {accepted:,} accepted in the review" if accepted else ""
            console.note(
                f"pool: {console.count(about['boxes'], 'box')}, {about['removed']:,} removed, "
                f"{about['added']:,} added, {about['relabelled']:,} relabelled{of_review}"
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
            if self._config.only_novel:
                save_novel(source, self._out / DETECTOR_FILE)
            else:
                store.copy_file(source, self._out / DETECTOR_FILE)
        else:
            (self._out / DETECTOR_FILE).unlink(missing_ok=True)

    def _is_kept(self, stage: str) -> bool:
        """Whether the run has the result of a stage already; its figures are read."""
        if not (self._out / stage).is_symlink():
            return False
        self._key(stage)
        folder = self._folder(stage)
        if real(self._out / stage) != real(folder) or not store.is_stage_finished(folder):
            return False
        figures = store.read_metrics(folder) or {}
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
