"""The studies known by name: each table of the paper, and what goes beyond it."""

from __future__ import annotations

from dataclasses import replace

from mini_fsod.study.paper import SHOTS
from mini_fsod.study.studies import Row, Study

NO_TEACHER = ("online.teacher=false", "online.iou_branch=false")
ORACLE = (*NO_TEACHER, "online.oracle=true")
FIXED_THRESHOLD = "mine.threshold=0.7"
NO_DISCRIMINATOR = "discriminator.weights=none"

# The rows of the paper's component table, and the oracle as upper bound
COMPONENTS = (
    Row("TFA", paper=("TFA Base",)),
    Row(
        "+ TFA mining",
        (*NO_TEACHER, FIXED_THRESHOLD, NO_DISCRIMINATOR),
        "online",
        ("+TFA Mining",),
    ),
    Row(
        "+ adaptive thresholding",
        (*NO_TEACHER, NO_DISCRIMINATOR),
        "online",
        ("+Adaptive Thresholding",),
    ),
    Row("+ SSL co-mining", NO_TEACHER, "online", ("+SSL Co-Mining",)),
    Row("+ adaptive mingling", ("online.iou_branch=false",), "online", ("+Adaptive Mingling",)),
    Row("+ IoU branch", (), "online", ("+IoU Branching",)),
    Row("+ fine-tuning", (), "tune", ("+Fine-Tuning",)),
    Row("oracle", ORACLE, "online"),
    # other readings of the last row: the paper leaves both open
    Row("mined in images with base boxes alone", ("mine.images=base",), "tune"),
    Row("fine-tuning on the novel set", ("tune.data=novel",), "tune"),
    # not in the paper: costs less base AP
    Row("fine-tuning at a tenth of the rate", ("tune.data=known", "tune.rate=0.0001"), "tune"),
)

MINGLING = tuple(
    Row(name, (f"online.mingle.rpn={rpn}", f"online.mingle.rcnn={rcnn}"), "online", (name,))
    for name, rpn, rcnn in (
        ("neither", "false", "false"),
        ("RPN", "true", "false"),
        ("R-CNN", "false", "true"),
        ("RPN and R-CNN", "true", "true"),
    )
)

# STAC: a fixed threshold on TFA's scores, one re-training with its own strong views
STAC = (*NO_TEACHER, NO_DISCRIMINATOR, "online.strong=stac", "online.mined_weight=2")
# Unbiased Teacher: no offline mining; teacher and student start as TFA
UNBIASED_TEACHER = (
    "online.iou_branch=false",
    "online.start=transfer",
    "online.ema_warm_up=null",
    "online.mingle.rpn=false",
    "online.mingle.rcnn=false",
    "online.focal_gamma=1.5",
    "online.mined_boxes=none",
    "online.mined_weight=4",
)
DELTAS = ("0.5", "0.7", "0.9")
SSOD = (
    *(
        Row(name, (*STAC, f"mine.threshold={delta}"), "online", (name,))
        for delta in DELTAS
        for name in [f"STAC, delta={delta}"]
    ),
    *(
        Row(
            f"Unbiased Teacher, delta={delta}",
            (*UNBIASED_TEACHER, f"online.delta={delta}"),
            "online",
            (f"UB-T, delta={delta}",),
        )
        for delta in DELTAS
    ),
    Row("MINI", (), "tune", ("MINI",)),
)

# Changes that the paper does not have, from its TFA to the oracle
PLUS = (
    Row("TFA", ("transfer.data=balanced", "transfer.boxes=new"), paper=("TFA Base",)),
    Row("TFA with all known boxes"),
    Row("offline mining", NO_TEACHER, "online", ("+SSL Co-Mining",)),
    Row("with a teacher", (), "online", ("+Fine-Tuning",)),
    Row("oracle", (*ORACLE, "online.ignore_candidates=false"), "online"),
)

TFA = (Row("TFA", paper=("TFA Base", "TFA w/ cos")),)

STUDIES = {
    study.name: replace(study, seeds=(0,), splits=(1,))
    for study in (
        Study(
            "tfa",
            "voc-320",
            TFA,
            SHOTS,
            about="The few-shot baseline, for every K of the benchmark.",
        ),
        Study(
            "components",
            "voc-320",
            COMPONENTS,
            shots=(1, 5),
            about="The paper's component table, the oracle, and other readings of the last row.",
        ),
        Study(
            "ssod",
            "voc-320",
            SSOD,
            shots=(1, 5),
            about="The paper's table on semi-supervised detectors: STAC and Unbiased Teacher.",
        ),
        Study(
            "mingling",
            "voc-320",
            MINGLING,
            shots=(1,),
            about="The paper's table on what the mined boxes are added to.",
        ),
        Study(
            "plus",
            "voc-320-plus",
            PLUS,
            shots=(1, 5),
            about="Beyond the paper: what each part of voc-320-plus brings.",
        ),
    )
}
