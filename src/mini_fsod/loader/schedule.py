"""Which images form batch n, on which canvas, how large and whether flipped.

All of it is a function of the pictures' sizes, the seed and n: a run that resumes asks for the next
n, nothing is replayed. Random numbers are raw PCG64 words, the same on every machine.
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

STRIDE = 32  # the coarsest feature map's: canvases are multiples of it

# The first word of every key, so that no two uses share random numbers
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
    """(count,) the numbers 0 to count - 1 in an order that depends on the key alone."""
    return np.argsort(random_words(count, *key), kind="stable").astype(np.int64)


def fit(sizes: Ints, short: int, long: int) -> Ints:
    """Sizes (..., 2) scaled to a short side of `short`; to a long side of `long` where it would be
    longer. The other side is rounded. Integers only, so that every machine rounds alike.
    """
    low, high = sizes.min(-1, keepdims=True), sizes.max(-1, keepdims=True)
    by_short = short * high <= long * low
    wanted = np.where(by_short, short, long)
    given = np.where(by_short, low, high)
    fitted: Ints = np.maximum((2 * sizes * wanted + given) // (2 * given), 1)
    return fitted


def reduced(sizes: Ints, short: int, long: int) -> Ints:
    """`fit` that never enlarges: the sizes (..., 2) at which pictures are kept."""
    kept: Ints = np.minimum(sizes, fit(sizes, short, long))
    return kept


def zoomed(
    fitted: Ints, canvas: tuple[int, int], zoom: tuple[float, float], chances: Floats
) -> tuple[Ints, Ints, Ints]:
    """Images (b, 2) that fit a canvas, zoomed: their sizes at scale, what is seen, and its corner.

    `chances` (b, 3) in [0, 1) decide the factor, uniform between the two numbers of `zoom`, and
    where the window lies along y and x. Every place is as likely as another.
    """
    low, high = zoom
    factor = low + (high - low) * chances[:, :1]
    scaled = np.maximum(np.floor(fitted * factor + 0.5).astype(np.int64), 1)
    seen = np.minimum(scaled, np.array(canvas))
    shift = np.floor(chances[:, 1:] * (scaled - seen + 1)).astype(np.int64)
    return scaled, seen, shift


def group_canvases(need: Ints, most: int, least: int) -> Ints:
    """(I,) the group of each image, for (I, 2) canvases that the images need by themselves.

    A group's canvas holds all of its images. From one group for every distinct need, the two groups
    whose common canvas adds the least empty area are joined until at most `most` are left; after
    that any group of fewer than `least` images joins the one where that costs least. So landscape
    and portrait stay apart in a large set, and a handful of images shares one canvas.
    """
    canvas, kind, count = np.unique(need, axis=0, return_inverse=True, return_counts=True)
    group = np.arange(len(count))  # of each distinct need
    while len(count) > 1 and (len(count) > most or count.min() < least):
        union = np.maximum(canvas[:, None], canvas[None]).prod(
            -1
        )  # (K, K) area of the common canvas
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
    """One batch before its pixels: b images of the global batch, all on one canvas.

    In data-parallel training each rank has its own part of the batch: `first` is the place of its
    first image in the global batch of `batch` images.
    """

    step: int
    epoch: int
    canvas: tuple[int, int]  # height, width
    short: int  # the short side drawn for the batch
    images: Ints  # (b,) indices of images
    sizes: Ints  # (b, 2) height, width of what is seen of each image, in the canvas's corner
    scaled: Ints  # (b, 2) height, width of the whole image at its scale; larger where it is cut
    shift: Ints  # (b, 2) rows above and columns left of what is seen, at that scale
    flip: Bools  # (b,) what is seen is mirrored left to right
    first: int
    batch: int
    count: int  # the first `count` images are meant; the others only fill the batch

    def part(self, rank: int, world: int) -> Plan:
        """The images of one rank: the same global order for any number of ranks."""
        if self.batch % world:
            raise UserError(
                f"A batch of {self.batch} images cannot be shared equally by {world} processes.",
                f"Take a batch size that is a multiple of {world}.",
            )
        each = self.batch // world
        mine = slice(rank * each, (rank + 1) * each)
        return replace(
            self,
            images=self.images[mine],
            sizes=self.sizes[mine],
            scaled=self.scaled[mine],
            shift=self.shift[mine],
            flip=self.flip[mine],
            first=rank * each,
            count=min(max(self.count - rank * each, 0), each),
        )


class Canvases:
    """Groups of images that share a canvas, for every short side that training draws from."""

    def __init__(
        self, sizes: Ints, images: Ints, shorts: tuple[int, ...], long: int, most: int, least: int
    ) -> None:
        if len(images) == 0:
            raise UserError("There are no images to make batches of.", "Choose other images.")
        own = sizes[images]
        if own.min() < 1:
            raise UserError("A picture's size is not known.", "Read the sizes from the pictures.")
        group = group_canvases(up_to_stride(fit(own, max(shorts), long)), most, least)
        self.members = [images[group == g] for g in range(int(group.max()) + 1)]
        self._fitted = {short: fit(sizes, short, long) for short in shorts}

    def size(self, images: Ints, short: int) -> Ints:
        """(b, 2) height and width of these images at this short side."""
        return self._fitted[short][images]

    def canvas(self, group: int, short: int) -> tuple[int, int]:
        """(height, width) that holds every image of the group at this short side."""
        height, width = up_to_stride(self.size(self.members[group], short).max(0)).tolist()
        return height, width


class Schedule:
    """The endless order of training batches.

    Images are grouped by canvas. A group is an endless row of its images, shuffled anew for every
    epoch, and cut into batches; so the row's epochs follow each other without a gap and no image is
    dropped. Epoch e consists of the batches that its images complete in every group,
    floor((e + 1) n / B) - floor(e n / B) of a group with n images, in random order: what is left
    over, fewer than B images a group, opens the group's first batch of the next epoch. Hence after
    E epochs every image was seen E times, but for those waiting, seen E - 1 times (or fewer, in a
    set smaller than a batch). A batch that spans two epochs may hold an image twice.

    `sizes` (I, 2) are the pictures' own heights and widths. `images` are the indices to train on,
    all by default; an index given twice is seen twice an epoch. The short side is drawn for each
    batch from `shorts`; a flip for each image, and with `zoom` a further factor between the two
    numbers: a smaller image leaves more of its canvas empty, of a larger one a window is seen.
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
        # a group of less than two batches would show the same pictures together all the time
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
        said = f"{batch} {shorts} {long} {seed} {flip} {zoom} {most_canvases}".encode()
        digest = hashlib.sha256(said)
        digest.update(np.ascontiguousarray(chosen).astype("<i8").tobytes())
        digest.update(np.ascontiguousarray(sizes[chosen]).astype("<i8").tobytes())
        self.identity = digest.hexdigest()[:16]  # another one gives other batches
        self.sizes = sizes

    @property
    def canvases(self) -> list[tuple[int, int]]:
        """The distinct (height, width) that batches come in."""
        return sorted(set(self._canvas.values()))

    def steps_before(self, epoch: int) -> int:
        """How many batches the epochs before this one have."""
        return sum(epoch * n // self.batch for n in self._counts)

    def plan(self, step: int) -> Plan:
        """Batch number `step`, from 0. Any step costs the same."""
        epoch = step * self.batch // self.images
        while self.steps_before(epoch + 1) <= step:
            epoch += 1
        done = tuple(epoch * n // self.batch for n in self._counts)
        # the groups of this epoch's batches: each as often as it has batches, shuffled
        turns = [(epoch + 1) * n // self.batch - d for n, d in zip(self._counts, done, strict=True)]
        shuffled = permutation(sum(turns), self._seed, BUCKETS, epoch)
        order = np.repeat(np.arange(len(turns)), turns)[shuffled]
        turn = step - sum(done)
        group = int(order[turn])
        number = done[group] + int((order[:turn] == group).sum())
        images = self._row(group, number * self.batch)

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

    def _row(self, group: int, start: int) -> Ints:
        """(B,) a batch from the group's endless row of images."""
        members = self._canvases.members[group]
        place = np.arange(start, start + self.batch)
        epochs = place // len(members)
        images = np.empty(self.batch, dtype=np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            shuffled = permutation(len(members), self._seed, ORDER, group, epoch)
            images[here] = members[shuffled[place[here] % len(members)]]
        return images

    def plans(
        self, start: int, stop: int | None = None, rank: int = 0, world: int = 1
    ) -> Iterator[Plan]:
        """The batches `start`, `start` + 1 ... of one rank, up to but not including `stop`."""
        step = start
        while stop is None or step < stop:
            yield self.plan(step).part(rank, world)
            step += 1

    def every_view(self, batch: int) -> list[Plan]:
        """Every image at every short side, flipped and not, once each, on the canvas that training
        shows it on: what `plan` draws from, where nothing is zoomed.
        """
        flips = (False, True) if self._flip else (False,)
        return [
            plan
            for short in self.shorts
            for flip in flips
            for plan in _once(self._canvases, batch, short, flip)
        ]

    def views_of(self, plan: Plan) -> Ints:
        """(b,) the numbers of the views that a plan shows, without gaps where all pictures are
        trained on: scale by scale, all pictures as they are, then all of them flipped.
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
    """Batches that show every image once, unflipped: for evaluation and mining.

    A group's last batch is filled up by repeating its last image, so that shapes stay the same;
    `Plan.count` tells how many are meant.
    """
    chosen = np.arange(len(sizes)) if images is None else np.asarray(images, dtype=np.int64)
    canvases = Canvases(sizes, chosen, (short,), long, most_canvases, batch)
    plans = _once(canvases, batch, short, flip=False)
    return [replace(plan, step=n) for n, plan in enumerate(plans)]


def _once(canvases: Canvases, batch: int, short: int, flip: bool) -> Iterator[Plan]:
    for group, members in enumerate(canvases.members):
        for start in range(0, len(members), batch):
            place = np.arange(start, start + batch)
            taken = members[np.minimum(place, len(members) - 1)]
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
