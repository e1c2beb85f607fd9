"""Decoded pictures on disk, memory-mapped: the second start of a run decodes nothing.

A cache is a folder `pictures-KEY` with `pixels.bin` (RGB bytes of one picture after another),
`sizes.npy` (their stored and original heights and widths) and `about.json` (for people). The key is
a hash of the files' names and contents and of the decoding: changed pictures get another cache, and
copied ones the same. The folder is written under another name and renamed when complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL

from mini_fsod import console
from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.data.pictures import PictureError, drawn_size, picture_sizes
from mini_fsod.errors import UserError
from mini_fsod.files import lock, open_regular
from mini_fsod.loader.contents import file_digests
from mini_fsod.loader.decode import DECODE_VERSION, Bytes, Job, cores, decode_to_file, worker_pool
from mini_fsod.loader.schedule import reduced

Progress = Callable[[int, int], None]  # pictures done, of how many

TASK = 32  # pictures that a worker takes at once
HEADER_BYTES = 4096  # at most, before the values of a NumPy file


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """Decoded pictures in one flat buffer."""

    files: tuple[str, ...]  # as in Dataset.files
    pixels: Bytes  # (N,) RGB bytes of all pictures, row by row
    offset: Ints  # (I,) first byte of each picture
    stored: Ints  # (I, 2) height, width in the buffer
    sizes: Ints  # (I, 2) height, width of the original picture, which boxes refer to

    def take(self, files: Sequence[str]) -> Pictures:
        """These pictures, in this order, in the same buffer."""
        index = {name: i for i, name in enumerate(self.files)}
        i = np.array([index[name] for name in files], dtype=np.int64)
        return Pictures(tuple(files), self.pixels, self.offset[i], self.stored[i], self.sizes[i])


def image_sizes(data: Dataset) -> Ints:
    """(I, 2) height and width of each picture: as declared, else from the picture's header."""
    sizes = data.sizes[:, ::-1].copy()
    unknown = np.flatnonzero((sizes < 1).any(axis=1))
    paths = [data.path(i) for i in unknown.tolist()]
    for i, path, found in zip(unknown, paths, picture_sizes(paths), strict=True):
        if isinstance(found, PictureError):
            raise UserError(f"{path}: {found.what}.", "`mini check DATA` lists all such pictures.")
        sizes[i] = drawn_size(*found)[::-1]
    return sizes


def cached_pictures(
    data: Dataset,
    folder: Path,
    short: int,
    long: int,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Pictures:
    """The data set's pictures from the cache in `folder`, decoded into it first where needed.

    Their sides are at most `short` and `long`, the largest that any stage uses. Processes that need
    the same cache wait for the one that writes it. Old caches are not removed: any `pictures-*`
    folder may be deleted at any time.
    """
    if len(data) == 0:
        raise UserError(f"{data.root}: there are no pictures to decode.", "Choose other images.")
    target = folder / f"pictures-{_key(data, folder, short, long)}"
    _remove_leftovers(folder)
    if not target.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{folder}: decoded pictures cannot be written there ({error.strerror}).",
                "Choose another folder with data.cache or --cache.",
            ) from None
        with lock(target.with_suffix(".lock"), wait=True):
            if not target.exists():
                _write(data, target, short, long, workers or cores(), progress)
    return _open(data, target)


def is_cached(data: Dataset, folder: Path, short: int, long: int) -> bool:
    """Whether these pictures are decoded in `folder` already."""
    return (folder / f"pictures-{_key(data, folder, short, long)}").exists()


def _remove_leftovers(folder: Path) -> None:
    """Unfinished caches of processes that were killed; those that hold their lock still decode."""
    for part in folder.glob("pictures-*.part"):
        with lock(part.with_suffix(".lock")) as free:
            if free:
                shutil.rmtree(part, ignore_errors=True)


def _key(data: Dataset, folder: Path, short: int, long: int) -> str:
    settings = [DECODE_VERSION, PIL.__version__, short, long]
    digest = hashlib.sha256(json.dumps(settings).encode())
    contents = file_digests([data.path(i) for i in range(len(data))], folder)
    for name, declared, content in zip(data.files, data.sizes.tolist(), contents, strict=True):
        digest.update(json.dumps([name, content, declared]).encode())
    return digest.hexdigest()[:20]


def _write(
    data: Dataset, target: Path, short: int, long: int, workers: int, progress: Progress | None
) -> None:
    sizes = image_sizes(data)
    stored = reduced(sizes, short, long)
    starts = byte_offsets(stored)
    total, free = int(starts[-1]), shutil.disk_usage(target.parent).free
    if total > free:
        raise UserError(
            f"{target.parent}: the decoded pictures take {console.size(total)}, but only "
            f"{console.size(free)} are free there.",
            "Free some space, choose another folder with data.cache, or set data.loading=stream.",
        )
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)  # left by a killed process, whose lock we have
    try:
        part.mkdir()
        pixels = part / "pixels.bin"
        with pixels.open("wb") as file:
            file.truncate(total)
        jobs = decode_jobs(data, range(len(data)), sizes, starts)
        done = 0
        with worker_pool(workers) as pool:
            waiting = [
                pool.submit(decode_to_file, str(pixels), jobs[n : n + TASK], short, long)
                for n in range(0, len(jobs), TASK)
            ]
            for future in as_completed(waiting):
                done += future.result()
                if progress:
                    progress(done, len(jobs))
        np.save(part / "sizes.npy", np.concatenate([stored, sizes], axis=1))
        about = {"root": str(data.root), "pictures": len(jobs), "short": short, "long": long}
        (part / "about.json").write_text(json.dumps(about) + "\n")
        with pixels.open("rb") as written:
            os.fsync(written.fileno())  # or a power cut could leave the name without the bytes
        part.rename(target)
    except OSError as error:
        raise UserError(
            f"{target.parent}: the decoded pictures cannot be written ({error.strerror}).",
            "Choose another folder for the cache.",
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def byte_offsets(stored: Ints) -> Ints:
    """(I + 1,) first byte of each picture of height and width (I, 2), and the length of all."""
    return np.concatenate([[0], np.cumsum(3 * stored.prod(axis=1))]).astype(np.int64)


def decode_jobs(data: Dataset, images: Iterable[int], sizes: Ints, starts: Ints) -> list[Job]:
    """What the workers need to decode these images; sizes (I, 2) are those of all images."""
    return [
        Job(str(data.path(i)), (int(sizes[i, 0]), int(sizes[i, 1])), int(start))
        for i, start in zip(images, starts, strict=False)  # the last is their end
    ]


def _open(data: Dataset, folder: Path) -> Pictures:
    broken = UserError(f"{folder}: an incomplete cache of pictures.", "Delete that folder.")
    try:
        with open_regular(folder / "sizes.npy") as file:
            if os.fstat(file.fileno()).st_size > HEADER_BYTES + 32 * len(data):
                raise ValueError
            sizes = np.load(file, allow_pickle=False)
        if sizes.shape != (len(data), 4) or sizes.dtype != np.int64 or (sizes < 1).any():
            raise ValueError
        stored, original = sizes[:, :2], sizes[:, 2:]
        starts = byte_offsets(stored)
        with open_regular(folder / "pixels.bin") as file:
            if os.fstat(file.fileno()).st_size != starts[-1]:
                raise ValueError
    except Exception:  # NumPy raises anything on damaged files
        raise broken from None
    # "c": copy on write, so torch may use the pages without a copy
    pixels = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="c")
    return Pictures(data.files, pixels, starts[:-1], stored, original)
