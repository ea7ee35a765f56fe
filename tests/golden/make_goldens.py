#!/usr/bin/env python3
"""Makes, or checks, the golden cases of this folder. README.md says what a case holds.

make_goldens.py [CASE ...]            write the cases (default: all) beside this file
make_goldens.py --check [CASE ...]    compute the committed cases again and compare; writes nothing
make_goldens.py --verify DIR ...      the same for cases made by somebody else (SFT ones)
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import pathlib
import random
import re
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

import reference_float64 as reference
from cases import ABSENT, CASES

HERE = pathlib.Path(__file__).resolve().parent
EXACT = 1e-12  # two float64 computations of the same gradient
SINGLE = 4e-6  # transformers in float32: leaves room below the tests' 1e-5


def rng_for(*words):
    """Python's own generator: the same numbers under every version of torch."""
    return random.Random("/".join(words))


def random_weights(model, name, case):
    """Weights that make every tensor matter: scores and logits of order 1, vectors away from where they start."""
    owner = {f"{path}.{key}": module for path, module in model.named_modules() for key in module._parameters}
    with torch.no_grad():
        for key, parameter in reference.trained(model).items():
            rng = rng_for(name, str(case.seed), key)
            values = torch.tensor([rng.gauss(0.0, 1.0) for _ in range(parameter.numel())], dtype=torch.float64)
            values = values.reshape(parameter.shape)
            centre = next((value for end, value in case.centres if key.endswith(end)), None)
            if centre is not None:
                values = centre + 0.25 * values
            elif parameter.dim() == 1:  # norms start as 1, or as 0 where they multiply by 1 + w; biases as 0
                values = parameter.double().mean().round() + 0.25 * values
            elif isinstance(owner[key], torch.nn.Embedding):
                values = case.embedding * values
            else:
                inputs = parameter.shape[0 if isinstance(owner[key], Conv1D) else 1]
                values = values * case.gain * inputs**-0.5
            parameter.copy_(values)
        for key, numbers in reference.untrained(model).items():
            if key.endswith(reference.CORRECTIONS):
                rng = rng_for(name, str(case.seed), key)
                numbers.copy_(torch.tensor([rng.gauss(0.0, 0.1) for _ in range(numbers.numel())]).reshape(numbers.shape))


def without_absent(config):
    """Without the keys that are ABSENT, at the top level and in the objects there."""
    return {
        key: without_absent(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value is not ABSENT
    }


def write_model(directory, name, case):
    directory.mkdir(parents=True)
    config_file = directory / "config.json"
    config_file.write_text(json.dumps(without_absent(case.config), indent=1) + "\n")
    config = AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    random_weights(model, name, case)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch, **({"max_shard_size": case.shards} if case.shards else {}))
        for file in pathlib.Path(scratch).iterdir():
            if file.name.endswith((".safetensors", ".index.json")):
                shutil.copyfile(file, directory / file.name)
        if case.save:
            saved = json.loads((pathlib.Path(scratch) / "config.json").read_text())
            config_file.write_text(json.dumps(saved, indent=1) + "\n")


def in_fp8(directory, block):
    """Linear layers of the file rounded to FP8; returns what a file with codes and scales has."""
    file = directory / "model.safetensors"
    numbers, stored = load_file(file), {}
    for name, weight in numbers.items():
        stored[name] = weight
        if weight.dim() != 2 or not name.endswith("_proj.weight"):
            continue
        rows, columns = (-(-n // b) for n, b in zip(weight.shape, block, strict=True))
        scales = torch.empty(rows, columns)
        codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        for i in range(rows):
            for j in range(columns):
                here = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
                scales[i, j] = weight[here].abs().max() / 448
                codes[here] = (weight[here] / scales[i, j]).to(torch.float8_e4m3fn)
                weight[here] = codes[here].float() * scales[i, j]
        stored[name], stored[name + "_scale_inv"] = codes, scales
    save_file(numbers, file, {"format": "pt"})
    return stored


def fuse_experts(directory, stored):
    """Experts in one tensor for a layer, as the parameters of transformers' class, in numbers and as stored."""

    def fuse(tensors):
        fused, layers = {}, {}
        for name, value in tensors.items():
            module, _, rest = name.partition(".experts.")
            if rest:
                number, part = rest.split(".", 1)
                layers.setdefault(module, {})[int(number), part] = value
            else:
                fused[name] = value
        for module, parts in layers.items():
            count = 1 + max(number for number, _ in parts)
            for end in {part.partition(".weight")[2] for _, part in parts}:
                of = {key: [parts[i, f"{key}_proj.weight{end}"] for i in range(count)] for key in ("gate", "up", "down")}
                both = [torch.cat(pair) for pair in zip(of["gate"], of["up"], strict=True)]
                fused[f"{module}.experts.gate_up_proj{end}"] = torch.stack(both)
                fused[f"{module}.experts.down_proj{end}"] = torch.stack(of["down"])
        return fused

    file = directory / "model.safetensors"
    save_file(fuse(load_file(file)), file, {"format": "pt"})
    return fuse(stored)


def write_fp8(directory, block, stored):
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": list(block)
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def out_of_fp8(directory, target):
    """A copy of a model's directory with the numbers that transformers makes of codes and scales."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    target.mkdir()
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    stored = load_file(directory / "model.safetensors")
    numbers = {
        name: Fp8Dequantize(None)._dequantize_one(value, stored[name + "_scale_inv"], torch.float32)
        if name + "_scale_inv" in stored
        else value
        for name, value in stored.items()
        if not name.endswith("_scale_inv")
    }
    save_file(numbers, target / "model.safetensors", {"format": "pt"})
    return target


def labels_for(kind, ids, rng):
    if kind == "all":
        return list(ids)
    if kind == "none":
        return [-100] * len(ids)
    if kind == "completion":  # a masked prompt, then everything
        start = max(1, len(ids) // 2)
        return [-100] * start + ids[start:]
    if kind == "scattered":
        return [token if rng.random() < 0.6 else -100 for token in ids]
    if kind == "last":
        return [-100] * (len(ids) - 1) + ids[-1:]
    raise ValueError(kind)


@torch.no_grad()
def make_rows(directory, name, case):
    """Random tokens; in some documents some are the model's own first choice, so that accuracy is not 0."""
    rng = rng_for(name, str(case.seed), "rows")
    vocabulary = AutoConfig.from_pretrained(directory).vocab_size
    tokens = range(vocabulary)
    weights = [vocabulary / 6 if token in case.favour else 1.0 for token in tokens]
    model = reference.load(directory, torch.float64)
    rows = []
    # The longer documents by turns: prompt masked, all, none, scattered, last. Documents of 1 or 2 tokens count fully.
    kinds = iter(["completion", "all", "none", "scattered", "last"])
    for length in case.lengths:
        kind = next(kinds) if length > 2 else "all"
        ids = [rng.choices(tokens, weights)[0]]
        while len(ids) < length:
            if kind in ("all", "scattered") and rng.random() < 0.3:
                ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            else:
                ids.append(rng.choices(tokens, weights)[0])
        rows.append({"input_ids": ids, "labels": labels_for(kind, ids, rng)})
    total = sum(case.lengths)
    if any(total % divisor == 0 for divisor in (7, 8, 64)) or not {1, 2} <= set(case.lengths):
        raise RuntimeError(f"{name}: {total} rows of {case.lengths} test no tails")
    if not any(label == -100 for row in rows for label in row["labels"]) or next(kinds, None) == "none":
        raise RuntimeError(f"{name}: no masked document")
    return rows


OTHER_PARTS = {"w1": "gate", "w2": "down", "w3": "up"}


def expert_part(name, of):
    """(fused name, its part `name`) of what `of` has by fused names; None where files have no tensor an expert."""
    found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down|w[123])(?:_proj)?\.weight", name)
    if not found or name in of:
        return None
    module, expert, part = found[1], int(found[2]), found[3]
    if part in OTHER_PARTS:
        module, part = module.replace(".block_sparse_moe.", ".mlp."), OTHER_PARTS[part]
    if f"{module}.down_proj" not in of:  # in memory it has the prefix of all models
        module = module.replace("backbone.", "model.", 1)
    alone = part == "down" or f"{module}.up_proj" in of  # experts without gates
    fused = f"{module}.{part + '_proj' if alone else 'gate_up_proj'}"
    inner = of[fused].shape[1] // 2
    matrix = of[fused][expert]
    return fused, matrix if alone else matrix[:inner] if part == "gate" else matrix[inner:]


def stored_gradients(model, step, model_directory):
    """Under the names of model.safetensors, which may differ from those of the live parameters: a tensor is recognised
    by its values, one of an expert by its name. A tied head has no tensor there and is part of the input embedding.
    What is stored and nobody's parameter has none."""
    live = reference.trained(model)
    untrained = reference.untrained(model)
    gradients, fused = {}, {}
    for file in sorted(model_directory.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if any(torch.equal(numbers.double(), tensor.double()) for numbers in untrained.values()):
                continue
            part = expert_part(name, live)
            if part:
                if not torch.equal(part[1], tensor.double()):
                    raise RuntimeError(f"{model_directory}: {name} is not the expert's part of {part[0]}")
                gradients[name] = expert_part(name, step.gradients)[1].contiguous()
                fused.setdefault(part[0], []).append(name)
                continue
            same = [key for key in ([name] if name in live else live) if torch.equal(live[key], tensor.double())]
            if len(same) != 1:
                raise RuntimeError(f"{model_directory}: {name} is {len(same)} parameters of the model")
            gradients[name] = step.gradients[same[0]]
    if len(gradients) - sum(len(names) - 1 for names in fused.values()) != len(live):
        raise RuntimeError(f"{model_directory}: {len(gradients)} tensors, {len(live)} parameters")
    return gradients


def check_case_tells_apart(name, case, directory, rows, step):
    """Every change of `differs_from` must move the gradients far more than float32 does; returns the least move."""
    least = float("inf")
    weights = reference.load(directory / "model", torch.float64).state_dict()
    for change in case.differs_from:
        config = without_absent({**case.config, **change})
        with tempfile.TemporaryDirectory() as scratch:
            (pathlib.Path(scratch) / "config.json").write_text(json.dumps(config))
            with reference.Float64Patches(scratch):
                model = AutoModelForCausalLM.from_config(
                    AutoConfig.from_pretrained(scratch),
                    dtype=torch.float64,
                    attn_implementation="eager",
                    experts_implementation="eager",
                ).eval()
                reference.widen(model)
                model.load_state_dict(weights, strict=False)
                got = reference.run_step(model, rows, case.loss_type).gradients
        move = reference.worst(got, {key: step.gradients[key] for key in got})[0]
        if move < 1e-4:
            raise RuntimeError(f"{name}: {change} moves no gradient by more than {move:.1e}")
        least = min(least, move)
    return least


def make_expectation(name, case, directory, rows, step, difference):
    def other(dtype, true_maths):
        model = reference.load(directory / "model", dtype, true_maths)
        got = reference.run_step(model, rows, case.loss_type)
        error, tensor = reference.worst(got.gradients, step.gradients)
        return got, {"max_relative_error": error, "tensor": tensor}

    single, single_error = other(torch.float32, True)
    _, double_error = other(torch.float64, True)
    _, padding_error = other(torch.float64, False)
    norms = {key: gradient.norm().item() for key, gradient in step.gradients.items()}
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    smallest = min(norms, key=norms.get)
    return {
        "case": name,
        "about": case.about,
        "loss": step.loss,
        "rows": sum(case.lengths),
        "documents": len(rows),
        "document_lengths": case.lengths,
        "targets": reference.count_targets(rows),
        "objective": {"objective": "sft", "loss_type": case.loss_type},
        "metrics": step.metrics,
        "gradient_norm": total,
        "smallest_tensor": {"name": smallest, "share_of_gradient_norm": norms[smallest] / total},
        "difference_quotient": {"relative_error": difference},
        "hf_float32": {"loss": single.loss, **single_error},
        "hf_float64_unpatched": double_error,
        "hf_float64_unpatched_padding_idx": padding_error,
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "logprobs": step.logprobs,
    }


def write_case(name, case):
    final = HERE / name
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch) / name
        write_model(directory / "model", name, case)
        stored = in_fp8(directory / "model", case.fp8) if case.fp8 else None
        if case.fused:
            stored = fuse_experts(directory / "model", stored)
        rows = make_rows(directory / "model", name, case)
        (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        total = str(sum(case.lengths))
        variant = ["--loss-type", case.loss_type] if case.loss_type != "nll" else []
        arguments = {"compile": ["--objective", "sft", *variant, "--seq-len", total], "run": ["--batch-tokens", total]}
        (directory / "args.json").write_text(json.dumps(arguments, indent=1) + "\n")
        model, step = reference.reference_step(directory / "model", rows, case.loss_type)
        save_file(stored_gradients(model, step, directory / "model"), directory / "grads.safetensors")
        difference = reference.directional_error(directory / "model", model, rows, step.gradients, case.loss_type)
        if difference is not None and difference > 1e-8:
            raise RuntimeError(f"{name}: difference quotient and gradients are {difference:.1e} apart")
        move = check_case_tells_apart(name, case, directory, rows, step)
        expectation = make_expectation(name, case, directory, rows, step, difference)
        if expectation["hf_float32"]["max_relative_error"] > SINGLE:
            raise RuntimeError(f"{name}: too sensitive to rounding for a float32 test: {expectation['hf_float32']}")
        (directory / "expect.json").write_text(json.dumps(expectation, indent=1) + "\n")
        if stored:
            write_fp8(directory / "model", case.fp8, stored)
        if final.exists():
            shutil.rmtree(final)
        shutil.copytree(directory, final)
    size = sum(file.stat().st_size for file in final.rglob("*") if file.is_file())
    print(
        f"{name:34} {size / 1000:6.1f} KB  rows {expectation['rows']:4}  loss {expectation['loss']:.4f}"
        f"  fp32 {expectation['hf_float32']['max_relative_error']:.1e}"
        f"  unpatched {expectation['hf_float64_unpatched']['max_relative_error']:.1e}"
        f"  difference {'-' if difference is None else format(difference, '.0e')}"
        f"  nearest {format(move, '.0e') if case.differs_from else '-'}"
    )


def check_case(directory):
    """True when the directory's numbers come out again."""
    expectation = json.loads((directory / "expect.json").read_text())
    if expectation["objective"]["objective"] != "sft":
        print(f"{directory.name:34} skipped: objective {expectation['objective']['objective']}")
        return True
    rows = [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]
    with tempfile.TemporaryDirectory() as scratch:
        path = directory / "model"
        if json.loads((path / "config.json").read_text()).get("quantization_config", {}).get("quant_method") == "fp8":
            path = out_of_fp8(path, pathlib.Path(scratch) / "model")
        model, step = reference.reference_step(path, rows, expectation["objective"]["loss_type"])
        gradients = stored_gradients(model, step, path)
    golden = load_file(directory / "grads.safetensors")
    if "vision_config" in json.loads((directory / "model/config.json").read_text()):  # of which rows of text reach a part
        gradients = {name: values for name, values in gradients.items() if name in golden or values.any()}
    error, tensor = reference.worst(gradients, golden)
    loss = abs(step.loss - expectation["loss"]) / abs(expectation["loss"])
    pairs = [
        (a, b) for x, y in zip(step.logprobs, expectation["logprobs"], strict=True) for a, b in zip(x, y, strict=True)
    ]
    logprob = max(abs(a - b) for a, b in pairs)
    metric = max(abs(step.metrics[key] - value) for key, value in expectation["metrics"].items())
    fine = max(error, loss) <= EXACT and max(logprob, metric) <= 1e-11
    print(
        f"{directory.name:34} gradients {error:.1e} ({tensor})  loss {loss:.1e}  log-probabilities {logprob:.1e}"
        f"  metrics {metric:.1e}  {'' if fine else 'FAILED'}"
    )
    return fine


def run(description, cases, folder, check_case, write_case):
    """The command line of this script and of make_wide.py; exit status."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--verify", nargs="+", default=[], metavar="DIR", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    unknown = [name for name in options.cases if name not in cases]
    if unknown:
        parser.error(f"no such case: {unknown}; there are {list(cases)}")
    names = options.cases or list(cases)
    if options.verify:
        results = [check_case(directory) for directory in options.verify]
    elif options.check:
        results = [check_case(folder / name) for name in names]
    else:
        results = [write_case(name, cases[name]) is None for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(run(__doc__, CASES, HERE, check_case, write_case))
