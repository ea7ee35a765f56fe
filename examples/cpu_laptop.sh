#!/bin/sh
# On a laptop without a GPU: a small model, adapters, and no more memory than one can spare; everything else is chosen for that.
#
#   examples/cpu_laptop.sh [options of sbprun, which win]      MODEL, DATA, OUT: yours
#
# It says first what it will take, and stops there with --dry-run. Ctrl-C writes a checkpoint; the same line with --resume goes
# on to the same bits. --threads N leaves cores for others.
set -eu
exec "${SBPRUN:-sbprun}" "${MODEL:-HuggingFaceTB/SmolLM2-135M}" --data "${DATA:-train.jsonl}" --out "${OUT:-laptop}" \
    --backend cpu --memory "${MEMORY:-4GiB}" --lora r=8,alpha=16,targets=all-linear --lr 2e-4 --steps 100 --batch-size 4 "$@"
