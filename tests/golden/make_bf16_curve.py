#!/usr/bin/env python3
"""Makes stories260k_trl/bf16.json: the twenty steps of trl.json by transformers in bfloat16, beside float64.

    make_bf16_curve.py [--model FOLDER]     FOLDER: stories260K (default: tests/data/stories260K)

Documents one at a time, one denominator, torch's AdamW and clipping; on the CPU. `autocast`: weights in float32 under
torch.autocast, as TRL with bf16=True. `bf16`: the model loaded in bfloat16, gradients in bfloat16, AdamW on float32 copies
of the weights that are rounded into the model after every step. How far either is from float64 says what a curve in
bfloat16 may be off by.
"""

import argparse
import json
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "stories260k_trl"


def batches(folder):
    """Token ids of the documents of each step."""
    # tokenizers' own pipeline: Llama's tokenizer of this model, <s> in front and </s> behind, as TRL appends it
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("</s>")
    rows = [json.loads(line)["text"] for line in (OUT / "train.jsonl").read_text().splitlines()]
    ids = [tokenizer.encode(text).ids for text in rows]
    return [row if row[-1] == end else row + [end] for row in ids]


def run(folder, ids, settings, way):
    dtype = torch.bfloat16 if way == "bf16" else torch.float64 if way == "float64" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    model.train()
    own = dict(model.named_parameters())
    trained = {name: p.detach().float().clone() for name, p in own.items()} if way == "bf16" else own
    rate, steps, batch = settings["learning_rate"], settings["steps"], settings["batch_size"]
    optimizer = torch.optim.AdamW(trained.values(), lr=rate, betas=tuple(settings["betas"]), eps=settings["eps"],
                                  weight_decay=0.0)
    history = []
    for step in range(steps):
        documents = [row for row in ids[step * batch : (step + 1) * batch]]
        count = sum(len(row) - 1 for row in documents)
        total = 0.0
        for row in documents:
            tokens = torch.tensor([row])
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
                logits = model(input_ids=tokens).logits
            wide = logits if way == "float64" else logits.float()
            loss = torch.nn.functional.cross_entropy(wide[0, :-1], tokens[0, 1:], reduction="sum") / count
            loss.backward()
            total += loss.item()
        if way == "bf16":
            for name, copy in trained.items():
                copy.grad = own[name].grad.float()
                own[name].grad = None
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), settings["max_grad_norm"]).item()
        optimizer.param_groups[0]["lr"] = rate * ((steps - step) / steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if way == "bf16":
            for name, copy in trained.items():
                own[name].data.copy_(copy)
        history.append({"step": step + 1, "loss": total, "grad_norm": norm})
    return history


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=HERE.parent / "data" / "stories260K")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    known = json.loads((OUT / "trl.json").read_text())
    ids = batches(options.model)
    first = known["token_ids_of_first_rows"]
    if ids[: len(first)] != first:
        raise SystemExit("the rows are not tokenized as TRL did it")
    curves = {way: run(options.model, ids, known["optimizer"], way) for way in ["float64", "autocast", "bf16"]}
    plain = curves.pop("float64")
    off = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(plain, known["float64"], strict=True))
    if off > 1e-6: # transformers takes some steps in float32 whatever the model's type
        raise SystemExit(f"this loop is {off:.1e} off the float64 curve of trl.json")
    distance = {
        way: {
            key: max(abs(a[key] - b[key]) / b[key] for a, b in zip(curve, known["float64"], strict=True))
            for key in ["loss", "grad_norm"]
        }
        for way, curve in curves.items()
    }
    result = {
        "about": "twenty steps of trl.json by transformers in bfloat16, on the CPU",
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        **curves,
        "max_relative_error_against_float64": distance,
    }
    (OUT / "bf16.json").write_text(json.dumps(result, indent=1) + "\n")
    print(distance)


if __name__ == "__main__":
    main()
