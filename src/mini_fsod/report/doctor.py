"""`mini doctor`: the likely causes of a low AP, the most serious first."""

from __future__ import annotations

from dataclasses import replace

from mini_fsod.report.causes_data import data_findings
from mini_fsod.report.causes_errors import error_findings
from mini_fsod.report.causes_mining import mining_findings
from mini_fsod.report.causes_stages import base_blocks
from mini_fsod.report.causes_training import training_findings
from mini_fsod.report.finding import Finding
from mini_fsod.report.run_files import RunFiles

CAUSES = (data_findings, training_findings, mining_findings, error_findings)
NOTHING = "Nothing stands out."


def diagnose(run: RunFiles) -> list[Finding]:
    """All findings, ranked by how much of the AP they may cost; none for a healthy run.

    Of equal rank those come first that lie earlier in the run: they may explain the later ones.
    Below a base detector that mining cannot build on, no setting of mining is proposed.
    """
    found = [finding for causes in CAUSES for finding in causes(run)]
    if base_blocks(run.figures):
        found = [
            replace(one, changes=tuple(c for c in one.changes if not c.startswith("mine.")))
            for one in found
        ]
    return sorted(found, key=lambda finding: -finding.weight)
