"""Milliseconds per picture of one detector in PyTorch, onnxruntime and OpenVINO.

    python benchmarks/export_speed.py DETECTOR [--pictures FOLDER] [--batch 1] [--device cpu]

DETECTOR is a run or a checkpoint. The ways take turns, picture by picture, so that other load falls
on all of them; the figure is the median. Decoding is not counted. OpenVINO is left out where it is
not installed; --device cuda times PyTorch and onnxruntime-gpu.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from mini_fsod.export.write import made_pictures, to_onnx
from mini_fsod.loader.decode import cores
from mini_fsod.predict.onnx_model import OnnxModel
from mini_fsod.predict.pictures import find_pictures, read_picture
from mini_fsod.predict.torch_model import TorchModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("detector", type=Path)
parser.add_argument("--pictures", type=Path)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--device", default="cpu")
parser.add_argument("--repeats", type=int, default=20)
arguments = parser.parse_args()

model = TorchModel.read(arguments.detector, "cpu")
content = to_onnx(model.detector, model.labels)
onnx_file = Path("export_speed.onnx")
onnx_model = OnnxModel(content, onnx_file, arguments.device)
model = TorchModel(model.detector, model.labels, arguments.detector, arguments.device)
paths = [p.path for p in find_pictures([arguments.pictures])[0]] if arguments.pictures else []
sources = paths[:20] or made_pictures()
decoded = [read_picture(source, model.min_size, model.max_size) for source in sources]
ways = {
    "PyTorch": lambda picture: model.detect([picture] * arguments.batch),
    "onnxruntime": lambda picture: onnx_model.run(np.stack([picture.pixels] * arguments.batch)),
}
try:
    import openvino

    if arguments.device == "cpu":
        settings = {"INFERENCE_NUM_THREADS": cores(), "INFERENCE_PRECISION_HINT": "f32"}
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(content), "CPU", settings)
        ways["OpenVINO"] = lambda picture: compiled(
            {"images": np.stack([picture.pixels] * arguments.batch)}
        )
except ImportError:
    pass

torch.set_num_threads(cores())
times: dict[str, list[float]] = {name: [] for name in ways}
for n in range(-2, arguments.repeats):  # two rounds to warm up
    for name, way in ways.items():
        picture = decoded[n % len(decoded)]
        begun = time.perf_counter()
        way(picture)
        if n >= 0:
            times[name].append(time.perf_counter() - begun)
print(
    json.dumps(
        {
            "detector": str(arguments.detector),
            "test_size": [model.min_size, model.max_size],
            "device": arguments.device,
            "threads": cores(),
            "batch": arguments.batch,
            "milliseconds_per_picture": {
                name: round(1000 * statistics.median(t) / arguments.batch, 1)
                for name, t in times.items()
            },
        }
    )
)
