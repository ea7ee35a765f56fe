#!/usr/bin/env python3
"""Makes greedy.json for tests/cli/test_cli_generate.c: what transformers appends to a prompt, token by token the most
likely one, by models of tests/golden in float64 (their experts one by one: grouped products know no float64). Needs torch
and transformers (5.24).

[{"model", "prompt", "ids", "gap"}]: gap is the least difference of the two largest logits on the way, so that rounding
decides nothing. A token that stands for an image or a sound ends the answer: the model would see it as one.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

HERE = Path(__file__).parent
GOLDEN = HERE.parent.parent / "golden"
MODELS = """llama_plain gemma3_wrapper_v gemma4_shared gpt_oss_v granite_hybrid_v lfm2_v llama4_v olmo_hybrid_v qwen3_5_dense_v
falcon_h1_plain deepseek_v3_yarn exaone4_windows mixtral_v""".split()
PROMPT, NEW, LEAST_GAP = 19, 20, 1e-4


def load(path):
    for kind in AutoModelForCausalLM, AutoModelForImageTextToText:
        try:
            model = kind.from_pretrained(path, dtype=torch.float64).eval()
            break
        except ValueError:
            pass
    model.set_experts_implementation("eager")
    return model


def continue_greedily(name):
    path = GOLDEN / name / "model"
    config = json.loads((path / "config.json").read_text())
    vocabulary = config.get("text_config", config)["vocab_size"]
    pictures = {v for k, v in config.items() if k.endswith(("image_token_id", "image_token_index", "audio_token_id"))}
    ids = prompt = [(7 * i * i + 3 * i + 5) % (vocabulary - 4) + 2 for i in range(PROMPT)]
    model, gap = load(path), float("inf")
    while len(ids) < PROMPT + NEW and ids[-1] not in pictures:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        first, second = logits.topk(2).values.tolist()
        gap = min(gap, first - second)
        ids = ids + [int(logits.argmax())]
    assert gap > LEAST_GAP, (name, gap)
    return {"model": name, "prompt": prompt, "ids": ids[PROMPT:], "gap": gap}


made = [continue_greedily(name) for name in MODELS]
text = ",\n".join(json.dumps(case) for case in made)
(HERE / "greedy.json").write_text(f"[{text}]\n")
