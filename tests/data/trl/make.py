#!/usr/bin/env python3
"""Makes fields.json: every field of the configurations that TRL's command lines read, with its default.

    make.py            needs trl 1.16.0 and transformers 5.23.0 (tests/golden/requirements.txt)

A class of options per member: those of a trainer with the fields of transformers' TrainingArguments, of the model and of the
script. A default that is an object of Python stands as its text; a list or a dictionary as such.
"""

import dataclasses
import json
import pathlib

import trl
from trl.scripts.utils import DatasetMixtureConfig

CLASSES = (trl.SFTConfig, trl.DPOConfig, trl.KTOConfig, trl.GRPOConfig, trl.RLOOConfig, trl.ModelConfig, trl.ScriptArguments,
           DatasetMixtureConfig)


def default(field):
    value = field.default
    if value is dataclasses.MISSING:
        value = None if field.default_factory is dataclasses.MISSING else field.default_factory()
    value = getattr(value, "value", value)  # of an enumeration
    return value if isinstance(value, (int, float, str, bool, list, dict, type(None))) else str(value)


def main():
    fields = {c.__name__: {f.name: default(f) for f in dataclasses.fields(c)} for c in CLASSES}
    path = pathlib.Path(__file__).resolve().parent / "fields.json"
    path.write_text(json.dumps({"trl": trl.__version__, **fields}, indent=1) + "\n", encoding="utf-8")


main()
