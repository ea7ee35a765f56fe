"""Vectors as a JSON file, a case a line: what make_objectives.py, make_prepared.py and make_ppo.py write."""
import argparse
import json


def arguments(description, *names):
    """What such a script is called with: --check, and positional arguments of these names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names:
        parser.add_argument(name)
    parser.add_argument("--check", action="store_true", help="compute again and compare, write nothing")
    return parser.parse_args()


def write(target, vectors, first_key, check):
    """A line begins where an object begins with first_key. check: compares with the file, and ends with exit status 0 or 1."""
    begin = '{"' + first_key + '"'
    text = json.dumps(vectors, separators=(",", ":")).replace(begin, "\n" + begin) + "\n"
    if check:
        with open(target) as file:
            same = file.read() == text
        print("the same" if same else "differs")
        raise SystemExit(0 if same else 1)
    with open(target, "w") as file:
        file.write(text)
    print(f"{target}: {len(text)} bytes")
