#!/usr/bin/env python3
"""A small server of the Hub's interface on the loopback, for the real huggingface_hub (HF_ENDPOINT).

fake_hub.py ROOT PORT_FILE serves ROOT/models/ORG/NAME and ROOT/datasets/ORG/NAME; NAME@refs%2Fconvert%2Fparquet is another
revision of it. Writes its port into PORT_FILE and a line "METHOD PATH" for each request into ROOT/log. Large files are those
of .safetensors and .parquet: their ETag is their SHA-256, as of LFS. ROOT/fault, if there, has "cut" (a large file ends in
the middle) or "wrong" (a byte of it is another). What is uploaded goes to ROOT/models.
"""
import base64
import hashlib
import json
import os
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = sys.argv[1]
LARGE = (".safetensors", ".parquet")
log_lock = threading.Lock()


def folder(kind, repo, revision):
    """Of a revision, or of the commit that stands for it."""
    base = os.path.join(ROOT, kind, repo)
    parent, name = os.path.split(base)
    if not os.path.isdir(parent):
        return None, None
    for entry in sorted(os.listdir(parent)):
        if entry.split("@")[0] != name:
            continue
        branch = urllib.parse.unquote(entry.split("@")[1]) if "@" in entry else "main"
        commit = hashlib.sha1(f"{kind}/{repo}/{branch}".encode()).hexdigest()
        if revision in (branch, commit):
            return os.path.join(parent, entry), commit
    return None, None


def files_of(directory):
    for at, _, names in os.walk(directory):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(at, name), directory)


def describe(directory, path):
    with open(os.path.join(directory, path), "rb") as file:
        data = file.read()
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    out = {"type": "file", "path": path, "size": len(data), "oid": oid}
    if path.endswith(LARGE):
        out["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return out, data


def fault():
    try:
        with open(os.path.join(ROOT, "fault")) as file:
            return file.read().strip()
    except OSError:
        return ""


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        with log_lock, open(os.path.join(ROOT, "log"), "a") as file:
            file.write(f"{self.command} {urllib.parse.unquote(self.path)}\n")

    def answer(self, status, value, headers=()):
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, code="RepoNotFound"):
        self.answer(404, {"error": "not found"}, [("X-Error-Code", code), ("X-Error-Message", "not found")])

    def file(self, kind, repo, revision, path):
        directory, commit = folder(kind, repo, revision)
        if not directory or not os.path.isfile(os.path.join(directory, path)):
            return self.missing("EntryNotFound")
        info, data = describe(directory, path)
        large = info.get("lfs")
        if large and fault() == "wrong":
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = 0
        given = self.headers.get("Range", "")
        if given.startswith("bytes="):
            start = int(given[6:].split("-")[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{large["oid"] if large else info["oid"]}"')
        self.send_header("X-Repo-Commit", commit)
        if large:
            self.send_header("X-Linked-Etag", f'"{large["oid"]}"')
            self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if large and fault() == "cut":
            self.wfile.write(data[start:start + (len(data) - start) // 2])
            self.close_connection = True
            return None
        self.wfile.write(data[start:])
        return None

    def do_GET(self):
        parts = [urllib.parse.unquote(p) for p in self.path.split("?")[0].strip("/").split("/")]
        if parts[0] == "api" and len(parts) >= 4 and parts[1] in ("models", "datasets"):
            kind, repo, rest = parts[1], "/".join(parts[2:4]), parts[4:]
            directory, commit = folder(kind, repo, rest[1] if len(rest) > 1 else "main")
            if not directory:
                return self.missing("RevisionNotFound" if folder(kind, repo, "main")[0] else "RepoNotFound")
            if rest and rest[0] == "tree":
                return self.answer(200, [describe(directory, path)[0] for path in files_of(directory)])
            return self.answer(200, {"id": repo, "modelId": repo, "sha": commit, "private": False, "tags": [],
                                     "siblings": [{"rfilename": path} for path in files_of(directory)]})
        kind = "models"
        if parts[0] == "datasets":
            kind, parts = "datasets", parts[1:]
        if len(parts) > 4 and parts[2] == "resolve":
            return self.file(kind, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.missing()

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = [urllib.parse.unquote(p) for p in self.path.split("?")[0].strip("/").split("/")]
        if parts[:3] == ["api", "repos", "create"]:
            request = json.loads(body)
            repo = (request.get("organization") or "user") + "/" + request["name"]
            os.makedirs(os.path.join(ROOT, "models", repo), exist_ok=True)
            return self.answer(200, {"url": f"http://{self.headers['Host']}/{repo}", "name": repo, "id": "1"})
        if parts[:2] == ["api", "validate-yaml"]:  # of a card
            return self.answer(200, {"errors": [], "warnings": []})
        if len(parts) > 4 and parts[4] == "preupload":
            names = [file["path"] for file in json.loads(body)["files"]]
            return self.answer(200, {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False}
                                               for name in names], "commitOid": "0" * 40})
        if len(parts) > 4 and parts[4] == "commit":
            repo = "/".join(parts[2:4])
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    to = os.path.join(ROOT, "models", repo, entry["value"]["path"])
                    os.makedirs(os.path.dirname(to), exist_ok=True)
                    with open(to, "wb") as file:
                        file.write(base64.b64decode(entry["value"]["content"]))
            commit = hashlib.sha1(body).hexdigest()
            return self.answer(200, {"success": True, "commitOid": commit,
                                     "commitUrl": f"http://{self.headers['Host']}/{repo}/commit/{commit}"})
        return self.missing()


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
with open(sys.argv[2] + ".new", "w") as out:
    out.write(str(server.server_address[1]))
os.rename(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
