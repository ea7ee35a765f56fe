"""What scripts share that run TRL's trainers beside ours: chat_sft.py, dpo_pairs.py, lora_beside.py, ../golden/make_trl_lora.py.

Both sides take rows in file order, BATCH a step, with a constant learning rate unless said otherwise, AdamW and clipping as TRL has them by
default, in float32 on the CPU.
"""
import json
import os
import pathlib
import subprocess
import time

BATCH = 4
DPO_NAMES = ["loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected"]


def run(*command):
    """Seconds that it took."""
    print("+", " ".join(map(str, command)), flush=True)
    begun = time.monotonic()
    subprocess.run(list(map(str, command)), check=True)
    return round(time.monotonic() - begun, 1)


def lines(folder, kind):
    return [line for line in map(json.loads, (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()) if line["kind"] == kind]


def read_rows(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))


def say(role, text):
    return [{"role": role, "content": text}]


def preference_rows(path, count):
    """The first rows of instruction-data-with-preference.json as conversations."""
    out = []
    for pair in json.loads(pathlib.Path(path).read_text())[:count]:
        asked = pair["instruction"] + ("\n\n" + pair["input"] if pair["input"] else "")
        out.append({"prompt": say("user", asked), "chosen": say("assistant", pair["chosen"]), "rejected": say("assistant", pair["rejected"])})
    return out


def float32_model(sbprun, model, out):
    """OUT/model: the weights as float32 in a directory, by a step that moves nothing."""
    folder = out / "model"
    if folder.exists():
        return folder
    (out / "start.jsonl").write_text('{"text": "x"}\n')
    run(sbprun, model, "--data", out / "start.jsonl", "--steps", 1, "--lr", 0, "--weight-decay", 0, "--dtype", "fp32", "--save-every", "never",
        "--overwrite", "--out", out / "start")
    folder.mkdir()
    for path in (out / "start").iterdir():
        if path.suffix in (".json", ".safetensors", ".jinja") and path.name != "run.json":
            os.replace(path, folder / path.name)
    return folder


def ours(sbprun, model, out, steps, rate, threads, *more):
    """Steps as metrics.jsonl has them, and seconds."""
    seconds = run(sbprun, model, "--steps", steps, "--batch-size", BATCH, "--lr", rate, "--dtype", "fp32", "--shuffle", "off", "--threads", threads,
                  "--save-every", "never", "--overwrite", "--out", out, *more)
    return lines(out, "train"), seconds


def load(folder):
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def trl(kind, model, tokenizer, data, out, steps, rate, threads, before=None, peft_config=None, **more):
    """Logged steps, seconds, and the trainer afterwards; kind: "sft" or "dpo". before(trainer): called before the first step."""
    import datasets
    import torch
    import trl as library
    torch.set_num_threads(threads)
    config, trainer = {"sft": (library.SFTConfig, library.SFTTrainer), "dpo": (library.DPOConfig, library.DPOTrainer)}[kind]
    settings = {"lr_scheduler_type": "constant", "max_length": None, **more}
    arguments = config(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=rate, train_sampling_strategy="sequential",
        bf16=False, use_cpu=True, logging_steps=1, gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True, **settings)
    at_work = trainer(model=model, args=arguments, processing_class=tokenizer, train_dataset=datasets.Dataset.from_list(data), peft_config=peft_config)
    if before:
        before(at_work)
    begun = time.monotonic()
    at_work.train()
    return [h for h in at_work.state.log_history if "loss" in h], round(time.monotonic() - begun, 1), at_work


def compare(mine, wanted, names):
    """The largest difference of each, relative to 1 where values are larger; prints the steps."""
    worst = dict.fromkeys(names, 0.0)
    for step, (x, y) in enumerate(zip(mine, wanted), 1):
        for name in names:
            # all margins are 0 but for rounding in the first step: which are above is chance
            if name == "rewards/accuracies" and max(abs(x["rewards/margins"]), abs(y["rewards/margins"])) < 1e-4:
                continue
            worst[name] = max(worst[name], abs(x[name] - y[name]) / max(1, abs(y[name])))
        print(f"step {step:2}", *(f"{name} {x[name]:.5f} {y[name]:.5f}" for name in names), sep="  ", flush=True)
    return worst


def curve(mine, wanted, names):
    return [{"step": s, "ours": {n: x[n] for n in names}, "TRL": {n: y[n] for n in names}} for s, (x, y) in enumerate(zip(mine, wanted), 1)]


def draw(path, title, panels):
    """A picture of panels (name, {label: values}), where there is matplotlib; TRL's curves are dashed."""
    try:
        import matplotlib
    except ImportError as missing:
        print(f"not drawn: {missing}")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, len(panels), figsize=(4.5 * len(panels), 3.6), squeeze=False)
    for axis, (name, series) in zip(axes[0], panels):
        for label, values in series.items():
            theirs = label.startswith("TRL")
            axis.plot(range(1, len(values) + 1), values, label=label, linewidth=1 if theirs else 2.5, linestyle="--" if theirs else "-",
                      color="black" if theirs else None, zorder=3 if theirs else 2)
        axis.set_xlabel("step")
        axis.set_title(name, fontsize=10)
        axis.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=60)
