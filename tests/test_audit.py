from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAK = {"id": "PYSEC-1", "fixed_in": ["2.1"], "withdrawn": None}


@pytest.fixture(scope="module")
def ci() -> ModuleType:
    path = ROOT / ".ci" / "audit.py"
    if not path.exists():
        pytest.skip("needs .ci, which is not in the source distribution")
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_locked_finds_every_package_of_the_lock(ci: ModuleType) -> None:
    text = (ROOT / "requirements.lock").read_text()
    packages = ci.locked(text)
    assert len(packages) == text.count("==") - text.count("'==") - text.count(" == ") > 50
    assert ci.locked("a-b==1.0 \\\n    --hash=sha256:0\nc==2 ; python_version < '3'\n") == [
        ("a-b", "1.0"),
        ("c", "2"),
    ]


@pytest.mark.parametrize(
    ("entry", "code"),
    [(LEAK, 1), (LEAK | {"fixed_in": []}, 0)],
    ids=["with a better version", "without one"],
)
def test_audit_fails_only_where_a_better_version_exists(
    ci: ModuleType, capsys: pytest.CaptureFixture[str], entry: dict[str, Any], code: int
) -> None:
    def known(name: str, version: str) -> list[dict[str, Any]]:
        return [entry] if name == "b" else []

    assert ci.audit([("a", "1"), ("b", "2")], known) == code
    assert "b 2: PYSEC-1" in capsys.readouterr().out


def test_audit_goes_on_without_advisories(
    ci: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def known(name: str, version: str) -> list[dict[str, Any]]:
        asked.append(name)
        raise OSError("no network")

    assert ci.audit([("a", "1"), ("b", "2")], known) == 0
    assert asked == ["a"]
    assert capsys.readouterr().out == "audit: left out, no advisories from PyPI here (no network)\n"


def test_audit_tells_of_packages_without_an_answer(
    ci: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def known(name: str, version: str) -> list[dict[str, Any]]:
        if name == "b":
            raise OSError("404")
        return [{"id": "X", "fixed_in": ["2"]}] if name == "c" else []

    assert ci.audit([("a", "1"), ("b", "1"), ("c", "1")], known) == 1
    said = capsys.readouterr().out
    assert "no answer about 1: b" in said
    assert "c 1: X, fixed in 2" in said
