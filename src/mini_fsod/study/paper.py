"""The numbers of the paper, in percent, printed beside ours.

Copied from the LaTeX source of the paper (MINI: Mining Implicit Novel Instances for Few-Shot Object
Detection); a table is named by its label there. Methods other than MINI are those that the paper
compares with.
"""

from __future__ import annotations

from typing import NamedTuple

SHOTS = (1, 2, 3, 5, 10)

Numbers = tuple[float | None, ...]  # by K; None: the paper has none


class Table(NamedTuple):
    """A row has a line of numbers for each of `lines`: a VOC split (None: COCO) and a figure."""

    title: str
    lines: tuple[tuple[int | None, str], ...]
    rows: dict[str, tuple[Numbers, ...]]
    shots: tuple[int, ...] = SHOTS


SPLIT_1 = ((1, "nAP50"),)
ROBUSTNESS = tuple((1, name) for name in ("nAP50", "bird", "bus", "cow", "motorbike", "sofa"))
HYPER = "Ablation study for hyper-parameters of different components"
EXTERNAL = "Generalizing MINI to mine novel instances from other unlabeled datasets"

TABLES = {
    "tab:voc_main": Table(
        "Performance (novel AP50) across three splits on PASCAL VOC dataset",
        ((1, "nAP50"), (2, "nAP50"), (3, "nAP50")),
        {
            "FSRW": (
                (14.8, 15.5, 26.7, 33.9, 47.2),
                (15.7, 15.3, 22.7, 30.1, 40.5),
                (21.3, 25.6, 28.4, 42.8, 45.9),
            ),
            "MetaDet": (
                (18.9, 20.6, 30.2, 36.8, 49.6),
                (21.8, 23.1, 27.8, 31.7, 43.0),
                (20.6, 23.9, 29.4, 43.9, 44.1),
            ),
            "Meta R-CNN": (
                (19.9, 25.5, 35.0, 45.7, 51.5),
                (10.4, 19.4, 29.6, 34.8, 45.4),
                (14.3, 18.2, 27.5, 41.2, 48.1),
            ),
            "TFA w/ cos": (
                (39.8, 36.1, 44.7, 55.7, 56.0),
                (23.5, 26.9, 34.1, 35.1, 39.1),
                (30.8, 34.8, 42.8, 49.5, 49.8),
            ),
            "MPSR": (
                (41.7, None, 51.4, 55.2, 61.8),
                (24.4, None, 39.2, 39.9, 47.8),
                (35.6, None, 42.3, 48.0, 49.7),
            ),
            "FSCE": (
                (44.2, 43.8, 51.4, 61.9, 63.4),
                (27.3, 29.5, 43.5, 44.2, 50.2),
                (37.2, 41.9, 47.5, 54.6, 58.5),
            ),
            "SRR-FSD": (
                (47.8, 50.5, 51.3, 55.2, 56.8),
                (32.5, 35.3, 39.1, 40.8, 43.8),
                (40.1, 41.5, 44.3, 46.9, 46.4),
            ),
            "CME": (
                (41.5, 47.5, 50.4, 58.2, 60.9),
                (27.2, 30.2, 41.4, 42.5, 46.8),
                (34.3, 39.6, 45.1, 48.3, 51.5),
            ),
            "TIP": (
                (27.7, 36.5, 43.3, 50.2, 59.6),
                (22.7, 30.1, 33.8, 40.9, 46.9),
                (21.7, 30.6, 38.1, 44.5, 50.9),
            ),
            "FADI": (
                (50.3, 54.8, 54.2, 59.3, 63.2),
                (30.6, 35.0, 40.3, 42.8, 48.0),
                (45.7, 49.7, 49.1, 55.0, 59.6),
            ),
            "DeFRCN": (
                (53.6, 57.5, 61.5, 64.1, 60.8),
                (30.1, 38.1, 47.0, 53.3, 47.9),
                (48.4, 50.9, 52.3, 54.9, 57.4),
            ),
            "MINI": (
                (72.0, 74.2, 72.4, 74.7, 76.2),
                (51.8, 53.6, 62.3, 62.1, 63.7),
                (65.0, 66.5, 64.0, 66.9, 70.4),
            ),
        },
    ),
    "tab:coco_main": Table(
        "Performance on MS COCO dataset",
        ((None, "nAP"), (None, "nAP50"), (None, "nAP75")),
        {
            "FSRW": ((5.6, 9.1), (12.3, 19.0), (4.6, 7.6)),
            "MetaDet": ((7.1, 11.3), (14.6, 21.7), (6.1, 8.1)),
            "Meta R-CNN": ((8.7, 12.4), (19.1, 25.3), (6.6, 10.8)),
            "TFA w/ cos": ((10.0, 13.7), (19.1, 24.9), (9.3, 13.4)),
            "MPSR": ((9.8, 14.1), (17.9, 25.4), (9.7, 14.2)),
            "FSCE": ((11.9, 16.4), (None, None), (10.5, 16.2)),
            "SRR-FSD": ((11.3, 14.7), (23.0, 29.2), (9.8, 13.5)),
            "CME": ((15.1, 16.9), (24.6, 28.0), (16.4, 17.8)),
            "TIP": ((16.3, 18.3), (33.2, 35.9), (14.1, 16.9)),
            "FADI": ((12.2, 16.1), (22.7, 29.1), (11.9, 15.8)),
            "DeFRCN": ((18.5, 22.6), (None, None), (None, None)),
            "MINI": ((21.8, 27.3), (38.0, 44.9), (21.5, 28.5)),
        },
        (10, 30),
    ),
    "tab:compare-ssod": Table(
        "Performance comparison with SSOD methods on PASCAL VOC dataset",
        SPLIT_1,
        {
            "STAC, delta=0.5": ((38.8, 59.2, 60.2, 64.8, 66.4),),
            "STAC, delta=0.7": ((19.3, 48.5, 57.1, 65.2, 66.9),),
            "STAC, delta=0.9": ((0.0, 7.1, 16.6, 22.6, 57.5),),
            "UB-T, delta=0.5": ((3.9, 13.2, 15.1, 11.7, 6.2),),
            "UB-T, delta=0.7": ((1.8, 3.6, 22.3, 52.0, 60.6),),
            "UB-T, delta=0.9": ((0.0, 3.6, 8.9, 25.4, 47.6),),
        },
    ),
    "tab:component": Table(  # each row adds to the one before
        "Effectiveness of each components",
        SPLIT_1,
        {
            "TFA Base": ((41.9, 49.1, 49.9, 58.0, 58.4),),
            "+TFA Mining": ((19.3, 48.5, 57.1, 65.2, 66.9),),
            "+Adaptive Thresholding": ((58.1, 63.3, 62.5, 67.7, 67.5),),
            "+SSL Co-Mining": ((63.5, 67.7, 66.8, 70.3, 68.8),),
            "+Adaptive Mingling": ((68.3, 70.0, 68.7, 71.3, 70.8),),
            "+IoU Branching": ((69.9, 72.5, 71.7, 72.7, 73.8),),
            "+Fine-Tuning": ((72.0, 74.2, 72.4, 74.7, 76.2),),
        },
    ),
    "tab:mingling": Table(  # what the offline mined instances are added to
        "Ablation study for whether enhancing RPN or R-CNN of the online teacher with offline "
        "mined novel instances",
        SPLIT_1,
        {
            "neither": ((0.0, 0.0, 0.0, 0.0, 0.0),),
            "RPN": ((0.0, 0.0, 0.0, 0.0, 0.0),),
            "R-CNN": ((69.5, 72.1, 70.9, 71.5, 72.6),),
            "RPN and R-CNN": ((69.9, 72.5, 71.7, 72.7, 73.8),),
        },
    ),
    "tab:generalization-voc": Table(  # the external images are those of COCO
        EXTERNAL,
        SPLIT_1,
        {
            "neither set": ((41.9, 49.1, 49.9, 58.0, 58.4),),
            "base set": ((72.0, 74.2, 72.4, 74.7, 76.2),),
            "extra set": ((62.9, 69.3, 68.2, 72.9, 72.4),),
            "base and extra set": ((73.7, 75.9, 76.5, 78.1, 77.1),),
        },
    ),
    "tab:generalization-coco": Table(  # the external images are those of Objects365
        EXTERNAL,
        ((None, "nAP"),),
        {
            "neither set": ((10.4, 14.7),),
            "base set": ((21.8, 27.3),),
            "extra set": ((21.2, 26.4),),
            "base and extra set": ((23.6, 29.3),),
        },
        (10, 30),
    ),
    "tab:robustness-tfa": Table(
        "Performance comparison between TFA and MINI: TFA",
        ROBUSTNESS,
        {
            "TFA without bird": ((37.2,), (27.1,), (63.8,), (33.0,), (45.0,), (17.2,)),
            "TFA without bus": ((37.9,), (24.0,), (39.4,), (39.0,), (59.7,), (27.5,)),
            "TFA without cow": ((38.5,), (22.6,), (54.9,), (43.0,), (54.9,), (16.9,)),
            "TFA without motorbike": ((36.6,), (18.4,), (57.7,), (41.2,), (42.7,), (23.0,)),
            "TFA without sofa": ((41.8,), (27.3,), (70.0,), (37.1,), (49.3,), (25.1,)),
        },
        (1,),
    ),
    "tab:robustness-mini": Table(
        "Performance comparison between TFA and MINI: MINI",
        ROBUSTNESS,
        {
            "MINI without bird": ((65.6,), (33.0,), (84.5,), (70.7,), (77.9,), (61.6,)),
            "MINI without bus": ((64.1,), (56.9,), (49.1,), (77.1,), (76.5,), (61.1,)),
            "MINI without cow": ((65.4,), (57.8,), (84.1,), (46.1,), (77.0,), (62.2,)),
            "MINI without motorbike": ((67.5,), (60.6,), (83.9,), (73.9,), (52.3,), (66.8,)),
            "MINI without sofa": ((65.7,), (62.4,), (83.5,), (75.8,), (74.9,), (32.0,)),
        },
        (1,),
    ),
    "tab:hyper": Table(
        HYPER,
        SPLIT_1,
        {
            "alpha=0.0": ((63.6, 68.4, 66.7, 69.6, 67.7),),
            "alpha=1.5": ((63.5, 67.7, 66.8, 70.3, 68.8),),
            "alpha=3.0": ((59.8, 59.4, 65.9, 69.6, 67.2),),
            "N=150": ((62.4, 65.9, 66.0, 68.9, 67.7),),
            "N=300": ((63.5, 67.7, 66.8, 70.3, 68.8),),
            "N=450": ((63.9, 68.3, 66.3, 68.8, 67.3),),
            "delta=0.5": ((19.0, 23.7, 13.4, 14.2, 18.4),),
            "delta=0.7": ((69.9, 72.5, 71.7, 72.7, 73.8),),
            "delta=0.9": ((65.2, 70.5, 69.8, 71.2, 71.4),),
            "beta=0.5": ((69.9, 72.5, 71.7, 72.7, 73.8),),
            "beta=1.0": ((69.4, 72.7, 69.8, 34.1, 31.6),),
            "beta=2.0": ((69.1, 72.0, 30.4, 33.0, 72.3),),
        },
    ),
    "tab:diff-ssl": Table(
        "Performance comparison between Self-supervised Discriminative Model and Supervised "
        "Discriminative Model in offline mining",
        SPLIT_1,
        {
            "ImageNet Pre-train": ((62.3, 67.2, 66.4, 70.3, 69.4),),
            "MoCo v2": ((63.5, 67.7, 66.8, 70.3, 68.8),),
        },
    ),
}


def paper_numbers(row: str, split: int | None) -> tuple[str, dict[int, dict[str, float]]]:
    """The table that has a row for this VOC split (None: COCO), and its figures by K.

    Without numbers for the split, the first table that has the row, and no figures.
    """
    having = {label: table for label, table in TABLES.items() if row in table.rows}
    for label, table in having.items():
        found: dict[int, dict[str, float]] = {}
        for (of, figure), numbers in zip(table.lines, table.rows[row], strict=True):
            for k, number in zip(table.shots, numbers, strict=True):
                if of == split and number is not None:
                    found.setdefault(k, {})[figure] = number
        if found:
            return label, found
    return next(iter(having)), {}
