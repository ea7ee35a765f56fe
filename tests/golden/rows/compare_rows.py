#!/usr/bin/env python3
"""Tokenizes rows of every type with TRL's own trainers and with `sbprun tokenize`, and compares ids and labels.

    python3 compare_rows.py SBPRUN --tokenizer DIR|tokenizer.json --templates FILE.jinja .. [--count 300] [--seed 1]
                            [--data gsm8k.jsonl preferences.json] [--write-vectors FILE]

What runs of TRL 1.16 are SFTTrainer._prepare_dataset, DPOTrainer._prepare_dataset, KTOTrainer._prepare_dataset and
GRPOTrainer._tokenize_prompts, on a stand-in for the trainer and rows that are plain lists without nulls, as TRL's
remove_none_values leaves them (a Dataset would give all messages the same members). Needs trl, transformers and torch (requirements.txt). Exit status 1 when a row differs, or when one
that TRL takes is refused. Rows that TRL refuses and we take are counted by kind; each kind is deliberate:
    empty-prompt    conversations whose prompt has no message
    split-at-end    answers that part in their first character and end in a space (rows.h)
    taken: ..       what TRL raised of prompts alone: GRPOTrainer reads the content of every message before the template does
and one kind that TRL takes and we refuse:
    empty-answer    an answer of a pair that has no token
"""
import argparse
import collections
import json
import logging
import pathlib
import random
import subprocess
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "chat"))

import transformers
import transformers.utils.chat_template_utils as theirs
import trl
from trl.trainer import dpo_trainer, grpo_trainer, kto_trainer, sft_trainer

import conversations
from compare import DATE, Midnight

theirs.datetime = Midnight
for module in (sft_trainer, dpo_trainer, kto_trainer):
    module.logger = logging.getLogger("quiet")
    module.logger.warning_once = lambda *args, **kwargs: None


class Rows(list):
    """What the trainers use of a dataset."""

    column_names = property(lambda self: list(self[0]) if self else [])

    def map(self, function, fn_kwargs=None, remove_columns=None, batched=False, **_):
        assert not batched
        removed = [remove_columns] if isinstance(remove_columns, str) else remove_columns or []
        out = Rows()
        for row in self:
            new = function(dict(row), **(fn_kwargs or {}))
            out.append({**{key: value for key, value in row.items() if key not in removed}, **new})
        return out

    def filter(self, function, **_):
        return Rows(row for row in self if function(row))


class Trl:
    """TRL's tokenization of one row at a time, as `sbprun tokenize` prints it."""

    def __init__(self, tokenizer, template):
        self.tokenizer, self.template = tokenizer, template
        tokenizer.chat_template = template
        self.sft_args = trl.SFTConfig(output_dir="/tmp/none", max_length=None, bf16=False, use_cpu=True)
        self.dpo_args = trl.DPOConfig(output_dir="/tmp/none", max_length=None, bf16=False, use_cpu=True)
        self.kto_args = kto_trainer.KTOConfig(output_dir="/tmp/none", max_length=None, bf16=False, use_cpu=True)

    def sft(self, row, assistant=False):
        self.sft_args.assistant_only_loss = assistant
        stub = types.SimpleNamespace(_tokenizer=self.tokenizer, chat_template=None,
                                     completion_only_loss="prompt" in row and "completion" in row)
        out = sft_trainer.SFTTrainer._prepare_dataset(stub, Rows([row]), self.tokenizer, self.sft_args, False, None, "train")
        if not out:
            return {"dropped": True}
        return {"input_ids": out[0]["input_ids"], "labels": out[0]["labels"]}

    def assistant(self, row):
        return self.sft(row, True)

    def pair(self, row):
        stub = types.SimpleNamespace(_tokenizer=self.tokenizer)
        out = dpo_trainer.DPOTrainer._prepare_dataset(stub, Rows([row]), self.tokenizer, self.dpo_args, "train")[0]
        prompt = out["prompt_ids"]
        return {part: {"input_ids": prompt + out[part + "_ids"],
                       "labels": [-100] * len(prompt) + out[part + "_ids"]} for part in ("chosen", "rejected")}

    def unpaired(self, row):
        stub = types.SimpleNamespace(_tokenizer=self.tokenizer, calculate_KL=False, undesirable_weight=1.0,
                                     desirable_weight=1.0)
        out = kto_trainer.KTOTrainer._prepare_dataset(stub, Rows([row]), self.tokenizer, self.kto_args, "train")[0]
        return {"input_ids": out["prompt_ids"] + out["completion_ids"],
                "labels": [-100] * len(out["prompt_ids"]) + out["completion_ids"], "wanted": float(out["label"])}

    def prompt(self, row):
        tools = row.get("tools")  # of the run, in TRL
        stub = types.SimpleNamespace(processing_class=self.tokenizer, _is_vlm=False, environment_factories=None,
                                     tools=json.loads(tools) if isinstance(tools, str) else tools, chat_template=None,
                                     chat_template_kwargs=row.get("chat_template_kwargs", {}))
        ids = grpo_trainer.GRPOTrainer._tokenize_prompts(stub, [row["prompt"]])[0][0]
        return {"prompt": {"input_ids": ids, "labels": [-100] * len(ids)}}

    def rollout(self, row):  # nothing is tokenized: what GRPOTrainer joins
        prompt, completion = row["prompt_ids"], row["completion_ids"]
        mask = row.get("env_mask", [1] * len(completion))
        out = {"input_ids": prompt + completion,
               "labels": [-100] * len(prompt) + [c if m else -100 for c, m in zip(completion, mask)]}
        for key, name in (("old_per_token_logps", "old_logps"), ("ref_per_token_logps", "ref_logps"),
                          ("logprobs", "sampling_logps")):
            if key in row:
                out[name] = [0.0] * len(prompt) + row[key]
        for key in ("advantage", "reward"):
            if key in row:
                out[key] = row[key]
        return out


ROLES = ("user", "assistant", "system", "developer", "tool")

# ---- rows -----------------------------------------------------------------------------------------------


def string(rng, eos):
    text = conversations.text(rng, 0.05)
    if rng.random() < 0.3:
        text = rng.choice(["Question: ", "a", "  ", "user:\n", "Ünï "]) + text
    if rng.random() < 0.05:
        text += eos
    return text if rng.random() < 0.5 else rng.choice([" ", "", "."]) + text.strip()


def prompt_string(rng, eos):
    return string(rng, eos) + rng.choice(["", " ", "\n", ":", "\nAnswer:", " ti"])


def turns(rng):
    """A conversation as a prompt and what follows it, and its settings."""
    while True:
        talk = conversations.conversation(rng)
        messages = talk["messages"]
        if any(not isinstance(m, dict) or "role" not in m for m in messages) or len(messages) < 2:
            continue
        contents = [m.get("content") for m in messages if m["role"] != "tool"]
        if all(content is None or isinstance(content, (str, list)) for content in contents):
            break
    settings = {}
    if talk["tools"]:
        settings["tools"] = talk["tools"] if rng.random() < 0.7 else json.dumps(talk["tools"])
    kwargs = {key: value for key, value in talk.items()
              if key not in ("messages", "tools", "documents", "add_generation_prompt")}
    if kwargs:
        settings["chat_template_kwargs"] = kwargs
    cut = rng.randint(1, len(messages) - 1)
    return messages[:cut], messages[cut:], settings


def answer(rng):
    return [conversations.assistant(rng, False)] + ([{"role": "user", "content": conversations.content(rng)}]
                                                    if rng.random() < 0.1 else [])


def string_row(rng, kind, eos):
    if kind == "sft":
        if rng.random() < 0.5:
            return {"text": string(rng, eos)}
        return {"prompt": prompt_string(rng, eos), "completion": string(rng, eos)}
    if kind == "prompt":
        return {"prompt": prompt_string(rng, eos)}
    if kind == "unpaired":
        return {"prompt": prompt_string(rng, eos), "completion": string(rng, eos), "label": rng.random() < 0.5}
    prompt, chosen, rejected = prompt_string(rng, eos), string(rng, eos), string(rng, eos)
    if rng.random() < 0.5:
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    if rng.random() < 0.1:
        return {"chosen": chosen, "rejected": rejected}  # nothing in common
    if rng.random() < 0.1:
        return {"chosen": prompt + chosen, "rejected": (prompt + chosen)[: rng.randint(0, len(prompt + chosen))]}
    return {"chosen": prompt + chosen, "rejected": prompt + rejected}


def chat_row(rng, kind):
    prompt, rest, settings = turns(rng)
    if kind in ("sft", "assistant"):
        what = rng.random()
        if what < 0.4:
            row = {"messages": prompt + rest}
        elif what < 0.5 and all(m["role"] in ROLES for m in prompt + rest):  # TRL renames no role of theirs
            row = {"conversations": [{"from": m["role"], "value": m.get("content") or ""} for m in prompt + rest]}
        else:
            row = {"prompt": prompt, "completion": rest}
    elif kind == "prompt":
        row = {"prompt": prompt}
    elif kind == "unpaired":
        row = {"prompt": prompt, "completion": rest, "label": rng.random() < 0.5}
    else:
        other = answer(rng)
        row = ({"prompt": prompt, "chosen": rest, "rejected": other} if rng.random() < 0.5 else
               {"chosen": prompt + rest, "rejected": prompt + other} if rng.random() < 0.9 else
               {"chosen": prompt + rest, "rejected": prompt})
    return {**row, **settings}


def rollout_row(rng):
    ids = [rng.randint(3, 400) for _ in range(rng.randint(1, 6))]
    completion = [rng.randint(3, 400) for _ in range(rng.randint(0, 6))]
    row = {"prompt_ids": ids, "completion_ids": completion}
    for key in ("old_per_token_logps", "ref_per_token_logps", "logprobs"):
        if rng.random() < 0.5:
            row[key] = [None if key == "logprobs" and rng.random() < 0.1 else -rng.random() * 10 for _ in completion]
    for key in ("advantage", "reward"):
        if rng.random() < 0.5:
            row[key] = rng.gauss(0, 1)
    if rng.random() < 0.3:
        row["env_mask"] = [rng.randint(0, 1) for _ in completion]
    return row


def rows_of(rng, kind, count, eos):
    return [rollout_row(rng) if kind == "rollout" else
            chat_row(rng, kind) if kind == "assistant" or rng.random() < 0.5 else string_row(rng, kind, eos)
            for _ in range(count)]


def rows_of_files(paths):
    for path in paths:
        text = pathlib.Path(path).read_text()
        rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
        for row in rows:
            if "question" in row:
                prompt, completion = row["question"], row["answer"]
                talk = [{"role": "user", "content": prompt}], [{"role": "assistant", "content": completion}]
                yield "sft", {"prompt": prompt, "completion": completion}
                yield "sft", {"text": prompt + "\n" + completion}
                yield "sft", {"messages": talk[0] + talk[1]}
                yield "sft", {"prompt": talk[0], "completion": talk[1]}
                yield "prompt", {"prompt": talk[0]}
                continue
            prompt = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
            user = [{"role": "user", "content": prompt}]
            answers = {part: [{"role": "assistant", "content": row[part]}] for part in ("chosen", "rejected")}
            yield "pair", {"prompt": prompt, "chosen": row["chosen"], "rejected": row["rejected"]}
            yield "pair", {part: prompt + " " + row[part] for part in answers}
            yield "pair", {"prompt": user, **answers}
            yield "pair", {part: user + answers[part] for part in answers}
            yield "unpaired", {"prompt": user, "completion": answers["chosen"], "label": True}


# ---- comparison -----------------------------------------------------------------------------------------


def deliberate(row):
    for key in ("prompt", "chosen", "rejected"):
        if row.get(key) == []:
            return "empty-prompt"
    if "chosen" in row and "prompt" not in row and isinstance(row["chosen"], list):
        common = trl.data_utils.extract_prompt({"chosen": row["chosen"], "rejected": row["rejected"]})["prompt"]
        return None if common else "empty-prompt"
    if "chosen" in row and "prompt" not in row and row["chosen"] and row["rejected"]:
        if row["chosen"][0] != row["rejected"][0] and row["chosen"][-1] == " ":
            return "split-at-end"
    return None


def run_ours(options, template, rows, assistant):
    command = [options.sbprun, "tokenize", options.tokenizer, "--date", DATE, "--chat-template", template]
    command += ["--loss-on", "assistant"] if assistant else []
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    out = subprocess.run(command, input=text, capture_output=True, text=True)
    got = [json.loads(line) for line in out.stdout.split("\n") if line]
    assert len(got) == len(rows), (len(got), len(rows), out.stderr[-500:])
    return got


def load_tokenizer(path):
    if path.endswith(".json") or not (pathlib.Path(path) / "tokenizer_config.json").exists():
        file = path if path.endswith(".json") else str(pathlib.Path(path) / "tokenizer.json")
        return transformers.PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return transformers.AutoTokenizer.from_pretrained(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sbprun")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--templates", nargs="+", required=True)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--write-vectors")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    totals, different, vectors = collections.Counter(), 0, []
    for number, template in enumerate(options.templates):
        source = pathlib.Path(template).read_bytes().decode()
        reference = Trl(tokenizer, source)
        rng = random.Random(options.seed * 1000003 + number)
        kinds = ["sft", "pair", "unpaired", "prompt", "rollout"] + (["assistant"] if "{% generation" in source or
                                                                    "{%- generation" in source else [])
        cases = [(kind, row) for kind in kinds for row in rows_of(rng, kind, options.count, tokenizer.eos_token)]
        cases += list(rows_of_files(options.data))
        got = {}
        for assistant in (False, True):
            chosen = [i for i, (kind, _) in enumerate(cases) if (kind == "assistant") == assistant]
            if chosen:
                got.update(zip(chosen, run_ours(options, template, [cases[i][1] for i in chosen], assistant)))
        shown = 0
        for i, (kind, row) in enumerate(cases):
            try:
                clean = row if kind == "rollout" else trl.trainer.utils.remove_none_values(row)
                want = getattr(reference, kind)(json.loads(json.dumps(clean)))
            except Exception as error:  # whatever a template or a trainer can raise
                want = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
            ours = got[i]
            ours.pop("group", None)
            if want.get("dropped") or "error" in want:
                why = "error" in ours and "refused by both" or deliberate(row) or "taken: " + want.get("error", "dropped")[:60]
                totals[kind, why] += 1
                continue
            equal = want == ours
            if "found no token behind the prompt" in ours.get("error", ""):
                empty = [part for part in want.values() if all(label == -100 for label in part["labels"])]
                if empty:
                    totals[kind, "empty-answer"] += 1
                    continue
            if not equal and deliberate(row):
                totals[kind, deliberate(row)] += 1
                continue
            totals[kind, "equal" if equal else "DIFFERENT"] += 1
            different += not equal
            vectors.append({"kind": kind, "template": pathlib.Path(template).name, "row": row, "want": want})
            if not equal and shown < options.show:
                shown += 1
                print(f"{pathlib.Path(template).name}: {kind}: {json.dumps(row, ensure_ascii=False)[:1500]}")
                print("  theirs:", json.dumps(want)[:1500])
                print("  ours:  ", json.dumps(ours, ensure_ascii=False)[:1500])
    for (kind, what), count in sorted(totals.items()):
        print(f"{kind:10} {count:7}  {what}")
    if options.write_vectors:
        with open(options.write_vectors, "w", encoding="utf-8") as file:
            for vector in vectors:
                file.write(json.dumps(vector, ensure_ascii=False) + "\n")
    print(f"{len(options.templates)} templates, {sum(totals.values())} rows, {different} differences")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
