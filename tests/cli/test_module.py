"""The Python module over the built programs: python3 tests/cli/test_module.py, with PYTHONPATH=runtime/python and
SBPC_PROGRAMS=build/release. Needs only the standard library."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

import sbpc

MODEL = "tests/data/stories260K"
DATA = "tests/golden/stories260k_trl/train.jsonl"


class Module(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def text(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def test_train(self):
        steps = []
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown):
            summary = sbpc.train(MODEL, DATA, self.folder / "out", steps=3, lr=1e-3, eval=DATA, on_step=steps.append)
        self.assertEqual(summary["steps"], 3)
        self.assertAlmostEqual(summary["eval_loss"], steps[-1]["eval_loss"])
        self.assertEqual(steps, [json.loads(line) for line in self.text("out/metrics.jsonl").splitlines()])
        self.assertEqual([line["kind"] for line in steps], ["eval", "train", "train", "train", "eval"])
        self.assertEqual(json.loads(self.text("out/run.json"))["options"]["lr"], 1e-3)
        for number in (1, 2, 3):
            self.assertIn(f"\rstep {number}  loss ", shown.getvalue())
        self.assertIn("step 3  eval_loss ", shown.getvalue())
        self.assertNotIn("left", shown.getvalue())  # the program's own line of progress
        again = sbpc.train(self.folder / "out/plan.bin", [DATA], self.folder / "again", steps=3, lr=1e-3, eval=[DATA],
                           progress=False)
        self.assertEqual(again["train_loss"], summary["train_loss"])

    def test_rows_in_memory(self):
        rows = [{"text": "The end. Zo\u00eb \u20ac"}, {"text": "Once\u2028more"}]
        scores = sbpc.score(MODEL, rows, progress=False)
        self.assertEqual([line["row"] for line in scores], [0, 1])
        self.assertEqual(scores, sbpc.score(MODEL, iter(rows), progress=False))
        self.assertEqual(scores[0]["tokens"], len(sbpc.tokenize(MODEL, rows)[0]["input_ids"]) - 1)

    def test_tables_in_memory(self):
        class Frame:  # as pandas has it
            columns = ["text"]

            def to_dict(self):
                return {"text": {0: "The end."}}

            def to_json(self, orient):
                assert orient == "records"
                return '[{"text": "The end."}]'

            def __iter__(self):
                return iter(self.columns)

        self.assertEqual(sbpc.score(MODEL, Frame(), progress=False), sbpc.score(MODEL, [{"text": "The end."}], progress=False))

    def test_tokens(self):
        ids = [1, 291, 344, 264, 426, 2]
        self.assertEqual(sbpc.tokenize(MODEL, ["The end.</s>", {"text": "The end."}]),
                         [ids, {"input_ids": ids, "labels": ids}])
        self.assertEqual(sbpc.tokenize(MODEL, [ids], decode=True), ["<s> The end.</s>"])
        self.assertEqual(sbpc.tokenize(MODEL, [{"words": "The end."}], text_field="words")[0]["input_ids"], ids)
        with self.assertRaises(sbpc.Error) as caught:
            sbpc.tokenize(MODEL, ["a", {"txt": 1}])
        self.assertEqual(caught.exception.status, 1)
        self.assertIn("standard input:2: found 'txt'", caught.exception.message)

    def test_plan(self):
        plan = sbpc.plan(MODEL, self.folder / "plan.bin", seq_len=64, deterministic=True, progress=False)
        self.assertTrue((self.folder / "plan.bin").exists())
        self.assertGreater(sum(plan["peak_bytes"].values()), 0)
        lora = {"r": 2, "targets": ["q_proj", "v_proj"], "rank_pattern": "layers.[0-9]{1,2}.v_proj=3"}
        keys = sbpc.plan(MODEL, self.folder / "lora.bin", seq_len=64, lora=lora, progress=False)
        self.assertLess(keys["peak_bytes"]["device"], plan["peak_bytes"]["device"])
        elsewhere = sbpc.plan(MODEL, device_profile="cpu", seq_len=64, progress=False)
        self.assertGreater(sum(elsewhere["peak_bytes"].values()), 0)

    def test_errors(self):
        cases = [(1, "no config.json", lambda: sbpc.plan(self.folder, self.folder / "p", progress=False)),
                 (2, "the nearest is '--epochs'", lambda: sbpc.train(MODEL, DATA, self.folder / "o", epoch=1, progress=False)),
                 (4, "cannot read 'nowhere'", lambda: sbpc.train("nowhere", DATA, self.folder / "o", progress=False)),
                 (3, "--memory", lambda: sbpc.plan(MODEL, self.folder / "p", memory="1MiB", progress=False))]
        for status, text, call in cases:
            with self.assertRaises(sbpc.Error) as caught:
                call()
            self.assertEqual(caught.exception.status, status, caught.exception.log)
            self.assertIn(text, " ".join(caught.exception.message.split()))
            self.assertNotIn("error:", caught.exception.message)
        before = os.environ["SBPC_PROGRAMS"]
        os.environ["SBPC_PROGRAMS"] = str(self.folder)
        try:
            with self.assertRaisesRegex(sbpc.Error, "sbprun is neither in .*") as caught:
                sbpc.version()
        finally:
            os.environ["SBPC_PROGRAMS"] = before
        self.assertEqual(caught.exception.status, 3)

    def test_a_caller_that_fails(self):
        class Stop(Exception):
            pass

        def stop(_):
            raise Stop

        with self.assertRaises(Stop):
            sbpc.train(MODEL, DATA, self.folder / "out", steps=10**6, on_step=stop, progress=False)

    def test_interrupts(self):
        """Ctrl-C of a script: the run writes a checkpoint and goes on from it."""
        script = self.folder / "script.py"
        out = self.folder / "out"
        script.write_text(textwrap.dedent(f"""
            import sbpc
            try:
                sbpc.train({MODEL!r}, {DATA!r}, {str(out)!r}, steps=10**6, progress=False,
                           on_step=lambda line: print(line["step"], flush=True))
            except KeyboardInterrupt:
                print("interrupted")
        """))
        process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "1\n")
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]
        self.assertTrue(output.endswith("interrupted\n"), output)
        done = max(int(path.name.split("-")[1]) for path in out.glob("checkpoint-*"))
        summary = sbpc.train(MODEL, DATA, out, resume=True, steps=done + 1, progress=False)
        self.assertEqual((summary["steps"], summary["resumed_after"]), (done + 1, done))

    def test_bridge(self):
        """examples/report_bridge.py hands every number of every line to a tracker."""
        (self.folder / "tracker.py").write_text("init = lambda project: print(project)\n"
                                                "log = lambda numbers, step: print(step, sorted(numbers.items()))\n"
                                                "finish = lambda: print('end')\n")
        lines = [{"step": 1, "kind": "train", "loss": 2.5}, {"step": 1, "kind": "eval", "eval_file": "a", "eval_loss": 2}]
        output = subprocess.run([sys.executable, "examples/report_bridge.py", "mine", "tracker"], check=True, text=True,
                                input="".join(json.dumps(line) + "\n" for line in lines), stdout=subprocess.PIPE,
                                env={**os.environ, "PYTHONPATH": str(self.folder)}).stdout
        self.assertEqual(output, "mine\n1 [('train/loss', 2.5), ('train/step', 1)]\n"
                                 "1 [('eval/loss', 2), ('eval/step', 1)]\nend\n")

    def test_export(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "x.gguf"
            report = sbpc.export(MODEL, file, type="q8_0")
            self.assertEqual((report["architecture"], report["type"], report["adapter"]), ("llama", "q8_0", False))
            self.assertEqual(report["bytes"], file.stat().st_size)
            with self.assertRaisesRegex(sbpc.Error, "is there already"):
                sbpc.export(MODEL, file)

    def test_doctor(self):
        parts = {line["part"] for line in sbpc.doctor()}
        self.assertLessEqual({"sbprun", "sbpc", "memory", "cpu", "choice"}, parts)
        self.assertRegex(sbpc.version(), r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
