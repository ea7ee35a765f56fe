#!/usr/bin/env bash
# Formatting and static analysis of every C source: tests/lint.sh [build folder with compile_commands.json]
# The folder must be built: some sources include what the build makes. LINT_JOBS: how many at a time.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
for tool in clang-format clang-tidy; do
    command -v $tool > /dev/null || { echo "error: $tool is missing" >&2; exit 1; }
done
[ -f "$build/compile_commands.json" ] || { echo "error: no $build/compile_commands.json: cmake --preset release" >&2; exit 1; }
mapfile -t sources < <(git ls-files '*.c' '*.h')
[ ${#sources[@]} -gt 0 ] || { echo "error: git lists no sources here" >&2; exit 1; }
mkdir -p "$build/lint"

# Both tools have to see what is planted, or their silence says nothing.
printf 'int planted(void);\nint planted(void) {\n  int *p = 0;\n    return *p;\n}\n' > "$build/lint/planted.c"
if clang-format --dry-run -Werror --style=file:.clang-format "$build/lint/planted.c" 2> /dev/null ||
    clang-tidy --quiet --config-file=.clang-tidy "$build/lint/planted.c" -- > "$build/lint/planted.log" 2> /dev/null ||
    ! grep -q 'NullDereference' "$build/lint/planted.log"; then
    echo "error: a planted null pointer or a wrong indent is not found" >&2
    exit 1
fi

status=0
if ! clang-format --dry-run -Werror "${sources[@]}" 2> "$build/format.log"; then
    grep -E 'error:' "$build/format.log" | cut -d: -f1 | sort | uniq -c
    echo "error: these files are not formatted: clang-format -i FILE"
    status=1
fi

# The analyzer is clang's: without the options that only gcc knows, and with the asserts, which tell it what it
# cannot find out.
sed -E 's/ -fno-(thread-jumps|tree-loop-distribute-patterns)//g; s/ -DNDEBUG / /g' "$build/compile_commands.json" \
    > "$build/lint/compile_commands.json"
units=()
while read -r unit; do
    if grep -qF "\"$PWD/$unit\"" "$build/compile_commands.json"; then
        units+=("$unit")
    else
        echo "skipped: $unit is not analysed: this build leaves it out"
    fi
done < <(git ls-files '*.c' | grep -v '^tests/')
[ ${#units[@]} -gt 0 ] || { echo "error: $build builds none of the sources" >&2; exit 1; }
if ! printf '%s\n' "${units[@]}" | xargs -P "${LINT_JOBS:-$(nproc)}" -n 4 clang-tidy -p "$build/lint" --quiet \
    > "$build/tidy.log" 2> "$build/tidy.err"; then
    grep -E '(warning|error):' "$build/tidy.log" | sort -u
    grep -E '^(error|Error|LLVM ERROR|xargs)' "$build/tidy.err" | sort -u | head
    echo "error: clang-tidy finds something ($build/tidy.log)"
    status=1
fi
[ $status -eq 0 ] && echo "${#sources[@]} files formatted, ${#units[@]} analysed"
exit $status
