"""Estimated and actual time of each stage of a run, one after the other in one process.

    python benchmarks/estimates.py photos --set data.root=DATA --set data.novel=bolt -o /tmp/run

With --cpu-time all clocks count the CPU time of this process, not wall time: on a machine that
others use too, with OMP_NUM_THREADS=1. Pictures are decoded before. The run goes on where it
could end early. Prints a table; --out keeps the run, which must be new.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="of an estimate")
    parser.add_argument("--cpu-time", action="store_true")
    given = parser.parse_args()
    if given.cpu_time:
        time.perf_counter = time.process_time  # before mini_fsod takes it
    from mini_fsod import cli, console
    from mini_fsod.config.load import resolve
    from mini_fsod.device import peak_memory, reset_peak_memory, torch_device
    from mini_fsod.runs import stages
    from mini_fsod.runs.data import RunData
    from mini_fsod.runs.estimate import estimate_run

    cli.reuse_freed_memory()
    config = resolve(given.config, given.set)
    device = torch_device(config.device)
    data = RunData(config, device)
    data.batches(data.base)  # decodes
    began, wall = time.perf_counter(), time.monotonic()
    before = estimate_run(config, device, data=data, seconds=given.seconds)
    took = f"{time.perf_counter() - began:.1f} s, {time.monotonic() - wall:.1f} s by the wall"
    console.note(f"the estimate took {took}")
    reset_peak_memory(device)
    figures = stages.run(config, given.out, anyway=True)["stages"]
    peak = peak_memory(device)
    after = estimate_run(config, device, data=data, seconds=given.seconds)

    table = console.columns("stage", ">before", ">actual", ">after", ">before / actual")
    for one, other in zip(before.stages, after.stages, strict=True):
        result = figures[one.stage]
        actual = result["seconds"] + (result.get("test_seconds") or 0.0)
        if one.stage == "tune" and config.tune.data == "none":
            continue  # nothing is trained or scored
        seconds = (60 * one.minutes, actual, 60 * other.minutes)
        ratio = f"{seconds[0] / actual:.2f}"
        table.add_row(one.stage, *(f"{value:,.1f} s" for value in seconds), ratio)
    console.table(table)
    console.note(f"peak memory: estimated {console.size(before.memory)}, {console.size(peak)}")


if __name__ == "__main__":
    main()
