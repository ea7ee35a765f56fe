#!/usr/bin/env python3
"""Makes sampling.json for tests/unit/test_generate_sampling.c: what the processors of transformers leave of logits, in
float64, and numbers of Philox. Needs torch and transformers (5.24). Equal logits are sorted by token: torch.sort leaves
their order to the machine's instructions, so it is asked for a stable one.

rows     logits: numbers, null for -inf; greedy: torch.argmax; logp: log_softmax of the row
cases    [row, temperature, top_k, top_p, min_p, {token: log of its probability}] of the tokens that are left
uniform  [seed, prompt, sample, position, number]; the first three are strings, as is the fourth: they have 64 bits
"""

import functools
import json
import math
import random
from pathlib import Path

import torch
import transformers
from transformers.generation import logits_process as of

INF = math.inf


def rows():
    random.seed(7)
    yield [random.gauss(0, 2.5) for _ in range(20)]
    yield [round(random.gauss(0, 2)) / 2 for _ in range(20)]  # many are equal
    yield [-INF if random.random() < 0.5 else random.gauss(0, 3) for _ in range(24)]
    yield [0.25] * 10  # sums of tenths, which rounding decides
    yield [3.0, -INF, 3.0, 1.0, 3.0, 1.0, -INF, -2.0]
    yield [-INF, -INF, 5.0, -INF]
    yield [-1.5]
    yield [9000.0, 8990.0, -9000.0, 8999.5, 8995.0]


SETTINGS = [
    # temperature, top_k, top_p, min_p
    (1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (2.5, 0, 1.0, 0.0), (0.05, 0, 1.0, 0.0), (1e-6, 0, 1.0, 0.0), (50.0, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0), (1.0, 3, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (0.3, 8, 1.0, 0.0), (1.0, 20, 1.0, 0.0), (1.0, 1000, 1.0, 0.0),
    (1.0, 0, 0.0, 0.0), (1.0, 0, 0.1, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 0, 0.7, 0.0), (1.0, 0, 0.9, 0.0), (1.0, 0, 0.99, 0.0),
    (2.0, 0, 0.8, 0.0), (0.5, 0, 0.8, 0.0), (1.0, 6, 0.6, 0.0), (1.5, 7, 0.95, 0.0),
    (1.0, 0, 1.0, 0.05), (1.0, 0, 1.0, 0.3), (1.0, 0, 1.0, 1.0), (3.0, 0, 1.0, 0.5), (0.4, 0, 1.0, 0.02),
    (0.8, 10, 0.9, 0.1), (1.2, 5, 0.97, 0.15), (1.0, 4, 0.75, 0.2),
]  # fmt: skip


def processed(scores, temperature, top_k, top_p, min_p):
    """As GenerationMixin._get_logits_processor puts them together."""
    if temperature != 1:
        scores = of.TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = of.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = of.TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = of.MinPLogitsWarper(min_p)(None, scores)
    return torch.log_softmax(scores, -1)[0]


def numbers(values):
    return [None if value == -INF else value for value in values]


# ---- Philox4x32-10 (Salmon et al., SC'11) ----

def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q % 2**32, p >> 32 ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def halves(*values):
    return [half for value in values for half in (value % 2**32, value >> 32)]


def uniform(seed, prompt, sample, position):
    stream = int.from_bytes(b"sbptoken", "little")
    key = philox(halves(prompt, stream), halves(seed))[:2]
    low, high = philox(halves(position, sample), key)[:2]
    return (low + 2**32 * high >> 11) / 2**53


def main():
    torch.set_num_threads(1)
    torch.sort = functools.partial(torch.sort, stable=True)
    assert transformers.__version__ == "5.24.0", transformers.__version__
    # known answers of Random123
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([2**32 - 1] * 4, [2**32 - 1] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    made = {"rows": [], "cases": [], "uniform": []}
    for index, row in enumerate(rows()):
        scores = torch.tensor([row], dtype=torch.float64)
        made["rows"].append({"logits": numbers(row), "greedy": int(scores.argmax()), "logp": numbers(torch.log_softmax(scores, -1)[0].tolist())})
        for setting in SETTINGS:
            left = processed(scores.clone(), *setting).tolist()
            made["cases"].append([index, *setting, {str(token): value for token, value in enumerate(left) if value > -INF}])
    random.seed(11)
    for seed, prompt, sample, position in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)] + [
            [random.getrandbits(64) for _ in range(4)] for _ in range(5)]:
        made["uniform"].append([str(seed), str(prompt), str(sample), str(position), uniform(seed, prompt, sample, position)])
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(item) for item in made[name]) + "\n]" for name in made)
    Path(__file__).with_name("sampling.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
