#!/usr/bin/env bash
# What the suite says of a device without kernels: missing.sh CONFORMANCE DEVICE. It fails, and lists all commands as
# missing but fence, which composite/ does for a device whose commands are done when submit returns.
set -uo pipefail
expected=$(sed -nE 's/^COMMAND\([A-Z_0-9]+, ([a-z_0-9]+),.*/\1/p' ir/program/commands.def | grep -vx fence)
output=$("$1" "$2" 2>&1)
status=$?
found=$(awk '$1 == "missing" { print $2 }' <<< "$output")
[ "$(wc -l <<< "$expected")" -eq $(($(grep -c '^COMMAND(' ir/program/commands.def) - 1)) ] || { echo "ir/program/commands.def was not understood"; exit 1; }
[ $status -eq 1 ] || { echo "$1 $2: exit status $status, expected 1"; exit 1; }
diff <(echo "$expected") <(echo "$found") || { echo "$1 $2: these are not all commands"; exit 1; }
grep -q "^$2 has no kernel for $(wc -l <<< "$expected") of" <<< "$output" || { echo "the sum is missing"; exit 1; }
grep -q 'FAILED' <<< "$output" && { echo "$1 $2: a test failed by what is missing"; exit 1; }
echo "$2: $(wc -l <<< "$expected") commands are missing, as they should"
