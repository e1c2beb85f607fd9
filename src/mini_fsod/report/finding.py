"""A likely cause of a low AP: what it is, the numbers that show it, and what to try."""

from __future__ import annotations

from dataclasses import dataclass

# How much of the AP a cause may cost. Findings are ranked by it.
BLOCKS = 1.0  # nothing later can work before this is solved
MAJOR = 0.7
SOME = 0.4
WORTH_KNOWING = 0.2

WORDS = ((BLOCKS, "blocks everything"), (MAJOR, "likely"), (SOME, "possible"))


@dataclass(frozen=True, slots=True)
class Finding:
    weight: float  # one of the above, or between them
    what: str  # one sentence
    evidence: str  # the numbers
    changes: tuple[str, ...] = ()  # what to try: key=value, or a sentence

    @property
    def rank(self) -> str:
        return next((word for least, word in WORDS if self.weight >= least), "worth knowing")

    def line(self) -> str:
        """The finding as one line, for the terminal while a run goes on."""
        tries = f" Try {' or '.join(self.changes)}." if self.changes else ""
        return f"{self.what}: {self.evidence}.{tries}"


def new_setting(key: str, value: object) -> str:
    """key=value as it is typed after --set."""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{key}={shown.lower() if isinstance(value, bool) else shown}"
