"""Every example, in its small form, and configurations of TRL by its own parser: python3 tests/cli/test_examples.py,
with SBPC_PROGRAMS=build/release.

Small models and rows, on the CPU. In place of vLLM a server of its interface answers (Sampler below): tokens drawn
uniformly, with the log-probabilities that they then have. What needs torch runs with SBP_TEST_PYTHON, or with a python3
that has it, and is skipped without. Needs only the standard library.
"""

import http.server
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

PROGRAMS = Path(os.environ["SBPC_PROGRAMS"]).resolve()
MODEL = "tests/data/stories260K"
VOCAB = 512


class Sampler(http.server.BaseHTTPRequestHandler):
    """What examples/grpo_vllm.py asks of vLLM: /v1/completions, /v1/load_lora_adapter, /v1/unload_lora_adapter."""

    FIELDS = {"/v1/completions": {"model", "prompt", "n", "max_tokens", "temperature", "logprobs", "return_token_ids"},
              "/v1/load_lora_adapter": {"lora_name", "lora_path"}, "/v1/unload_lora_adapter": {"lora_name"}}
    served, log, draw = {"m"}, [], random.Random(1)

    def log_message(self, *_):
        pass

    def complete(self, body):
        for index in range(body["n"]):
            ids = [self.draw.randrange(3, VOCAB) for _ in range(self.draw.randrange(1, body["max_tokens"] + 1))]
            yield {"index": index, "text": " ".join(map(str, ids)), "finish_reason": "length",
                   "prompt_token_ids": [1] + [3 + byte for byte in body["prompt"].encode()[:6]], "token_ids": ids,
                   "logprobs": {"tokens": list(map(str, ids)), "token_logprobs": [-math.log(VOCAB - 3)] * len(ids),
                                "top_logprobs": None, "text_offset": [0] * len(ids)}}

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = 200, {}
        if set(body) != self.FIELDS.get(self.path):
            status = 400
        elif self.path == "/v1/load_lora_adapter":
            files = {path.name for path in Path(body["lora_path"]).iterdir()}
            status = 200 if {"adapter_config.json", "adapter_model.safetensors"} <= files else 404
            self.served.add(body["lora_name"])
        elif self.path == "/v1/unload_lora_adapter":
            self.served.remove(body["lora_name"])
        elif body["model"] not in self.served:
            status = 404
        else:
            answer = {"choices": list(self.complete(body))}
        self.log.append((status, self.path, body.get("model") or body.get("lora_name")))
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def write_gguf(path):
    """A Llama of one layer with drawn weights: matrices in Q8_0, without a tokenizer."""
    width, inner, draw = 64, 96, random.Random(2)
    keys = {"general.architecture": "llama", "llama.embedding_length": width, "llama.feed_forward_length": inner,
            "llama.block_count": 1, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.context_length": 64,
            "llama.attention.layer_norm_rms_epsilon": 1e-5}
    tensors = {"token_embd.weight": (96, width), "output_norm.weight": (width,), "output.weight": (96, width),
               "blk.0.attn_norm.weight": (width,), "blk.0.ffn_norm.weight": (width,), "blk.0.attn_q.weight": (width, width),
               "blk.0.attn_k.weight": (width // 2, width), "blk.0.attn_v.weight": (width // 2, width),
               "blk.0.attn_output.weight": (width, width), "blk.0.ffn_gate.weight": (inner, width),
               "blk.0.ffn_up.weight": (inner, width), "blk.0.ffn_down.weight": (width, inner)}

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        kind, data = ((8, text(value)) if isinstance(value, str) else (6, struct.pack("<f", value)) if isinstance(value, float)
                      else (4, struct.pack("<I", value)))
        out += text(key) + struct.pack("<I", kind) + data
    data = b""
    for name, shape in tensors.items():
        count = math.prod(shape)
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += struct.pack("<IQ", 8 if len(shape) == 2 else 0, len(data))
        if len(shape) == 1:
            data += struct.pack(f"<{count}f", *[1.0] * count)
        else:
            for _ in range(count // 32):
                data += struct.pack("<e32b", 1e-3, *[draw.randrange(-127, 128) for _ in range(32)])
        data += bytes(-len(data) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)


def python_with(*modules):
    """A Python that has them."""
    for python in filter(None, [os.environ.get("SBP_TEST_PYTHON"), sys.executable]):
        if subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True).returncode == 0:
            return python
    print("skipped: no Python with", ", ".join(modules))
    raise unittest.SkipTest("no Python with " + ", ".join(modules))


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def rows(self, name, *rows):
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def run_example(self, name, *arguments, python=None, **variables):
        command = [*([python] if python else []), f"examples/{name}", *map(str, arguments)]
        environment = {**os.environ, "SBPRUN": str(PROGRAMS / "sbprun"), "SBPC": str(PROGRAMS / "sbpc"), "MODEL": MODEL,
                       "OUT": str(self.folder / "out"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       **variables}
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return done

    def losses(self, folder="out"):
        lines = [json.loads(line) for line in (self.folder / folder / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "train"]

    def assert_adapter(self, rank):
        config = json.loads((self.folder / "out/adapter_config.json").read_text())
        self.assertEqual((config["peft_type"], config["r"], len(config["target_modules"])), ("LORA", rank, 7))

    def test_chat_lora(self):
        data = self.rows("chat.jsonl", {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})
        self.run_example("chat_lora.sh", "--steps", 3, "--warmup", 0, "--chat-template", "tests/golden/chat/chatml.jinja", DATA=data)
        losses = self.losses()
        self.assertLess(losses[2], losses[0])
        self.assert_adapter(16)
        self.assertEqual(len(list((self.folder / "out/runs").iterdir())), 1)

    def test_best_model(self):
        rows = "tests/data/best/train.jsonl"
        self.run_example("best_model.sh", "--lr", 3e-3, "--batch-size", 4, "--json", DATA=rows, EVAL="tests/data/best/eval.jsonl")
        done = self.run_example("best_model.sh", "--lr", 3e-3, "--batch-size", 4, "--json", "--overwrite", DATA=rows)
        best = json.loads(done.stdout)
        self.assertLessEqual(best["best_step"], best["steps"])
        self.assertEqual(best["model_step"], best["best_step"])
        self.assertIn(best["best_step"], [int(path.name[11:]) for path in (self.folder / "out").glob("checkpoint-*")])

    def test_qlora_gguf(self):
        model = self.folder / "small-Q8_0.gguf"
        write_gguf(model)
        data = self.rows("ids.jsonl", {"input_ids": [1, 20, 30, 40, 2], "labels": [1, 20, 30, 40, 2]})
        done = self.run_example("qlora_gguf.sh", "--steps", 3, "--lr", "1e-2", MODEL=str(model), DATA=data, BASE="some/Base")
        self.assertIn("weights in q8_0 (8.5 bits each)", done.stderr)
        self.assertLess(self.losses()[2], self.losses()[0])
        self.assert_adapter(16)
        self.assertIn('"some/Base"', (self.folder / "out/adapter_config.json").read_text())

    def test_dpo(self):
        data = self.rows("pairs.jsonl", {"prompt": "Once", "chosen": " upon a time", "rejected": " more"})
        self.run_example("dpo.sh", "--steps", 2, DATA=data)
        losses = self.losses()
        self.assertAlmostEqual(losses[0], math.log(2), places=5)  # the reference is the model itself
        self.assertLess(losses[1], losses[0])

    def test_kto(self):
        data = self.rows("kto.jsonl", *[{"prompt": "Once", "completion": word, "label": good}
                                        for word, good in ((" upon a time", True), (" more", False), (" there was", True))])
        self.run_example("kto.sh", "--steps", 2, DATA=data)
        self.assertAlmostEqual(self.losses()[0], 0.5, places=5)

    def test_cpu_laptop(self):
        data = self.rows("texts.jsonl", {"text": "Once upon a time"}, {"text": "The end."})
        done = self.run_example("cpu_laptop.sh", "--steps", 2, DATA=data, MEMORY="64MiB")
        self.assertIn(" of 64.00 MiB", done.stderr)
        self.assert_adapter(8)
        done = self.run_example("cpu_laptop.sh", "--steps", 3, "--resume", DATA=data, MEMORY="64MiB")
        self.assertIn("going on after step 2", done.stderr)

    def test_two_ranks(self):
        """two_gpus.sh on two processes of the CPU: the losses of one."""
        if not (PROGRAMS / "libsbp_mpi.so").exists() or not shutil.which("mpirun"):
            print("skipped: no MPI")
            self.skipTest("no MPI")
        data = self.rows("texts.jsonl", {"text": "Once upon a time"}, {"text": "The end."})
        small = {"DATA": data, "BACKEND": "cpu", "STEPS": "2"}
        self.run_example("two_gpus.sh", "--seq-len", 64, START="sbprun", **small)
        one = self.losses("out/model")
        shutil.rmtree(self.folder / "out")
        self.run_example("two_gpus.sh", "--seq-len", 64, START="mpirun", **small)
        self.assertEqual(self.losses("out/model"), one)
        subprocess.run([PROGRAMS / "sbprun", MODEL, "--data", data, "--out", self.folder / "alone", "--steps", "2", "--batch-size", "16",
                        "--quiet"], check=True)
        for a, b in zip(one, self.losses("alone")):
            self.assertAlmostEqual(a, b, places=4)
        shutil.rmtree(self.folder / "out")
        torchrun = self.folder / "bin/torchrun"  # a stand-in: its ranks find each other by NCCL, which needs GPUs
        torchrun.parent.mkdir()
        torchrun.write_text("#!/bin/sh\n[ \"$1 $2 $3\" = '--nproc-per-node 2 --no-python' ] || exit 9\nshift 3\n"
                            "exec mpirun -n 2 \"$@\"\n")
        torchrun.chmod(0o755)
        self.run_example("two_gpus.sh", "--seq-len", 64, START="torchrun", PATH=f"{torchrun.parent}:{os.environ['PATH']}", **small)
        self.assertEqual(self.losses("out/model"), one)

    def test_grpo_vllm(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sampler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        reward = self.folder / "rules.py"
        reward.write_text("def shorter(prompt, answer):\n    return -len(answer)\n")
        done = self.run_example("grpo_vllm.py", "--model", MODEL, "--served", "m", "--sbprun", PROGRAMS / "sbprun", "--url",
                                f"http://127.0.0.1:{server.server_address[1]}", "--reward", f"{reward}:shorter", "--out",
                                self.folder / "out", "--steps", 3, "--group", 2, "--tokens", 4, "--seq-len", 256,
                                "--vllm-importance-sampling-mode", "token_truncate", python=sys.executable)
        self.assertEqual(done.stdout.count("mean reward -"), 3)
        self.assertEqual({status for status, _, _ in Sampler.log}, {200}, Sampler.log)
        self.assertEqual([name for _, path, name in Sampler.log if path == "/v1/completions"],
                         ["m"] * 4 + ["step-1"] * 4 + ["step-2"] * 4)
        self.assertEqual(Sampler.served, {"m", "step-3"})
        lines = [json.loads(line) for line in (self.folder / "out/run/metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(lines), 3)
        self.assertTrue(any("sampling" in key for key in lines[0]), lines[0])  # the sampler's numbers are read

    def test_grpo_loop(self):
        """With transformers as the sampler, and a function of the text as the reward."""
        python = python_with("torch", "transformers", "safetensors")
        subprocess.run([python, "examples/grpo_loop.py", "--sbprun", PROGRAMS / "sbprun", "--out", self.folder / "out", "--steps", "4",
                        "--group", "2", "--tokens", "4"], capture_output=True, timeout=600)  # status 1: no gain in so few steps
        rewards = json.loads((self.folder / "out/reward.json").read_text())["rewards"]
        self.assertEqual(len(rewards), 4)

    def test_agent_trajectories(self):
        """Rows have the lengths that are asked for, and all of them are kept and packed."""
        rows, template = self.folder / "agent.jsonl", self.folder / "chat.jinja"
        template.write_text("{% for t in tools %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: "
                            "{{ m.reasoning_content or '' }}{{ m.content }}{{ m.tool_calls or '' }}\n{% endfor %}")
        with rows.open("w") as out:
            subprocess.run([sys.executable, "examples/agent_trajectories.py", "--rows", "40", "--median", "3000", "--p95", "6000",
                            "--longest", "16000", "--tokens-per-word", "1"], stdout=out, check=True, timeout=60)
        conversations = [json.loads(line)["messages"] for line in rows.read_text().splitlines()]
        words = sorted(sum(len((m["content"] + " " + m.get("reasoning_content", "")).split()) for m in messages)
                       for messages in conversations)
        for share, expected in ((0.5, 3000), (0.95, 6000), (1, 16000)):
            self.assertAlmostEqual(words[math.ceil(share * len(words)) - 1] / expected, 1, delta=0.1)
        longest = max(conversations, key=len)
        self.assertEqual({m["role"] for m in longest}, {"system", "user", "assistant", "tool"})
        self.assertEqual(sum(len(m.get("tool_calls", [])) for m in longest), sum(m["role"] == "tool" for m in longest))
        done = subprocess.run([PROGRAMS / "sbprun", MODEL, "--data", rows, "--chat-template", template, "--packing", "bfd",
                               "--seq-len", "60000", "--data-cache", "none", "--dry-run"], capture_output=True, text=True, timeout=120)
        self.assertIn("data       40 rows packed into ", done.stdout, done.stderr)
        self.assertNotIn("left out", done.stdout + done.stderr)

    def test_demo_judges(self):
        """A demo of programs that each do something wrong: memory, gradients, a resumed run, training that does not train."""
        model, build = self.folder / "two-layers", self.folder / "build"
        config = json.loads(Path("tests/data/configs/SmolLM2-135M.json").read_text())
        config.update(num_hidden_layers=2, vocab_size=VOCAB, bos_token_id=1, eos_token_id=1)
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        shutil.copy(f"{MODEL}/tokenizer.json", model)
        build.mkdir()
        (build / "sbpc").symlink_to(PROGRAMS / "sbpc")
        (build / "compare_gradients").symlink_to(PROGRAMS / "compare_gradients")
        (build / "sbprun").write_text(f"""#!{sys.executable}
import json, os, subprocess, sys
arguments = [word.replace("1e-4", "1e-30") for word in sys.argv[1:]]

def spoil(path):
    with open(path, "r+b") as file:
        file.seek(-4, 2)
        file.write(b"\\0\\0\\0\\x41")

if not {{"--json", "--dump-gradients", "--resume"}} & set(arguments):
    os.execv("{PROGRAMS}/sbprun", ["sbprun", *arguments])
done = subprocess.run(["{PROGRAMS}/sbprun", *arguments], stdout=subprocess.PIPE if "--json" in arguments else None, text=True)
if "--json" in arguments:
    line = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(dict(line, peak_bytes_measured=line["peak_bytes_planned"] * 1.02)))
if "--dump-gradients" in arguments and arguments[-1].endswith("stream.safetensors"):
    spoil(arguments[-1])
if "--resume" in arguments:
    spoil(arguments[arguments.index("--out") + 1] + "/model.safetensors")
sys.exit(done.returncode)
""")
        (build / "sbprun").chmod(0o755)
        done = subprocess.run([sys.executable, "examples/demo.py", "--quick", "--build", build, "--model", model, "--weights", "random:1",
                               "--out", self.folder], text=True, capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        said = [line for line in done.stdout.splitlines() if line.startswith(("right: ", "WRONG: "))]
        wrong = [line for line in said if line.startswith("WRONG: ")]
        self.assertEqual(len(said), 9, done.stderr)
        for line, begin in zip(wrong, ("memory ", "gradients of stream", "held-out loss", "the run that was killed"), strict=True):
            self.assertTrue(line.startswith("WRONG: " + begin), wrong)
            self.assertIn(line[len("WRONG: "):], done.stderr)

    def test_streambp(self):
        """The table: bytes of activations as shapes say, and gradients that differ where they are summed otherwise."""
        self.assertLessEqual(len(Path("examples/streambp.c").read_text().splitlines()), 300, "README.md says how long it is")
        done = subprocess.run([PROGRAMS / "streambp"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows, layers, width, inner, vocab = 199, 2, 16, 40, 300
        of_row = 5 * width + 3 * inner + 1
        title, plain, *chunks = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual((title[0], plain[0]), (str(rows), "plain"))
        self.assertEqual(int(plain[-2]), 8 * rows * (layers * (3 * width + of_row) + vocab))
        self.assertGreater(float(plain[1]), 0)
        self.assertEqual([int(line[2]) for line in chunks], [1, 7, 64, 99, 198, 199, 398])
        for line in chunks:
            chunk = min(int(line[2]), rows)
            self.assertEqual(int(line[-2]), 8 * (rows * 5 * width + 2 * chunk * of_row), line)
            self.assertEqual(float(line[3]) > 0, chunk < rows, line)

    def test_compare_gradients(self):
        """fp32 beside fp64: within a limit or not; and a file of another model."""
        data, files = self.rows("texts.jsonl", {"text": "Once upon a time"}), {}
        for name, options in (("fp32", []), ("fp64", ["--dtype", "fp64"]), ("lora", ["--lora"])):
            files[name] = self.folder / f"{name}.safetensors"
            subprocess.run([PROGRAMS / "sbprun", MODEL, "--data", data, "--steps", "1", "--out", "none", "--quiet", "--dump-gradients", files[name],
                            *options], check=True)
        for other, most, status in (("fp64", [], 0), ("fp64", ["1e-4"], 0), ("fp64", ["1e-12"], 1), ("lora", [], 1), ("fp64", ["x"], 2)):
            done = subprocess.run([PROGRAMS / "compare_gradients", files["fp32"], files[other], *most], text=True, capture_output=True)
            self.assertEqual(done.returncode, status, (other, most, done.stdout, done.stderr))

    def test_compare_gradients_nan(self):
        """What is no number is wrong, though the tensors behind it are right."""
        for name, middle in (("right", 1), ("wrong", math.nan)):
            header = json.dumps({tensor: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, tensor in enumerate("abc")})
            (self.folder / name).with_suffix(".safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode()
                                                                       + struct.pack("<3f", 1, middle, 1))
        done = subprocess.run([PROGRAMS / "compare_gradients", self.folder / "wrong.safetensors", self.folder / "right.safetensors"],
                              text=True, capture_output=True)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("nan b 3", done.stdout)

    def test_custom_model(self):
        python = python_with("torch", "onnx", "onnxscript", "safetensors")
        done = self.run_example("custom_model.py", "--sbprun", PROGRAMS / "sbprun", "--out", self.folder / "out", "--steps", 60,
                                python=python)
        self.assertIn("after 7 8 9 10 comes 11", done.stdout)
        self.assertEqual(done.stdout.count("float32 explains"), 2)
        self.assertNotIn("dropout", done.stderr)
        file = self.folder / "dropping.py"
        file.write_text("import sys, torch\nsys.path.insert(0, 'examples')\nimport custom_model\n\ndef model():\n"
                        "    made = custom_model.model()\n    made.drop = torch.nn.Dropout(0.1)\n    return made\n")
        done = self.run_example("export_model_json.py", f"{file}:model", "-o", self.folder / "exported", python=python)
        self.assertIn("note: dropout is not exported, and sbprun trains without it: model.drop (0.1)\n", done.stderr)


    def test_custom_model_judges(self):
        """Of an sbprun whose weights are not those that it says the loss of."""
        python = python_with("torch", "onnx", "onnxscript", "safetensors")
        spoiler = self.folder / "sbprun"
        spoiler.write_text(f"""#!{sys.executable}
import subprocess, sys
done = subprocess.run(["{PROGRAMS}/sbprun", *sys.argv[1:]])
with open(sys.argv[sys.argv.index("--out") + 1] + "/model.safetensors", "r+b") as file:
    file.seek(-4, 2)
    file.write(b"\\0\\0\\0\\x41")
sys.exit(done.returncode)
""")
        spoiler.chmod(0o755)
        done = subprocess.run([python, "examples/custom_model.py", "--sbprun", spoiler, "--out", self.folder / "out", "--steps", "2"],
                              text=True, capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        self.assertEqual(done.stdout.count("float32 explains"), 2)

    def test_new_gpt2(self):
        """Its biases are zeros, which exporters fold away; and it drops activations."""
        python = python_with("torch", "onnx", "onnxscript", "safetensors", "transformers")
        made = subprocess.run([python, "-c", "import transformers as t; m = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=64, n_embd=32, n_layer=1,"
                               f" n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2)); m.save_pretrained('{self.folder}/gpt2');"
                               " print('\\n'.join(n for n, _ in m.named_parameters()))"], check=True, text=True, capture_output=True)
        done = self.run_example("export_model_json.py", self.folder / "gpt2", "-o", self.folder / "exported", python=python)
        self.assertIn("note: dropout is not exported, and sbprun trains without it: ", done.stderr)
        data = self.rows("ids.jsonl", {"input_ids": [1, 20, 30, 40, 2], "labels": [1, 20, 30, 40, 2]})
        gradients = self.folder / "gradients.safetensors"
        subprocess.run([PROGRAMS / "sbprun", self.folder / "exported/model.json", "--data", data, "--out", "none", "--steps", "1", "--quiet",
                        "--dump-gradients", gradients], check=True)
        with open(gradients, "rb") as file:
            names = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        names.pop("__metadata__", None)
        names["transformer.wte.weight"] = names.pop("lm_head.weight")  # tied: one parameter
        self.assertEqual(sorted(names), sorted(made.stdout.split()))


class Recipes(unittest.TestCase):
    """tests/data/trl/recipes.json, run as users would with a model and rows of their own: what is taken plans a training with
    --dry-run, what is refused says the reason that recipes.md has. A recipe in four; SBP_TEST_ALL=1: each."""

    NAMES = {"model_name_or_path", "dataset_name"}
    PARTS = {"dataset_config", "dataset_configs", "dataset_train_split", "dataset_test_split", "dataset_splits", "model_revision"}

    MARKED = ("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
              "{% else %}{{ m.content }}{% endif %}{% endfor %}")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.model = self.folder / "model"
        shutil.copytree(MODEL, self.model)
        shutil.copy("tests/golden/chat/chatml.jinja", self.model / "chat_template.jinja")
        words = (self.model / "tokenizer.json").read_text()  # of chats, in place of those that it has
        (self.model / "tokenizer.json").write_text(words.replace('"<s>"', '"<|im_start|>"').replace('"</s>"', '"<|im_end|>"'))
        asked, good, bad = ([{"role": role, "content": text}] for role, text in (("user", "hi"), ("assistant", "ho"), ("assistant", "no")))
        pair = {"prompt": asked, "chosen": good, "rejected": bad}
        rollouts = [{"prompt": "hi", "completion": " ho", "reward": reward, "group": 0} for reward in (0.5, 0.1)]
        self.kinds = {"sft": [{"messages": asked + good}], "dpo": [pair], "orpo": [pair], "cpo": [pair], "grpo": rollouts, "rloo": rollouts,
                      "ppo": rollouts, "kto": [{"prompt": asked, "completion": good, "label": label} for label in (True, False)]}
        for verb, rows in self.kinds.items():
            rows *= 1 if len(rows) > 1 else 1500  # of which recipes hold up to 2000 out, of two data sets or more
            (self.folder / f"{verb}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def arguments(self, recipe):
        """Its own, but for model and rows; without parts of data sets, which files do not have."""
        model, data = str(self.model), str(self.folder / f"{recipe['verb']}.jsonl")
        given, out, config = list(recipe.get("arguments") or []), [], recipe.get("config")
        while given:
            word = given.pop(0)
            name = word.lstrip("-").partition("=")[0].replace("-", "_")
            if word.startswith("--") and name in self.NAMES | self.PARTS:
                if "=" not in word:
                    given.pop(0)
            else:
                out.append(word)
        if config is not None:
            config = {key: value for key, value in config.items() if key not in self.NAMES | self.PARTS}
            for mixture in (config, config.get("dataset_mixture", {})):
                for part in mixture.get("datasets", []):
                    part |= {"path" if "path" in part else "id": data}
                    for key in ("name", "config", "split"):
                        part.pop(key, None)
            if "dataset_mixer" in config:
                config["dataset_mixer"] = {data: part for part in config["dataset_mixer"].values()}
            if config.get("assistant_only_loss") and "chat_template" in config:  # recipes.json has not kept it
                config["chat_template"] = self.MARKED
            path = self.folder / "recipe.yaml"
            path.write_text("# YAML, of which JSON is a part\n" + json.dumps(config))
            out += ["--config", str(path)]
        mixed = config is not None and config.keys() & {"datasets", "dataset_mixture", "dataset_mixer"}
        return [*out, "--model_name_or_path", model, *([] if mixed else ["--dataset_name", data])]

    def test_each(self):
        recipes = json.loads(Path("tests/data/trl/recipes.json").read_text())["recipes"]
        table = [line.split(" | ", 2) for line in Path("tests/data/trl/recipes.md").read_text().splitlines() if line.startswith("| ")][1:]
        self.assertEqual(len(recipes), len(table))
        counts = {"taken": 0, "refused": 0}
        for number, (recipe, (source, verb, said)) in enumerate(zip(recipes, table, strict=True)):
            self.assertEqual((recipe["source"], recipe["verb"]), ("huggingface/" + source[2:], verb))
            taken = said.startswith("taken")
            if "--model_name_or_path is " in said:
                continue  # this test has another
            if os.environ.get("SBP_TEST_ALL") != "1" and number % 4:
                continue
            done = subprocess.run([PROGRAMS / "sbprun", verb, *self.arguments(recipe), "--dry-run", "--backend", "cpu"], cwd=self.folder, text=True,
                                  capture_output=True, timeout=600, env={**os.environ, "HF_HUB_OFFLINE": "1"})
            self.assertEqual(done.returncode, 0 if taken else 2, (source, done.stderr))
            if taken:
                sent = "--push_to_hub" in recipe.get("arguments", []) or recipe.get("config", {}).get("push_to_hub") is True
                self.assertEqual("--push_to_hub: the training would stop here" in done.stderr, sent, (source, done.stderr))
                self.assertIn("first rows of the first step, trained tokens in [[ ]]:\nrow ", done.stdout)
                self.assertIn("[[", done.stdout.partition("[[ ]]:")[2], source)
                mixture = json.dumps(recipe.get("config", {}).get("dataset_mixture", {}))
                self.assertEqual("rows are held out" in done.stderr, "test_split_size" in mixture, (source, done.stderr))
            else:
                for reason in said.removeprefix("refused: ").removesuffix(" |").split("; "):
                    self.assertIn(" ".join(reason.split()), " ".join(done.stderr.replace("sbprun: error: ", "").split()), source)
            counts["taken" if taken else "refused"] += 1
        self.assertGreater(counts["taken"], 20)
        self.assertGreater(counts["refused"], 8)


class Configurations(unittest.TestCase):
    """tests/data/trl: what TRL's documentation has, and the table of TRL's fields."""

    def test_table(self):
        subprocess.run([sys.executable, "-B", "tests/data/trl/table.py", "--check"], check=True)

    def test_parser_of_trl(self):
        python = python_with("trl")
        done = subprocess.run([python, "tests/data/trl/parse.py"], text=True, capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len([line for line in done.stdout.splitlines() if ".yaml: " in line]),
                         len(list(Path("tests/data/trl/yaml").glob("*.yaml"))))


if __name__ == "__main__":
    unittest.main()
