"""Losses of TRL's trainers on random log-probabilities, in float64: writes tests/data/objectives.json.

    python3.11 -m venv VENV && VENV/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
    VENV/bin/pip install trl==1.16.0 transformers==5.23.0
    VENV/bin/python tests/golden/make_objectives.py [--check]

`_compute_loss` of the trainers is called on a stub that has what it reads, with a model that returns the
log-probabilities: the formulas are TRL's own, the gradients torch's; of ORPO and CPO (SimPO) `get_batch_loss_metrics`,
with logits over two tokens that give these log-probabilities. What is not in TRL (`cdpo`, `reinforce`) is from
the formula of the objective's file. A case has the rows of whole documents, one after the other: prompts and last rows
do not count (weight 0).
"""
import json
import math
import os
import random
from collections import defaultdict
from functools import partial
from types import SimpleNamespace
from unittest import mock

import torch
import vectors
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

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
            rows["predicted"].append(float(i + 1 < prompt + completion))
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
    scalars["predicted.chosen"] = sum(p for p, d in zip(rows["predicted"], rows["doc"]) if d % 2 == 0)
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


# ---- ORPO, SimPO --------------------------------------------------------------------------------------------------


def no_reference_case(inputs, trainer_class, settings):
    """ORPOTrainer or CPOTrainer on pairs."""
    rows, places, _, _ = inputs
    order = list(range(0, len(places), 2)) + list(range(1, len(places), 2))
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    starts = [rows["doc"].index(d) for d in range(len(places))]
    counts = [rows["doc"].count(d) for d in range(len(places))]
    length = max(counts)
    index = torch.tensor([[starts[d] + min(i, counts[d] - 1) for i in range(length)] for d in order])
    x = logp[index]
    logits = torch.stack([x, torch.log1p(-torch.exp(x))], dim=-1)  # the label is token 0: log-probability x
    attention = torch.tensor([[float(i < counts[d]) for i in range(length)] for d in order])
    labels = [[0 if starts[d] + i - 1 in places[d] else -100 for i in range(length)] for d in order]
    batch = {
        "concatenated_input_ids": torch.zeros(len(order), length).long(),
        "concatenated_attention_mask": attention.long(),
        "concatenated_labels": torch.tensor(labels),
    }
    trainer = SimpleNamespace(
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        is_encoder_decoder=False,
        padding_value=0,
        pad_token_id=0,
        loss_type="simpo",
        alpha=0.0,
        beta=settings.get("beta", 0.1),
        simpo_gamma=settings.get("simpo_gamma", 0.5),
        cpo_alpha=settings.get("cpo_alpha", 1.0),
        label_smoothing=settings.get("label_smoothing", 0.0),
        concatenated_inputs=lambda *_, **__: batch,
    )
    for name in ("get_batch_logps", "concatenated_forward", "odds_ratio_loss", "cpo_loss"):
        if hasattr(trainer_class, name):
            function = getattr(trainer_class, name)
            static = isinstance(vars(trainer_class)[name], staticmethod)
            setattr(trainer, name, function if static else partial(function, trainer))
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double  # ORPO computes odds in float32
    model = lambda *_, **__: SimpleNamespace(logits=logits)  # noqa: E731
    chosen = {"chosen_labels": torch.zeros(len(order) // 2, length)}
    loss, metrics = trainer_class.get_batch_loss_metrics(trainer, model, chosen)
    torch.Tensor.float = narrow
    return logp, loss, {k: v for k, v in metrics.items() if not k.startswith("logits")}


# ---- KTO ----------------------------------------------------------------------------------------------------------


def kto_inputs(wanted):
    r = random.Random(29)
    rows = defaultdict(list)
    places = documents(r, [(3, 5), (1, 2), (2, 1), (4, 6), (1, 3), (3, 4)], rows)
    sums = [sum(rows["logp"][p] for p in place) + r.gauss(0, 3) for place in places]
    groups = {"wanted": wanted, "ref_logps_sum": sums}
    scalars = {"docs": len(places), "labels": sum(map(len, places))}
    scalars["count/chosen"] = sum(wanted)
    scalars["count/rejected"] = len(places) - sum(wanted)
    mismatched = [-r.expovariate(0.1) for _ in places]
    reference = [x + r.gauss(0, 1) - 4 for x in mismatched]  # so that the mean is above 0
    scalars["mismatched.logps"], scalars["mismatched.ref_logps"] = sum(mismatched), sum(reference)
    return dict(rows), places, groups, scalars, mismatched, reference


def kto_case(inputs, loss_type, settings, below=False):
    """below: the mean divergence is negative, and counts as 0."""
    rows, places, groups, _, mismatched, reference = inputs
    if below:
        mismatched, reference = reference, mismatched
    length = max(map(len, places))
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    mask = pad([[1.0] * len(place) for place in places], length)
    index = torch.tensor([place + [0] * (length - len(place)) for place in places])
    entropy = torch.tensor(rows["entropy"], dtype=torch.float64)[index] * mask
    output = SimpleNamespace(log_probs=logp[index] * mask, entropy=entropy, mean_logits=torch.zeros_like(mask))
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        calculate_KL=loss_type == "kto",
        loss_type=loss_type,
        beta=settings.get("beta", 0.1),
        desirable_weight=settings.get("desirable_weight", 1.0),
        undesirable_weight=settings.get("undesirable_weight", 1.0),
        _compute_kl_logps=lambda *_: torch.tensor(mismatched),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    # a first column that is no label, as input_ids have one more than labels
    completion = torch.cat([torch.zeros(len(places), 1), mask], dim=1)
    batch = {
        "input_ids": torch.ones_like(completion).long(),
        "attention_mask": torch.ones_like(completion),
        "completion_mask": completion,
        "label": torch.tensor(groups["wanted"]) > 0,
        "ref_logps": torch.tensor(groups["ref_logps_sum"]),
        "ref_KL_logps": torch.tensor(reference),
    }
    loss = KTOTrainer._compute_loss(trainer, lambda **_: output, batch, False)
    metrics = {k: v[-1] for k, v in trainer._metrics["train"].items() if not k.startswith("logits") and k != "num_tokens"}
    if loss_type != "kto":
        del metrics["kl"]
    return logp, loss, metrics


# ---- GRPO ---------------------------------------------------------------------------------------------------------


def grpo_inputs(uncounted=()):
    """uncounted: prompts and advantages of answers without a token that counts."""
    r = random.Random(11)
    rows = defaultdict(list)
    places = documents(r, [(2, 6), (2, 3), (5, 1), (5, 9), (1, 4)] + [(n, 0) for n, _ in uncounted], rows)
    advantages = [0.8, -1.3, 2.1, -0.4, 0.0] + [a for _, a in uncounted]
    rows["advantage"] = [advantages[d] for d in rows["doc"]]
    rows["doc.labels"] = [float(len(places[d])) for d in rows["doc"]]
    rows["old_logps"] = [x + r.gauss(0, 0.3) for x in rows["logp"]]
    rows["ref_logps"] = [x + r.gauss(0, 0.5) for x in rows["logp"]]
    rows["sampling_logps"] = [x + r.gauss(0, 0.4) for x in rows["logp"]]
    rows["has.sampling_logps"] = [float(r.random() < 0.9) for _ in rows["logp"]]
    scalars = {"labels": sum(map(len, places)), "docs": len(places), "parts": 1}
    scalars["part.labels"] = scalars["labels"]
    shares = [w / scalars["labels"] / scalars["docs"] for w in rows["weight"]]
    rows["uncounted.loss"] = [-sum(a for _, a in uncounted) * share for share in shares]
    rows["uncounted"] = [len(uncounted) * share for share in shares]
    return dict(rows), places, {}, scalars, advantages


def sampling_ratio(rows, of, mask, mode, settings):
    """importance_sampling_ratio, as _generate_and_score_completions has it; and its metrics."""
    apart = (of("old_logps") - of("sampling_logps")) * mask * of("has.sampling_logps")
    log_ratio = apart.sum(-1, keepdim=True) if mode.startswith("sequence") else apart
    ratio = torch.exp(log_ratio)
    least = settings.get("vllm_importance_sampling_clip_min")
    most = settings.get("vllm_importance_sampling_clip_max", 3.0)
    if mode.endswith("truncate"):
        ratio = torch.clamp(ratio, min=least, max=most)
    else:
        low, high = -math.inf if least is None else least, math.inf if most is None else most
        ratio = ratio.masked_fill((ratio < low) | (ratio > high), value=0.0)
    mean = ratio.mean() if mode.startswith("sequence") else (ratio * mask).sum() / mask.sum()
    return ratio, {"sampling/importance_sampling_ratio/mean": mean.item()}


def grpo_case(inputs, loss_type, importance, settings, has_old, sampling=None):
    rows, places, _, scalars, advantages = inputs
    length = max(map(len, places))
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    entropy = torch.tensor(rows["entropy"], dtype=torch.float64, requires_grad=True)
    mask = pad([[1.0] * len(p) for p in places], length)
    index = torch.tensor([p + [0] * (length - len(p)) for p in places])

    def of(name):
        return torch.tensor(rows[name], dtype=torch.float64)[index]

    args = SimpleNamespace(
        use_bias_correction_kl=settings.get("use_bias_correction_kl", 1) > 0,
        vespo_k_pos=settings.get("vespo_k_pos", 2.0),
        vespo_lambda_pos=settings.get("vespo_lambda_pos", 3.0),
        vespo_k_neg=settings.get("vespo_k_neg", 3.0),
        vespo_lambda_neg=settings.get("vespo_lambda_neg", 2.0),
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
        use_vllm=sampling is not None,
        vllm_importance_sampling_correction=True,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        max_completion_length=settings.get("max_completion_length", 512),
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled="entropy_coef" in settings,
        entropy_coef=settings.get("entropy_coef", 0.0),
        use_adaptive_entropy=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp[index], entropy[index], None),
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
    more = {}
    if sampling:
        data["importance_sampling_ratio"], more = sampling_ratio(rows, of, mask, sampling, settings)
    loss = GRPOTrainer._compute_loss(trainer, None, data)
    wanted = ["entropy", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"]
    wanted += ["cispo_clip_ratio", "vespo/phi_seq_mean", "policy_loss", "entropy_coef"]
    metrics = {k: v[-1] for k, v in trainer._metrics["train"].items() if k in wanted}
    return logp, loss, {**metrics, **more}, entropy


def rloo(inputs, settings):
    rows, places, _, scalars, advantages = inputs
    length = max(map(len, places))
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    mask = pad([[1.0] * len(p) for p in places], length)
    index = torch.tensor([p + [0] * (length - len(p)) for p in places])
    of = {name: torch.tensor(rows[name], dtype=torch.float64)[index] for name in ("entropy", "old_logps")}
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        epsilon_low=settings.get("epsilon", 0.2),
        epsilon_high=settings.get("epsilon_high", settings.get("epsilon", 0.2)),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp[index], of["entropy"], None),
    )
    data = {
        "prompt_ids": torch.zeros(len(places), 1).long(),
        "prompt_mask": torch.ones(len(places), 1),
        "completion_ids": torch.zeros_like(mask).long(),
        "completion_mask": mask,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "old_logps": (of["old_logps"] * mask).sum(1),
    }
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):  # metrics, too
        loss = RLOOTrainer._compute_loss(trainer, None, data)
    wanted = ("entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")
    metrics = {k: v[-1] for k, v in trainer._metrics["train"].items() if k in wanted}
    return logp, loss, metrics


def reinforce(inputs):
    rows, places, _, scalars, advantages = inputs
    logp = torch.tensor(rows["logp"], dtype=torch.float64, requires_grad=True)
    loss = sum(-a * logp[place].sum() for a, place in zip(advantages, places)) / scalars["labels"]
    return logp, loss, {}


# ---- cases --------------------------------------------------------------------------------------------------------


def expect(name, loss_type, settings, result, **more):
    logp, loss, metrics, *entropy = result
    slopes = torch.autograd.grad(loss, [logp, *entropy], allow_unused=True)
    dlogp = slopes[0]
    if len(slopes) > 1 and slopes[1] is not None:
        more["dentropy"] = slopes[1].tolist()
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
    for settings in [{}, {"beta": 0.4}]:
        result = no_reference_case(pairs, ORPOTrainer, settings)
        cases.append(expect("orpo", "orpo", settings, result, inputs="dpo"))
    for settings in [{}, {"beta": 2.0, "simpo_gamma": 1.2, "cpo_alpha": 0.3}, {"cpo_alpha": 0.0, "label_smoothing": 0.1}]:
        result = no_reference_case(pairs, CPOTrainer, settings)
        if settings.get("cpo_alpha") == 0:
            del result[2]["nll_loss"]  # TRL does not compute what has no weight
        cases.append(expect("simpo", "simpo", settings, result, inputs="dpo"))
    unpaired = kto_inputs([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    for loss_type, settings in [
        ("kto", {}),
        ("kto", {"beta": 0.4, "desirable_weight": 0.75, "undesirable_weight": 1.5}),
        ("apo_zero_unpaired", {}),
        ("apo_zero_unpaired", {"beta": 0.3, "desirable_weight": 1.25, "undesirable_weight": 0.5}),
    ]:
        cases.append(expect("kto", loss_type, settings, kto_case(unpaired, loss_type, settings)))
    below = {"mismatched.logps": sum(unpaired[5]), "mismatched.ref_logps": sum(unpaired[4])}
    result = kto_case(unpaired, "kto", {}, below=True)
    cases.append(expect("kto", "kto", {}, result, inputs="kto below"))
    single = kto_inputs([0.0] * 6)
    cases.append(expect("kto", "kto", {"beta": 0.2}, kto_case(single, "kto", {"beta": 0.2}), inputs="kto rejected"))
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
    plain = {**kl, "use_bias_correction_kl": 0}
    narrow = {"vllm_importance_sampling_clip_max": 1.2, "vllm_importance_sampling_clip_min": 0.8}
    gentle = {"vespo_k_pos": 0.6, "vespo_lambda_pos": 0.4, "vespo_k_neg": 0.5, "vespo_lambda_neg": 0.7, "beta": 0.03}
    for ours, theirs, importance, settings, has_old, sampling in [
        ("dapo", "dapo", "token", plain, True, None),
        ("gspo", "grpo", "sequence", plain, True, None),
        ("bnpo", "bnpo", "token", kl, True, None),
        ("bnpo", "bnpo", "sequence", {}, True, "token_mask"),
        ("vespo", "vespo", "token", {}, True, None),
        ("vespo", "vespo", "token", gentle, True, None),
        ("vespo", "vespo", "token", {**gentle, **narrow}, True, "token_truncate"),
        ("vespo", "vespo", "token", {**gentle, "vllm_importance_sampling_clip_max": 1.9}, True, "token_mask"),
        ("vespo", "vespo", "token", gentle, False, None),
        ("dapo", "dapo", "token", {"entropy_coef": 0.07}, True, None),
        ("gspo", "grpo", "sequence", {**kl, "entropy_coef": -0.2}, True, None),
        ("dapo", "dapo", "token", kl, True, "sequence_mask"),
        ("dapo", "dapo", "token", {"vllm_importance_sampling_clip_max": 1.2}, True, "sequence_mask"),
        ("dapo", "dapo", "token", narrow, True, "sequence_truncate"),
        ("dapo", "dapo", "token", narrow, True, "token_mask"),
        ("dapo", "dapo", "token", {**kl, **narrow}, True, "token_truncate"),
        ("luspo", "luspo", "sequence", {**kl, **narrow}, True, "token_truncate"),
        ("cispo", "cispo", "token", {"epsilon_high": 1.1, **narrow}, True, "sequence_truncate"),
        ("sapo", "sapo", "token", {}, True, "token_mask"),
    ]:
        result = grpo_case(rollouts, theirs, importance, settings, has_old, sampling)
        case = expect("grpo", ours, settings, result, importance=importance, has_old=has_old)
        cases.append({**case, "sampling": sampling} if sampling else case)
    short = grpo_inputs([(3, 1.7), (1, -0.6)])
    for ours, theirs, importance, sampling in [
        ("dapo", "dapo", "token", "sequence_mask"),
        ("grpo", "grpo", "token", None),
        ("gspo", "grpo", "sequence", "sequence_truncate"),
        ("dr_grpo", "dr_grpo", "token", "token_mask"),
        ("luspo", "luspo", "sequence", None),
        ("sapo", "sapo", "token", None),
        ("vespo", "vespo", "token", "token_mask"),
    ]:
        settings = {"max_completion_length": 40}
        result = grpo_case(short, theirs, importance, settings, True, sampling)
        case = expect("grpo", ours, settings, result, importance=importance, has_old=True, inputs="grpo short")
        cases.append({**case, "sampling": sampling} if sampling else case)
    cases.append(expect("grpo", "rloo", {}, rloo(short, {}), inputs="grpo short"))
    for settings in ({}, {"epsilon": 0.5, "epsilon_high": 0.6}):
        cases.append(expect("grpo", "rloo", settings, rloo(rollouts, settings), importance="sequence", has_old=True))
    cases.append(expect("grpo", "reinforce", {}, reinforce(rollouts), importance="token", has_old=True))

    def described(inputs, groups):
        return {"rows": inputs[0], "groups": inputs[2], "scalars": inputs[3], "group_count": groups}

    return {
        "dpo": described(pairs, 4),
        "grpo": described(rollouts, 5),
        "grpo short": described(short, 7),
        "kto": described(unpaired, 6),
        "kto below": {**described(unpaired, 6), "scalars": {**unpaired[3], **below}},
        "kto rejected": described(single, 6),
        "cases": cases,
    }


torch.set_default_dtype(torch.float64)  # else torch.where makes a float32 tensor of sapo's two temperatures


def main():
    vectors.write(TARGET, make(), "objective", vectors.arguments(__doc__).check)


if __name__ == "__main__":
    main()
