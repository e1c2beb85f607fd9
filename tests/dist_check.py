"""Installs the wheel from the package index into fresh environments, and uses it there.

make dist-check                      every Python of 3.11, 3.12 and 3.13 that is found
make dist-check PYTHONS=python3.12   these

Once with the oldest dependencies that pyproject.toml allows, once with the newest. Needs uv and the
network, and some 10 GB on the disk; not part of `make test`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from helpers.installed import ROOT, Installed, first_steps

VERSIONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
EXTRAS = ("demo", "onnx")
SHOWN = ("torch", "torchvision", "numpy", "pillow", "pydantic", "typer", "starlette", "onnxruntime")


def main() -> int:
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels or shutil.which("uv") is None:
        print("dist-check needs dist/*.whl (make dist) and uv (pip install uv)", file=sys.stderr)
        return 2
    pythons = os.environ.get("PYTHONS", "").split() or found_pythons()
    failed = []
    for python in pythons:
        for name, resolution in RESOLUTIONS.items():
            if not works(python, name, resolution, wheels[-1]):
                failed.append(f"{python} {name}")
    print(f"failed: {', '.join(failed)}" if failed else "all work", flush=True)
    return bool(failed)


def found_pythons() -> list[str]:
    """One interpreter of each version: one that uv finds, else one of pyenv's. No downloads."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = []
    for version in VERSIONS:
        words = ("uv", "python", "find", "--no-python-downloads", "--no-project", version)
        done = subprocess.run(words, capture_output=True, text=True)
        others = sorted(of_pyenv.glob(f"{version}.*/bin/python{version}"))
        if done.returncode == 0:
            found.append(done.stdout.strip())
        elif others:
            found.append(str(others[-1]))
        else:
            print(f"Python {version}: not found here, left out", flush=True)
    return found


def works(python: str, name: str, resolution: str, wheel: Path) -> bool:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mini-dist-") as temporary:
        folder = Path(temporary)
        try:
            version = install(python, folder / "environment", resolution, wheel)
            print(f"Python {version}, {name}: {packages(folder / 'environment')}", flush=True)
            installed = Installed(folder / "environment", folder / "work")
            did = first_steps(installed)
            did += exported(installed)
            if name == "newest":
                did += without_torch(python, folder, wheel)
        except (AssertionError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            print(f"{python}, {name}: FAILED\n{said[-6000:]}", flush=True)
            return False
    for line in did:
        print(f"  {line}")
    print(f"  works, {time.monotonic() - began:.0f} s", flush=True)
    return True


def install(python: str, environment: Path, resolution: str, wheel: Path) -> str:
    """The wheel and its dependencies, resolved from pyproject.toml: the oldest are those of its
    lower bounds, with the newest of what these need in turn. Returns the version of Python.
    """
    _uv("venv", "--no-python-downloads", "--python", python, environment)
    inside = ("--python", environment / "bin" / "python")
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    requirements = ("-r", ROOT / "pyproject.toml", *extras)
    # Nothing is compiled here: a version without a wheel for this Python is an error.
    options = ("--only-binary", ":all:", "--resolution", resolution)
    _uv("pip", "install", *inside, *options, *requirements)
    _uv("pip", "install", *inside, "--no-deps", wheel)
    _uv("pip", "check", *inside)
    words = (
        environment / "bin" / "python",
        "-c",
        "import platform; print(platform.python_version())",
    )
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def packages(environment: Path) -> str:
    listed = json.loads(
        _uv("pip", "list", "--format", "json", "--python", environment / "bin" / "python")
    )
    versions = {row["name"]: row["version"] for row in listed}
    return ", ".join(f"{name} {versions[name]}" for name in SHOWN)


def exported(installed: Installed) -> Sequence[str]:
    """ONNX, where its packages are there."""
    installed.run("mini", "export", "runs/photos", "-o", "photos.onnx", "--compare", "holiday")
    installed.run("mini", "predict", "photos.onnx", "holiday", "--csv", "found.csv")
    return ["mini export, mini predict photos.onnx"]


def without_torch(python: str, folder: Path, wheel: Path) -> Sequence[str]:
    """The exported file in an environment with the packages alone that docs/deploy.md names."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    lines = re.findall(r"^pip install (.*)$", page, re.MULTILINE)
    assert lines[0] == f"--no-deps dist/{wheel.name}", f"docs/deploy.md names another file: {lines}"
    environment = folder / "small"
    _uv("venv", "--no-python-downloads", "--python", python, environment)
    inside = ("--python", environment / "bin" / "python")
    for line in lines:
        _uv("pip", "install", *inside, "--only-binary", ":all:", *shlex.split(line))
    small = Installed(environment, folder / "work")
    small.run("mini", "predict", "photos.onnx", "holiday", "--csv", "found-again.csv")
    small.python("import mini_fsod; print(mini_fsod.load('photos.onnx').predict('holiday/a.jpg'))")
    return ["mini predict photos.onnx without PyTorch"]


def _uv(*words: str | Path) -> str:
    done = subprocess.run(
        ["uv", *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
