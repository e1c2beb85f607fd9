"""The examples for clusters: their files, and the commands in them, mean what they should."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from helpers import shapes, tiny_run
from mini_fsod import cli
from mini_fsod.commands.options import app
from mini_fsod.config.load import resolve
from mini_fsod.study.from_file import find_study

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))

# sbatch's options with the form of their value
SBATCH = {
    "array": r"\d+-\d+",
    "cpus-per-task": r"\d+",
    "gpus": r"\d+",
    "gpus-per-node": r"\d+",
    "job-name": r"[\w-]+",
    "nodes": r"\d+",
    "ntasks": r"\d+",
    "ntasks-per-node": r"\d+",
    "open-mode": r"append|truncate",
    "output": r"[\w%.-]+",
    "requeue": r"",
    "signal": r"(B:)?[A-Z]+(@\d+)?",
    "time": r"\d+:\d\d:\d\d",
}
VARIABLES = {"DATA": "/shared/data", "OUT": "/shared/out", "SLURM_JOB_ID": "7", "FIRST": "node1"}


def directives(script: Path) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH (.*)$", script.read_text(), re.MULTILINE)
    return dict(line.removeprefix("--").partition("=")[::2] for line in lines)


def command_of(script: Path) -> list[str]:
    """The words after srun, with the shell's variables."""
    text = script.read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("srun "))
    return shlex.split(re.sub(r"\$(\w+)", lambda name: VARIABLES[name[1]], line))[1:]


def documents(manifest: Path) -> dict[str, Any]:
    return {found["kind"]: found for found in yaml.safe_load_all(manifest.read_text())}


def torchrun(words: list[str]) -> tuple[Any, list[str]]:
    """What torchrun would launch, by its own parser, and the words of `mini`."""
    from torch.distributed.run import config_from_args, parse_args

    config, program, arguments = config_from_args(parse_args(words[1:]))
    assert program == "mini"
    return config, [str(program), *arguments]


def check_mini(words: list[str]) -> None:
    """`mini` would take these arguments, and the configuration has these keys."""
    assert words[0] == "mini"
    assert cli.app is app
    group = typer.main.get_command(app)
    context = group.make_context("mini", words[1:])  # type: ignore[attr-defined]
    name, command, rest = group.resolve_command(context, words[1:])  # type: ignore[attr-defined]
    values = command.make_context(name, rest, parent=context).params
    assert str(values["out"]).startswith("/shared/")
    source = values["config"] if name == "run" else find_study(values["name"]).source
    config = resolve(source, values["sets"], None, values["shots"], None)
    assert str(config.data.root).startswith(("/shared/", "s3://"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_slurm_scripts_are_valid(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    found = directives(script)
    assert found
    for name, value in found.items():
        assert re.fullmatch(SBATCH[name], value), (name, value)


def test_slurm_run_starts_a_process_for_each_gpu() -> None:
    script = EXAMPLES / "slurm-run.sh"
    asked = directives(script)
    config, mini = torchrun(command_of(script))
    assert config.min_nodes == config.max_nodes == int(asked["nodes"])
    assert config.nproc_per_node == int(asked["gpus-per-node"])
    assert (config.rdzv_backend, config.rdzv_endpoint) == ("c10d", "node1:29500")
    assert config.max_restarts > 0
    check_mini(mini)


def test_slurm_study_has_a_worker_for_each_job() -> None:
    check_mini(command_of(EXAMPLES / "slurm-study.sh"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_jobs_are_complete(manifest: Path) -> None:
    job = documents(manifest)["Job"]
    assert job["apiVersion"] == "batch/v1"
    spec = job["spec"]
    assert spec["completions"] == spec["parallelism"] > 1
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    assert pod["terminationGracePeriodSeconds"] > 30
    (container,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    assert "/dev/shm" in mounted.values()
    words = container["command"]
    assert all(isinstance(word, str) for word in words)
    check_mini(torchrun(words)[1] if words[0] == "torchrun" else words)


def test_kubernetes_run_finds_its_first_pod() -> None:
    found = documents(EXAMPLES / "kubernetes-run.yaml")
    service, job = found["Service"], found["Job"]
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"  # a headless service: names for pods
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    config, _ = torchrun(pod["containers"][0]["command"])
    assert config.rdzv_endpoint == f"{name}-0.{pod['subdomain']}:29500"
    assert config.min_nodes == config.max_nodes == job["spec"]["completions"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert config.nproc_per_node == limits["nvidia.com/gpu"]


@pytest.mark.slow
def test_torchrun_starts_again_after_a_lost_process(tmp_path: Path) -> None:
    """The command of the examples, with two processes on this machine; one of them is killed."""
    data = shapes.write_data(tmp_path / "data")
    out = tmp_path / "runs" / "shapes"
    words = tiny_run.words(data, out, "--to", "base", base__iterations=60, shots__k=2)
    killer = (
        "import os, signal, sys\n"
        "from mini_fsod import cli\n"
        "from mini_fsod.train import distributed, loop\n"
        "distributed.JOIN = 30\n"
        "first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "snapshot = loop.snapshot\n"
        "def after_some_states(*of, **how):\n"
        "    after_some_states.n = getattr(after_some_states, 'n', 0) + 1\n"
        "    if first and os.environ['RANK'] == '0' and after_some_states.n == 9:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return snapshot(*of, **how)\n"
        "loop.snapshot = after_some_states\n"
        "if __name__ == '__main__':\n"
        "    cli.main()\n"
    )
    (tmp_path / "killer.py").write_text(killer)
    options = ["--nnodes=1", "--nproc-per-node=2", "--max-restarts=3", "--rdzv-backend=c10d"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", *options),
            *("--rdzv-endpoint=localhost:0", str(tmp_path / "killer.py"), *words),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "base: resumes after iteration" in done.stderr
    assert (out / "base" / "checkpoint.safetensors").is_file()
