#!/usr/bin/env bash
# Compiles the kernels anew: tests/ptx/triton/make.sh [CASE ...]. Needs Python 3.11 with venv, and PyPI once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=../../../build/triton-venv
[ -x $venv/bin/python ] || python3 -m venv $venv
$venv/bin/pip install --quiet --requirement requirements.txt
TRITON_CACHE_DIR=$venv/cache $venv/bin/python make_kernels.py "$@"
git status --short cases
