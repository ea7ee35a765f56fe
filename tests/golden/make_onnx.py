#!/usr/bin/env python3
"""NAME/model/export18.json, export23.json (of gpt2 export18.onnx too): golden models as torch's exporter writes them: at opset 18 all in small
ops, at opset 23, where norms, rotation and attention may be operators; experts, sinks, states and side values at opset 23.

    tests/golden/make_onnx.py [NAME ..]

By examples/export_model_json.py (torch 2.15, transformers 5.23, onnxscript 0.7); what says where a node comes from is left out, and weights are
those of NAME/model/model.safetensors, by name, but for matrices of experts that are one tensor in torch and many in the file: these lie in
NAME/model/exportNN/experts.safetensors. Tests compare their gradients with NAME/grads.safetensors. Needs torch, transformers, onnx, onnxscript.
"""
import json
import os
import subprocess
import sys
import tempfile

from safetensors.numpy import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
EXPORTS = [("mistral_window", 18), ("gemma3_softcap", 18), ("gpt2", 18), ("gemma3_softcap", 23), ("gpt_oss_v", 23), ("gemma4_26b_a4b_v", 23),
           ("gemma4_e2b_released_v", 23), ("deepseek_v3_groups", 23), ("granite_hybrid_groups", 23), ("qwen3_5_dense_v", 23)]
WRAPPER = "model.language_model."  # what the text model of others is called in their files


def text_model(folder, scratch):
    """The model's own folder, or one with the text model of what is more."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file).get("text_config")
    if not config:
        return folder
    config["architectures"] = ["Gemma4ForCausalLM"]
    with open(os.path.join(scratch, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    weights = load_file(os.path.join(folder, "model.safetensors"))
    save_file({k.replace(WRAPPER, "model."): v for k, v in weights.items() if k.startswith(WRAPPER)},
              os.path.join(scratch, "model.safetensors"), {"format": "pt"})
    return scratch


for name, opset in EXPORTS:
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    folder = os.path.join(HERE, name, "model")
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, os.path.join(HERE, "..", "..", "examples", "export_model_json.py"), text_model(folder, scratch),
                        "-o", out, "--opset", str(opset)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.path.join(out, "model.json"), encoding="utf-8") as file:
            model = json.load(file)
        exported = load_file(os.path.join(out, "model.safetensors"))
    graph = model["graph"]
    graph.pop("valueInfo", None)
    for part in [model, graph, *graph["node"], *graph["initializer"], *graph["input"], *graph["output"]]:
        part.pop("metadataProps", None)
    stored = open(os.path.join(folder, "model.safetensors"), "rb").read()
    stored = json.loads(stored[8:8 + int.from_bytes(stored[:8], "little")])
    experts = {}
    for tensor in graph["initializer"]:
        old = new = tensor["name"]
        location = "model.safetensors"
        if old not in stored and old.replace("model.", WRAPPER, 1) in stored:
            new = old.replace("model.", WRAPPER, 1)
        elif "externalData" in tensor and old not in stored and ".experts." in old:
            location = f"export{opset}/experts.safetensors"
            experts[old] = exported[old]
        elif "externalData" in tensor and old not in stored:  # a tied head goes by the embedding's name
            new = next(k for k in stored if k.endswith(("embed_tokens.weight", "wte.weight")))
        if "externalData" in tensor:
            tensor["externalData"] = [{"key": "location", "value": location}]
        if new != old:
            tensor["name"] = new
            for node in graph["node"]:
                node["input"] = [new if k == old else k for k in node.get("input", [])]
    path = os.path.join(folder, f"export{opset}.json")
    if experts:
        os.makedirs(os.path.join(folder, f"export{opset}"), exist_ok=True)
        save_file(experts, os.path.join(folder, f"export{opset}", "experts.safetensors"))
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
