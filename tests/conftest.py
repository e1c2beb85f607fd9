from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The same cases in every run of the tests; `make fuzz` tries others.
hypothesis.settings.register_profile("fixed", derandomize=True, database=None)
hypothesis.settings.load_profile("fixed")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def devkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of VOC07+12's annotations (no pictures), where the archive lies beside the checkout."""
    archive = SHARED / "voc" / "annotations.tar.xz"
    if not archive.exists():
        pytest.skip("needs ../shared/voc, which is not part of the project")
    import tarfile

    folder = tmp_path_factory.mktemp("voc")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    for year in ("VOC2007", "VOC2012"):
        (folder / year / "JPEGImages").mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves anything in the checkout: contact sheets go to the current folder.

    Nor in the home folder's cache, where a .zip is unpacked.
    """
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True, scope="session")
def float32() -> Iterator[None]:
    """Tests compute in float32 on every CPU, also on those with units for bfloat16; the fixtures of
    a session too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mini_fsod.device.BF16_UNITS", ())
        yield


@pytest.fixture
def mini(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command as a person would: (exit code, standard output, standard error)."""

    def run(*words: object) -> tuple[int, str, str]:
        from mini_fsod import cli

        monkeypatch.setattr(sys, "argv", ["mini", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "120")
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
