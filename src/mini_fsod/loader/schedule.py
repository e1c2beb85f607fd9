"""Which images form batch n, on which canvas, at what size, and whether flipped.

All of it is a function of the pictures' sizes, the seed and n: a resumed run asks for its next n.
Random numbers are raw PCG64 words, the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
    windows that are visible.

    `chances` (b, 3) in [0, 1) decide the factor, uniform in the range `zoom`, and the position of
    the window along y and x, uniform too.
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
        np.fill_diagonal(waste, np.iinfo(np.int64).max)
        if len(count) > most:
            i, j = (int(k) for k in np.unravel_index(waste.argmin(), waste.shape))
        else:
            i = int(count.argmin())
            j = int(waste[i].argmin())
        i, j = min(i, j), max(i, j)
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
        if self.batch % world:
            raise UserError(
                f"A batch of {self.batch} images cannot be split equally over {world} processes.",
                f"Use a batch size that is a multiple of {world}.",
            )
        each = self.batch // world
        rows = slice(rank * each, (rank + 1) * each)
        return replace(
            self,
            images=self.images[rows],
            sizes=self.sizes[rows],
            scaled=self.scaled[rows],
            shift=self.shift[rows],
            flip=self.flip[rows],
            first=rank * each,
            count=min(max(self.count - rank * each, 0), each),
        )


class Canvases:
    """Groups of images that share a canvas, for every short side."""

    def __init__(
        self, sizes: Ints, images: Ints, shorts: tuple[int, ...], long: int, most: int, least: int
    ) -> None:
        if len(images) == 0:
            raise UserError("There are no images for batches.", "Choose other images.")
        chosen = sizes[images]
        if chosen.min() < 1:
            raise UserError("A picture has no size.", "Read the sizes from the pictures.")
        group = group_canvases(up_to_stride(fit(chosen, max(shorts), long)), most, least)
        self.members = [images[group == g] for g in range(int(group.max()) + 1)]
        self._fitted = {short: fit(sizes, short, long) for short in shorts}

    def size(self, images: Ints, short: int) -> Ints:
        """(b, 2) height and width of these images at this short side."""
        return self._fitted[short][images]

    def canvas(self, group: int, short: int) -> tuple[int, int]:
        """(height, width) that holds all images of the group at this short side."""
        height, width = up_to_stride(self.size(self.members[group], short).max(0)).tolist()
        return height, width


class Schedule:
    """The endless sequence of training batches.

    Images are grouped by canvas. Each group is an endless sequence of its images, reshuffled for
    every epoch and cut into batches, so no image is dropped between epochs. Epoch e consists of the
    batches that its images complete: floor((e + 1) n / B) - floor(e n / B) of a group with n
    images, in random order. The images left over, fewer than B per group, start the group's first
    batch of the next epoch. So after E epochs every image was used E times, or E - 1 times if it is
    left over (fewer in a set smaller than a batch). A batch that spans two epochs may hold an image
    twice.

    `sizes` (I, 2) are heights and widths of the pictures. `images` are the indices to train on, all
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
        self._canvas = {
            (g, s): self._canvases.canvas(g, s)
            for g in range(len(self._canvases.members))
            for s in shorts
        }
        self.images = len(chosen)
        self._pictures = len(sizes)
        self.batch = batch
        self.shorts = shorts
        self._seed = seed
        self._flip = flip
        self._zoom = zoom
        self._counts = tuple(len(m) for m in self._canvases.members)
        settings = f"{batch} {shorts} {long} {seed} {flip} {zoom} {most_canvases}".encode()
        digest = hashlib.sha256(settings)
        digest.update(np.ascontiguousarray(chosen).astype("<i8").tobytes())
        digest.update(np.ascontiguousarray(sizes[chosen]).astype("<i8").tobytes())
        self.identity = digest.hexdigest()[:16]  # equal identities give equal batches
        self.sizes = sizes

    @property
    def canvases(self) -> list[tuple[int, int]]:
        """The distinct (height, width) that batches come in."""
        return sorted(set(self._canvas.values()))

    def steps_before(self, epoch: int) -> int:
        """The number of batches in the epochs before this one."""
        return sum(epoch * n // self.batch for n in self._counts)

    def plan(self, step: int) -> Plan:
        """Batch number `step`, from 0, at the same cost for any step."""
        epoch = step * self.batch // self.images
        while self.steps_before(epoch + 1) <= step:
            epoch += 1
        done = tuple(epoch * n // self.batch for n in self._counts)
        # the group of each batch of this epoch, shuffled
        turns = [(epoch + 1) * n // self.batch - d for n, d in zip(self._counts, done, strict=True)]
        shuffled = permutation(sum(turns), self._seed, BUCKETS, epoch)
        order = np.repeat(np.arange(len(turns)), turns)[shuffled]
        turn = step - sum(done)
        group = int(order[turn])
        number = done[group] + int((order[:turn] == group).sum())
        images = self._members_at(group, number * self.batch)

        words = random_words(1 + 4 * self.batch, self._seed, WEAK, step)
        short = self.shorts[int(words[0] % np.uint64(len(self.shorts)))]
        flip, *chances = words[1:].reshape(4, self.batch)
        canvas = self._canvas[group, short]
        scaled = self._canvases.size(images, short)
        sizes, shift = scaled, np.zeros_like(scaled)
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

    def _members_at(self, group: int, start: int) -> Ints:
        """(B,) images of a batch, from position `start` of the group's endless sequence."""
        members = self._canvases.members[group]
        positions = np.arange(start, start + self.batch)
        epochs = positions // len(members)
        images = np.empty(self.batch, dtype=np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            in_epoch = epochs == epoch
            shuffled = permutation(len(members), self._seed, ORDER, group, epoch)
            images[in_epoch] = members[shuffled[positions[in_epoch] % len(members)]]
        return images

    def plans(
        self, start: int, stop: int | None = None, rank: int = 0, world: int = 1
    ) -> Iterator[Plan]:
        """The batches `start` to `stop` - 1 of one rank."""
        step = start
        while stop is None or step < stop:
            yield self.plan(step).part(rank, world)
            step += 1

    def every_view(self, batch: int) -> list[Plan]:
        """Every image at every short side, flipped and not, once each, on its canvas: the views
        that `plan` draws from, if there is no zoom.
        """
        flips = (False, True) if self._flip else (False,)
        return [
            plan
            for short in self.shorts
            for flip in flips
            for plan in _each_once(self._canvases, batch, short, flip)
        ]

    def views_of(self, plan: Plan) -> Ints:
        """(b,) the numbers of a plan's views: short side by short side, all pictures unflipped,
        then all flipped; consecutive where all pictures are trained on.
        """
        flips = 2 if self._flip else 1
        side = flips * self.shorts.index(plan.short) + plan.flip.astype(np.int64)
        views: Ints = side * self._pictures + plan.images
        return views


def each_once(
    sizes: Ints,
    batch: int,
    short: int,
    long: int,
    images: Ints | None = None,
    most_canvases: int = 6,
) -> list[Plan]:
    """Batches with every image once, unflipped: for evaluation and mining.

    The last batch of a group is filled up with its last image, to keep the shape; `Plan.count` is
    the number of images without those.
    """
    chosen = np.arange(len(sizes)) if images is None else np.asarray(images, dtype=np.int64)
    canvases = Canvases(sizes, chosen, (short,), long, most_canvases, batch)
    plans = _each_once(canvases, batch, short, flip=False)
    return [replace(plan, step=n) for n, plan in enumerate(plans)]


def _each_once(canvases: Canvases, batch: int, short: int, flip: bool) -> Iterator[Plan]:
    for group, members in enumerate(canvases.members):
        for start in range(0, len(members), batch):
            positions = np.arange(start, start + batch)
            taken = members[np.minimum(positions, len(members) - 1)]
            sizes = canvases.size(taken, short)
            yield Plan(
                step=0,
                epoch=0,
                canvas=canvases.canvas(group, short),
                short=short,
                images=taken,
                sizes=sizes,
                scaled=sizes,
                shift=np.zeros_like(sizes),
                flip=np.full(batch, flip),
                first=0,
                batch=batch,
                count=min(batch, len(members) - start),
            )
