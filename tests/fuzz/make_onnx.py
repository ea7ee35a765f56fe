#!/usr/bin/env python3
"""Makes corpus/onnx_json and corpus/onnx_binary: small models as torch and others export them, cut to what an import reads.

    tests/fuzz/make_onnx.py MODEL.onnx|MODEL.json ...

MODELs: exports of tiny models (tests/golden/check_onnx_exports.py and check_onnx_modules.py leave theirs in --work DIR). Values get
short names, descriptions go, values that lie in a .safetensors file are zeros. Needs onnx.
"""
import hashlib
import os
import sys

import numpy
import onnx
import onnx.numpy_helper
from google.protobuf import json_format
from onnx import external_data_helper

HERE = os.path.dirname(os.path.abspath(__file__))


def load(path):
    if path.endswith(".onnx"):
        model = onnx.load(path, load_external_data=False)
    else:
        with open(path) as file:
            model = json_format.Parse(file.read(), onnx.ModelProto())
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if any(e.key == "offset" for e in tensor.external_data):
                external_data_helper.load_external_data_for_tensor(tensor, os.path.dirname(path))
                tensor.data_location = onnx.TensorProto.DEFAULT
                tensor.ClearField("external_data")
            else:
                values = onnx.numpy_helper.from_array(numpy.zeros(list(tensor.dims), "float32"), tensor.name)
                tensor.CopyFrom(values)
    return model


def shorten(model):
    graph, names = model.graph, {}
    model.ClearField("metadata_props")
    model.ClearField("functions")
    graph.ClearField("metadata_props")
    graph.ClearField("value_info")
    graph.ClearField("doc_string")
    keep = {v.name for v in graph.input} | {v.name for v in graph.output} | {""}

    def short(name):
        return name if name in keep else names.setdefault(name, f"v{len(names)}")

    for i, node in enumerate(graph.node):
        node.name = f"n{i}"
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        for list_ in (node.input, node.output):
            for k, name in enumerate(list_):
                list_[k] = short(name)
    for tensor in graph.initializer:
        tensor.name = short(tensor.name)
        tensor.ClearField("doc_string")
        tensor.ClearField("metadata_props")
    return model


def main():
    for path in sys.argv[1:]:
        model = shorten(load(path))
        binary = model.SerializeToString(deterministic=True)
        text = json_format.MessageToJson(model, indent=None).replace('": ', '":').replace(", ", ",").encode()
        name = hashlib.sha256(binary).hexdigest()[:8]
        for kind, data in (("onnx_json", text), ("onnx_binary", binary)):
            folder = os.path.join(HERE, "corpus", kind)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        print(f"{name}: {path}, {len(model.graph.node)} nodes, {len(text)} bytes, {len(binary)} in binary")


if __name__ == "__main__":
    main()
