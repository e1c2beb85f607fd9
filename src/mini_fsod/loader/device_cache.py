"""Pictures on the device: decoded once and held there, or, where they are too many, on the way.

The runs of a study, one after another in a process, share what is held.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

import torch

from mini_fsod import console
from mini_fsod.config.load import Config
from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.loader.cache import Pictures, cached_pictures, default_folder, own_sizes
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import reduced

SHARE = 0.6  # of the device's free memory that pictures may take
MOST = 2  # sets of pictures at a time: the data, and what lies elsewhere

Key = tuple[object, ...]
_held: dict[Key, tuple[Pictures, Resident]] = {}
_too_many: dict[Key, bool] = {}


def largest_sides(config: Config) -> tuple[int, int]:
    """The largest short and long side that any stage shows: so large pictures are kept."""
    views, mine = config.views, config.mine
    closest = 1.0 if views.zoom is None else max(1.0, views.zoom[1])
    few = (*(config.transfer.short or ()), *(config.tune.short or ()))
    looked = 0 if mine.discriminator == "none" else mine.discriminator_short_side
    scanned = max(mine.short or (views.test,))
    short = max(ceil(max(views.short) * closest), *few, views.test, scanned, looked)
    long = views.long * max(scanned, views.test) // views.test  # as `scanning` has it
    return short, max(ceil(views.long * closest), long, 2 * looked)


def too_many(data: Dataset, config: Config, device: torch.device) -> bool:
    """Whether the pictures are to be decoded on the way: as configured, or because they would take
    too much of the device's memory. Asked once of the same pictures: what is held is not free.
    """
    if config.data.feed != "auto" or device.type != "cuda":
        return config.data.feed == "stream"
    key = _key(data, config, device)
    if key not in _too_many:
        kept = reduced(own_sizes(data), *largest_sides(config))
        free, _ = torch.cuda.mem_get_info(device)
        _too_many[key] = 3 * int(kept.prod(axis=1).sum()) > SHARE * free
        if _too_many[key]:
            console.note(
                f"{data.root}: {console.count(len(data), 'picture')} do not fit into the GPU's "
                "memory, and are decoded on the way"
            )
    return _too_many[key]


def hold(data: Dataset, config: Config, device: torch.device) -> tuple[Pictures, Resident]:
    """The pictures, decoded into the cache first where needed, on the device; no boxes."""
    key = _key(data, config, device)
    if key not in _held:
        while len(_held) >= MOST:  # the one that was asked for longest ago
            del _held[next(iter(_held))]
        folder: Path = config.data.cache or default_folder()
        with console.progress("decoding pictures") as told:
            pictures = cached_pictures(data, folder, *largest_sides(config), progress=told)
        resident = Resident(pictures, Annotations.of(NO_BOXES, len(data)), device)
        _held[key] = pictures, resident
    _held[key] = _held.pop(key)
    return _held[key]


def _key(data: Dataset, config: Config, device: torch.device) -> Key:
    """Pictures are the same whatever boxes they have."""
    return data.root, data.files, config.data.cache, largest_sides(config), device
