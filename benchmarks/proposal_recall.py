"""How many hidden objects are reached, by class and size, before anything is thinned or mined.

    python benchmarks/proposal_recall.py RUN [--images 400] [--device cuda]

RUN has the stage `transfer`; hidden objects are read to count, nothing else. Candidates of the
few-shot detector have a novel score above `mine.min_score`; proposals (`mine.candidates:
proposals`) a score of any class, and lie off base boxes. A proposal stands for every new class.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from mini_fsod import checkpoint
from mini_fsod.config.load import resolve
from mini_fsod.data.subsets import arranged
from mini_fsod.files import CONFIG_FILE
from mini_fsod.labels import LabelMap
from mini_fsod.loader.schedule import each_once
from mini_fsod.mining.audit import GroundTruth, reached_by_size
from mini_fsod.mining.candidates import select_candidates
from mini_fsod.mining.find_pairs import find_pairs
from mini_fsod.runs.data import RunData


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    config = resolve(str(options.run / CONFIG_FILE))
    device = torch.device(options.device)
    run = RunData(config, device)
    labels, whole = run.labels, run.mined
    step = max(1, len(whole) // options.images)
    data = whole.select(np.arange(0, len(whole), step)[: options.images])
    detector = checkpoint.load(checkpoint.find(options.run, "transfer")).detector.to(device)
    batches, sizes = run.batches(data)
    plans = each_once(sizes, 2, config.views.test, config.views.long)
    truth = GroundTruth.of(data, run.shots, labels)
    on_base = arranged(data, LabelMap(labels.base, ())).boxes
    for title, whatever_class in (("transfer", False), ("proposals", True)):
        pairs = find_pairs(
            detector,
            batches,
            plans,
            len(labels.base),
            config.mine.min_score,
            device,
            False,
            whatever_class=whatever_class,
        )
        found = select_candidates(pairs, on_base=on_base, per_image=1000)
        each = len(found) / len(data) / (len(labels.novel) if whatever_class else 1)
        print(f"{title}: {each:.1f} boxes an image, {len(data)} images")
        for index, name in enumerate(labels.novel):
            sizes_of = reached_by_size(found, truth, index)
            parts = [f"{k} {v['candidates']} of {v['hidden']}" for k, v in sizes_of.items()]
            print(f"  {name}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
