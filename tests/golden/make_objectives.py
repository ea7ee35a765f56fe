"""Losses of TRL's trainers on random log-probabilities, in float64: writes tests/data/objectives.json.

    python3.11 -m venv VENV && VENV/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
    VENV/bin/pip install trl==1.16.0 transformers==5.23.0
    VENV/bin/python tests/golden/make_objectives.py [--check]

`_compute_loss` of the trainers is called on a stub that has what it reads, with a model that returns the
log-probabilities: the formulas are TRL's own, the gradients torch's. What is not in TRL (`cdpo`, `reinforce`) is from
the formula of the objective's file. A case has the rows of whole documents, one after the other: prompts and last rows
do not count (weight 0).
"""
import argparse
import json
import os
import random
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "objectives.json")


class Accelerator:
    device = torch.device("cpu")
    num_processes = 1
    sync_gradients = True

    def gather(self, x):
        return x

    gather_for_metrics = gather

    def reduce(self, x, reduction):
        return x


def pad(rows, length):
    return torch.tensor([row + [0.0] * (length - len(row)) for row in rows], dtype=torch.float64)


def documents(random, lengths, rows):
    """Documents with prompts: adds their rows to `rows`; per document the places of its counted rows."""
    places = []
    for number, (prompt, completion) in enumerate(lengths):
        start = len(rows["weight"])
        for i in range(prompt + completion):
            counted = prompt - 1 <= i < prompt + completion - 1
            rows["weight"].append(1.0 if counted else 0.0)
            rows["logp"].append(-random.expovariate(0.7) - 0.01)
            rows["entropy"].append(random.uniform(0.1, 4))
            rows["hit"].append(float(random.random() < 0.4))
            rows["doc"].append(number)
        places.append(list(range(start + prompt - 1, start + prompt + completion - 1)))
    return places


# ---- DPO ----------------------------------------------------------------------------------------------------------


def dpo_inputs():
    r = random.Random(7)
    rows = defaultdict(list)
    places = documents(r, [(3, 5), (3, 2), (1, 1), (1, 6), (4, 3), (4, 3), (2, 4), (2, 1)], rows)
    rows["unit"] = [d // 2 for d in rows["doc"]]
    rows["in.chosen"] = [1.0 - d % 2 for d in rows["doc"]]
    sums = [sum(rows["logp"][p] for p in place) + r.gauss(0, 3) for place in places]
    groups = {"ref_logps_sum.chosen": sums[0::2], "ref_logps_sum.rejected": sums[1::2]}
    scalars = {"units": 4, "labels": sum(map(len, places)), "labels.chosen": sum(map(len, places[0::2]))}
    return dict(rows), places, groups, scalars


def dpo_case(inputs, types, weights, settings):
    rows, places, groups, _ = inputs
    order = list(range(0, len(places), 2)) + list(range(1, len(places), 2))
    length = max(map(len, places))
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    mask = pad([[1.0] * len(places[d]) for d in order], length)
    index = torch.tensor([places[d] + [0] * (length - len(places[d])) for d in order])

    def of(name):
        return torch.tensor(rows[name], dtype=torch.float64)[index] * mask

    output = SimpleNamespace(
        log_probs=logp[index] * mask,
        entropy=of("entropy"),
        mean_logits=torch.zeros_like(mask),
        is_top1=of("hit").bool(),
    )
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=types,
        loss_weights=weights,
        beta=settings.get("beta", 0.1),
        label_smoothing=settings.get("label_smoothing", 0.0),
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    # a first column that is no label, as input_ids have one more than labels
    completion = torch.cat([torch.zeros(len(order), 1), mask], dim=1)
    loss = DPOTrainer._compute_loss(
        trainer,
        lambda **_: output,
        {
            "input_ids": torch.ones_like(completion).long(),
            "attention_mask": torch.ones_like(completion),
            "completion_mask": completion,
            "ref_chosen_logps": torch.tensor(groups["ref_logps_sum.chosen"], dtype=torch.float64),
            "ref_rejected_logps": torch.tensor(groups["ref_logps_sum.rejected"], dtype=torch.float64),
        },
        False,
    )
    metrics = {k: v[-1] for k, v in trainer._metrics["train"].items() if not k.startswith("logits") and k != "num_tokens"}
    return logp, loss, metrics


def cdpo(inputs, settings):
    rows, places, groups, _ = inputs
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    sums = torch.stack([logp[place].sum() for place in places])
    margin = (sums[0::2] - torch.tensor(groups["ref_logps_sum.chosen"], dtype=torch.float64)) - (
        sums[1::2] - torch.tensor(groups["ref_logps_sum.rejected"], dtype=torch.float64)
    )
    e, beta = settings["label_smoothing"], settings.get("beta", 0.1)
    log_sigmoid = torch.nn.functional.logsigmoid
    return logp, (-(1 - e) * log_sigmoid(beta * margin) - e * log_sigmoid(-beta * margin)).mean(), {}


# ---- GRPO ---------------------------------------------------------------------------------------------------------


def grpo_inputs():
    r = random.Random(11)
    rows = defaultdict(list)
    places = documents(r, [(2, 6), (2, 3), (5, 1), (5, 9), (1, 4)], rows)
    advantages = [0.8, -1.3, 2.1, -0.4, 0.0]
    rows["advantage"] = [advantages[d] for d in rows["doc"]]
    rows["doc.labels"] = [float(len(places[d])) for d in rows["doc"]]
    rows["old_logps"] = [x + r.gauss(0, 0.3) for x in rows["logp"]]
    rows["ref_logps"] = [x + r.gauss(0, 0.5) for x in rows["logp"]]
    scalars = {"labels": sum(map(len, places)), "docs": len(places)}
    return dict(rows), places, {}, scalars, advantages


def grpo_case(inputs, loss_type, importance, settings, has_old):
    rows, places, _, scalars, advantages = inputs
    length = max(map(len, places))
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    mask = pad([[1.0] * len(p) for p in places], length)
    index = torch.tensor([p + [0] * (length - len(p)) for p in places])

    def of(name):
        return torch.tensor(rows[name], dtype=torch.float64)[index]

    args = SimpleNamespace(
        use_bias_correction_kl=True,
        delta=settings.get("delta"),
        sapo_temperature_pos=settings.get("sapo_temperature_pos", 1.0),
        sapo_temperature_neg=settings.get("sapo_temperature_neg", 1.05),
        steps_per_generation=1,
    )
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        args=args,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=importance,
        beta=settings.get("beta", 0.0),
        epsilon_low=settings.get("epsilon", 0.2),
        epsilon_high=settings.get("epsilon_high", settings.get("epsilon", 0.2)),
        loss_type=loss_type,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        max_completion_length=settings.get("max_completion_length", 512),
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp[index], of("entropy"), None),
    )
    data = {
        "prompt_ids": torch.zeros(len(places), 1).long(),
        "prompt_mask": torch.ones(len(places), 1),
        "completion_ids": torch.zeros_like(mask).long(),
        "completion_mask": mask,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "num_items_in_batch": torch.tensor(float(scalars["labels"]), dtype=torch.float64),
    }
    if has_old:
        data["old_per_token_logps"] = of("old_logps")
    if trainer.beta:
        data["ref_per_token_logps"] = of("ref_logps")
    loss = GRPOTrainer._compute_loss(trainer, None, data)
    # with importance by sequence TRL counts sequences where we count tokens
    wanted = ("entropy", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")
    wanted = wanted if importance == "token" else ("entropy",)
    return logp, loss, {k: v[-1] for k, v in trainer._metrics["train"].items() if k in wanted}


def reinforce(inputs):
    rows, places, _, scalars, advantages = inputs
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    loss = sum(-a * logp[place].sum() for a, place in zip(advantages, places)) / scalars["labels"]
    return logp, loss, {}


# ---- cases --------------------------------------------------------------------------------------------------------


def expect(name, loss_type, settings, result, **more):
    logp, loss, metrics = result
    (dlogp,) = torch.autograd.grad(loss, logp)
    return {
        "objective": name,
        "loss_type": loss_type,
        "settings": settings,
        **more,
        "loss": loss.item(),
        "dlogp": dlogp.tolist(),
        "metrics": metrics,
    }


def make():
    pairs, rollouts = dpo_inputs(), grpo_inputs()
    cases = []
    for types, settings in [
        ("sigmoid", {}),
        ("sigmoid", {"beta": 0.37}),
        ("hinge", {"beta": 0.3}),
        ("ipo", {"beta": 0.25}),
        ("sigmoid_norm", {"beta": 2.0}),
        ("robust", {"label_smoothing": 0.2}),
        ("apo_zero", {}),
        ("apo_down", {}),
        ("sppo_hard", {}),
        ("sft", {}),
        ("sigmoid+sft:0.5+ipo:2", {}),
    ]:
        parts = [part.split(":") for part in types.split("+")]
        names, weights = [p[0] for p in parts], [float(p[1]) if len(p) > 1 else 1.0 for p in parts]
        cases.append(expect("dpo", types, settings, dpo_case(pairs, names, weights, settings)))
    settings = {"label_smoothing": 0.1, "beta": 0.2}
    cases.append(expect("dpo", "cdpo", settings, cdpo(pairs, settings)))
    kl = {"beta": 0.05, "epsilon": 0.2, "epsilon_high": 0.28}
    for ours, theirs, importance, settings, has_old in [
        ("dapo", "dapo", "token", {}, False),
        ("dapo", "dapo", "token", kl, True),
        ("dapo", "dapo", "token", {"delta": 1.1}, True),
        ("dapo", "dapo", "sequence", kl, True),
        ("grpo", "grpo", "token", kl, True),
        ("gspo", "grpo", "sequence", kl, True),
        ("gspo", "grpo", "sequence", {"epsilon": 0.01}, False),
        ("dr_grpo", "dr_grpo", "token", {"max_completion_length": 40}, True),
        ("luspo", "luspo", "sequence", {}, True),
        ("luspo", "luspo", "sequence", kl, True),
        ("cispo", "cispo", "token", {"epsilon_high": 1.1, "beta": 0.1}, True),
        ("sapo", "sapo", "token", {}, True),
        ("sapo", "sapo", "token", {"sapo_temperature_pos": 1.5, "sapo_temperature_neg": 2.0, "beta": 0.02}, True),
    ]:
        result = grpo_case(rollouts, theirs, importance, settings, has_old)
        cases.append(expect("grpo", ours, settings, result, importance=importance, has_old=has_old))
    cases.append(expect("grpo", "reinforce", {}, reinforce(rollouts), importance="token", has_old=True))

    def described(inputs, groups):
        return {"rows": inputs[0], "groups": inputs[2], "scalars": inputs[3], "group_count": groups}

    return {"dpo": described(pairs, 4), "grpo": described(rollouts, 5), "cases": cases}


torch.set_default_dtype(torch.float64)  # else torch.where makes a float32 tensor of sapo's two temperatures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compute again and compare, write nothing")
    check = parser.parse_args().check
    text = json.dumps(make(), indent=None, separators=(",", ":")).replace('{"objective"', '\n{"objective"') + "\n"
    if check:
        with open(TARGET) as file:
            same = file.read() == text
        print("the same" if same else "differs")
        raise SystemExit(0 if same else 1)
    with open(TARGET, "w") as file:
        file.write(text)
    print(f"{TARGET}: {len(text)} bytes")


if __name__ == "__main__":
    main()
