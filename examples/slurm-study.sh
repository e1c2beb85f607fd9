#!/bin/bash
# The runs of a study, shared by 8 jobs with one GPU each. If a job ends early, only
# the run it was computing is affected.
#   sbatch --export=ALL,DATA=/shared/VOCdevkit,OUT=/shared/runs/main-voc examples/slurm-study.sh
#SBATCH --job-name=mini-study
#SBATCH --array=0-7
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A-%a.log
set -euo pipefail

srun mini study main-voc --set data.root="$DATA" -o "$OUT"
