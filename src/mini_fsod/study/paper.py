"""The numbers of the paper: nAP50 on PASCAL VOC, in percent, printed below our rows.

Copied from the LaTeX source of the paper (MINI: Mining Implicit Novel Instances for Few-Shot Object
Detection); a table is named by its label there.
"""

from __future__ import annotations

SHOTS = (1, 2, 3, 5, 10)

TITLES = {
    "tab:voc_main": "Performance (novel AP50) across three splits on PASCAL VOC dataset",
    "tab:component": "Effectiveness of each components",
    "tab:mingling": "Ablation study for whether enhancing RPN or R-CNN of the online teacher with "
    "offline mined novel instances",
}

# {table: {row: nAP50 at SHOTS, one tuple for each of the splits 1, 2, ...}}; each row in one table
TABLES: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "tab:voc_main": {
        "TFA w/ cos": (
            (39.8, 36.1, 44.7, 55.7, 56.0),
            (23.5, 26.9, 34.1, 35.1, 39.1),
            (30.8, 34.8, 42.8, 49.5, 49.8),
        ),
        "MINI": (
            (72.0, 74.2, 72.4, 74.7, 76.2),
            (51.8, 53.6, 62.3, 62.1, 63.7),
            (65.0, 66.5, 64.0, 66.9, 70.4),
        ),
    },
    # split 1; each row adds to the one before
    "tab:component": {
        "TFA Base": ((41.9, 49.1, 49.9, 58.0, 58.4),),
        "+TFA Mining": ((19.3, 48.5, 57.1, 65.2, 66.9),),
        "+Adaptive Thresholding": ((58.1, 63.3, 62.5, 67.7, 67.5),),
        "+SSL Co-Mining": ((63.5, 67.7, 66.8, 70.3, 68.8),),
        "+Adaptive Mingling": ((68.3, 70.0, 68.7, 71.3, 70.8),),
        "+IoU Branching": ((69.9, 72.5, 71.7, 72.7, 73.8),),
        "+Fine-Tuning": ((72.0, 74.2, 72.4, 74.7, 76.2),),
    },
    # split 1; what the offline mined instances are added to
    "tab:mingling": {
        "neither": ((0.0, 0.0, 0.0, 0.0, 0.0),),
        "RPN": ((0.0, 0.0, 0.0, 0.0, 0.0),),
        "R-CNN": ((69.5, 72.1, 70.9, 71.5, 72.6),),
        "RPN and R-CNN": ((69.9, 72.5, 71.7, 72.7, 73.8),),
    },
}


def paper_numbers(row: str, split: int | None) -> tuple[str, dict[int, float]]:
    """The table that has a row, and its nAP50 by K.

    Empty for a split the table does not have, and for None (own data).
    """
    table = next(label for label, rows in TABLES.items() if row in rows)
    lines = TABLES[table][row]
    if split is None or not 1 <= split <= len(lines):
        return table, {}
    return table, dict(zip(SHOTS, lines[split - 1], strict=True))
