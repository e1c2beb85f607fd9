"""Known vulnerabilities of the packages in requirements.lock, as PyPI knows them (what pip-audit
asks too). Exit code 1 if a version without them exists. Where PyPI's advisories cannot be reached,
as offline or behind a mirror that has packages only, one line says so, and the exit code is 0.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
SECONDS = 50.0  # for all packages
ANSWER_SECONDS = 8.0  # for one
AT_A_TIME = 8

Known = Callable[[str, str], list[dict[str, Any]]]  # vulnerabilities of a name and version


def locked(text: str) -> list[tuple[str, str]]:
    """(name, version) of every package of a lock."""
    return re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE)


def known_to_pypi(name: str, version: str) -> list[dict[str, Any]]:
    """The vulnerabilities that PyPI lists; OSError or ValueError where it does not answer."""
    address = f"https://pypi.org/pypi/{name}/{version}/json"
    with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as answer:
        found = json.load(answer)["vulnerabilities"]
    return [entry for entry in found if not entry.get("withdrawn")]


def audit(packages: Iterable[tuple[str, str]], known: Known = known_to_pypi) -> int:
    """Print what is known of the packages; the exit code."""
    packages, end = list(packages), monotonic() + SECONDS
    first, *others = packages
    try:
        found = [known(*first)]  # one question, where nobody answers
    except (OSError, ValueError, KeyError) as error:
        print(f"audit: left out, no advisories from PyPI here ({error})")
        return 0
    unanswered = []

    def ask(package: tuple[str, str]) -> list[dict[str, Any]]:
        try:
            if monotonic() > end:
                raise TimeoutError(f"not done after {SECONDS:g} s")
            return known(*package)
        except (OSError, ValueError, KeyError):
            unanswered.append(package[0])
            return []

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found += pool.map(ask, others)
    bad = False
    for (name, version), entries in zip(packages, found, strict=True):
        for entry in entries:
            fixed = ", ".join(entry.get("fixed_in") or ())
            print(f"audit: {name} {version}: {entry['id']}, fixed in {fixed or 'no version yet'}")
            bad = bad or bool(fixed)
    if unanswered:
        print(f"audit: no answer about {len(unanswered)}: {', '.join(sorted(unanswered)[:5])}")
    if not bad:
        print(f"audit: {len(packages) - len(unanswered)} packages")
    return int(bad)


if __name__ == "__main__":
    sys.exit(audit(locked(LOCK.read_text())))
