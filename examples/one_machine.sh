#!/bin/sh
# Train one model on all GPUs of this machine (on its processors where there are none: GPUS=2 starts two processes).
# What is not given here is as in one process; the same command goes on where the run was stopped.
#
#   sh examples/one_machine.sh --model tiny-ted --data data/my --out runs/my --set training.batch_size=64
set -eu
found=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
GPUS=${GPUS:-${found:-0}}
[ "$GPUS" -gt 0 ] || GPUS=1

# --shutdown-timeout: so many seconds, after Ctrl-C or SIGTERM, to end the step and save it.
exec torchrun --standalone --nproc-per-node "$GPUS" --shutdown-timeout 120 -m linnet train "$@"
