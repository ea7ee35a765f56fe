#!/usr/bin/env python3
"""Trains adapters beside TRL's trainers with peft: SFT and DPO, both from the same adapter.

    python3 lora_beside.py SBPRUN MODEL PAIRS.json --out FOLDER [--steps 20] [--rate 2e-4] [--only CASE] [--threads 2]

MODEL and PAIRS.json as in dpo_pairs.py (any MODEL with a chat template serves). Cases, r=8, alpha=16, all-linear, no dropout:
  sft        from an adapter that peft saved, B not zero; rows are prompt and chosen answer
  dpo-new    from --lora: what sbprun's new adapter begins with is written by a step that moves nothing, and loaded into TRL's, which is made
             by peft_config; the reference of both is the model without adapter
  dpo-more   from the adapter that peft saved; the reference is that adapter as it was (TRL makes a copy of it)
After each the adapter that sbprun wrote is opened by peft over the base, its --merge by transformers, and TRL's model as it is: logits of one
conversation. Prints each step and writes FOLDER/result.json and, where there is matplotlib, FOLDER/curve.png. Needs torch, transformers,
trl, peft, datasets. Exit status 1 when a loss, reward or log-probability differs by more than 1e-3 (relative to 1 where it is larger), or
logits of peft and of the merged model by more than 1e-4 of the largest.
"""
import argparse
import gc
import json
import pathlib
import shutil
import sys

import beside_trl as beside

SPREAD = 0.02  # of B: what such an adapter adds is a tenth of a nat or so


def peft_config():
    import peft
    return peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear")


def saved_adapter(base, folder):
    """An adapter as peft saves it, of which B is not zero."""
    import peft
    import torch
    if not folder.exists():
        torch.manual_seed(5)
        model = peft.get_peft_model(beside.load(base), peft_config())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, SPREAD)
        model.peft_config["default"].base_model_name_or_path = str(base)
        model.save_pretrained(folder)
    return folder


def with_adapter(base, adapter, trainable=False):
    import peft
    return peft.PeftModel.from_pretrained(beside.load(base), adapter, is_trainable=trainable)


def load_into(adapter):
    """For TRL's trainer before its first step."""
    def load(trainer):
        import peft
        from safetensors.torch import load_file
        peft.set_peft_model_state_dict(trainer.model, load_file(adapter / "adapter_model.safetensors"))
    return load


def logits(model, ids):
    import torch
    with torch.no_grad():
        return model.eval()(ids).logits.double()


def compare_logits(a, base, tokenizer, trained, theirs):
    """Of what was trained: by peft and merged; and by TRL, relative to the largest."""
    merged = a.out / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    beside.run(a.sbprun, trained, "--merge", "--out", merged)
    ids = tokenizer.apply_chat_template(beside.say("user", "What is bread?") + beside.say("assistant", "Flour, water and time."), return_tensors="pt",
                                        return_dict=True)["input_ids"]
    by_peft, whole, plain = logits(with_adapter(base, trained), ids), logits(beside.load(merged), ids), logits(beside.load(base), ids)
    scale = by_peft.abs().max().item()
    return {"merged and peft": (by_peft - whole).abs().max().item() / scale, "ours and TRL": (by_peft - logits(theirs, ids)).abs().max().item() / scale,
            "trained and base": (by_peft - plain).abs().max().item() / scale}


def train_both(a, case, base, tokenizer, pairs):
    """(our steps, TRL's, names to compare, our adapter, TRL's model, seconds)"""
    kind, out = case.split("-")[0], a.out / f"ours-{case}"
    options = ["--objective", kind, "--schedule", "constant", "--seq-len", a.rows_of_step]
    data = pairs if kind == "dpo" else [{"prompt": p["prompt"], "completion": p["chosen"]} for p in pairs]
    beside.write_rows(a.out / f"{kind}.jsonl", data)
    options += ["--data", a.out / f"{kind}.jsonl"]
    if case == "dpo-new":
        new = ["--lora", "r=8,alpha=16,targets=all-linear"]
        beside.ours(a.sbprun, base, a.out / "begin", 1, 0, a.threads, *options, *new, "--weight-decay", 0)
        mine, seconds = beside.ours(a.sbprun, base, out, a.steps, a.rate, a.threads, *options, *new)
        wanted, their_seconds, trainer = beside.trl(kind, beside.load(base), tokenizer, data, a.out / "trl", a.steps, a.rate, a.threads,
                                                    before=load_into(a.out / "begin"), peft_config=peft_config())
    else:
        adapter = saved_adapter(base, a.out / "adapter")
        mine, seconds = beside.ours(a.sbprun, adapter, out, a.steps, a.rate, a.threads, *options)
        wanted, their_seconds, trainer = beside.trl(kind, with_adapter(base, adapter, True), tokenizer, data, a.out / "trl", a.steps, a.rate, a.threads)
    names = beside.DPO_NAMES if kind == "dpo" else ["loss"]
    return mine, wanted, names, out, trainer.model, {"ours": seconds, "TRL": their_seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sbprun")
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--only", choices=["sft", "dpo-new", "dpo-more"])
    parser.add_argument("--rows-of-step", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    a.out = a.out.absolute()
    a.out.mkdir(parents=True, exist_ok=True)
    base = beside.float32_model(a.sbprun, a.model, a.out)
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(base)
    pairs = beside.preference_rows(a.pairs, beside.BATCH * a.steps)
    good, result, panels = True, {"steps": a.steps, "batch": beside.BATCH, "lr": a.rate, "cases": {}}, []
    for case in [a.only] if a.only else ["sft", "dpo-new", "dpo-more"]:
        mine, wanted, names, trained, theirs, seconds = train_both(a, case, base, tokenizer, pairs)
        worst = beside.compare(mine, wanted, names)
        apart = compare_logits(a, base, tokenizer, trained, theirs)
        good &= len(mine) == len(wanted) == a.steps and max(worst.values()) <= 1e-3 and apart["merged and peft"] <= 1e-4
        result["cases"][case] = {"worst": worst, "logits apart, of the largest": apart, "seconds": seconds, "curve": beside.curve(mine, wanted, names)}
        shown = ["rewards/margins"] if "dpo" in case else []
        panels += [(f"{case}: {name}", {"ours": [x[name] for x in mine], "TRL": [y[name] for y in wanted]}) for name in ["loss"] + shown]
        print(case, json.dumps({k: v for k, v in result["cases"][case].items() if k != "curve"}), flush=True)
        (a.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        del theirs
        gc.collect()
    beside.draw(a.out / "curve.png", "Adapters, float32", panels)
    sys.exit(not good)


if __name__ == "__main__":
    main()
