#!/usr/bin/env python3
"""NAME/model/export18.json (of gpt2 export18.onnx too): the golden models of three kinds as torch's exporter writes them at opset 18, all in
small ops; and export23.json of one, at opset 23, where norms, rotation and attention may be operators.

    tests/golden/make_onnx.py [NAME ..]

By examples/export_model_json.py (torch 2.15, onnxscript 0.7); what says where a node comes from is left out, and weights are those of
NAME/model/model.safetensors, by name. Tests compare their gradients with NAME/grads.safetensors. Needs torch, transformers, onnx, onnxscript.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
EXPORTS = [("mistral_window", 18), ("gemma3_softcap", 18), ("gpt2", 18), ("gemma3_softcap", 23)]

for name, opset in EXPORTS:
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, os.path.join(HERE, "..", "..", "examples", "export_model_json.py"), os.path.join(HERE, name, "model"),
                        "-o", out, "--opset", str(opset)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.path.join(out, "model.json"), encoding="utf-8") as file:
            model = json.load(file)
    graph = model["graph"]
    graph.pop("valueInfo", None)
    for part in [model, graph, *graph["node"], *graph["initializer"], *graph["input"], *graph["output"]]:
        part.pop("metadataProps", None)
    for tensor in graph["initializer"]:
        if "externalData" in tensor:
            tensor["externalData"] = [{"key": "location", "value": "model.safetensors"}]
    stored = open(os.path.join(HERE, name, "model", "model.safetensors"), "rb").read()
    stored = json.loads(stored[8:8 + int.from_bytes(stored[:8], "little")])
    for tensor in graph["initializer"]:  # a tied head goes by the embedding's name
        if "externalData" in tensor and tensor["name"] not in stored:
            old = tensor["name"]
            tensor["name"] = next(k for k in stored if k.endswith(("embed_tokens.weight", "wte.weight")))
            for node in graph["node"]:
                node["input"] = [tensor["name"] if k == old else k for k in node.get("input", [])]
    path = os.path.join(HERE, name, "model", f"export{opset}.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("// made by tests/golden/make_onnx.py\n")
        json.dump(model, file, separators=(",", ":"))
        file.write("\n")
    if name == "gpt2":  # in the wire format too
        import onnx
        from google.protobuf import json_format
        with open(path.replace(".json", ".onnx"), "wb") as file:
            file.write(json_format.Parse(json.dumps(model), onnx.ModelProto()).SerializeToString())
    print(path, os.path.getsize(path), "bytes,", len(graph["node"]), "nodes")
