"""What makes a run fail is found before its first stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from mini_fsod import checkpoint
from mini_fsod.config.schema import STAGES, Config
from mini_fsod.config.values import torchvision_name
from mini_fsod.detector.backbone import check_backbone
from mini_fsod.errors import UserError, nearest
from mini_fsod.files import is_file, is_folder, real
from mini_fsod.mining.choose import check_mining
from mini_fsod.runs import store
from mini_fsod.runs.data import RunData
from mini_fsod.runs.detectors import refuse_other_architecture
from mini_fsod.runs.given import check_given
from mini_fsod.runs.identity import stages_of
from mini_fsod.runs.published_files import all_files_named

PLAN = "plan.json"  # of a study


def wanted_stages(config: Config, first: str | None, last: str | None) -> tuple[str, ...]:
    """The stages of a run up to `last`."""
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
    return wanted


def checked_data(config: Config, device: torch.device, wanted: Sequence[str]) -> RunData:
    """The data of a run, after all checks that do not take long."""
    check_backbone(config.detector.backbone)
    data = RunData(config, device)
    data.check(wanted)
    if "base" in wanted:
        with all_files_named(config, wanted):
            check_given(config)
    for stage in ("base", "transfer"):
        given = getattr(config, stage).checkpoint
        if stage in wanted and given is not None and torchvision_name(given) is None:
            path = checkpoint.find(given, stage)
            refuse_other_architecture(path, checkpoint.read_header(path).settings, config)
    if "mine" in wanted or ("transfer" in wanted and config.transfer.mined_shots):
        check_mining(config)
    return data


def check_folder(out: Path, config: Config, results_store: Path) -> None:
    root = config.data.root
    if is_file(out):
        raise UserError(f"{out} is a file, not a folder.", "Choose another folder with --out.")
    if root is not None and real(out) == real(root if is_folder(root) else root.parent):
        raise UserError(f"{out} is the folder of the data.", "Choose another one with --out.")
    if is_file(out / PLAN):
        raise UserError(f"{out}: contains a study.", "Choose another folder with --out.")
    links = [out / stage for stage in STAGES if (out / stage).is_symlink()]
    folders = [out / stage for stage in STAGES if is_folder(out / stage)]
    if set(folders) - set(links):
        raise UserError(
            f"{out}: made by an older version of mini, or copied without its links.",
            "Choose another folder with --out.",
        )
    if links and not is_folder(results_store):
        raise store.without_results(out, results_store)
