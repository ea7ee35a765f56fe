#!/usr/bin/env python3
"""Makes choices.json: which rows numpy and `datasets` choose, for tests/unit/test_data_mixture.c. Needs both.

A set of rows is written whole where it is small, else as its size and the sum of `mark`s of its rows in order. What
weights and test sizes do is what the functions below do, which are those of
  random  open-r1, src/open_r1/utils/data.py, and alignment-handbook, src/alignment/data.py (get_dataset)
  first   alignment-handbook before 2025, src/alignment/data.py (mix_datasets)
  shares  TRL, trl/scripts/utils.py (get_dataset), whose train_test_split has no seed: here it has the mixture's
"""

import importlib.metadata
import itertools
import json
import random
from pathlib import Path

import datasets
import numpy

SIZES = (0, 1, 2, 7, 100, 65536, 100001)
SEEDS = (0, 1, 42, 2**32 + 5, 2**53 - 1)
SHOWN = 12


def mark(rows):
    """A number that tells rows in order from others: h = h * A + row + C, modulo 2^64."""
    h = 0
    for row in rows:
        h = (h * 6364136223846793005 + int(row) + 1442695040888963407) % 2**64
    return f"{h:016x}"


def described(rows):
    rows = [int(row) for row in rows]
    return {"count": len(rows), "mark": mark(rows)} | ({"rows": rows} if len(rows) <= SHOWN else {})


def parts_of(counts):
    firsts = itertools.accumulate(counts, initial=0)
    return [datasets.Dataset.from_dict({"row": list(range(first, first + count))}, datasets.Features({"row": datasets.Value("int64")}))
            for first, count in zip(firsts, counts)]


def shuffled(counts, weights, seed):
    mixed = []
    for ds, weight in zip(parts_of(counts), weights):
        if weight is not None:
            ds = ds.shuffle(seed=seed).select(range(int(len(ds) * weight)))
        mixed.append(ds)
    return datasets.concatenate_datasets(mixed).shuffle(seed=seed)


def first(counts, weights, seed):
    return datasets.concatenate_datasets(
        [ds if frac is None else ds.select(range(int(frac * len(ds)))) for ds, frac in zip(parts_of(counts), weights)])


def shares(counts, weights, seed):
    parts, fractions = parts_of(counts), weights
    if any(fraction is not None for fraction in fractions):
        weights = [fraction / sum(fractions) for fraction in fractions]
        total = min(len(dataset) / weight for dataset, weight in zip(parts, weights, strict=False) if weight > 0)
        parts = [dataset.select(range(round(weight * total))) for dataset, weight in zip(parts, weights, strict=False)]
    return datasets.concatenate_datasets(parts)


def chosen(how, counts, weights, seed, test_size):
    """What is trained on and what is held out, each in the order of the rows; None: it is refused."""
    mixed = {"random": shuffled, "first": first, "shares": shares}[how](counts, weights, seed) if weights else shares(
        counts, [None] * len(counts), seed)
    if test_size is None:
        return {"train": sorted(mixed["row"]), "test": []}
    try:
        split = mixed.train_test_split(test_size=test_size, seed=seed)
    except ValueError:
        return None
    return {side: sorted(split[side]["row"]) for side in ("train", "test")}


def case(how, counts, weights, seed, test_size):
    sides = chosen(how, counts, weights, seed, test_size)
    return {"how": how, "counts": counts, "weights": weights, "seed": seed, "test_size": test_size,
            **({side: described(rows) for side, rows in sides.items()} if sides else {"refused": True})}


def cases():
    for size, seed in itertools.product(SIZES, (0, 42)):
        yield "random", [size], [0.25], seed, None
        yield "random", [size], None, seed, 0.1
    for size in SIZES:
        yield "random", [size], [1.0], 7, 0.3
        yield "random", [size, 5], [None, 0.5], 7, 2
        yield "first", [size, 9], [0.29, 1.0], 0, None
        yield "shares", [size, 50], [0.7, 0.3], 0, None
    for test_size in (1, 99, 100, 101, 0.001, 0.999, 0.99, 0.5):
        yield "random", [60, 40], [1.0, 1.0], 3, test_size
    for weights in ([0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.999999, 1e-9], [0.57, 0.29], [None, None]):
        yield "random", [100, 7], weights, 11, 0.5
    for weights in ([1.0, 1.0, 1.0], [3.0, 1.0, 0.0], [0.1, 0.1, 0.1], [1, 2, 3], [0.5, 0.25, 0.25]):
        yield "shares", [100, 7, 33], weights, 0, None
    pick = random.Random(1)
    for _ in range(150):
        count = pick.randint(1, 5)
        how = pick.choice(["random", "first", "shares"])
        counts = [pick.choice([0, 1, 2, 3, 7, 10, 33, 100, 257]) for _ in range(count)]
        weights = [pick.choice([0.0, 1.0, 0.5, 0.25, 0.1, round(pick.random(), 3), 1 / 3]) for _ in range(count)]
        if how == "shares" and sum(weights) == 0:
            weights[0] = 0.5
        if how != "shares":
            weights = [None if pick.random() < 0.2 else weight for weight in weights]
        test_size = pick.choice([None, None, 0.1, 0.5, round(pick.uniform(0.01, 0.99), 3), pick.randint(1, 9)])
        yield how, counts, weights if pick.random() < 0.9 else None, pick.choice(SEEDS), test_size


def main():
    permutations = [{"seed": seed, "count": size, **described(numpy.random.default_rng(seed).permutation(size))}
                    for seed, size in itertools.product((*SEEDS, 3, 4, 5), SIZES)]
    made = {"numpy": numpy.__version__, "datasets": importlib.metadata.version("datasets"), "permutations": permutations,
            "cases": [case(*each) for each in cases()]}
    lines = ",\n".join(f" {json.dumps(key)}: " + (json.dumps(value) if isinstance(value, str) else
                       "[\n" + ",\n".join("  " + json.dumps(item) for item in value) + "\n ]") for key, value in made.items())
    (Path(__file__).resolve().parent / "choices.json").write_text("{\n" + lines + "\n}\n")


main()
