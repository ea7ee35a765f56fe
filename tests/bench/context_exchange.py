#!/usr/bin/env python3
"""Ways to have one document on several ranks: heads exchanged for rows, and keys and values of all rows (--context-exchange).

    tests/bench/context_exchange.py [--configs DIR]

For each model, length and number of ranks, of each way as `sbpc compile` plans it: seconds of a step; how many of them are waited for
exchanges, none of which is hidden (the same plan without the interconnect is subtracted); bytes that a rank sends for them; bytes of the whole on
the device and on the host. Then by formula what would be sent if keys and values of layers with a window went to the rows that see them only,
which is not built; a ring would send as many bytes as `keys`, and needs a second loop and a zig-zag of rows. Figures go to
tests/bench/results/context_exchange.json; they come from the planner and from a formula: no interconnect was measured.
"""
import argparse
import json
import os
import sys
import tempfile

from planned import RANKS, TOP, plan, save

H100 = "h100-80gb"
CASES = [  # model, tokens, ranks, and of several hosts of 8: what each rank has to the others
    ("Qwen3-8B", 131072, 2, ""), ("Qwen3-8B", 131072, 4, ""), ("Qwen3-8B", 131072, 8, ""), ("Qwen3-8B", 1000000, 8, ""),
    ("Qwen3-8B", 1000000, 16, "400Gb/s"), ("Qwen3-8B", 2000000, 16, "400Gb/s"), ("Qwen3-8B", 2000000, 64, "400Gb/s"),
    ("Llama-3.1-70B", 131072, 16, "400Gb/s"), ("gemma-3-1b-it", 131072, 4, ""), ("gemma-3-1b-it", 131072, 8, ""),
    ("gemma-3-1b-it", 1000000, 8, ""), ("gemma-3-1b-it", 1000000, 16, "400Gb/s")]


def windows_only(config, tokens, ranks):
    """Bytes that a rank would send where a layer with a window of w rows gets only these: keys and values in 2 bytes, forward and again, and
    their gradients in 4, of min(w, all) rows, to one neighbour; layers without a window as they are sent."""
    d = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    k = config.get("num_key_value_heads") or config["num_attention_heads"]
    window, pattern = config.get("sliding_window") or 0, config.get("sliding_window_pattern") or 0
    rows, pair, sent = tokens / ranks, (2 + 2 + 4) * d * 2 * k, 0
    for layer in range(config["num_hidden_layers"]):
        has_window = window and pattern and (layer + 1) % pattern
        sent += pair * (min(window, rows) if has_window else (ranks - 1) * rows)
    return sent


def measure(arguments, folder, case, way):
    """The plan of a way, and what it would take without the interconnect; or why there is none."""
    model, tokens, ranks, link = case
    free = os.path.join(folder, "free")
    options = RANKS + ["--seq-len", str(tokens), "--ranks", str(ranks), "--context-parallel", str(ranks), "--context-exchange", way, "--zero", "3"]
    got, text, _ = plan(arguments, folder, model, H100, options + (["--link", link] if link else []))
    if not got:
        return None, text
    with open(free, "w", encoding="utf-8") as f:
        f.write("".join(f"{key} {value}\n" for key, value in got["throughput"].items() if key != "source" and "net" not in key and "between" not in key))
        f.write("net_bytes 1e18\n")
    fixed = got["schedule"]
    same = [x for key in ("chunk", "head_chunk", "segment", "checkpoint_every") for x in (f"--{key.replace('_', '-')}", str(fixed[key]))]
    same += ["--save", "+".join(fixed["saved"]) or "none", "--offload", fixed["offload"], "--throughput", free]
    without, text, _ = plan(arguments, folder, model, H100, options + same)
    if not without:
        return None, text
    return {"seconds": got["seconds"], "waited": got["seconds"] - without["seconds"], "sent": got["interconnect"]["context_bytes"],
            "device": got["peak_bytes"]["device"], "host": got["peak_bytes"]["host"], "schedule": fixed}, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(TOP, "build", "release"))
    parser.add_argument("--configs", default=os.path.join(TOP, "tests", "data", "configs"))
    parser.add_argument("--save", default=os.path.join(TOP, "tests", "bench", "results", "context_exchange.json"))
    arguments = parser.parse_args()
    results, refused = [], 0
    print(f"{'':48s} {'a step':>9s} {'waited':>8s} {'sent':>8s} {'device':>8s} {'host':>8s}")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            model, tokens, ranks, link = case
            row = {"model": model, "tokens": tokens, "ranks": ranks, "link": link}
            print(f"{model}, {tokens} tokens, {ranks} ranks{', ' + link if link else ''}")
            for way in ("all-to-all", "all-gather"):
                row[way], text = measure(arguments, folder, case, way)
                refused += not row[way]
                if row[way]:
                    w = row[way]
                    print(f"    {way:44s} {w['seconds']:7.1f} s {w['waited']:6.2f} s {w['sent'] / 1e9:5.0f} GB {w['device'] / 2**30:4.0f} GiB {w['host'] / 2**30:4.0f} GiB", flush=True)
                else:
                    print(f"    {way:44s} refused: {text}")
            path = os.path.join(arguments.configs, model + ".json")
            if os.path.exists(path):
                with open(path, encoding="utf-8") as f:
                    row["windows_only"] = windows_only(json.load(f), tokens, ranks)
                print(f"    {'what windows see, by formula':62s} {row['windows_only'] / 1e9:5.0f} GB")
            results.append(row)
    save(arguments.save, results)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
