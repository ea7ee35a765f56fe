#!/usr/bin/env python3
"""report.html and the page of `sbpc fit` in a real browser: tests/cli/browser.py [BUILD [FOLDER]].

Chromium without a window, told what to do over a pipe (its DevTools protocol; nothing but Python's own library is needed).
Counted are errors of the console, exceptions and whatever the pages load: all must be 0, in light and dark, of which pictures
go to FOLDER (build/browser). Then the table is sorted and filtered as a reader would, and a script that the policy does not know
must not run. Without chromium it is skipped, and says so."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile

MODEL, DATA = "tests/data/stories260K", "tests/golden/stories260k_trl/train.jsonl"
SMALL = """memory 3GiB host_memory 3GiB process 500MiB bf16_flops 1e14 fp32_flops 5e13 bf16_attention 8e13 fp32_attention 3e13
memory_bytes 8e11 row_ops 1e13 link_bytes 2e10 host_bytes 6e10 host_ops 1e11 disk_bytes 5e9 half_rows 128 command_seconds 4e-6
chunk 512 head_chunk 256"""
NAME = "<img src=x onerror=document.title=1>"


class Browser:
    """One page, and what it complained of."""

    def __init__(self, program, folder):
        into, self.out = os.pipe()
        self.into, out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (into, out)]  # it reads 3 and writes 4
        silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        self.process = os.posix_spawn(
            program, [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                      f"--user-data-dir={folder}", "about:blank"], os.environ,
            file_actions=silent + [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)])
        for end in (into, out, *ends):
            os.close(end)
        self.number, self.buffer, self.session = 0, b"", None
        self.errors, self.requests = [], []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.buffer:
            got = os.read(self.into, 1 << 16)
            if not got:
                sys.exit("the browser ended")
            self.buffer += got
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def event(self, message):
        method, of = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(of["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.errors.append(of["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.errors.append(str(of["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(of["request"]["url"])
        return method

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            got = self.message()
            self.event(got)
            if got.get("id") == self.number:
                if "error" in got:
                    sys.exit(f"{method}: {got['error']}")
                return got["result"]

    def open(self, path, fragment=""):
        self.errors, self.requests = [], []
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}{fragment}")
        while self.run("document.readyState + location.protocol") != "completefile:":
            pass

    def run(self, expression):
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in got:
            sys.exit(f"{expression}: {got['exceptionDetails']}")
        return got["result"].get("value")

    def window(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 800)

    def picture(self, path, width):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        self.window(width, min(4000, int(size["height"]) + 1))
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def end(self):
        os.write(self.out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        os.waitpid(self.process, 0)


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: found {got!r}, expected {wanted!r}")


def look(browser, path, name, folder):
    """In light and dark, and on a phone: no error, nothing loaded but the page itself, no sideways scrolling, text that can be read."""
    light, dark = "rgb(255, 255, 255)", "rgb(22, 24, 27)"
    for scheme, paper, width in (("light", light, 1280), ("dark", dark, 1280), ("phone", light, 390)):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if paper == dark else "light"}])
        browser.window(width, 1000)
        browser.open(path)
        expect(f"{name}, {scheme}: outside of the window", browser.run(
            "[...document.querySelectorAll('body *')].filter(e => e.getClientRects().length && !e.closest('svg') && "
            "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + ' ' + e.textContent.slice(0, 40))"), [])
        expect(f"{name}, {scheme}: colour of the page", browser.run("getComputedStyle(document.body).backgroundColor"), paper)
        expect(f"{name}, {scheme}: wider than its window", browser.run("document.documentElement.scrollWidth > innerWidth"), False)
        expect(f"{name}, {scheme}: cells of more than four lines", browser.run(
            "[...document.querySelectorAll('td, th')].filter(e => e.getBoundingClientRect().height > 100).map(e => e.textContent)"), [])
        browser.picture(f"{folder}/{name}-{scheme}.png", width)
        expect(f"{name}, {scheme}: errors", browser.errors, [])
        expect(f"{name}, {scheme}: requests", [url for url in browser.requests if not url.startswith("file:") and url != "about:blank"], [])
        expect(f"{name}, {scheme}: files", len([url for url in browser.requests if url.startswith("file:")]), 1)
    browser.window(1280, 1000)
    print(f"{name}: light, dark and on a phone, 0 errors, 1 file each")


ROWS = "[...document.querySelectorAll('tbody tr')].filter(r => !r.hidden)"
TEXTS = ROWS + ".map(r => [...r.cells].map(c => c.textContent))"


def sort_and_filter(browser, path):
    browser.open(path)
    rows = browser.run(TEXTS)
    heads = browser.run("[...document.querySelectorAll('th')].map(h => h.textContent)")
    expect("heads", heads, ["Model", "Card", "Kind", "Context", "64", "1k", "Longest"])
    expect("the name is text", {row[0] for row in rows}, {NAME, "Qwen3-0.6B"})
    expect("what was counted", browser.run("document.forms[0].count.value"), f"{len(rows)} of {len(rows)}")
    for column, head in enumerate(heads):
        for turn in range(2):
            browser.run(f"document.querySelectorAll('th button')[{column}].click()")
            got = browser.run(ROWS + f".map(r => r.cells[{column}].dataset.v === undefined ? r.cells[{column}].textContent : +r.cells[{column}].dataset.v)")
            expect(f"sorted by {head}", got, sorted(got, key=lambda v: v.lower() if isinstance(v, str) else v, reverse=turn == 1))
            expect(f"the mark of {head}", browser.run(f"document.querySelectorAll('th')[{column}].getAttribute('aria-sort')"),
                   ["ascending", "descending"][turn])
    for field, value, keep in (("card", "small", lambda r: r[1] == "small"), ("kind", "lora", lambda r: r[2] == "lora"),
                               ("model", "qwen", lambda r: "Qwen" in r[0]), ("fits", "5", lambda r: not r[5].startswith("no"))):
        browser.run(f"document.forms[0].{field}.value = '{value}'; document.forms[0].dispatchEvent(new Event('input'))")
        rows = [row for row in rows if keep(row)]
        expect(f"filtered by {field}", sorted(browser.run(TEXTS)), sorted(rows))
    if not rows:
        sys.exit("nothing is left to filter")
    chosen = browser.run("location.hash")
    browser.open(path, chosen)
    expect(f"what {chosen} shows", sorted(browser.run(TEXTS)), sorted(rows))
    expect("errors", browser.errors, [])
    browser.run("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    expect("a script that the policy does not know", browser.run("window.ran"), None)
    print(f"fit: {len(heads)} columns sorted both ways, 4 filters, {chosen}; an unknown script did not run ({len(browser.errors)} complaint)")


def main():
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not os.environ.get("SBP_TEST_ALL") and len(sys.argv) == 2:
        print("skipped: pages in a browser (SBP_TEST_ALL)")
        return
    if not program:
        print("skipped: no chromium (apt-get install chromium)")
        return
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/release")
    pictures = sys.argv[2] if len(sys.argv) > 2 else "build/browser"
    os.makedirs(pictures, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.mkdir(f"{folder}/{NAME}")
        shutil.copy(f"{MODEL}/config.json", f"{folder}/{NAME}")
        with open(f"{folder}/small", "w", encoding="utf-8") as file:
            file.write(SMALL)
        subprocess.run([f"{build}/sbpc", "fit", f"{folder}/{NAME}", "tests/data/configs/Qwen3-0.6B.json", "--cards", f"{folder}/small,h200", "--kinds",
                        "full,lora", "--lengths", "64,1k", "--html", f"{folder}/fit.html", "-q"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([f"{build}/sbprun", MODEL, "--data", DATA, "--steps", "20", "--eval", DATA, "--eval-every", "6", "--out",
                        f"{folder}/run <i>of</i> \"somebody\"", "-q"], check=True)
        browser = Browser(program, f"{folder}/profile")
        stack.callback(browser.end)
        look(browser, f"{folder}/run <i>of</i> \"somebody\"/report.html", "report", pictures)
        look(browser, f"{folder}/fit.html", "fit", pictures)
        sort_and_filter(browser, f"{folder}/fit.html")


main()
