"""What a user does first with an installed package, in a folder without the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DETECTOR = "runs/photos/detector.safetensors"  # the run that the README's snippet loads
# A run of every stage in a few seconds; it learns nothing
SHORT_RUN = (
    *("run", "demo", "-o", "runs/photos", "--anyway", "--set", "data.root=digits"),
    *("--set", "base.iterations=2", "--set", "transfer.iterations=2"),
    *("--set", "online.iterations=2", "--set", "tune.iterations=2"),
    *("--set", "data.test_most=8", "--set", "mine.min_score=0.001"),
)


def readme_snippet() -> str:
    """The Python block of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return str(block)


class Installed:
    """A virtual environment with the package, and a folder in which its commands run."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.bin = environment / "bin"
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, *words: str | Path, expected: int = 0) -> str:
        """A program of the environment; what it printed. Other exit codes fail."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
        environ |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.folder / "cache")}
        program, *rest = map(str, words)
        done = subprocess.run(
            [str(self.bin / program), *rest],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
        )
        said = done.stdout + done.stderr
        assert done.returncode == expected, f"{' '.join(map(str, words))}\n{said}"
        return said

    def python(self, code: str) -> str:
        return self.run("python", "-W", "error::SyntaxWarning", "-c", code)


def first_steps(installed: Installed, detector: Path | None = None) -> list[str]:
    """Demo data, check, detect, Python; what was done. The detector is one of a short run, where
    none is given. Raises AssertionError with the output of the first command that fails.
    """
    folder, did = installed.folder, []

    def mini(*words: str | Path) -> str:
        did.append(" ".join(("mini", *map(str, words))))
        return installed.run("mini", *words)

    place = installed.python("import mini_fsod; print(mini_fsod.__file__)").strip()
    assert installed.bin.parent in Path(place).parents, place
    mini("--version")
    mini("demo-data", "digits", "--scale", "0.2")
    said = mini("check", "digits", *novel("three", "six", "eight"), "--sheet", "sheet.png")
    assert "three" in said, said
    assert (folder / "sheet.png").stat().st_size > 10_000
    if detector is None:
        mini(*SHORT_RUN)
        assert (folder / "runs/photos/report.html").exists()
    else:
        (folder / DETECTOR).parent.mkdir(parents=True)
        shutil.copy(detector, folder / DETECTOR)
    holiday = folder / "holiday"
    holiday.mkdir()
    for name, picture in zip("ab", sorted((folder / "digits/test").iterdir()), strict=False):
        shutil.copy(picture, holiday / f"{name}.jpg")
    mini("predict", "runs/photos", "holiday", "--score", "0.01", "--coco", "found.json")
    assert (folder / "found.json").exists()
    assert "Prediction(" in installed.python(readme_snippet())
    did.append("the README's Python")
    return did


def novel(*names: str) -> Sequence[str]:
    return [word for name in names for word in ("--novel", name)]
