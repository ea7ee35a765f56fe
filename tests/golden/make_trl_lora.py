#!/usr/bin/env python3
"""Makes stories260k_trl_lora/: twenty steps of adapters of stories260K by TRL's SFTTrainer and DPOTrainer over peft.

    make_trl_lora.py [--check]      --check: compute again and compare with trl.json; writes nothing

Adapters as peft saves them, r = 2 of all linear weights: zero/ (B is 0, as peft begins) and begun/ (random B, as of one that is continued).
`sft` trains begun/ on the texts of ../stories260k_trl. `new` trains zero/ by DPO, TRL being given a peft_config: its reference is the model
without adapter. `more` trains begun/ by DPO: TRL's reference is a copy of it. pairs.jsonl: what follows in a text, and the end of another.
float32 on the CPU, TRL's defaults but for lr 1e-3, constant, 4 a step, in file order.
"""
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))

import datasets
import peft
import torch
import transformers
import trl
from transformers import PreTrainedTokenizerFast

import beside_trl as beside
from make_goldens import rng_for

MODEL, OUT, STEPS, RATE = HERE.parent / "data" / "stories260K", HERE / "stories260k_trl_lora", 20, 1e-3
BASE = "../../../data/stories260K"  # from the adapters
CONFIG = {"task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": "all-linear", "lora_dropout": 0.0}


def tokenizer():
    return PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>")


def write_pairs():
    texts = [row["text"].split(" ") for row in beside.read_rows(HERE / "stories260k_trl" / "train.jsonl")]
    texts = [words for words in texts if 4 < len(words) < 25][:STEPS * beside.BATCH]
    assert len(texts) == STEPS * beside.BATCH
    rows = []
    for i, words in enumerate(texts):
        other = texts[(i + 7) % len(texts)]
        rows.append({"prompt": " ".join(words[:3]), "chosen": " " + " ".join(words[3:]), "rejected": " " + " ".join(other[len(other) // 2:])})
    beside.write_rows(OUT / "pairs.jsonl", rows)


@torch.no_grad()
def write_adapter(name, spread):
    model = peft.get_peft_model(beside.load(MODEL), peft.LoraConfig(**CONFIG))
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            rng = rng_for("trl_lora", name, key)
            scale = parameter.shape[1] ** -0.5 if "lora_A" in key else spread
            parameter.copy_(torch.tensor([scale * rng.gauss(0.0, 1.0) for _ in range(parameter.numel())]).reshape(parameter.shape))
    model.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    file = OUT / name / "adapter_config.json"
    config = json.loads(file.read_text())
    config["base_model_name_or_path"] = BASE
    config["target_modules"] = sorted(config["target_modules"])
    file.write_text(json.dumps(config, indent=2) + "\n")


def adapter(name):
    return peft.PeftModel.from_pretrained(beside.load(MODEL), OUT / name, is_trainable=True)


def load_zero(trainer):
    from safetensors.torch import load_file
    peft.set_peft_model_state_dict(trainer.model, load_file(OUT / "zero" / "adapter_model.safetensors"))


def compute():
    texts, pairs = beside.read_rows(HERE / "stories260k_trl" / "train.jsonl"), beside.read_rows(OUT / "pairs.jsonl")
    out = {}
    with tempfile.TemporaryDirectory() as scratch:
        def train(case, kind, model, data, keys, **more):
            torch.manual_seed(0)
            history, _, _ = beside.trl(kind, model, tokenizer(), data, scratch, STEPS, RATE, 1, **more)
            out[case] = [{key: entry[key] for key in keys} for entry in history]
        train("sft", "sft", adapter("begun"), texts, ["loss", "grad_norm"])
        names = beside.DPO_NAMES + ["grad_norm"]
        train("new", "dpo", beside.load(MODEL), pairs, names, peft_config=peft.LoraConfig(**CONFIG), before=load_zero)
        train("more", "dpo", adapter("begun"), pairs, names)
    return out


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    if "--check" in sys.argv[1:]:
        want, got = json.loads((OUT / "trl.json").read_text()), compute()
        worst = max(abs(g[k] - w[k]) / max(1, abs(w[k])) for case in got for g, w in zip(got[case], want[case], strict=True) for k in g)
        print(f"largest difference {worst:.1e}")
        return 0 if worst < 1e-6 else 1
    OUT.mkdir(exist_ok=True)
    write_pairs()
    write_adapter("zero", 0.0)
    write_adapter("begun", 0.1)
    result = {"made_with": {m.__name__: m.__version__.split("+")[0] for m in (torch, transformers, trl, peft)}, "lr": RATE, "batch": beside.BATCH,
              **compute()}
    (OUT / "trl.json").write_text(json.dumps(result).replace('{"loss"', '\n{"loss"') + "\n")
    for case in ("sft", "new", "more"):
        first, last = result[case][0], result[case][-1]
        print(case, first["loss"], last["loss"], first["grad_norm"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
