#!/usr/bin/env python3
"""Writes small decoders that no Hugging Face family of this project is like, which passes got wrong once: odd_layers.json,
odd_head.json, whose head reads another width than the layers pass on, two_widths.json, whose layers are not all of one
width, and side_values.json, whose layers read values of layers before the last. Standard library only."""

import base64
import json
import pathlib
import random
import struct

HIDDEN, HEADS, HEAD_DIM, VOCABULARY = 6, 2, 4, 50
rng = random.Random(0)
nodes, initializers = [], []


def parameter(name, *dims):
    if any(i["name"] == name for i in initializers):
        return name
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


def norm(x, name, width=HIDDEN):
    return node("RMSNormalization", x, parameter(name, width), axis=-1, epsilon=2.0**-17)


def first_layer(x, name):
    """No residual connection, so that queries, keys and values in one cross between two operators alone: not as wide as
    what crosses between the other layers."""
    width = HEADS * HEAD_DIM
    y = linear(norm(x, name + "norm"), name + "qkv", HIDDEN, 3 * width, bias=False)
    sizes = base64.b64encode(struct.pack("<3q", width, width, width)).decode()
    initializers.append({"name": "sizes", "dataType": "INT64", "dims": [3], "rawData": sizes})
    split = {"opType": "Split", "input": [y, "sizes"], "output": ["q", "k", "v"]}
    nodes.append({**split, "attribute": [{"name": "axis", "i": -1, "type": "INT"}]})
    a = node("Attention", "q", "k", "v", is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS)
    return linear(a, name + "o", width, HIDDEN)


def parallel_layer(x, name, width=HIDDEN):
    """Branches that meet in one sum: their biases, and matrices with one input, have one and the same gradient."""
    y = norm(x, name + "norm", width)
    heads = [linear(y, name + part, width, HEADS * HEAD_DIM, bias=False) for part in "qkv"]
    a = node("Attention", *heads, is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS)
    branches = [linear(a, name + "o", HEADS * HEAD_DIM, width)]
    branches += [linear(y, name + part, width, width) for part in ("left", "right")]
    gate = node("Sigmoid", linear(y, name + "gate", width, 5))
    branches.append(linear(gate, name + "down", 5, width))
    for branch in branches:
        x = node("Add", x, branch)
    return x


def sharing_layer(x, name):
    """Keys that are values too; a norm, a matrix and a bias that are used twice."""
    y = norm(x, name + "norm")
    q, k = (linear(y, name + part, HIDDEN, HEADS * HEAD_DIM) for part in "qk")
    a = node("Attention", q, k, k, is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS)
    x = node("Add", x, linear(a, name + "o", HEADS * HEAD_DIM, HIDDEN, bias=False))
    for _ in range(2):
        y = node("Tanh", linear(norm(x, name + "norm"), name + "twice", HIDDEN, HIDDEN))
        x = node("Add", x, y)
    return x


def crossing_layer(x, name):
    """Weight gradients that read the layer's incoming cotangent and rows of the residual stream recomputed; the layer's
    outgoing cotangent, also a sum with rows of the stream, is stored where the incoming one is."""
    y = norm(x, name + "norm")
    heads = [linear(y, name + part, HIDDEN, HEADS * HEAD_DIM, bias=False) for part in "qkv"]
    a = node("Attention", *heads, is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS)
    x = node("Sub", x, linear(a, name + "o", HEADS * HEAD_DIM, HIDDEN))
    difference = node("Sub", *(linear(x, name + part, HIDDEN, HIDDEN, bias=False) for part in ("more", "less")))
    return node("Add", x, difference)


def tokens(*shape):
    dims = [{"dimParam": d} if isinstance(d, str) else {"dimValue": d} for d in shape]
    return {"tensorType": {"elemType": "INT64" if len(shape) == 2 else "FLOAT", "shape": {"dim": dims}}}


def write(name):
    model = {
        "irVersion": 10,
        "opsetImport": [{"domain": "", "version": 23}],
        "graph": {
            "name": name,
            "node": nodes,
            "initializer": initializers,
            "input": [{"name": "input_ids", "type": tokens(1, "T")}],
            "output": [{"name": "logits", "type": tokens(1, "T", VOCABULARY)}],
        },
    }
    text = json.dumps(model, indent=0) + "\n"
    (pathlib.Path(__file__).parent / f"{name}.json").write_text(text)
    nodes.clear()
    initializers.clear()


def odd_layers():
    x = node("Gather", parameter("embed", VOCABULARY, HIDDEN), "input_ids", axis=0)
    x = first_layer(x, "first.")
    x = parallel_layer(x, "parallel.")
    x = sharing_layer(x, "sharing.")
    x = crossing_layer(x, "crossing.")
    node("MatMul", norm(x, "norm"), parameter("head", HIDDEN, VOCABULARY), output="logits")
    write("odd_layers")


def odd_head():
    """A projection into the layers and one behind them: other values are as wide as what the head reads."""
    narrow = 4
    x = node("Gather", parameter("embed", VOCABULARY, narrow), "input_ids", axis=0)
    x = linear(x, "in", narrow, HIDDEN, bias=False)
    for layer in range(3):
        x = parallel_layer(x, f"{layer}.")
    x = linear(x, "out", HIDDEN, narrow)
    node("MatMul", norm(x, "norm", narrow), parameter("head", narrow, VOCABULARY), output="logits")
    write("odd_head")


def two_widths():
    """What is as wide as the head's input crosses before the last layer only."""
    narrow = 4
    x = node("Gather", parameter("embed", VOCABULARY, HIDDEN), "input_ids", axis=0)
    for layer in range(2):
        x = parallel_layer(x, f"{layer}.")
    x = parallel_layer(linear(x, "between", HIDDEN, narrow), "2.", narrow)
    node("MatMul", norm(x, "norm", narrow), parameter("head", narrow, VOCABULARY), output="logits")
    write("two_widths")


def side_values():
    """Keys and values of layer 1 that layers 2 and 4 read, rows of a second table of which each layer takes a part, the
    input of layer 1 that layer 3 adds again, keys of layer 3 that are its values."""
    layers, width = 5, HEADS * HEAD_DIM
    x = node("Gather", parameter("embed.layers.0.x", VOCABULARY, HIDDEN), "input_ids", axis=0)
    rows = node("Gather", parameter("embed.layers.0.rows", VOCABULARY, 3 * layers), "input_ids", axis=0)
    for value in [*range(0, 3 * layers + 1, 3), -1]:
        raw = base64.b64encode(struct.pack("<q", value)).decode()
        initializers.append({"name": f"at{value}", "dataType": "INT64", "dims": [1], "rawData": raw})
    inputs, shared = [], []
    for i in range(layers):
        inputs.append(x)
        name = f"layers.{i}."
        y = norm(x, name + "norm")
        q = linear(y, name + "q", HIDDEN, width, bias=False)
        k, v = shared if i in (2, 4) else (linear(y, name + part, HIDDEN, HEAD_DIM, bias=False) for part in "kv")
        k, v = (k, k) if i == 3 else (k, v)
        shared = (k, v) if i == 1 else shared
        a = node("Attention", q, k, v, is_causal=1, q_num_heads=HEADS, kv_num_heads=1)
        x = node("Add", x, linear(a, name + "o", width, HIDDEN, bias=False))
        part = node("Slice", rows, f"at{3 * i}", f"at{3 * i + 3}", "at-1")
        gate = node("Sigmoid", linear(norm(x, name + "norm2"), name + "gate", HIDDEN, 3, bias=False))
        x = node("Add", x, linear(node("Mul", gate, part), name + "down", 3, HIDDEN, bias=False))
        x = node("Add", x, inputs[1]) if i == 3 else x
    node("MatMul", norm(x, "norm"), parameter("head", HIDDEN, VOCABULARY), output="logits")
    write("side_values")


odd_layers()
odd_head()
two_widths()
side_values()
