#!/bin/sh
# DPO on pairs of answers, with adapters: the reference is the model without them, so nothing else is held in memory.
#
#   examples/dpo.sh [options of sbprun, which win]      MODEL, DATA, OUT: yours
#
# A row of the data is {"prompt": .., "chosen": .., "rejected": ..}, texts or messages. metrics.jsonl has rewards, their margin
# and how often the chosen answer is ahead, under TRL's names.
set -eu
exec "${SBPRUN:-sbprun}" "${MODEL:-Qwen/Qwen3-0.6B}" --data "${DATA:-trl-lib/ultrafeedback_binarized}" --out "${OUT:-dpo}" \
    --objective dpo --beta 0.1 --lora r=16,alpha=32,targets=all-linear --lr 5e-6 --epochs 1 --batch-size 16 "$@"
