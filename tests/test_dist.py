"""The wheel and the source archive of `make dist`: what is in them, and that they work alone."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from helpers.installed import Installed, first_steps
from helpers.tiny_detector import LABELS, tiny_detector
from mini_fsod import __version__, checkpoint

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="needs mini-fsod[dev]")
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel_of(dist: Path) -> Path:
    return dist / f"mini_fsod-{__version__}-py3-none-any.whl"


def test_wheel_has_the_package_alone(dist: Path) -> None:
    with zipfile.ZipFile(wheel_of(dist)) as packed:
        names = set(packed.namelist())
    package = ROOT / "src" / "mini_fsod"
    files = {p for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    about = f"mini_fsod-{__version__}.dist-info"
    assert {name for name in names if not name.startswith(f"{about}/")} == {
        path.relative_to(package.parent).as_posix() for path in files
    }
    assert f"{about}/licenses/LICENSE" in names


def test_source_archive_has_what_its_own_tests_need(dist: Path) -> None:
    with tarfile.open(dist / f"mini_fsod-{__version__}.tar.gz") as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    for name in (
        *("pyproject.toml", "Makefile", "requirements.lock", "mkdocs.yml", "README.md"),
        *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "SECURITY.md"),
        *("docs/index.md", "docs/quick-start.ipynb", "tests/test_dist.py", ".ci/audit.py"),
        *("src/mini_fsod/cli.py", "benchmarks/load_speed.py", ".gitignore"),
    ):
        assert name in names, name
    assert not [name for name in names if name.startswith(("site/", "runs/", "dist/", ".venv/"))]


@pytest.fixture
def installed(dist: Path, tmp_path: Path) -> Installed:
    """The wheel in an environment of its own; its dependencies are those of this Python."""
    pytest.importorskip("pip")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    words = ["pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    words = [sys.executable, "-m", *words, str(wheel_of(dist))]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    own = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    # The .pth files in that folder are not read, so that no editable install of a checkout counts.
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "site-packages" / "dependencies.pth").write_text("".join(f"{path}\n" for path in ours))
    return Installed(environment, tmp_path / "work")


@pytest.mark.slow
def test_wheel_works_without_the_checkout(installed: Installed, tmp_path: Path) -> None:
    pytest.importorskip("skimage", reason="needs mini-fsod[demo]")
    pytest.importorskip("sklearn", reason="needs mini-fsod[demo]")
    detector = tmp_path / "detector.safetensors"
    checkpoint.save(detector, tiny_detector(), LABELS, {"weights": None})
    assert len(first_steps(installed, detector)) == 5


def test_version_is_that_of_changelog_and_citation() -> None:
    headings = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert headings[0].split()[0].rstrip(",") in (__version__, "Unreleased")
    assert any(text.split()[0].rstrip(",") == __version__ for text in headings)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__


def test_citation_names_software_and_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license", "type"} <= citation.keys()
    assert citation["license"] == "Apache-2.0"
    paper = citation["preferred-citation"]
    title = "MINI: Mining Implicit Novel Instances for Few-Shot Object Detection"
    assert paper["title"] == title
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Cao", "Wang", "Lin", "Lin"]
    assert title in (ROOT / "README.md").read_text(encoding="utf-8")


def test_page_of_installing_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE)
    assert {*rows} == {*project["optional-dependencies"]} - {"dev"}
