"""Damaged files: what reads them succeeds, lists problems or raises a UserError, within limits.

`make test` tries some hundred fixed cases. `make fuzz` tries other ones each time, N=20000 in all
or for MINUTES=60, and keeps the files of each kind of failure: the message says where.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.damage import RAN, damaged, replace
from fuzz.limits import Cost, TooLarge, TooSlow, limited
from fuzz.target import Target, refused
from fuzz.targets import TARGETS
from mini_fsod.errors import UserError

PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
N = int(os.environ.get("FUZZ_N", "0"))
SECONDS = 60 * float(os.environ.get("FUZZ_MINUTES", "0")) * PROCESSES
KEEP = Path(os.environ.get("FUZZ_KEEP", "fuzz-failures")).absolute()  # tests change the folder
ROUND = 200  # cases of one seed


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_files_are_refused_or_read_within_limits(target: Target, tmp_path: Path) -> None:
    valid = tmp_path / "valid"
    valid.mkdir()
    target.write(valid)
    names = sorted(
        {
            path.relative_to(valid).as_posix()
            for pattern in target.files
            for path in valid.glob(pattern)
            if path.is_file()
        }
    )
    assert names
    _read_valid(target, valid, tmp_path / "whole")
    most = Cost()
    failures: dict[str, str] = {}  # where it failed: how to see it again

    def case(data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        changes = {n: data.draw(damaged((valid / n).read_bytes(), n)) for n in chosen}
        folder = tmp_path / "case"
        shutil.copytree(valid, folder, symlinks=True)
        for name, content in changes.items():
            replace(folder / name, content)
        try:
            with limited(most), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the command line does not raise them
                target.read(folder)
            assert not Path(RAN).exists(), "code in a file was run"
        except UserError:
            pass
        except (Exception, TooSlow) as error:
            where = _where(error)
            if where not in failures:
                kept = KEEP / f"{target.name}-{len(failures) + 1}"
                shutil.rmtree(kept, ignore_errors=True)
                KEEP.mkdir(parents=True, exist_ok=True)
                folder.rename(kept)
                failures[where] = f"{type(error).__name__}: {str(error)[:200]}\n  {where}\n  {kept}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if Path(RAN).is_dir():
                Path(RAN).rmdir()

    def rounds() -> None:
        usual = settings(
            max_examples=target.examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        test = given(st.data())(case)
        if not (N or SECONDS):
            usual(test)()
            return
        share = target.examples / sum(target.examples for target in TARGETS)
        end, wanted, done = time.monotonic() + share * SECONDS, round(share * N), 0
        while done < wanted or time.monotonic() < end:
            size = min(ROUND, wanted - done) if N else min(ROUND, target.examples)
            number = int.from_bytes(os.urandom(4), "big")
            of_round = settings(usual, max_examples=size, derandomize=False)
            of_round(seed(number)(given(st.data())(case)))()
            done += size
        took = f"{most.seconds:.1f} s and {most.bytes >> 20} MB at most"
        print(f"{target.name}: {done:,} cases, {took}")  # -rP shows it

    rounds()
    assert not failures, f"{len(failures)} kinds of failure:\n" + "\n".join(failures.values())


def _read_valid(target: Target, valid: Path, copy: Path) -> None:
    """What is not damaged is read: otherwise nobody looks at what is behind the first check."""
    shutil.copytree(valid, copy, symlinks=True)
    refused.clear()
    with warnings.catch_warnings(action="ignore"):
        result = target.read(copy)
    assert not (isinstance(result, int) and result), f"valid files: exit code {result}"
    assert not refused, f"valid files are refused: {refused[0].what} {refused[0].fix}"
    shutil.rmtree(copy)


def _where(error: BaseException) -> str:
    """The last lines of the project in a traceback, which tell failures apart."""
    frames = traceback.extract_tb(error.__traceback__)
    of_project = [frame for frame in frames if "mini_fsod" in frame.filename] or frames
    last = of_project[-2:] if isinstance(error, TooSlow | TooLarge) else of_project[-1:]
    return " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(last)
    )
