#!/usr/bin/env python3
"""A model of one's own in torch: exported as ONNX, trained by sbprun, read back into torch.

    examples/custom_model.py [--out custom] [--data train.jsonl] [--steps 20] [--sbprun sbprun]

What is needed of a module: forward(input_ids [1, T]) gives logits [1, T, V], attention is causal, and what mixes rows is
attention (torch.nn.functional.scaled_dot_product_attention). Needs torch, onnx, onnxscript. Rows are token ids, since the model
has no tokenizer: {"input_ids": [..], "labels": [..]}; without --data, some are drawn. Exit status 1 where torch's loss over the rows is
not sbprun's, before the training or after it, as far as float32 can tell.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

VOCAB, WIDTH, HEADS, LAYERS = 96, 64, 4, 3


def model():
    """What export_model_json.py calls: a small transformer that is in no table of families."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            q, k, v = (t.reshape(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, dim=-1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(1, -1, WIDTH))
            return x + self.down(functional.gelu(self.up(self.behind(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCAB, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

        def forward(self, input_ids):
            x = self.embed(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    torch.manual_seed(1)
    return Model()


def draw_rows(path):
    """Counting up by ones, from anywhere: what comes next is easy to learn."""
    draw = random.Random(1)
    with open(path, "w") as file:
        for _ in range(64):
            start = draw.randrange(VOCAB)
            ids = [(start + i) % VOCAB for i in range(24)]
            file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def same_loss(when, module, path, said):
    """Whether torch's mean loss over the rows is what sbprun says: a logit of float32 is right to some units in its last place."""
    import torch
    from torch.nn import functional
    losses, largest = [], 1.0
    with torch.no_grad():
        for row in map(json.loads, open(path)):
            logits = module(torch.tensor([row["input_ids"]]))[0, :-1].double()
            losses.append(functional.cross_entropy(logits, torch.tensor(row["labels"][1:]), reduction="none"))
            largest = max(largest, logits.abs().max().item())
    loss, allowed = torch.cat(losses).mean().item(), 16 * torch.finfo(torch.float32).eps * largest
    print(f"loss {when}: {said:.7f} of sbprun, {loss:.7f} of torch, {abs(said - loss):.1e} apart; float32 explains {allowed:.1e}")
    return abs(said - loss) <= allowed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("custom"))
    parser.add_argument("--data")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sbprun", default="sbprun")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if not a.data:
        a.data = a.out / "rows.jsonl"
        draw_rows(a.data)
    here = pathlib.Path(__file__).resolve()
    subprocess.run([sys.executable, here.parent / "export_model_json.py", f"{here}:model", "-o", a.out / "exported"], check=True)
    subprocess.run([a.sbprun, a.out / "exported/model.json", "--data", a.data, "--out", a.out / "trained", "--overwrite",
                    "--steps", str(a.steps), "--lr", "3e-3", "--schedule", "constant", "--batch-size", "8", "--eval", a.data], check=True)
    import torch
    from safetensors.torch import load_file
    trained, weights = model(), load_file(a.out / "trained/model.safetensors")
    said = [line["eval_loss"] for line in map(json.loads, open(a.out / "trained/metrics.jsonl")) if line["kind"] == "eval"]
    right = same_loss("before", trained, a.data, said[0])
    trained.load_state_dict(weights)  # by the names that they have in torch
    right = same_loss("after", trained, a.data, said[-1]) and right
    with torch.no_grad():
        following = trained(torch.tensor([[7, 8, 9, 10]]))[0, -1].argmax().item()
    print(f"after 7 8 9 10 comes {following}")
    sys.exit(not right)


if __name__ == "__main__":
    main()
