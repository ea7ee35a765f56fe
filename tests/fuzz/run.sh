#!/usr/bin/env bash
# Fuzzes chat templates with libFuzzer, ASan and UBSan: tests/fuzz/run.sh [seconds] (60). Needs clang with libFuzzer; it
# begins with the pieces of tests/golden/chat and with every .jinja given behind the seconds. New inputs and what fails
# go to build/fuzz/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-60}
shift || true
clang=$(command -v clang || compgen -c clang- | grep -E '^clang-[0-9]+$' | sort -V | tail -1) || { echo "skipped: no clang"; exit 0; }
mkdir -p build/fuzz/corpus build/fuzz/found
for file in tests/golden/chat/*.jinja "$@"; do cp "$file" build/fuzz/corpus/; done
awk '{ print > ("build/fuzz/corpus/snippet" NR) }' tests/golden/chat/snippets.txt
awk 'BEGIN { RS = "\n---\n" } { printf "%s", $0 > ("build/fuzz/corpus/block" NR) }' tests/golden/chat/blocks.txt
libraries=$(pkg-config --cflags --libs jansson libxxhash libutf8proc libpcre2-8)
"$clang" -g -O1 -std=c17 -D_GNU_SOURCE -DSBP_LIBFUZZER -I. -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    tests/fuzz/fuzz_template.c $(ls ir/io/template/*.c | grep -vE "source|marks") ir/io/json.c ir/io/file.c ir/base.c ir/arena.c ir/machine.c \
    $libraries -lm -lpthread -o build/fuzz/fuzz_template
build/fuzz/fuzz_template -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=2000 -artifact_prefix=build/fuzz/found/ \
    -print_final_stats=1 build/fuzz/corpus
