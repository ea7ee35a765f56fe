#!/usr/bin/env bash
# llama.sh under SBP_TEST_ALL; else skipped, which the status says.
[ "${SBP_TEST_ALL:-}" ] || { echo "skipped: llama.cpp is built and asked with SBP_TEST_ALL=1 alone" >&2; exit 77; }
exec "$(dirname "$0")/llama.sh" "$@"
