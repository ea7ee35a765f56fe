#!/usr/bin/env python3
"""Makes runtime/options/trl.md: what becomes of every field of TRL's configurations (fields.json, make.py).

    table.py           writes it
    table.py --check   ends with status 1 where it is another than the one that is there
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
OPTIONS = HERE.parents[2] / "runtime/options"
STRING = r'"((?:[^"\\]|\\.)*)"'


def read():
    """Names with '_', of options (with what they are called), of parts of options (which), of what is refused (why), of what has no effect."""
    text = (OPTIONS / "options.def").read_text(encoding="utf-8")
    text = re.sub(r'^#include "(.*)"$', lambda m: (HERE.parents[2] / m.group(1)).read_text(encoding="utf-8"), text,
                  flags=re.M)
    done = {}
    for line in re.finditer(r"^(?:OPTION|KEY)\((.*?)\)\n(?=\n|[A-Z/#])", text, re.M | re.S):
        strings = re.findall(STRING, line.group(1))
        name = strings[0]
        key = re.match(rf"\w+, {STRING}, ([A-Z]+), {STRING}", line.group(1))
        if key:  # of a bundle: --loss epsilon
            name = f"{key.group(2).lower()} {key.group(3)}"
        done[strings[0].replace("-", "_")] = name
    trl = (OPTIONS / "trl.def").read_text(encoding="utf-8")
    parts = {name.replace("-", "_"): becomes for name, becomes in
             re.findall(rf"^VALUE\(\w+, {STRING}, .*, {STRING}\)$", trl, re.M)}
    for name, option in re.findall(rf"^NAME\({STRING}, {STRING}", trl, re.M):
        if option.replace("-", "_") in done:
            done.setdefault(name, done[option.replace("-", "_")])
    refused = {n.replace("-", "_"): reason for n, _, reason in
               re.findall(rf"^REFUSED\({STRING}, {STRING}, {STRING}\)", trl, re.M)}
    ignored = set(re.findall(rf"^IGNORED\({STRING}", trl, re.M))
    return done, parts, refused, ignored


def main():
    fields = json.loads((HERE / "fields.json").read_text(encoding="utf-8"))
    done, parts, refused, ignored = read()
    classes = [name for name in fields if name != "trl"]
    rows, counts = {}, {name: [0, 0, 0] for name in classes}
    for name in classes:
        for field in fields[name]:
            if field == "datasets":  # a list of maps of path, name and split; anything else in it is refused
                kind, text = 0, "`--data` for each, PATH or NAME:CONFIG:SPLIT"
            elif field in refused:
                kind, text = 2, "refused: " + refused[field]
            elif field in ignored:
                kind, text = 1, "no effect here"
            elif field in done:
                kind, text = 0, f"`--{done[field]}`"
            elif field in parts:
                kind, text = 0, f"`{parts[field]}`"
            else:
                sys.exit(f"{name}.{field}: neither an option nor refused nor without effect")
            counts[name][kind] += 1
            rows.setdefault(field, (kind, text))
    out = [f"# Fields of TRL {fields['trl']}", "",
           "Made by tests/data/trl/table.py. Values that ask for what happens anyway, null, none and false are taken of all",
           "of them; those without effect are named once in a note; of what is refused, any other value stops a run.", "",
           "| class | fields | done | no effect | refused |", "|---|---|---|---|---|"]
    out += [f"| {name} | {sum(c)} | {c[0]} | {c[1]} | {c[2]} |" for name, c in counts.items()]
    total = [sum(row[0] == kind for row in rows.values()) for kind in range(3)]
    out += [f"| different names | {len(rows)} | {total[0]} | {total[1]} | {total[2]} |", "", "| field | here |", "|---|---|"]
    out += [f"| {field} | {text.replace('|', chr(92) + '|')} |" for field, (_, text) in sorted(rows.items())]
    text = "\n".join(out) + "\n"
    path = OPTIONS / "trl.md"
    if sys.argv[1:] == ["--check"]:
        return path.read_text(encoding="utf-8") != text
    path.write_text(text, encoding="utf-8")
    return 0


sys.exit(main())
