#!/bin/sh
# QLoRA from a GGUF: the file's weights stay in its blocks of 4 to 8 bits, frozen; adapters in full precision are trained on them.
#
#   MODEL=Qwen3-8B-Q4_K_M.gguf DATA=train.jsonl examples/qlora_gguf.sh [options of sbprun, which win]
#
# Tokenizer and chat template are the file's. --base-name says which model the file was made of, so that PEFT finds it again:
# the adapter then goes onto the original weights too. The same from a directory of Hugging Face: --base-dtype nf4.
set -eu
exec "${SBPRUN:-sbprun}" "$MODEL" --data "${DATA:-train.jsonl}" --out "${OUT:-qlora}" --base-name "${BASE:-Qwen/Qwen3-8B}" \
    --lora r=16,alpha=32,targets=all-linear --lr 2e-4 --epochs 1 --batch-size 16 "$@"
