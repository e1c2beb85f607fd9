"""A stand-in for the stages of a run: commands are tested by what they ask for and print."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mini_fsod.runs


class FakeStages:
    """Records what it is asked to run, and answers with `results`."""

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []
        self.results: dict[str, Any] = {"stages": {"base": {"bAP50": 61.25, "seconds": 4.0}}}

    def run(
        self,
        config: Any,
        out: Path,
        first: str | None = None,
        last: str | None = None,
        command: str = "",
        anyway: bool = False,
    ) -> dict[str, Any]:
        call = SimpleNamespace(
            config=config, out=out, first=first, last=last, command=command, anyway=anyway
        )
        self.calls.append(call)
        return self.results


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    fake = FakeStages()
    monkeypatch.setattr(mini_fsod.runs, "stages", fake, raising=False)
    return fake
