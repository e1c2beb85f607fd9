"""Decodes picture files to RGB bytes, in worker processes for many pictures.

Does not import torch, so worker processes start in a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import AvifImagePlugin, Image

from mini_fsod.data.pictures import QUARTER_TURNS, PictureError, open_picture, turn_of
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import reduced
from mini_fsod.remote import as_path
from mini_fsod.temporary import temporary_folder

Bytes = npt.NDArray[np.uint8]

# Part of every cache's name: increase it when decoding changes
DECODE_VERSION = 2
ROWS = 256  # converted to RGB at a time


TERM_SECONDS = 30  # that a worker lives on after SIGTERM, unless its parent ends before


class Job(NamedTuple):
    """One picture to decode, and where its bytes go."""

    path: str
    size: tuple[int, int]  # height, width according to the data set
    offset: int  # of its first byte in the file or block of shared memory


def decode(path: Path, short: int, long: int, size: tuple[int, int] | None = None) -> Bytes:
    """The picture as (H, W, 3) RGB bytes, its sides at most `short` and `long`.

    Smaller pictures are not enlarged. Resizing is Pillow's bilinear filter with antialiasing.
    - EXIF orientation is applied, because boxes are drawn on what viewers show; but not if `size`,
      the declared (height, width), fits only the picture as it is stored.
    - Transparent parts become white, as annotators see them.
    - 16-bit grey keeps its upper eight bits; CMYK and palettes are converted by Pillow; of an
      animation the first frame is used. Floating-point pictures are refused: no range is standard.
    """
    try:
        with open_picture(path) as picture:
            stored = (picture.height, picture.width)
            turn = turn_of(picture)
            if turn in QUARTER_TURNS and size == stored != stored[::-1]:
                turn = None
            shown = stored[::-1] if turn in QUARTER_TURNS else stored
            if size is not None and size != shown:
                raise UserError(
                    f"{path}: declared {size[1]} x {size[0]}, but the picture is "
                    f"{stored[1]} x {stored[0]}.",
                    "Correct the declared size; check the boxes too.",
                )
            height, width = reduced(np.array(stored), short, long).tolist()
            # JPEG halves cheaply while decoding; the last halving is left to the better filter
            picture.draft(None, (2 * width, 2 * height))
            rgb = to_rgb(path, picture)
            if rgb.size != (width, height):
                rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
            if turn is not None:
                rgb = rgb.transpose(turn)
            return np.asarray(rgb)
    except PictureError as error:
        raise UserError(f"{path}: {error.what}.", "Restore it or remove the image.") from None


def to_rgb(path: Path, picture: Image.Image) -> Image.Image:
    """Converts any mode to 8-bit RGB, some rows at a time: large pictures fill the memory."""
    if picture.mode == "F":
        raise UserError(
            f"{path}: a floating-point picture has no standard range of brightness.",
            "Save it with 8 or 16 bits.",
        )
    picture.load()
    if picture.mode == "RGB" and not picture.has_transparency_data:
        return picture
    rgb = Image.new("RGB", picture.size)
    for top in range(0, picture.height, ROWS):
        rows = (0, top, picture.width, min(top + ROWS, picture.height))
        rgb.paste(_rows_to_rgb(picture.crop(rows)), (0, top))
    return rgb


def _rows_to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        deep = np.clip(np.asarray(picture).astype(np.int64), 0, 65535)
        return Image.fromarray((deep >> 8).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return picture.convert("RGB")


def decode_to_file(file: str, jobs: Sequence[Job], short: int, long: int) -> int:
    """Worker: decodes pictures into a file at their offsets; returns their number."""
    with Path(file).open("r+b") as target:
        for job in jobs:
            target.seek(job.offset)
            target.write(decode(as_path(job.path), short, long, job.size).tobytes())
    return len(jobs)


def decode_to_memory(block: str, jobs: Sequence[Job], short: int, long: int) -> None:
    """Worker: decodes pictures into a block of shared memory at their offsets."""
    memory = SharedMemory(block)
    try:
        for job in jobs:
            pixels = decode(as_path(job.path), short, long, job.size)
            np.ndarray(pixels.shape, np.uint8, memory.buf, job.offset)[:] = pixels
    finally:
        memory.close()


def cores() -> int:
    """The number of processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes for the functions above; they stop, and pending work is cancelled, on exit.

    They come from a fork server: forking a process with threads and a GPU is not safe.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    _place_sockets(temporary_folder())
    if threading.current_thread() is threading.main_thread():
        # the server outlives a SIGTERM to the whole process group: it ends with this process
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        forkserver.ensure_running()
        signal.signal(signal.SIGTERM, before)
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    try:
        yield pool
    except BrokenProcessPool:
        for child in multiprocessing.active_children():
            if child not in others:
                child.kill()  # the pool only sends SIGTERM
        raise UserError(
            "A process that decodes pictures was killed or could not start.",
            "Often memory ran out: use fewer workers. A script that trains needs "
            '`if __name__ == "__main__":` around its calls.',
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _place_sockets(folder: Path) -> None:
    """Let multiprocessing keep its sockets in this folder."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        get_temp_dir()  # asks for the folder once
    finally:
        tempfile.tempdir = before


def _start_worker() -> None:
    # Ctrl-C reaches the whole process group; the parent stops its workers itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # after SIGTERM to the group, the parent has some time to end its training with them
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(TERM_SECONDS))
    # one thread per picture: there is a process per core already
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exits when the parent is killed, which then cannot stop its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
