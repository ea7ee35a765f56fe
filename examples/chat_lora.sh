#!/bin/sh
# A chat model by LoRA: adapters on every linear layer, trained on what the assistant says.
#
#   examples/chat_lora.sh [options of sbprun, which win]      MODEL, DATA, OUT: yours
#
# A row of the data is {"messages": [{"role": "user", "content": ".."}, {"role": "assistant", "content": ".."}]}; the model's
# own chat template renders it. An answer with "train": false is not trained, one with "weight": 0.5 counts half;
# --loss-on last-turn trains the last one only, --loss-on-reasoning none no thoughts; --dry-run --show 5 shows it. The result is an adapter that PEFT, vLLM and llama.cpp's converter read; `sbprun OUT --merge`
# makes a model of it.
set -eu
exec "${SBPRUN:-sbprun}" "${MODEL:-Qwen/Qwen3-0.6B}" --data "${DATA:-trl-lib/Capybara}" --out "${OUT:-chat-lora}" \
    --loss-on assistant --lora r=16,alpha=32,targets=all-linear --lr 2e-4 --schedule cosine --warmup 0.03 \
    --epochs 1 --batch-size 16 --seq-len 4096 --overlong truncate --packing bfd --report-to tensorboard "$@"
