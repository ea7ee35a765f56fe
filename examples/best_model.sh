#!/bin/sh
# The best model of a run, not the last: few rows are learned by heart sooner than one thinks.
#
#   examples/best_model.sh [options of sbprun, which win]      MODEL, DATA, OUT: yours; EVAL: rows of yours that are not trained
#
# Without EVAL a tenth of the rows is held out. After each tenth of the steps they are evaluated; three times in a row no better,
# and training stops. What is written is the model of the best evaluation, and the last line says how it went:
#
#   held-out loss 4.3353 before training, 3.0752 at best, after step 4, 4.2979 at the end: overfitting from step 4 on, ..
set -eu
if [ -n "${EVAL:-}" ]; then
    set -- --eval "$EVAL" "$@"
else
    set -- --test-split-size 0.1 "$@"
fi
exec "${SBPRUN:-sbprun}" "${MODEL:-Qwen/Qwen3-0.6B}" --data "${DATA:-train.jsonl}" --out "${OUT:-best}" \
    --lr 1e-5 --epochs 10 --eval-every 0.1 --best patience=3,threshold=0.001 "$@"
