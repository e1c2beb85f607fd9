from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from mini_fsod.loader.schedule import Plan, Schedule


def plans_of(
    schedule: Schedule, start: int, stop: int | None = None, rank: int = 0, world: int = 1
) -> Iterator[Plan]:
    """The batches `start` to `stop` - 1 of one rank; endless without `stop`."""
    steps = count(start) if stop is None else range(start, stop)
    return (schedule.plan(step).part(rank, world) for step in steps)
