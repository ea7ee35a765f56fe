#!/bin/sh
# KTO: single answers, each good or bad; no pairs are needed.
#
#   examples/kto.sh [options of sbprun, which win]      MODEL, DATA, OUT: yours
#
# A row of the data is {"prompt": .., "completion": .., "label": true or false}. Where good and bad ones are not as many,
# desirable_weight and undesirable_weight of --loss balance them: (good rows x weight) / (bad rows x weight) should lie between 1 and 4/3.
set -eu
exec "${SBPRUN:-sbprun}" "${MODEL:-Qwen/Qwen3-0.6B}" --data "${DATA:-trl-lib/kto-mix-14k}" --out "${OUT:-kto}" \
    --objective kto --beta 0.1 --lora r=16,alpha=32,targets=all-linear --lr 5e-6 --epochs 1 --batch-size 16 "$@"
