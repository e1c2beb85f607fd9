"""The studies known by name: each table of the paper, and what goes beyond it."""

from __future__ import annotations

from dataclasses import replace

from mini_fsod.config.presets import PLUS, VOC_320, VOC_320_PLUS
from mini_fsod.labels import VOC_NOVEL
from mini_fsod.study.paper import SHOTS, TABLES
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
PLUS_PARTS = (
    Row("TFA", ("transfer.data=balanced", "transfer.boxes=new"), paper=("TFA Base",)),
    Row("TFA with all known boxes"),
    Row("offline mining", NO_TEACHER, "online", ("+SSL Co-Mining",)),
    Row("with a teacher", (), "online", ("+Fine-Tuning",)),
    Row("oracle", (*ORACLE, "online.ignore_candidates=false"), "online"),
)

TFA = (Row("TFA", paper=("TFA Base", "TFA w/ cos")),)

# What the paper compares itself with
OTHERS = tuple(name for name in TABLES["tab:voc_main"].rows if name not in ("TFA w/ cos", "MINI"))
# all of PLUS, also what VOC_320 has already: with --full the rows start from the preset paper
BEYOND = tuple(
    f"{key}={str(value).lower() if isinstance(value, bool) else value}"
    for key, value in VOC_320_PLUS.items()
    if key in PLUS or VOC_320.get(key, "") != value
)
MAIN_VOC = (
    Row("TFA", paper=("TFA w/ cos", *OTHERS)),
    Row("MINI", (), "tune", ("MINI",)),
    Row("MINI-plus", BEYOND, "online"),
    Row("oracle", ORACLE, "online"),
)
MAIN_COCO = (Row("TFA", paper=("TFA w/ cos", *OTHERS)), Row("MINI", (), "tune", ("MINI",)))

# The initial miner: TFA, and TFA with DeFRCN's calibration. mine.detections takes any other tool's
BY_PROTOTYPES = "transfer.calibration=prototypes"
MINERS = (
    Row("TFA", paper=("TFA Base",)),
    Row("mined by TFA", NO_TEACHER, "online", ("+SSL Co-Mining",)),
    Row("mined by TFA with prototypes", (*NO_TEACHER, BY_PROTOTYPES), "online"),
    Row("MINI by TFA", (), "tune", ("MINI",)),
    Row("MINI by TFA with prototypes", (BY_PROTOTYPES,), "tune"),
)

# Appendix C. alpha and N: offline mining alone; delta and beta: without the last fine-tuning
HYPER = tuple(
    Row(f"{label}={value}", (*sets, f"{key}={value}"), "online", (f"{label}={value}",))
    for sets, key, label, values in (
        (NO_TEACHER, "mine.alpha", "alpha", ("0.0", "1.5", "3.0")),
        (NO_TEACHER, "mine.per_class", "N", ("150", "300", "450")),
        ((), "online.delta", "delta", DELTAS),
        ((), "online.iou_beta", "beta", ("0.5", "1.0", "2.0")),
    )
    for value in values
)

# Appendix D: the rows differ in the weights alone, so all pool features from whole pictures. The
# file is what `mini pretrain VOCdevkit --subset trainval --whole --minutes 25` writes; the paper's
# discriminator was trained on ImageNet instead
MOCO = ("discriminator.weights=moco.safetensors", "discriminator.crop=null")
DISCRIMINATOR = (
    Row("none", (*NO_TEACHER, NO_DISCRIMINATOR), "online", ("+Adaptive Thresholding",)),
    Row("supervised on ImageNet", NO_TEACHER, "online", ("ImageNet Pre-train",)),
    Row("MoCo v2 on the training images", (*NO_TEACHER, *MOCO), "online", ("MoCo v2",)),
)

# Section 4.4: mining in images without annotations, beside the base images or instead of them
EXTERNAL = (
    Row("TFA", ("mine.extra=null",), paper=("neither set",)),
    Row("base set", ("mine.extra=null",), "tune", ("base set",)),
    Row("extra set", ("mine.extra_only=true",), "tune", ("extra set",)),
    Row("base and extra set", (), "tune", ("base and extra set",)),
)

# Appendix B: a new class that no base image shows
ROBUSTNESS = tuple(
    Row(name, (f"data.leave_out={missing}",), last, (name,))
    for method, last in (("TFA", "transfer"), ("MINI", "tune"))
    for missing in VOC_NOVEL["voc-split1"]
    for name in [f"{method} without {missing}"]
)

STUDIES = {
    study.name: replace(study, seeds=(0,))
    for study in (
        Study(
            "main-voc",
            "voc-320",
            MAIN_VOC,
            SHOTS,
            splits=(1, 2, 3),
            about="The paper's main table on VOC, and this project's recipe.",
        ),
        Study(
            "main-coco",
            "coco",
            MAIN_COCO,
            (10, 30),
            figures=("nAP", "nAP50", "nAP75", "bAP"),
            about="The paper's main table on COCO (`mini data coco` arranges the data).",
        ),
        Study(
            "tfa",
            "voc-320",
            TFA,
            SHOTS,
            splits=(1,),
            about="The few-shot baseline, for every K of the benchmark.",
        ),
        Study(
            "components",
            "voc-320",
            COMPONENTS,
            shots=(1, 5),
            splits=(1,),
            about="The paper's component table, the oracle, and other readings of the last row.",
        ),
        Study(
            "ssod",
            "voc-320",
            SSOD,
            shots=(1, 5),
            splits=(1,),
            about="The paper's table on semi-supervised detectors: STAC and Unbiased Teacher.",
        ),
        Study(
            "mingling",
            "voc-320",
            MINGLING,
            shots=(1,),
            splits=(1,),
            about="The paper's table on what the mined boxes are added to.",
        ),
        Study(
            "plus",
            "voc-320-plus",
            PLUS_PARTS,
            shots=(1, 5),
            splits=(1,),
            about="Beyond the paper: what each part of voc-320-plus brings.",
        ),
        Study(
            "miners",
            "voc-320",
            MINERS,
            shots=(1,),
            splits=(1,),
            about="Which few-shot detector mines first: TFA, with and without prototypes.",
        ),
        Study(
            "robustness",
            "voc-320",
            ROBUSTNESS,
            shots=(1,),
            splits=(1,),
            figures=("nAP50", *VOC_NOVEL["voc-split1"]),
            about="The paper's Appendix B: a new class that is absent from the base images.",
        ),
        Study(
            "hyper",
            "voc-320",
            HYPER,
            shots=(1,),
            splits=(1,),
            about="The paper's Appendix C: alpha, N, delta and beta.",
        ),
        Study(
            "discriminator",
            "voc-320",
            DISCRIMINATOR,
            shots=(1,),
            splits=(1,),
            about="The paper's Appendix D. First: mini pretrain VOCdevkit --subset trainval "
            "--whole --minutes 25 -o moco.safetensors",
        ),
        Study(
            "external",
            "voc-320",
            EXTERNAL,
            shots=(1,),
            splits=(1,),
            sets=("mine.extra=unlabelled",),
            about="Mining in other images: --set mine.extra=FOLDER names them.",
        ),
        Study(
            "external-coco",
            "coco",
            EXTERNAL,
            (10, 30),
            sets=("mine.extra=unlabelled",),
            figures=("nAP", "bAP"),
            about="The same on COCO: --set mine.extra=FOLDER names images such as Objects365's.",
        ),
    )
}
