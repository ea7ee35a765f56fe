#!/usr/bin/env bash
# Formatting and static analysis of every C source: tests/lint.sh [build folder with compile_commands.json]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
mapfile -t sources < <(git ls-files '*.c' '*.h')
status=0
if ! clang-format --dry-run -Werror "${sources[@]}" 2> "$build/format.log"; then
    grep -E 'error:' "$build/format.log" | cut -d: -f1 | sort | uniq -c
    echo "error: these files are not formatted: clang-format -i FILE"
    status=1
fi
mapfile -t units < <(git ls-files '*.c' | grep -v '^tests/')
# The analyzer is clang's: without the options that only gcc knows.
mkdir -p "$build/lint"
sed -E 's/ -fno-thread-jumps//g' "$build/compile_commands.json" > "$build/lint/compile_commands.json"
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$build/lint" --quiet > "$build/tidy.log" 2> /dev/null || status=1
grep -E '(warning|error):' "$build/tidy.log" | sort -u
[ $status -eq 0 ] && echo "${#sources[@]} files formatted, ${#units[@]} analysed"
exit $status
