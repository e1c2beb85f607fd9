"""Published files of weights that a run needs and this machine lacks.

Without a network the first one that is missing ends the command. All are named then, so that they
can be fetched elsewhere at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from torchvision.models import get_model_weights

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.config.values import torchvision_name
from mini_fsod.detector.backbone import RESNETS
from mini_fsod.detector.download import NotFetchedError, place_of
from mini_fsod.detector.published import url_of
from mini_fsod.discriminator.load import parse_source
from mini_fsod.errors import UserError
from mini_fsod.files import is_file


class PublishedFile(NamedTuple):
    url: str
    use: str  # what it is for, with its key

    @property
    def path(self) -> Path:
        """Where torch looks for it."""
        return place_of(self.url)


def missing_files(config: Config, stages: Collection[str]) -> list[PublishedFile]:
    """The files of torchvision that these stages need and that are not on this machine."""
    files = []
    given = config.base.checkpoint
    name = None if given is None else torchvision_name(given)
    if name is not None and "base" in stages:
        files.append(PublishedFile(url_of(name), f"given base detector: base.checkpoint={given}"))
    from_weights = "online" in stages and config.online.start == "weights"
    if from_weights or ("base" in stages and given is None):
        section = config.detector
        use = f"backbone: detector.weights={section.weights}"
        files += _resnet(section.backbone, section.weights, use)
    if "scan" in stages and config.discriminator.weights != "none":
        use = f"discriminator: discriminator.weights={config.discriminator.weights}"
        with suppress(UserError):  # a file that is not there: another message
            files += _resnet(*parse_source(config.discriminator.weights), use)
    return [file for file in files if not is_file(file.path)]


def _resnet(name: str | None, weights: str | Path | None, use: str) -> list[PublishedFile]:
    """Published weights of a ResNet; nothing where they are a file or those of another library."""
    if name not in RESNETS or not isinstance(weights, str):
        return []
    known = get_model_weights(name).__members__
    return [PublishedFile(known[weights].url, use)] if weights in known else []


@contextmanager
def all_files_named(config: Config, stages: Collection[str]) -> Iterator[None]:
    """The error of a file that cannot be downloaded names all the others that are missing."""
    try:
        yield
    except NotFetchedError as error:
        missing = missing_files(config, stages)
        if missing:
            error.fix = (
                f"Fetch on another computer, and put into {missing[0].path.parent}, "
                f"{console.count(len(missing), 'file')}: "
                + "; ".join(f"{file.url} ({file.use})" for file in missing)
            )
        raise
