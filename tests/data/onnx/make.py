#!/usr/bin/env python3
"""Writes equal_gradients.json: a decoder whose layers add several branches to the residual stream at once, so that
biases, and matrices with the same input, have gradients that are one and the same value. Standard library only."""

import base64
import json
import pathlib
import random
import struct

HIDDEN, HEADS, HEAD_DIM, VOCABULARY, LAYERS = 6, 2, 4, 50, 2
rng = random.Random(0)
nodes, initializers = [], []


def parameter(name, *dims):
    count = 1
    for d in dims:
        count *= d
    centre, spread = (1.0, 0.25) if name.endswith("norm") else (0.0, 1.0 if len(dims) == 1 else dims[0] ** -0.5)
    values = [rng.gauss(centre, spread) for _ in range(count)]
    raw = base64.b64encode(struct.pack(f"<{count}f", *values)).decode()
    initializers.append({"name": name, "dataType": "FLOAT", "dims": list(dims), "rawData": raw})
    return name


def node(kind, *inputs, output=None, **attributes):
    output = output or f"v{len(nodes)}"
    entry = {"opType": kind, "input": list(inputs), "output": [output]}
    entry["attribute"] = [
        {"name": k, "f": v, "type": "FLOAT"} if isinstance(v, float) else {"name": k, "i": v, "type": "INT"}
        for k, v in attributes.items()
    ]
    nodes.append(entry)
    return output


def linear(x, name, inner, outer, bias=True):
    y = node("MatMul", x, parameter(name, inner, outer))
    return node("Add", y, parameter(name + ".bias", outer)) if bias else y


def norm(x, name):
    return node("RMSNormalization", x, parameter(name, HIDDEN), axis=-1, epsilon=2.0**-17)


def layer(x, name):
    y = norm(x, name + "norm")
    heads = [linear(y, name + part, HIDDEN, HEADS * HEAD_DIM, bias=False) for part in "qkv"]
    a = node("Attention", *heads, is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS)
    branches = [linear(a, name + "o", HEADS * HEAD_DIM, HIDDEN)]
    branches += [linear(y, name + part, HIDDEN, HIDDEN) for part in ("left", "right")]
    gate = node("Sigmoid", linear(y, name + "gate", HIDDEN, 5))
    branches.append(linear(gate, name + "down", 5, HIDDEN))
    for branch in branches:
        x = node("Add", x, branch)
    return x


def tokens(*shape):
    dims = [{"dimParam": d} if isinstance(d, str) else {"dimValue": d} for d in shape]
    return {"tensorType": {"elemType": "INT64" if len(shape) == 2 else "FLOAT", "shape": {"dim": dims}}}


def main():
    x = node("Gather", parameter("embed", VOCABULARY, HIDDEN), "input_ids", axis=0)
    for i in range(LAYERS):
        x = layer(x, f"layer{i}.")
    node("MatMul", norm(x, "norm"), parameter("head", HIDDEN, VOCABULARY), output="logits")
    model = {
        "irVersion": 10,
        "opsetImport": [{"domain": "", "version": 23}],
        "graph": {
            "name": "equal_gradients",
            "node": nodes,
            "initializer": initializers,
            "input": [{"name": "input_ids", "type": tokens(1, "T")}],
            "output": [{"name": "logits", "type": tokens(1, "T", VOCABULARY)}],
        },
    }
    text = json.dumps(model, indent=0) + "\n"
    (pathlib.Path(__file__).parent / "equal_gradients.json").write_text(text)


main()
