#!/bin/bash
# One run on 2 machines with 4 GPUs each. The folders must be shared by the machines.
#   sbatch --export=ALL,DATA=/shared/coco-fewshot,OUT=/shared/runs/coco examples/slurm-run.sh
#SBATCH --job-name=mini-run
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# A restart must not read addresses of the processes before, which torchrun's shared store keeps.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# At the time limit, all processes save their state (TERM). A rank that dies stops the others, and
# torchrun starts them again, at most 3 times: they go on from the last saved state.
srun torchrun \
  --nnodes=2 --nproc-per-node=4 --max-restarts=3 \
  --rdzv-backend=c10d --rdzv-endpoint="$FIRST:29500" --rdzv-id="$SLURM_JOB_ID" \
  --no-python mini run coco --shots 10 --set data.root="$DATA" -o "$OUT"
