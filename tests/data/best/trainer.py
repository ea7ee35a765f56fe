#!/usr/bin/env python3
"""Makes trainer.json and the rows of train.jsonl and eval.jsonl: a run of transformers' Trainer in float64 that
overfits, with load_best_model_at_end and EarlyStoppingCallback: its evaluations, where it stops, its best step and
checkpoints, and the loss of the model that it ends with. Needs torch and transformers 5.24 (made with it).
"""

import json
import pathlib
import re
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, EarlyStoppingCallback, Trainer, TrainingArguments

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent
PATIENCE = 3


def rows(first, last):
    text = (DATA.parent / "golden/stories260k_trl/train.jsonl").read_text().splitlines()[first:last]
    tokenizer = AutoTokenizer.from_pretrained(DATA / "stories260K")
    return [{"input_ids": tokenizer(json.loads(line)["text"])["input_ids"]} for line in text]


def collate(batch):
    longest = max(len(row["input_ids"]) for row in batch)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in batch])
    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in batch])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def loss_of(outputs, labels, num_items_in_batch=None):
    """The mean over labels in float64; the models' own loss rounds logits to float32."""
    return torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def main():
    train, held_out = rows(0, 8), rows(8, 12)
    for name, data in (("train", train), ("eval", held_out)):
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    model = AutoModelForCausalLM.from_pretrained(DATA / "stories260K", dtype=torch.float64)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            out, max_steps=30, per_device_train_batch_size=4, per_device_eval_batch_size=4, learning_rate=3e-3,
            lr_scheduler_type="constant", train_sampling_strategy="sequential", eval_strategy="steps", eval_steps=2,
            save_strategy="steps", save_steps=2, save_total_limit=2, load_best_model_at_end=True, use_cpu=True,
            remove_unused_columns=False, report_to="none", disable_tqdm=True, eval_on_start=True)
        trainer = Trainer(model, args, train_dataset=train, eval_dataset=held_out, data_collator=collate,
                          compute_loss_func=loss_of, callbacks=[EarlyStoppingCallback(PATIENCE)])
        trainer.train()
        evals = [[log["step"], log["eval_loss"]] for log in trainer.state.log_history if "eval_loss" in log]
        left = sorted(int(re.sub(".*-", "", path.name)) for path in pathlib.Path(out).glob("checkpoint-*"))
        result = {"transformers": transformers.__version__, "patience": PATIENCE, "evaluations": evals,
                  "steps": trainer.state.global_step, "best_step": trainer.state.best_global_step,
                  "best_metric": trainer.state.best_metric, "checkpoints": left,
                  "loss_of_the_model": trainer.evaluate()["eval_loss"]}
    (HERE / "trainer.json").write_text(json.dumps(result) + "\n")


main()
