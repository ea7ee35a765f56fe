"""Writes real.json: ids of texts.json and a few longer texts for the tokenizers of real models, which lie outside
the repository (the tests that use them skip when they are absent).

    python3 make_real.py NAME=path/to/tokenizer.json ...      # needs: pip install tokenizers==0.23.3
"""
import json
import sys

from tokenizers import Tokenizer

import make

texts = make.TEXTS + make.CORPUS + ["\n".join(make.CORPUS)]
result = {"texts": texts}
for argument in sys.argv[1:]:
    name, path = argument.split("=")
    result[name] = [Tokenizer.from_file(path).encode(text).ids for text in texts]
make.write("real.json", result)
