"""The table of check.py in tests/bench/RESULTS.md, between its two marks."""

import datetime
import pathlib
import platform

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "RESULTS.md"
BEGIN, END = "<!-- gguf: written by tests/gguf/check.py --write -->", "<!-- /gguf -->"


def number(value):
    return f"{value:.1e}" if isinstance(value, float) else "-"


def pair(value):
    return f"{value[0]:.1e}, {100 * value[1]:.0f} %" if isinstance(value, tuple) else "-"


def machine():
    cpu = next((x.split(":")[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), platform.machine())
    return f"{cpu}, {datetime.date.today().isoformat()}"


def write(rows, args):
    lines = [
        BEGIN,
        "## GGUF, judged by llama.cpp",
        "",
        f"`tests/gguf/llama.sh build/release --write` ({machine()}): small models with random weights, llama.cpp of",
        "llama-cpp-python 0.3.36 on one thread, keys and values in F32, no flash attention, GELU without its table of",
        "fp16. out: largest difference of log-probabilities between the exported file (f32) in llama.cpp and the",
        "directory in `sbprun --score`, six rows of GSM8K; in: the same of the file read back by sbprun (gpt-oss: the",
        "file does not say `truncate`; nemotron_h: nor time_step_min, 1e-9 here, 0.001 when read). f16, bf16, q8_0: mean KL from the f32 file and equal first choices, both in",
        "llama.cpp; matrices whose rows are no 32s are F16 in q8_0. tokens: of 14 texts, special tokens, two",
        "conversations, against transformers. Keys and tensors are those of llama.cpp's converter, but for what",
        "check.py lists with reasons.",
        "",
        "| model | out | in | f16 | bf16 | q8_0 | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, c in rows:
        if not family.startswith("adapter of"):
            kinds = " | ".join(pair(c.get(k)) for k in ("f16", "bf16", "q8_0"))
            lines.append(f"| {family} | {number(c.get('f32'))} | {number(c.get('in'))} | {kinds} | {c.get('tokens', '-')} |")
    lines += ["", "LoRA of PEFT, against PEFT in float64:", "", "| model | GGUF adapter | `--merge` |", "|---|---|---|"]
    for family, c in rows:
        if family.startswith("adapter of"):
            lines.append(f"| {family[11:]} | {number(c.get('adapter'))} | {number(c.get('merged'))} |")
    lines += [END, ""]
    text = RESULTS.read_text()
    if BEGIN in text:
        text = text[: text.index(BEGIN)] + text[text.index(END) + len(END) :].lstrip("\n")
    RESULTS.write_text(text.rstrip("\n") + "\n\n" + "\n".join(lines))
