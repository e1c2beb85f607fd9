"""The CUDA kernels against plain PyTorch; without a GPU in Triton's interpreter.

The interpreter must be chosen before Triton is imported, so each test starts a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHECKS = Path(__file__).with_name("kernel_checks.py")


def run(device: str, **variables: str) -> None:
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    done = subprocess.run(
        [sys.executable, str(CHECKS), device],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_kernels_equal_plain_pytorch_in_the_interpreter() -> None:
    run("cpu", TRITON_INTERPRET="1")


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    run("compile", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_kernels_equal_plain_pytorch_on_the_gpu() -> None:
    run("cuda")
