"""Which images form batch n, on which canvas, at what size, and whether flipped.

All of it is a function of the pictures' sizes, the seed and n: a resumed run asks for its next n.
Random numbers are raw PCG64 words, the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mini_fsod.data.dataset import Bools, Floats, Ints
from mini_fsod.errors import UserError

Words = npt.NDArray[np.uint64]

STRIDE = 32  # of the coarsest feature map in the backbone: canvases are multiples of it

# First word of every random key, so that no two uses share random numbers
ORDER, BUCKETS, WEAK, STRONG = range(4)


def random_words(count: int, *key: int) -> Words:
    """(count,) random 64-bit words that depend on the key alone."""
    words: Words = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return words


def uniform(words: Words) -> Floats:
    """Random words as numbers in [0, 1), of the same shape."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=128)
def permutation(count: int, *key: int) -> Ints:
    """(count,) a permutation of 0 .. count - 1 that depends on the key alone."""
    return np.argsort(random_words(count, *key), kind="stable").astype(np.int64)


def fit(sizes: Ints, short: int, long: int) -> Ints:
    """Sizes (..., 2) scaled to a short side of `short`, or to a long side of `long` where it would
    be longer. The other side is rounded, in integers: the same on every machine.
    """
    low, high = sizes.min(-1, keepdims=True), sizes.max(-1, keepdims=True)
    by_short = short * high <= long * low
    wanted = np.where(by_short, short, long)
    given = np.where(by_short, low, high)
    fitted: Ints = np.maximum((2 * sizes * wanted + given) // (2 * given), 1)
    return fitted


def reduced(sizes: Ints, short: int, long: int) -> Ints:
    """`fit` without enlarging: the sizes (..., 2) at which pictures are stored."""
    kept: Ints = np.minimum(sizes, fit(sizes, short, long))
    return kept


def zoomed(
    fitted: Ints, canvas: tuple[int, int], zoom: tuple[float, float], chances: Floats
) -> tuple[Ints, Ints, Ints]:
    """Zooms images (b, 2) on their canvas: their scaled sizes, the sizes and the corners of the
    visible windows. `chances` (b, 3) in [0, 1) decide the factor, uniform in the range `zoom`, and
    the position of the window along y and x.
    """
    low, high = zoom
    factor = low + (high - low) * chances[:, :1]
    scaled = np.maximum(np.floor(fitted * factor + 0.5).astype(np.int64), 1)
    visible = np.minimum(scaled, np.array(canvas))
    shift = np.floor(chances[:, 1:] * (scaled - visible + 1)).astype(np.int64)
    return scaled, visible, shift


def group_canvases(need: Ints, most: int, least: int) -> Ints:
    """(I,) the group of each image, where the images need canvases of these sizes (I, 2).

    A group's canvas holds all of its images. Starting with one group for every distinct size, the
    two groups whose common canvas adds the least empty area are merged until at most `most` are
    left. Then every group of fewer than `least` images is merged where it adds the least. So
    landscape and portrait stay apart in a large set, and a few images share one canvas.
    """
    canvas, kind, count = np.unique(need, axis=0, return_inverse=True, return_counts=True)
    group = np.arange(len(count))  # of each distinct need
    while len(count) > 1 and (len(count) > most or count.min() < least):
        union = np.maximum(canvas[:, None], canvas[None]).prod(-1)  # (K, K) area of both
        area = count * canvas.prod(-1)
        waste = union * (count[:, None] + count[None]) - area[:, None] - area[None]
        np.fill_diagonal(waste, never := np.iinfo(np.int64).max)
        if len(count) <= most:  # merge the smallest group
            waste[np.arange(len(count)) != count.argmin()] = never
        i, j = sorted(divmod(int(waste.argmin()), len(count)))
        canvas[i] = np.maximum(canvas[i], canvas[j])
        count[i] += count[j]
        canvas, count = np.delete(canvas, j, 0), np.delete(count, j)
        group[group == j] = i
        group[group > j] -= 1
    return group[kind.reshape(-1)]


def up_to_stride(sizes: Ints) -> Ints:
    return -(-sizes // STRIDE) * STRIDE


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A batch without its pixels: b images of the global batch, all on one canvas.

    In data-parallel training every rank has a part of the batch: `first` is the position of its
    first image in the global batch of `batch` images.
    """

    step: int
    epoch: int
    canvas: tuple[int, int]  # height, width
    short: int  # the short side drawn for the batch
    images: Ints  # (b,) indices of images
    sizes: Ints  # (b, 2) height, width of each image's visible part, top left on the canvas
    scaled: Ints  # (b, 2) height, width of the whole scaled image; larger than sizes if cropped
    shift: Ints  # (b, 2) rows and columns cropped off above and to the left
    flip: Bools  # (b,) whether the visible part is mirrored horizontally
    first: int
    batch: int
    count: int  # images after the first `count` only fill the batch

    def part(self, rank: int, world: int) -> Plan:
        """The part of one rank; the global batch is the same for any number of ranks."""
        each = self.batch // world
        rows = slice(rank * each, (rank + 1) * each)
        per_image = ("images", "sizes", "scaled", "shift", "flip")
        columns = {name: getattr(self, name)[rows] for name in per_image}
        count = min(max(self.count - rows.start, 0), each)
        return replace(self, **columns, first=rows.start, count=count)


class Canvases:
    """Groups of images that share a canvas, for every short side."""

    def __init__(
        self, sizes: Ints, images: Ints, shorts: Sequence[int], long: int, most: int, least: int
    ) -> None:
        if len(images) == 0:
            raise UserError("There are no images for batches.", "Choose other images.")
        need = up_to_stride(fit(sizes[images], max(shorts), long))
        group = group_canvases(need, most, least)
        self.groups = [images[group == g] for g in range(int(group.max()) + 1)]
        self.fitted = {short: fit(sizes, short, long) for short in shorts}  # sizes of all images
        self.canvas = {
            (g, short): _height_width(up_to_stride(fitted[members].max(0)))
            for g, members in enumerate(self.groups)
            for short, fitted in self.fitted.items()
        }

    def each_once(self, batch: int, short: int, flip: bool = False) -> list[Plan]:
        """Batches with every image once. The last one of a group is filled up with its last image,
        to keep the shape; `Plan.count` is the number of images without those.
        """
        plans: list[Plan] = []
        for group, members in enumerate(self.groups):
            for start in range(0, len(members), batch):
                images = members[np.minimum(np.arange(start, start + batch), len(members) - 1)]
                sizes = self.fitted[short][images]
                plans.append(
                    Plan(
                        step=len(plans),
                        epoch=0,
                        canvas=self.canvas[group, short],
                        short=short,
                        images=images,
                        sizes=sizes,
                        scaled=sizes,
                        shift=np.zeros_like(sizes),
                        flip=np.full(batch, flip),
                        first=0,
                        batch=batch,
                        count=min(batch, len(members) - start),
                    )
                )
        return plans


def _height_width(size: Ints) -> tuple[int, int]:
    return int(size[0]), int(size[1])


def each_once(
    sizes: Ints,
    batch: int,
    short: int,
    long: int,
    images: Ints | None = None,
    most_canvases: int = 6,
) -> list[Plan]:
    """Batches with every image once, unflipped: for evaluation and mining."""
    chosen = np.arange(len(sizes)) if images is None else images
    return Canvases(sizes, chosen, (short,), long, most_canvases, batch).each_once(batch, short)


class Schedule:
    """The endless sequence of training batches.

    Images are grouped by canvas. Each group is an endless sequence of its images, reshuffled for
    every epoch and cut into batches. Epoch e has the batches that its images complete, in random
    order: floor((e + 1) n / B) - floor(e n / B) of a group with n images. The images left over,
    fewer than B per group, start the group's first batch of the next epoch, so none is dropped. A
    batch that spans two epochs may hold an image twice.

    `sizes` (I, 2) are heights and widths of the pictures; `images` are the indices to train on, all
    by default; an index given twice is used twice per epoch. The short side of a batch is drawn
    from `shorts`; flips are drawn for each image, and with `zoom` a scale factor from that range:
    a smaller image leaves more of its canvas empty, a larger one is cropped.
    """

    def __init__(
        self,
        sizes: Ints,
        batch: int,
        shorts: tuple[int, ...],
        long: int,
        seed: int,
        images: Ints | None = None,
        flip: bool = True,
        zoom: tuple[float, float] | None = None,
        most_canvases: int = 6,
    ) -> None:
        chosen = np.arange(len(sizes)) if images is None else np.asarray(images, dtype=np.int64)
        # groups of less than two batches would put the same pictures together all the time
        self._canvases = Canvases(sizes, chosen, shorts, long, most_canvases, 2 * batch)
        self._counts = np.array([len(members) for members in self._canvases.groups])
        self._seed, self._flip, self._zoom = seed, flip, zoom
        self.sizes, self.batch, self.shorts = sizes, batch, shorts
        self.images = len(chosen)
        self.canvases = sorted(set(self._canvases.canvas.values()))  # (height, width) of batches
        settings = f"{batch} {shorts} {long} {seed} {flip} {zoom} {most_canvases}".encode()
        digest = hashlib.sha256(settings)
        digest.update(np.ascontiguousarray(chosen).astype("<i8").tobytes())
        digest.update(np.ascontiguousarray(sizes[chosen]).astype("<i8").tobytes())
        self.identity = digest.hexdigest()[:16]  # equal identities give equal batches

    def steps_before(self, epoch: int) -> int:
        """The number of batches in the epochs before this one."""
        return int((epoch * self._counts // self.batch).sum())

    def plan(self, step: int) -> Plan:
        """Batch number `step`, from 0, at the same cost for any step."""
        epoch = step * self.batch // self.images
        while self.steps_before(epoch + 1) <= step:
            epoch += 1
        done = epoch * self._counts // self.batch
        # the group of each batch of this epoch, shuffled
        turns = (epoch + 1) * self._counts // self.batch - done
        shuffled = permutation(int(turns.sum()), self._seed, BUCKETS, epoch)
        order = np.repeat(np.arange(len(turns)), turns)[shuffled]
        turn = step - int(done.sum())
        group = int(order[turn])
        number = int(done[group] + (order[:turn] == group).sum())
        images = self._group_batch(group, number)

        words = random_words(1 + 4 * self.batch, self._seed, WEAK, step)
        short = self.shorts[int(words[0] % np.uint64(len(self.shorts)))]
        flip, *chances = words[1:].reshape(4, self.batch)
        canvas = self._canvases.canvas[group, short]
        scaled = sizes = self._canvases.fitted[short][images]
        shift = np.zeros_like(scaled)
        if self._zoom is not None:
            scaled, sizes, shift = zoomed(scaled, canvas, self._zoom, uniform(np.stack(chances, 1)))
        return Plan(
            step=step,
            epoch=epoch,
            canvas=canvas,
            short=short,
            images=images,
            sizes=sizes,
            scaled=scaled,
            shift=shift,
            flip=(flip >> np.uint64(63)).astype(np.bool_) & self._flip,
            first=0,
            batch=self.batch,
            count=self.batch,
        )

    def _group_batch(self, group: int, number: int) -> Ints:
        """(B,) images of a group's batch: a part of its endless sequence."""
        members = self._canvases.groups[group]
        images = np.empty(self.batch, dtype=np.int64)
        for row in range(self.batch):
            epoch, n = divmod(number * self.batch + row, len(members))
            order = permutation(len(members), self._seed, ORDER, group, epoch)
            images[row] = members[order[n]]
        return images

    def every_view(self, batch: int) -> list[Plan]:
        """Every image at every short side, flipped and not, once each, on its canvas: the views
        that `plan` draws from, if there is no zoom.
        """
        flips = (False, True) if self._flip else (False,)
        sides = ((short, flip) for short in self.shorts for flip in flips)
        return [plan for side in sides for plan in self._canvases.each_once(batch, *side)]

    def views_of(self, plan: Plan) -> Ints:
        """(b,) the numbers of a plan's views: short side by short side, all pictures unflipped,
        then all flipped; consecutive where all pictures are trained on.
        """
        flips = 2 if self._flip else 1
        side = flips * self.shorts.index(plan.short) + plan.flip.astype(np.int64)
        views: Ints = side * len(self.sizes) + plan.images
        return views
