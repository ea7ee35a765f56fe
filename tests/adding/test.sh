#!/usr/bin/env bash
# Follows the recipes "a loss" (frontends/README.md) and "an optimizer" (passes/README.md) in a copy of the tree: a file
# and a line of a table each, and the two programs have the words, take them, and train with them.
#   tests/adding/test.sh ROOT       builds both programs anew: minutes of a core, so only with SBP_TEST_ALL
set -euo pipefail
[ "${SBP_TEST_ALL:-}" ] || { echo "skipped: builds the programs anew (--all)"; exit 77; }
root=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
(cd "$root" && git ls-files -z CMakeLists.txt CMakePresets.json ir passes frontends backends runtime examples | tar -c --null -T - -f -) |
    tar -x -C "$work/tree"
cd "$work/tree"

# Both are tasks for first changes (CONTRIBUTING.md): where the tree has one already, another name stands in.
loss=focal optimizer=rmsprop
grep -q '"focal"' frontends/objectives/objectives.def && loss=focal_again
grep -q '"rmsprop"' passes/lower/optimizers.def && optimizer=rmsprop_again

# A loss: its file, which test_new_objective holds between two marks, and its line.
sed -n '/8< ---- objective_focal.c/,/8< -----/p' "$root/tests/unit/test_new_objective.c" | sed '/8</d' > "$work/body"
{
    echo '#include "frontends/objectives/objective.h"'
    sed "s/^static void objective_focal/void sbp_objective_$loss/" "$work/body"
} > "frontends/objectives/objective_$loss.c"
echo "OBJECTIVE(\"$loss\", sbp_objective_$loss, false, {0})" >> frontends/objectives/objectives.def
# An optimizer: its file, and its line.
sed "s/sbp_optimizer_rmsprop/sbp_optimizer_$optimizer/" "$root/tests/adding/rmsprop.c" > "passes/optimizers/$optimizer.c"
echo "OPTIMIZER(${optimizer^^}, $optimizer, \"$optimizer\", 1)" >> passes/lower/optimizers.def

cmake -S . --preset release -DBUILD_TESTING=OFF -DCMAKE_BUILD_TYPE=None > "$work/log" 2>&1 &&
    cmake --build build/release -j "$(nproc)" --target sbpc sbprun >> "$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
help=$(build/release/sbpc compile --help all)
for word in "$loss" "$optimizer"; do
    grep -q "$word" <<< "$help" || { echo "sbpc compile --help does not name '$word'"; exit 1; }
done
for i in 1 2 3 4; do echo "{\"text\": \"Once upon a time there was a little fox who lived in wood number $i.\"}"; done > "$work/rows"
build/release/sbprun "$root/tests/data/stories260K" --data "$work/rows" --objective "$loss" --optimizer "$optimizer" --lr 1e-3 --steps 8 \
    --warmup 0 --shuffle off --out "$work/out" --quiet
first=$(sed -n '/"loss"/{s/.*"loss": *\([0-9.e-]*\).*/\1/p;q}' "$work/out/metrics.jsonl")
last=$(sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' "$work/out/metrics.jsonl" | tail -n 1)
awk -v a="$first" -v b="$last" 'BEGIN { exit !(a != "" && b < a * 0.9) }' || { echo "the loss went from $first to $last"; exit 1; }
echo "a focal loss went from $first to $last by RMSprop"
