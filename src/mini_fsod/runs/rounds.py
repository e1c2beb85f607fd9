"""Rounds of mining: the detector that one round has re-trained finds the next one's candidates.

An earlier round is a run of its own in `RUN/round-1`, up to its stage `online`. It has the same
configuration but for the number of rounds, and is killed and goes on as every run does.
"""

from __future__ import annotations

from pathlib import Path

from mini_fsod import console
from mini_fsod.config.load import STAGES, Config
from mini_fsod.errors import UserError
from mini_fsod.files import is_file
from mini_fsod.runs import folder
from mini_fsod.runs.base import checkpoint_of
from mini_fsod.runs.run import Run


def miner(run: Run) -> Path | None:
    """The file of the detector that mines: TFA's, or that of the round before, trained now if need
    be. None where another tool has mined.
    """
    own = run.config.mine
    if own.rounds == 1:
        if own.detections is not None:
            return None
        path = _file(run, "transfer", run.config.transfer.checkpoint)
        if not is_file(path):
            raise UserError(
                f"{path}: the few-shot detector is not there.", "Repeat with --from transfer."
            )
        return path
    from mini_fsod.runs.stages import run_stages  # which runs this stage

    place = run.out / f"round-{own.rounds - 1}"
    config = _of_round_before(run)
    console.note(f"round {own.rounds - 1} of {own.rounds}, in {place}")
    again = folder.first_stale(place, config)
    wanted = STAGES[: STAGES.index("online") + 1]
    run_stages(config, place, again, wanted, "", run.device, run.team)
    console.note(f"round {own.rounds} of {own.rounds}")
    return place / "online" / folder.CHECKPOINT


def _of_round_before(run: Run) -> Config:
    """The same configuration with a round less, base and few-shot detector taken from here. A
    re-trained detector that is given is the last round's.
    """
    config = run.config
    changes = {
        "mine": {"rounds": config.mine.rounds - 1},
        "base": {"checkpoint": _file(run, "base", config.base.checkpoint)},
        "transfer": {"checkpoint": _file(run, "transfer", config.transfer.checkpoint)},
        "online": {"checkpoint": None},
    }
    return config.model_copy(
        update={
            section: getattr(config, section).model_copy(update=update)
            for section, update in changes.items()
        }
    )


def _file(run: Run, stage: str, given: Path | None) -> Path:
    return checkpoint_of(given, stage) if given else run.out / stage / folder.CHECKPOINT
