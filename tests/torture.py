"""Kills runs and studies at random moments, lets them end, and compares the weights.

make torture        100 kills
make torture N=10   a quick look

A third of the kills wait for decoding, a third for a file that is being written; the others come
at any time. They are SIGKILL to the process or its group, or SIGTERM. SEED=1 draws other moments.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from mini_fsod import cli  # before the forks, with torch: they then start in no time
from mini_fsod.checkpoint import load
from mini_fsod.runs import stages  # noqa: F401
from mini_fsod.study.plan import read_plan
from mini_fsod.train.terminate import TERMINATED

sys.path.insert(0, str(Path(__file__).parent))
from helpers import shapes
from helpers.tiny_run import SETTINGS, SHORT, detections, words

STUDY = """
name: shapes
config: shapes.yaml
rows:
  TFA: []
  mined: {set: [mine.threshold=0.5], to: online}
seeds: [0, 1]
"""
ITERATIONS = {"base": 40, "transfer": 40, "online": 25, "tune": 20}
MOST_KILLS = 6  # of one run or study
LIMIT = 300  # seconds that a command may take


class Command:
    """`mini ARGUMENTS` in a forked process, the leader of a group of its own."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.start = time.monotonic()
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid:
            with suppress(OSError):  # the child does it too: whoever comes first
                os.setpgid(self.pid, self.pid)
            return
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["mini", *arguments]
        # processes that decode import the main module: as a script this one, with torch
        vars(sys.modules["__main__"]).pop("__file__", None)
        code = 1
        try:
            cli.main()
            code = 0
        except SystemExit as ends:
            code = ends.code if isinstance(ends.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Whether the process still runs when `ready`, or after so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not ready():
            if self.ended():
                return False
            time.sleep(0.002)
        return not self.ended()

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def finish(self) -> int:
        if self.wait(lambda: False, LIMIT):
            os.killpg(self.pid, signal.SIGKILL)
            sys.exit(f"a command hung for {LIMIT} seconds")
        assert self.status is not None
        return self.status


def writes(*folders: Path) -> bool:
    """Whether a file is half written at this moment."""
    return any(
        name.endswith(".part") and name.startswith(".")
        for folder in folders
        for _, _, names in os.walk(folder)
        for name in names
    )


def torture(
    name: str, arguments: Sequence[str], runs: Path, cache: Path, seconds: float, draw: Random
) -> int:
    """Kill a command some times, then let it end; the number of kills."""
    kills = 0
    log = runs.with_suffix(".log")
    for _ in range(draw.randint(1, MOST_KILLS)):
        command = Command(arguments, log)
        moment = draw.choice(["any", "decoding", "writing"])
        if moment == "any":
            alive = command.wait(lambda: False, draw.uniform(0, seconds))
        elif moment == "decoding":
            alive = command.wait(lambda: any(cache.glob("*.part")), seconds / 2)
            alive = alive and command.wait(lambda: False, draw.uniform(0, 0.3))
        else:
            alive = command.wait(lambda: False, draw.uniform(0, seconds / 2))
            alive = alive and command.wait(lambda: writes(runs), seconds)
        if not alive:
            break
        how = draw.choice(["KILL", "KILL group", "TERM", "TERM group"])
        number = signal.SIGTERM if how.startswith("TERM") else signal.SIGKILL
        (os.killpg if how.endswith("group") else os.kill)(command.pid, number)
        status = command.finish()
        kills += 1
        if status not in (-number, TERMINATED, 0):
            sys.exit(f"{name}: ended with {status} after {how}:\n{log.read_text()[-3000:]}")
        print(f"{name}: {how} while {moment}, after {time.monotonic() - command.start:.1f} s")
    status = Command(arguments, log).finish()
    if status != 0:
        sys.exit(f"{name}: ended with {status}:\n{log.read_text()[-3000:]}")
    return kills


def weights_below(folder: Path) -> dict[str, bytes]:
    """The content of all checkpoints of a run, or of a study's runs."""
    paths = [p for root in (folder, *folder.glob("cells/*")) for p in root.glob("*/*.safetensors")]
    for path in paths:
        load(path)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def main() -> None:
    wanted, seed = int(os.environ.get("N", "100")), int(os.environ.get("SEED", "0"))
    draw = Random(seed)
    with tempfile.TemporaryDirectory(prefix="mini-torture-") as name:
        home = Path(name)
        temporary = home / "tmp"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        data = shapes.write_data(home / "data")
        (home / "shapes.yaml").touch()
        (home / "study.yaml").write_text(STUDY)
        lengths = {f"{stage}__iterations": n for stage, n in ITERATIONS.items()}
        mined = {"mine__detections": detections(data), "mine__threshold": 0.5}
        changes = SHORT | lengths | mined | {"online__start": "transfer", "online__ema": 0.8}
        keys = SETTINGS | {"data.root": data, "mine.detections": detections(data)}
        keys |= {f"{stage}.iterations": n // 4 for stage, n in ITERATIONS.items()}
        keys |= {"online.start": "transfer", "shots.k": 2}

        def arguments(what: str, out: Path, cache: Path, stream: bool = False) -> list[str]:
            if what == "run":
                more = {"data__cache": cache, "data__loading": "stream" if stream else "auto"}
                return words(data, out, "--to", "tune", **changes | more)
            sets = [f"{key}={value}" for key, value in (keys | {"data.cache": cache}).items()]
            options = [word for text in sets if "shots.k" not in text for word in ("--set", text)]
            study = ["study", str(home / "study.yaml"), "--anyway"]  # little is learnt
            return [*study, "--shots", "2", "-o", str(out), *options]

        seconds, expected = {}, {}
        for what in ("run", "study"):
            out = home / f"whole-{what}" / what
            log = home / f"whole-{what}.log"
            command = Command(arguments(what, out, home / f"cache-{what}"), log)
            if command.finish() != 0:
                sys.exit(log.read_text())
            seconds[what] = time.monotonic() - command.start
            expected[what] = weights_below(out)
            print(f"{what}: {seconds[what]:.1f} s, {len(expected[what])} checkpoints", flush=True)
        assert len(read_plan(home / "whole-study" / "study")) == 4
        kills = trials = 0
        while kills < wanted:
            what = ("run", "study")[trials % 2]
            trials += 1
            runs, cache = home / f"runs-{trials}", home / f"cache-{trials}"
            out = runs / what
            command_line = arguments(what, out, cache, stream=trials % 4 == 3)
            kills += torture(what, command_line, runs, cache, seconds[what], draw)
            if weights_below(out) != expected[what]:
                sys.exit(f"{what}: other weights after kills (SEED={seed}, trial {trials})")
            left = [p for folder in (runs, cache) for p in folder.rglob("*.part")]
            folders = [*temporary.iterdir()]
            if left or len(folders) > 1:  # the last one's: a fork ends without ceremony
                sys.exit(f"{what}: left over: {[*left, *folders]}")
            print(f"{kills} kills in {trials} trials: the same weights", flush=True)
            for folder in (runs, cache):
                shutil.rmtree(folder, ignore_errors=True)  # streams need no cache


if __name__ == "__main__":
    main()
