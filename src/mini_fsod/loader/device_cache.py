"""Decoded pictures in the device's memory, shared by the runs of a study in one process."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import Dataset
from mini_fsod.files import default_cache_folder
from mini_fsod.loader.cache import Pictures, cached_pictures, image_sizes
from mini_fsod.loader.resident import pixels_on_device
from mini_fsod.loader.schedule import reduced

MAX_MEMORY_SHARE = 0.6  # of the device's free memory
MAX_SETS = 2  # of pictures in memory: the data set, and pictures from elsewhere

Key = tuple[object, ...]
_cache: dict[Key, tuple[Pictures, Tensor]] = {}
_streamed: dict[Key, bool] = {}


def largest_sides(config: Config) -> tuple[int, int]:
    """The largest short and long side that any stage uses: pictures are stored as large as that."""
    views, discriminator = config.views, config.discriminator
    zoom = 1.0 if views.zoom is None else max(1.0, views.zoom[1])
    scan = max(config.mine.scan_short or (views.test,))
    crops = 0 if discriminator.weights == "none" else discriminator.short
    short = max(ceil(max(views.short) * zoom), *(views.few_shot or ()), views.test, scan, crops)
    long = views.long * max(scan, views.test) // views.test  # as the scan computes it
    return short, max(ceil(views.long * zoom), long, 2 * crops)


def is_streamed(data: Dataset, config: Config, device: torch.device) -> bool:
    """Whether pictures are decoded as needed: because the configuration says so, or because they
    take too much of the device's memory. Decided once: cached pictures take free memory.
    """
    if config.data.loading != "auto" or device.type != "cuda":
        return config.data.loading == "stream"
    key = _key(data, config, device)
    if key not in _streamed:
        stored = reduced(image_sizes(data), *largest_sides(config))
        free, _ = torch.cuda.mem_get_info(device)
        _streamed[key] = 3 * int(stored.prod(axis=1).sum()) > MAX_MEMORY_SHARE * free
        if _streamed[key]:
            console.note(
                f"{data.root}: {console.count(len(data), 'picture')} do not fit into the GPU's "
                "memory and are decoded as needed"
            )
    return _streamed[key]


def pictures_on_device(
    data: Dataset, config: Config, device: torch.device
) -> tuple[Pictures, Tensor]:
    """The pictures, decoded into the disk cache first where needed, and their pixels (P, 3)."""
    key = _key(data, config, device)
    if key not in _cache:
        while len(_cache) >= MAX_SETS:  # drop the least recently used
            del _cache[next(iter(_cache))]
        folder = config.data.cache or default_cache_folder()
        with console.progress("decoding pictures") as report:
            pictures = cached_pictures(data, folder, *largest_sides(config), progress=report)
        _cache[key] = pictures, pixels_on_device(pictures, device)
    _cache[key] = _cache.pop(key)
    return _cache[key]


def _key(data: Dataset, config: Config, device: torch.device) -> Key:
    """The boxes of the pictures do not matter."""
    return data.root, data.files, config.data.cache, largest_sides(config), device
