#!/usr/bin/env python3
r"""Renames identifiers, files and phrases as table.tsv says, in any checkout of this tree.

    tests/renames/apply.py [--root DIR] [--check] [--format] [WORD ..]     WORD: groups of the table; none: all

A line of the table is: group, kind, scope, old, new, flags; columns are separated by tabs, '#' begins a comment.

    id     a whole identifier, wherever it stands: code, comments, strings, scripts, CMake, READMEs
    code   the same in C code alone, not in comments and strings
    prose  the same in comments of C files and in Markdown alone
    text   a phrase, literally, \n for the end of a line; not within a longer word
    file   a path, by git mv; a path in #include lines, CMake, scripts and texts follows

`scope` is a list of patterns of paths (fnmatch, '*' crosses folders, '!' excludes; paths may be old or new ones), '*'
everything but data. An identifier or path that ends in '*' stands for all that begin so. A mutant's text is renamed as its
file is. Flags: `with:NAME` only in files that (still) have the identifier NAME; `both`: the new name may be there already.

It changes nothing the second time. Where a new name stands in code beside the old one before anything is changed, it says so
and changes nothing: the name would mean two things. --check only does that. --format runs clang-format on C files it changed.
Exit status 1: a collision; 2: the table is wrong.
"""
import argparse
import fnmatch
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = ("tests/golden/", "tests/data/", "tests/ptx/", "tests/fuzz/corpus/", "tests/bench/results/", "tests/renames/", "tests/layering/",
        "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE")  # only where a scope names them
C_FILE = re.compile(r"\.(c|h|def|cu|cuh|comp|glsl)$")
TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PIECES = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'', re.S)


def fail(status, message):
    print(message, file=sys.stderr)
    sys.exit(status)


def glob_match(path, pattern):
    return path == pattern or fnmatch.fnmatchcase(path, pattern)


class Rule:
    def __init__(self, number, columns):
        self.number = number
        self.group, self.kind, self.scope, self.old, self.new = columns[:5]
        if self.kind == "text":
            self.old, self.new = self.old.replace("\\n", "\n"), self.new.replace("\\n", "\n")
        flags = columns[5].split() if len(columns) > 5 else []
        self.needs = next((f[5:] for f in flags if f.startswith("with:")), None)
        self.both = "both" in flags
        self.positive = [p for p in self.scope.split(",") if not p.startswith("!")]
        self.negative = [p[1:] for p in self.scope.split(",") if p.startswith("!")]
        if self.kind == "text":
            begin = r"(?<![A-Za-z0-9_])" if re.match(r"\w", self.old) else ""
            end = r"(?![A-Za-z0-9_])" if re.search(r"\w\Z", self.old) else ""
            self.pattern = re.compile(begin + re.escape(self.old) + end)

    def fits(self, path):
        if any(glob_match(path, p) for p in self.negative):
            return False
        if "*" in self.positive:
            return not path.startswith(DATA)
        return any(glob_match(path, p) for p in self.positive) and not (path.startswith(DATA) and not any(p.split("*")[0].startswith(DATA) for p in self.positive))


def read_table(groups):
    rules, known = [], set()
    with open(os.path.join(HERE, "table.tsv"), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            line = line.rstrip("\n")
            if not line or line.startswith("#"):
                continue
            columns = line.split("\t")
            if len(columns) not in (5, 6) or columns[1] not in ("id", "code", "prose", "text", "file"):
                fail(2, f"table.tsv:{number}: expected group, kind, scope, old, new: {line}")
            known.add(columns[0])
            if not groups or columns[0] in groups:
                rules.append(Rule(number, columns))
    for group in groups:
        if group not in known:
            fail(2, f"no group '{group}' in the table; there are {' '.join(sorted(known))}")
    return rules


class Names:
    """Old to new of one kind for one file."""

    def __init__(self, rules):
        self.exact = {r.old: r.new for r in rules if not r.old.endswith("*")}
        self.begins = sorted(((r.old[:-1], r.new[:-1]) for r in rules if r.old.endswith("*")), key=lambda x: -len(x[0]))

    def __bool__(self):
        return bool(self.exact or self.begins)

    def of(self, name):
        if name in self.exact:
            return self.exact[name]
        for old, new in self.begins:
            if name.startswith(old):
                return new + name[len(old):]
        return None


def substitute(text, names, used=None):
    def replace(match):
        new = names.of(match.group(0))
        if new is None:
            return match.group(0)
        if used is not None:
            used.setdefault(match.group(0), new)
        return new
    return TOKEN.sub(replace, text) if names else text


def split(text):
    """Pieces of C text: (is_code, is_comment, text)."""
    at = 0
    for match in PIECES.finditer(text):
        if match.start() > at:
            yield True, False, text[at:match.start()]
        yield False, match.group(0).startswith(("//", "/*")), match.group(0)
        at = match.end()
    if at < len(text):
        yield True, False, text[at:]


def rename_text(path, text, rules, used=None, is_c=None):
    rules = [r for r in rules if r.fits(path) and not (r.needs and not re.search(rf"\b{r.needs}\b", text))]
    if not rules:
        return text
    for r in rules:
        if r.kind == "text":
            text = r.pattern.sub(lambda _, new=r.new: new, text)
    everywhere = Names([r for r in rules if r.kind == "id"])
    code = Names([r for r in rules if r.kind in ("id", "code")])
    prose = Names([r for r in rules if r.kind in ("id", "prose")])
    if C_FILE.search(path) if is_c is None else is_c:
        return "".join(substitute(piece, code if is_code else prose if is_comment else everywhere, used if is_code else None)
                       for is_code, is_comment, piece in split(text))
    return substitute(text, prose if path.endswith(".md") else everywhere, used)


def rename_mutants(path, text, rules):
    out, of = [], None
    for line in text.split("\n"):
        if line.startswith("file "):
            of = line[5:].strip()
        if of and line[:5] in ("from ", "to   "):
            out.append(line[:5] + rename_text(of, line[5:], rules, is_c=bool(C_FILE.search(of))))
        else:
            out.append(rename_text(path, line, rules))
    return "\n".join(out)


WIDTH = 110
HEADING = re.compile(r"^(/\* ---- .*?) -+ ?(\*/)$")


def wrap_comments(text):
    """Comments on lines of their own that became too long: from such a line to the end of its paragraph."""
    lines, out, inside = text.split("\n"), [], False
    while lines:
        line = lines.pop(0)
        begins = re.match(r"^ *(/\*|//)", line)
        inside = inside or bool(begins and begins.group(1) == "/*")
        ends = inside and "*/" in line
        heading = HEADING.match(line)
        if heading and len(line) > WIDTH:
            line = heading.group(1) + " " + "-" * (WIDTH - 4 - len(heading.group(1))) + " */"
        elif len(line) > WIDTH and inside and not heading and re.match(r"^ *(/\* | \* |\* )", line) and "   " not in line.strip() and "#define" not in line:
            lead = re.match(r"^ *", line).group(0) + ("" if line.lstrip().startswith("*") else " ")
            at = line.rfind(" ", 0, WIDTH + 1)
            if line.endswith("*/") and at >= len(line) - 3:
                at = line.rfind(" ", 0, at)
            rest = line[at + 1:]
            line = line[:at]
            following = lines[0] if lines and not ends else None
            text_of = re.match(r"^ *\* (\S.*)$", following) if following is not None else None
            if text_of and not re.match(r"[-/]|.*   ", text_of.group(1)) and following.startswith(lead + "* ") and not following.startswith(lead + "*  "):
                lines[0] = f"{lead}* {rest} {text_of.group(1)}"
            else:
                lines.insert(0, f"{lead}* {rest}")
            ends = False
        out.append(line)
        if ends:
            inside = False
    return "\n".join(out)


def git(root, *arguments):
    return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout


def moves_of(rules, paths):
    """Old to new path; rules follow each other."""
    now = {p: p for p in paths}
    for r in rules:
        if r.kind != "file":
            continue
        for original, path in now.items():
            if path == r.old:
                now[original] = r.new
            elif r.old.endswith("*") and path.startswith(r.old[:-1]):
                now[original] = r.new[:-1] + path[len(r.old) - 1:]
    return {old: new for old, new in now.items() if old != new}


def rename_paths(path, text, moves, folders):
    """Whole paths everywhere; parts of two names or more everywhere; a file's own name in its folder and those above it."""
    for old, new in sorted(moves.items(), key=lambda m: -len(m[0])):
        a, b = old.split("/"), new.split("/")
        for skip in range(len(a) - 1):
            x, y = "/".join(a[skip:]), "/".join(b[skip + len(b) - len(a):] if len(b) - len(a) + skip >= 0 else b)
            if x != y and x in text:
                text = re.sub(rf"(?<![A-Za-z0-9_./-]){re.escape(x)}(?![A-Za-z0-9_-]|\.[a-z])", y, text)
        folder = os.path.dirname(old)
        here = os.path.dirname(path)
        if a[-1] != b[-1] and (here == folder or here == os.path.dirname(new) or (folder.startswith(here + "/") and folder.count("/") - here.count("/") <= 2)):
            text = re.sub(rf"(?<![A-Za-z0-9_./-]){re.escape(a[-1])}(?![A-Za-z0-9_-]|\.[a-z])", b[-1], text)
    for old, new in sorted(folders.items(), key=lambda m: -len(m[0])):
        text = re.sub(rf"(?<![A-Za-z0-9_./-]){re.escape(old)}(?![A-Za-z0-9_-])", new, text)
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(HERE)))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--format", action="store_true")
    parser.add_argument("groups", nargs="*")
    options = parser.parse_args()
    rules, root = read_table(options.groups), options.root
    texts = {}
    for path in git(root, "ls-files").split("\n"):
        full = os.path.join(root, path)
        if path and os.path.isfile(full) and not os.path.islink(full):
            with open(full, "rb") as f:
                data = f.read()
            if b"\0" not in data:
                try:
                    texts[path] = data.decode("utf-8")
                except UnicodeDecodeError:
                    pass

    # collisions: in code, a new name that is there before
    renaming = [r for r in rules if r.kind in ("id", "code")]
    free = {r.new for r in renaming if r.both}
    had, collisions = {}, []
    for path, text in texts.items():
        if C_FILE.search(path):
            had[path] = {t for is_code, _, piece in split(text) if is_code for t in TOKEN.findall(piece)}
    everywhere = {t: path for path, tokens in had.items() for t in tokens}
    moves = moves_of(rules, list(texts))
    folders = {}
    for old, new in moves.items():
        if os.path.dirname(old) != os.path.dirname(new) and not any(os.path.dirname(p) == os.path.dirname(old) and p not in moves for p in texts):
            folders[os.path.dirname(old)] = os.path.dirname(new)
    after, used_by = {}, {}
    for path, text in texts.items():
        used = {}
        if not path.startswith("tests/renames/") and path != "CHANGELOG.md":
            text = rename_paths(path, text, moves, folders)
        after[path] = rename_mutants(path, text, rules) if path.endswith("mutants.txt") else rename_text(path, text, rules, used)
        used_by[path] = used
    pending = {old for used in used_by.values() for old in used}
    for path, used in used_by.items():
        for old, new in used.items():
            names = [n for n in (new,) if n not in free]
            for name in names:
                if name in had.get(path, ()) and name not in used:
                    collisions.append(f"{path}: '{old}' becomes '{name}', which is there already")
                elif name.lower().startswith("sbp_") and name in everywhere and name not in pending and everywhere[name] != path:
                    collisions.append(f"{path}: '{old}' becomes '{name}', which is in {everywhere[name]}")
    for old, new in moves.items():
        if new in texts and new not in moves:
            collisions.append(f"{old} becomes {new}, which is there already")
    if collisions:
        fail(1, "\n".join(sorted(set(collisions))))
    if options.check:
        return

    for old, new in moves.items():
        os.makedirs(os.path.dirname(os.path.join(root, new)), exist_ok=True)
        git(root, "mv", old, new)
    changed = []
    for path, text in texts.items():
        if after[path] != text:
            to = moves.get(path, path)
            with open(os.path.join(root, to), "w", encoding="utf-8", newline="") as f:
                f.write(after[path])
            changed.append(to)
    c_files = [p for p in changed if re.search(r"\.[ch]$", p)]
    if options.format and c_files:
        for path in c_files:
            with open(os.path.join(root, path), encoding="utf-8", newline="") as f:
                text = f.read()
            with open(os.path.join(root, path), "w", encoding="utf-8", newline="") as f:
                f.write(wrap_comments(text))
        subprocess.run(["clang-format", "-i", *c_files], check=True, cwd=root)
    print(f"{len(changed)} files changed, {len(moves)} moved")


if __name__ == "__main__":
    main()
