"""Advantages, returns and losses of TRL's PPOTrainer in float64: writes tests/data/ppo.json.

    pip download trl==1.12.0 --no-deps && unzip trl-1.12.0-*.whl -d TRL        (the last one that has it)
    VENV/bin/python tests/golden/make_ppo.py TRL [--check]                     (VENV: as in make_objectives.py)

The lines of TRL/trl/experimental/ppo/ppo_trainer.py from log-probabilities, values and rewards to advantages, and from
there to the loss, are cut out and run as they are on random numbers; and on those of a small model with a value head,
whose gradients through transformers are in tests/data/ppo (the step's older weights are those that it begins with). Answers are padded to one token more than the
longest has, so that each has a row behind its last token: without it TRL pays the longest one's reward a row earlier.
"""
import json
import os
import random
import shutil
import textwrap
from types import SimpleNamespace

import reference_float64 as reference
import torch
import vectors
from safetensors.torch import save_file

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "ppo.json")
torch.set_default_dtype(torch.float64)


def cut(source, first, last):
    """The lines from the one that begins with `first` to that which begins with `last`, both included."""
    lines = source.split("\n")
    begin = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    end = next(i for i, line in enumerate(lines) if i > begin and line.strip().startswith(last))
    return textwrap.dedent("\n".join(lines[begin : end + 1]))


def rollouts():
    r = random.Random(21)
    docs = []
    for prompt, n in [(2, 5), (1, 1), (4, 8), (3, 3), (2, 6)]:
        old = [-r.expovariate(0.7) - 0.01 for _ in range(n)]
        docs.append(
            {
                "prompt": prompt,
                "reward": r.gauss(0, 1.5),
                "old_logps": old,
                "ref_logps": [x + r.gauss(0, 0.6) for x in old],
                "old_values": [r.gauss(0, 0.8) for _ in range(n + 1)],
                "logps": [x + r.gauss(0, 0.3) for x in old],
                "values": [r.gauss(0, 0.8) for _ in range(n + 1)],
            }
        )
    return docs


def pad(docs, key, length, value=0.0):
    return torch.tensor([d[key] + [value] * (length - len(d[key])) for d in docs])


def run(source, docs, settings):
    lengths = [len(d["old_logps"]) for d in docs]
    length = max(lengths) + 1
    defaults = dict(whiten_rewards=0, kl_estimator="k1", kl_coef=0.05, gamma=1.0, lam=0.95, cliprange=0.2, cliprange_value=0.2, vf_coef=0.1)
    names = {
        "torch": torch,
        "INVALID_LOGPROB": 1.0,
        "args": SimpleNamespace(**{**defaults, **settings}),
        "responses": torch.zeros(len(docs), length),
        "sequence_lengths": torch.tensor(lengths) - 1,
        "logprobs": pad(docs, "old_logps", length),
        "ref_logprobs": pad(docs, "ref_logps", length),
        "values": pad(docs, "old_values", length),
        "scores": torch.tensor([d["reward"] for d in docs]),
    }
    exec(cut(source, "def masked_mean(", "return whitened"), names)  # noqa: S102: TRL's own lines
    exec(cut(source, "response_idxs =", "padding_mask ="), names)
    exec(cut(source, "logprobs = torch.masked_fill(", "advantages = torch.masked_fill("), names)
    new, v = pad(docs, "logps", length).requires_grad_(), pad(docs, "values", length).requires_grad_()
    names.update(
        new_logprobs=torch.masked_fill(new, names["padding_mask"], 1.0),
        vpred=torch.masked_fill(v, names["padding_mask_p1"], 0),
        micro_batch_inds=torch.arange(len(docs)),
        mb_advantage=names["advantages"],
        mb_logprobs=names["logprobs"],
        mb_return=names["returns"],
        mb_values=names["values"],
    )
    code = cut(source, "vpredclipped = torch.clamp(", "loss = pg_loss +").replace(".float()", ".double()")
    exec(code, names)
    dlogp, dvalue = torch.autograd.grad(names["loss"], (new, v))
    docs_of = list(enumerate(lengths))
    return {
        "columns": {
            "advantage": [names["advantages"][d, :n].tolist() + [0.0] for d, n in docs_of],
            "return": [names["returns"][d, : n + 1].tolist() for d, n in docs_of],
            "value_weight": [[1.0] * (n + 1) for _, n in docs_of],
        },
        "numbers": {
            "objective/kl": names["kl"].sum(1).mean().item(),
            "objective/non_score_reward": names["non_score_reward"].sum(1).mean().item(),
            "objective/scores": names["scores"].mean().item(),
            "value_rows": float(sum(n + 1 for n in lengths)),
        },
        "loss": names["loss"].item(),
        "dlogp": [dlogp[d, :n].tolist() + [0.0] for d, n in docs_of],
        "dvalue": [dvalue[d, : n + 1].tolist() for d, n in docs_of],
        "metrics": {
            "loss/policy_avg": names["pg_loss"].item(),
            "loss/value_avg": names["vf_loss"].item(),
            "val/clipfrac_avg": names["vf_clipfrac"].item(),
        },
    }


def make(folder):
    with open(os.path.join(folder, "trl", "experimental", "ppo", "ppo_trainer.py")) as file:
        source = file.read()
    docs = rollouts()
    cases = []
    for settings in (
        {},
        {"kl_coef": 0.3, "kl_estimator": "k3", "gamma": 0.9, "lam": 0.5},
        {"whiten_rewards": 1, "kl_coef": 0.2, "gamma": 0.95},
        {"cliprange": 0.05, "cliprange_value": 0.7, "vf_coef": 1.3, "gamma": 0.99, "kl_coef": 0.0},
    ):
        cases.append({"settings": settings, **run(source, docs, settings)})
    return {"docs": docs, "cases": cases}


# ---- gradients of a whole model ------------------------------------------------------------------------------------


def score(model, head, row):
    """Log-probabilities of the answer, and values from the row before it to the last."""
    ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
    begin, n = len(row["prompt_ids"]) - 1, len(row["completion_ids"])
    output = model(ids, output_hidden_states=True)
    logps = torch.log_softmax(output.logits[0], -1)[torch.arange(begin, begin + n), ids[0, begin + 1 :]]
    values = output.hidden_states[-1][0] @ head["v_head.summary.weight"][0] + head["v_head.summary.bias"]
    return logps, values[begin:]


def write_model(source):
    """A first step, with the policy as its own older weights: tests/data/ppo/."""
    folder = os.path.join(os.path.dirname(TARGET), "ppo")
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_mqa", "model")
    os.makedirs(os.path.join(folder, "model"), exist_ok=True)
    shutil.copy(os.path.join(golden, "config.json"), os.path.join(folder, "model"))
    r, generator = random.Random(33), torch.Generator().manual_seed(5)
    rows = []
    for prompt, n in [(2, 3), (3, 2), (1, 7), (5, 4), (2, 1)]:
        rows.append(
            {
                "prompt_ids": [r.randint(3, 60) for _ in range(prompt)],
                "completion_ids": [r.randint(3, 60) for _ in range(n)],
                "reward": round(r.gauss(0, 2), 3),
                "ref_per_token_logps": [round(-4 + r.gauss(0, 0.5), 3) for _ in range(n)],
            }
        )
    with reference.Float64Patches(golden):
        model = reference.load(golden, torch.float64)
        hidden = model.config.hidden_size
        head = {
            "v_head.summary.weight": (0.2 * torch.randn(1, hidden, generator=generator)).float().double(),
            "v_head.summary.bias": torch.tensor([0.375]),
        }
        for parameter in head.values():
            parameter.requires_grad_()
        scores = [score(model, head, row) for row in rows]
        docs = [
            {
                "reward": row["reward"],
                "ref_logps": row["ref_per_token_logps"],
                "old_logps": logps.tolist(),
                "old_values": values.tolist(),
                "logps": logps.tolist(),
                "values": values.tolist(),
            }
            for row, (logps, values) in zip(rows, scores, strict=True)
        ]
        step = run(source, docs, {})
        for (logps, values), dlogp, dvalue in zip(scores, step["dlogp"], step["dvalue"], strict=True):
            (logps @ torch.tensor(dlogp[:-1]) + values @ torch.tensor(dvalue)).backward()
        gradients = {name: p.grad.contiguous() for name, p in [*model.named_parameters(), *head.items()]}
        weights = {name: p.detach().float().contiguous() for name, p in [*model.named_parameters(), *head.items()]}
    save_file(gradients, os.path.join(folder, "gradients.safetensors"))
    save_file(weights, os.path.join(folder, "model", "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "rows.jsonl"), "w") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{folder}: loss {step['loss']:.12f}")


def main():
    given = vectors.arguments(__doc__, "trl")
    vectors.write(TARGET, make(given.trl), "settings", given.check)
    with open(os.path.join(given.trl, "trl", "experimental", "ppo", "ppo_trainer.py")) as file:
        write_model(file.read())


if __name__ == "__main__":
    main()
