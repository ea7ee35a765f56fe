#!/usr/bin/env bash
# Circles of files that call each other, by the object files of a build: tests/layering/circles.sh BUILD, in the root. A
# line for each: its files, sorted. A table of functions, as registries are, is data and no call.
set -uo pipefail
build=$1
export LC_ALL=C
tarjan=$(cat "$(dirname "${BASH_SOURCE[0]}")/tarjan.awk")
(cd "$build" && find . -path '*/CMakeFiles/*.dir/*.c.o' ! -path './tests/*') | sort | while read -r object; do
    source=${object/CMakeFiles\/*.dir\//}
    [ -f "${source%.o}" ] && echo "$object" # not what an earlier build left
done | (cd "$build" && xargs -r objdump -t -r) | awk "$tarjan"'
    / file format / {
        file = $1
        sub(/:$/, "", file)
        sub(/^\.\//, "", file)
        sub(/CMakeFiles\/[^\/]*\.dir\//, "", file)
        sub(/\.o$/, "", file)
    }
    /^SYMBOL TABLE/ { part = "symbols" }
    /^RELOCATION RECORDS/ { part = $4 ~ /^\[\.text/ ? "code" : "data" }
    part == "symbols" && $2 == "g" && !/\*UND\*/ && !($NF in home) { home[$NF] = file }
    part == "code" && $2 ~ /^R_/ {
        sub(/[-+]0x[0-9a-f]+$/, "", $3)
        if (!((file, $3) in seen)) {
            seen[file, $3]
            calls[file] = calls[file] " " $3
        }
    }
    function circle(names, size) { print names }
    END {
        for (file in calls) {
            n = split(calls[file], list, " ")
            for (i = 1; i <= n; i++)
                if (list[i] in home && home[list[i]] != file) next_node[file, ++count[file]] = home[list[i]]
        }
        for (file in calls) if (!(file in number)) visit(file)
    }' | while read -r -a members; do
    printf '%s\n' "${members[@]}" | sort | paste -sd' '
done | sort
