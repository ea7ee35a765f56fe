"""What TRL's trainers compute from rewards before they differentiate, in float64: writes tests/data/prepared.json.

    VENV/bin/python tests/golden/make_prepared.py [--check]            (VENV: as in make_objectives.py)

The lines of GRPOTrainer and RLOOTrainer from rewards to advantages are cut out of TRL's source and run as they are, on
stubs of what they read; a reward that is null was given by nobody. Groups of unequal size, which TRL does not have, are
put together from runs of each size (statistics of a batch are then left out).
"""
import inspect
import json
import math
import os
import random
import textwrap
from collections import defaultdict
from types import SimpleNamespace

import torch
import vectors
from trl.trainer import grpo_trainer, rloo_trainer

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "prepared.json")
torch.set_default_dtype(torch.float64)


def lines(trainer, first, last):
    """The source from the line that begins with `first` to that which begins with `last`, both included."""
    source = inspect.getsource(trainer._generate_and_score_completions).split("\n")
    begin = next(i for i, line in enumerate(source) if line.strip().startswith(first))
    end = next(i for i, line in enumerate(source) if i > begin and line.strip().startswith(last))
    return textwrap.dedent("\n".join(source[begin : end + 1]))


def run(code, module, rewards, size, settings, **more):
    names = {**vars(module), **more}
    names.update(
        self=SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize",
            reward_weights=torch.ones(1),
            scale_rewards=settings.get("scale_rewards", "group"),
            reward_clip_range=None,
            normalize_advantages=False,
            beta=settings.get("beta", 0.05),
        ),
        rewards_per_func=torch.tensor([[math.nan if r is None else r] for r in rewards]),
        num_generations=size,
        device=torch.device("cpu"),
        gather=lambda x: x,
    )
    exec(code, names)  # noqa: S102: TRL's own lines
    raw = names["rewards_per_func"][:, 0]
    numbers = {
        "reward": torch.nanmean(raw).item(),
        "reward_std": module.nanstd(raw).item(),
        "frac_reward_zero_std": names["is_std_zero"].double().mean().item(),
    }
    return names["advantages"].tolist(), {k: v for k, v in numbers.items() if not math.isnan(v)}


def rollouts(seed, sizes, missing=()):
    r = random.Random(seed)
    docs = []
    for group, size in enumerate(sizes):
        same = r.random() < 0.25
        value = r.gauss(0, 1)
        for _ in range(size):
            n = r.randint(1, 9)
            logps = [-r.expovariate(0.7) - 0.01 for _ in range(n)]
            docs.append(
                {
                    "group": group,
                    "reward": None if len(docs) in missing else value if same else r.gauss(0, 2),
                    "prompt": r.randint(1, 4),
                    "old_logps": logps,
                    "ref_logps": [x + r.gauss(0, 0.4) for x in logps],
                }
            )
    return docs


def grpo(docs, size, settings):
    code = lines(grpo_trainer.GRPOTrainer, "unscorable_mask =", "advantages = torch.nan_to_num")
    return run(code, grpo_trainer, [d["reward"] for d in docs], size, settings)


def rloo(docs, size, settings):
    code = lines(rloo_trainer.RLOOTrainer, "unscorable_mask =", "is_std_zero =")
    length = max(len(d["old_logps"]) for d in docs)

    def pad(key):
        return torch.tensor([d[key] + [0.0] * (length - len(d[key])) for d in docs])

    mask = torch.tensor([[1.0] * len(d["old_logps"]) + [0.0] * (length - len(d["old_logps"])) for d in docs])
    old, ref = pad("old_logps"), pad("ref_logps")
    advantages, numbers = run(
        code,
        rloo_trainer,
        [d["reward"] for d in docs],
        size,
        settings,
        old_per_token_logps=old,
        ref_per_token_logps=ref,
        completion_mask=mask,
    )
    numbers["kl"] = (((old - ref) * mask).sum() / mask.sum()).item()
    return advantages, numbers


def sampled(docs, mode, settings, numbers):
    """What a sampler's log-probabilities say: adds the metrics; null is none."""
    length = max(len(d["old_logps"]) for d in docs)

    def pad(key):
        rows = [[math.nan if x is None else x for x in d[key]] for d in docs]
        return torch.tensor([row + [0.0] * (length - len(row)) for row in rows])

    mask = torch.tensor([[1] * len(d["old_logps"]) + [0] * (length - len(d["old_logps"])) for d in docs])
    names = {
        **vars(grpo_trainer),
        "self": SimpleNamespace(
            use_vllm=True,
            vllm_importance_sampling_correction=True,
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_min=settings.get("vllm_importance_sampling_clip_min"),
            vllm_importance_sampling_clip_max=settings.get("vllm_importance_sampling_clip_max", 3.0),
            accelerator=SimpleNamespace(gather=lambda x: x),
            _metrics={"train": defaultdict(list)},
        ),
        "mode": "train",
        "device": torch.device("cpu"),
        "old_per_token_logps": pad("old_logps"),
        "sampling_per_token_logps": pad("sampling_logps"),
        "completion_mask": mask,
        "mask": mask,
        "tool_mask": None,
    }
    trainer = grpo_trainer.GRPOTrainer
    exec(lines(trainer, "per_token_logps_diff = (", "invalid_mis_mask, value=0.0") + "\n)", names)  # noqa: S102: TRL's own lines
    exec(lines(trainer, "delta = torch.abs(", "nanmax(self.accelerator.gather(max_imp") + "\n)", names)  # noqa: S102
    metrics = {k: v[-1] for k, v in names["self"]._metrics["train"].items()}
    return {**numbers, **{k: v for k, v in metrics.items() if not k.endswith("ratio/mean")}}


def case(loss_type, docs, settings, result):
    advantages, numbers = result
    numbers["completions/mean_length"] = sum(len(d["old_logps"]) for d in docs) / len(docs)
    return {
        "objective": "grpo",
        "loss_type": loss_type,
        "settings": settings,
        "docs": docs,
        "advantage": advantages,
        "numbers": numbers,
    }


def make():
    cases = []
    for seed, sizes, missing in [
        (1, [4] * 5, ()),
        (2, [2] * 6, (3,)),
        (3, [5] * 3, (0, 6, 7)),
        (4, [3], ()),
        (7, [4] * 4, (0, 1, 2, 3, 5, 6, 7, 10)),  # nobody of a group; one of another
        (8, [3] * 2, range(6)),
    ]:
        docs = rollouts(seed, sizes, missing)
        for scale in ("group", "batch", "none"):
            settings = {"scale_rewards": scale}
            cases.append(case("dapo", docs, settings, grpo(docs, sizes[0], settings)))
        for beta in (0.05, 0.0, 0.4):
            settings = {"beta": beta}
            cases.append(case("rloo", docs, settings, rloo(docs, sizes[0], settings)))
    # groups of several sizes; of a group of one nothing can be learned
    sizes = [1, 4, 2, 1, 6]
    docs = rollouts(5, sizes)
    for scale in ("group", "none"):
        advantages = []
        for group, size in enumerate(sizes):
            of = [d for d in docs if d["group"] == group]
            advantages += grpo(of, size, {"scale_rewards": scale})[0] if size > 1 else [0.0]
        raw = torch.tensor([d["reward"] for d in docs])
        numbers = {"reward": raw.mean().item(), "reward_std": raw.std().item()}
        cases.append(case("dapo", docs, {"scale_rewards": scale}, (advantages, numbers)))
    # log-probabilities of a sampler, some of which are not known
    for mode, settings in [
        ("sequence_mask", {}),
        ("sequence_truncate", {"vllm_importance_sampling_clip_max": 1.4, "vllm_importance_sampling_clip_min": 0.7}),
        ("token_mask", {"vllm_importance_sampling_clip_max": 1.3, "vllm_importance_sampling_clip_min": 0.6}),
        ("token_truncate", {"vllm_importance_sampling_clip_max": 1.3}),
    ]:
        docs, r = rollouts(6, [3] * 4), random.Random(6)
        for doc in docs:
            doc["sampling_logps"] = [x + r.gauss(0, 0.3) if r.random() < 0.8 else None for x in doc["old_logps"]]
        advantages, numbers = grpo(docs, 3, {"scale_rewards": "group"})
        result = advantages, sampled(docs, mode, settings, numbers)
        cases.append({**case("dapo", docs, {**settings, "scale_rewards": "group"}, result), "sampling": mode})
    return {"cases": cases}


def main():
    vectors.write(TARGET, make(), "objective", vectors.arguments(__doc__).check)


if __name__ == "__main__":
    main()
