"""`mini run`: the stages of a configuration, one after another, into a folder."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from mini_fsod import checkpoint, console
from mini_fsod.config.load import STAGES, Config, stages_of
from mini_fsod.device import torch_device
from mini_fsod.errors import UserError, nearest
from mini_fsod.mining.choose import mine, ready
from mini_fsod.online.retrain import online
from mini_fsod.runs import again, cleared, folder, inputs
from mini_fsod.runs.base import base, checkpoint_of
from mini_fsod.runs.run import Run
from mini_fsod.tfa.transfer import fine_tune
from mini_fsod.tfa.tune import tune
from mini_fsod.train.distributed import Team, device_of_process, team, wait_for_all

LITTLE = 10.0  # bAP50 of a base detector that nothing can be mined with
LOST = 5.0  # bAP50 that a stage has cost by its settings, not by luck
WORSE = 2.0  # nAP50, likewise, and bAP50 that makes a last fine-tuning one of the causes

KINDER = {
    "transfer": "Lower transfer.rate, or set transfer.data to known",
    "online": "Lower online.rate, or train longer",
    "tune": "Lower tune.rate, or set tune.data to known, or to none",
}
BEFORE = {"online": "transfer", "tune": "online"}  # whose detector a stage should better

STAGE = {"base": base, "transfer": fine_tune, "mine": mine, "online": online, "tune": tune}


def run(
    config: Config,
    out: Path,
    first: str | None = None,
    last: str | None = None,
    command: str = "",
    aside: bool = False,
) -> dict[str, Any]:
    """Run the stages up to `last` that are not finished yet, from `first` on again.

    `aside`: what was there is put aside (`runs.again`), and not to be brought back now. Returns the
    content of `results.json`; nothing in a process that torchrun started beside the first.
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
        if STAGES.index(first) < STAGES.index(wanted[0]):
            raise UserError(
                f"An oracle that begins from nothing has no stage {first}.",
                f"Take --from {wanted[0]}, or set online.oracle to false.",
            )
        raise UserError(f"--from {first} lies behind --to {last}.", "Leave one of them out.")
    device = device_of_process(torch_device(config.device))
    with team(device) as together:
        console.err.quiet = not together.leads
        try:
            if together.leads and not aside and (again.was_killed(out) or cleared.is_there(out)):
                with folder.held(out):
                    again.settle(out)
                    cleared.settle(out)
            wait_for_all(together)
            return run_stages(config, out, first, wanted, command, device, together)
        finally:
            console.err.quiet = False


def run_stages(
    config: Config,
    out: Path,
    first: str | None,
    wanted: tuple[str, ...],
    command: str,
    device: torch.device,
    together: Team,
) -> dict[str, Any]:
    """The same for stages by name, in processes that work together already."""
    _refuse_own(config, out, wanted)
    todo = folder.to_do(out, first, wanted)
    folder.refuse_stale(out, config, first)
    if first != wanted[0] and inputs.annotations_changed(out, config.data.root):
        console.note(
            f"{config.data.root}: annotations are not those that this run began with; "
            f"--from {wanted[0]} trains on them"
        )
    this = Run(config, out, device, together)
    this.material.check(todo)
    for stage in todo:
        given = getattr(getattr(config, stage), "checkpoint", None)
        if given is not None:
            checkpoint.read_header(checkpoint_of(given, stage))
    if "mine" in todo:
        ready(config.mine, config.online.asks_for_candidates if "online" in wanted else None)
    wait_for_all(together)  # nothing is touched before all have found it in order
    with folder.held(out) if together.leads else nullcontext():
        return _work(this, first, wanted, todo, command)


def _refuse_own(config: Config, out: Path, wanted: Sequence[str]) -> None:
    """A result that lies in this very folder would be cleared away before it is taken."""
    own = out.resolve()
    for stage in wanted:
        key = "given" if stage == "mine" else "checkpoint"
        given = getattr(getattr(config, stage), key, None)
        if given is None:
            continue
        place = Path(given).resolve()
        if place == own or any(place.is_relative_to(own / name) for name in STAGES):
            raise UserError(
                f"{stage}.{key}: {given} is this run's own.",
                f"Leave it out: what is finished in {out} is not run again. For another run "
                "choose another folder with --out.",
            )


def _work(
    this: Run, first: str | None, wanted: Sequence[str], todo: Sequence[str], command: str
) -> dict[str, Any]:
    config, out, device, together = this.config, this.out, this.device, this.team
    if together.leads:
        if first is not None:
            cleared.put_away(out, STAGES[STAGES.index(first) :])
        folder.prepare(out, config, first)
    wait_for_all(together)
    results = folder.results(out) if not todo else None

    def written() -> dict[str, Any]:
        # a file of shots need not be there before a stage asks for it
        asked = {"transfer", "mine", "tune"} & {*wanted}
        shots = this.material.shots_of_a_class if asked else config.shots.k
        return folder.write_results(out, config, command, device_name(device), shots)

    for stage in wanted:
        if stage not in todo:
            console.note(f"{stage}: finished already")
            continue
        try:
            STAGE[stage](this)
        finally:
            if together.leads:
                cleared.settle(out)
        if together.leads:
            results = written()
            _tell(stage, results["stages"][stage])
            for line in spoilt(stage, results["stages"]):
                console.note(line)
    if not together.leads:
        return {}
    return results or written()


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {console.count(torch.get_num_threads(), 'thread')}"


def _tell(stage: str, figures: dict[str, Any]) -> None:
    known = [name for name in ("nAP50", "bAP50") if figures.get(name) is not None]
    told = [f"{name} {figures[name]:.1f}" for name in known]
    if stage == "mine" and "kept" in figures:
        mined = figures["kept"] + figures.get("extra", {}).get("kept", 0)
        told = [console.count(mined, "mined box")]
    given = figures.get("checkpoint") or figures.get("given")
    how = f"from {given}" if given else f"in {console.duration(figures['seconds'])}"
    console.note(f"{stage}: {', '.join(told) or 'not scored'} {how}")
    if stage == "base" and figures.get("bAP50") is not None and figures["bAP50"] < LITTLE:
        console.note(
            "that is little: mining finds new classes by what the base detector has learnt. Train "
            "it longer (base.minutes or base.iterations), from pretrained weights "
            "(detector.weights), or on more pictures"
        )


def spoilt(stage: str, figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a stage has made worse by far, in words, by the figures of all stages so far."""

    def lost(name: str, since: str) -> float:
        before, now = (figures.get(s, {}).get(name) for s in (since, stage))
        return 0.0 if before is None or now is None else before - now

    told = []
    own = lost("bAP50", "online" if stage == "tune" else "base")  # what the stage itself has cost
    if stage in KINDER and own > WORSE and lost("bAP50", "base") > LOST:
        told.append(
            f"base classes have lost {lost('bAP50', 'base'):.1f} of bAP50 since the base detector. "
            f"{KINDER[stage]}"
        )
    since = BEFORE.get(stage)
    if since is not None and lost("nAP50", since) > WORSE:
        told.append(
            f"new classes had {figures[since]['nAP50']:.1f} of nAP50 behind the stage {since}: its "
            "checkpoint is the better detector"
        )
    return told
