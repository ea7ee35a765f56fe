"""Twenty steps of TRL's KTOTrainer on stories260K in float32: writes tests/data/kto/curve.jsonl and curve.json.

    VENV/bin/python tests/golden/make_kto_curve.py                             (VENV: as in make_objectives.py)

Prompts and completions are halves of rows of stories260k_trl, labels are drawn; the trainer is whole, its defaults but what
stands below.
"""
import json
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import KTOConfig, KTOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "data", "stories260K")
TARGET = os.path.join(HERE, "..", "data", "kto")


def draw_rows():
    r = random.Random(5)
    rows = []
    with open(os.path.join(HERE, "stories260k_trl", "train.jsonl")) as file:
        texts = [json.loads(line)["text"].split(" ") for line in list(file)[:80]]
    for words in texts:
        if len(words) < 8:
            continue
        half = len(words) // 2
        completion = " " + " ".join(words[half:][:40])
        rows.append({"prompt": " ".join(words[:half]), "completion": completion, "label": r.random() < 0.6})
    return rows


def main():
    rows = draw_rows()
    with open(os.path.join(TARGET, "curve.jsonl"), "w") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=os.path.join(MODEL, "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    with tempfile.TemporaryDirectory() as folder:
        args = KTOConfig(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=20,
            learning_rate=2e-4,
            lr_scheduler_type="constant",
            logging_steps=1,
            bf16=False,
            use_cpu=True,
            max_length=400,
            report_to=[],
            save_strategy="no",
            gradient_checkpointing=False,
            seed=1,
        )
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        trainer = KTOTrainer(
            model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        trainer.train()
    names = ("loss", "kl", "grad_norm", "entropy", "rewards/", "logps/")
    steps = [{k: v for k, v in h.items() if k.startswith(names)} for h in trainer.state.log_history if "loss" in h]
    with open(os.path.join(TARGET, "curve.json"), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]\n")


if __name__ == "__main__":
    main()
