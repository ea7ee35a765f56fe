#!/bin/sh
# Two GPUs of one host: each has half of every step's rows and half of the optimizer's states, gradients and weights (ZeRO 3).
#
#   examples/two_gpus.sh [options of sbpc compile]      MODEL, DATA, OUT: yours; START=mpirun|torchrun|sbprun
#
# The plan is made once, for two ranks; then whoever starts processes starts them. BACKEND=cpu tries it without a GPU. One
# document over both, where it is too long for one: --context-parallel 2. Two hosts: see "Several ranks" in runtime/cli/README.md.
set -eu
OUT=${OUT:-two-gpus}
mkdir -p "$OUT"
"${SBPC:-sbpc}" compile "${MODEL:-Qwen/Qwen3-0.6B}" -o "$OUT/two.plan" --backend "${BACKEND:-cuda}" --ranks 2 --zero 3 \
    --seq-len 4096 "$@"
set -- "${SBPRUN:-sbprun}" "$OUT/two.plan" --data "${DATA:-train.jsonl}" --out "$OUT/model" --steps "${STEPS:-100}" --batch-size 16
case ${START:-sbprun} in
    # ranks that torchrun started find each other by NCCL: GPUs are needed
    torchrun) exec torchrun --nproc-per-node 2 --no-python "$@" ;;
    mpirun) exec mpirun -n 2 "$@" ;; # as root in a container: --allow-run-as-root
    *) exec "$@" --ranks 2 ;;       # by mpirun, and watches over them
esac
