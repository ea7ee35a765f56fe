#!/usr/bin/env python3
"""Makes trl/: twenty steps of fine-tuning stories260K on conversations by TRL's SFTTrainer with assistant_only_loss.

    make_trl_chat.py            versions: ../requirements.txt

The template is chatml.jinja; float32 on the CPU, rows in file order. trl/losses.json has the loss of each step and, of
each row, its ids and labels.
"""
import json
import os
import pathlib
import random
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

import datasets
import torch
import transformers
import trl
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent.parent / "data" / "stories260K"
STEPS, BATCH, ROWS = 20, 4, 60
NAMES, THINGS, PLACES = ["Lily", "Tom", "Ben", "Mia", "Zoë"], ["a red ball", "the cat", "some cake", "a big tree"], \
    ["the park", "the garden", "her room", "the school — far away"]


def rows():
    rng = random.Random(1)
    out = []
    for _ in range(ROWS):
        name, messages = rng.choice(NAMES), []
        if rng.random() < 0.4:
            messages.append({"role": "system", "content": "Tell short stories."})
        for _ in range(rng.randint(1, 3)):
            thing, place = rng.choice(THINGS), rng.choice(PLACES)
            messages.append({"role": "user", "content": rng.choice([f"Who saw {thing}?", f"Where was {name}?"])})
            messages.append({"role": "assistant", "content": f"{name} saw {thing} in {place}.\nShe was happy."})
        out.append({"messages": messages})
    return out


def main():
    data = rows()
    (HERE / "trl").mkdir(exist_ok=True)
    (HERE / "trl" / "train.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in data))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"), bos_token="<s>", eos_token="</s>",
                                        pad_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = (HERE / "chatml.jinja").read_text()
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = SFTConfig(
            output_dir=scratch, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-3,
            lr_scheduler_type="linear", train_sampling_strategy="sequential", max_length=512, bf16=False, use_cpu=True,
            assistant_only_loss=True, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True)
        trainer = SFTTrainer(model=model, args=arguments, processing_class=tokenizer,
                             train_dataset=datasets.Dataset.from_list(data))
        prepared = [{"input_ids": list(r["input_ids"]), "labels": list(r["labels"])}
                    for r in trainer.train_dataset]
        trainer.train()
        steps = [{k: h[k] for k in ("step", "loss", "grad_norm", "learning_rate")}
                 for h in trainer.state.log_history if "loss" in h]
    versions = {m.__name__: m.__version__ for m in (torch, transformers, trl)}
    result = {"versions": versions, "steps": steps, "rows": prepared}
    (HERE / "trl" / "losses.json").write_text(json.dumps(result) + "\n")
    print(steps[0], steps[-1], versions)


if __name__ == "__main__":
    main()
