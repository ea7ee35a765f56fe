#!/usr/bin/env bash
# The structure of the product in numbers: tests/layering/rooms.sh [-v] [ROOT [BUILD]]
#   rooms    folders with C sources; files: their .c, .h and .def; lines
#   arrows   pairs of rooms of which one includes a header of the other (-v lists them)
#   circles  sets of rooms that reach each other by arrows
# Also: files that name a command (SBP_CMD_), options that --help shows, words and longest lines of READMEs outside tests/;
# with a build folder, circles of files that call each other (circles.sh).
set -euo pipefail
tarjan=$(cat "$(dirname "${BASH_SOURCE[0]}")/tarjan.awk")
verbose=
[ "${1:-}" = -v ] && verbose=$1 && shift
build=${2:+$(cd "$2" && pwd)}
cd "${1:-$(dirname "$0")/../..}"
export LC_ALL=C
mapfile -t files < <(find ir passes frontends backends runtime -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' \) ! -path '*/build/*' | sort)
grep -HoE '^ *# *include *"[^"]+"' "${files[@]}" | sed -E 's/^([^:]*):.*"(.*)"/\1 \2/' |
    awk -v all="${files[*]}" -v verbose="$verbose" "$tarjan"'
    function room(file) { sub(/\/[^\/]*$/, "", file); return file }
    function circle(names, size) { circles++; print "circle:" names }
    BEGIN {
        n = split(all, list, " ")
        for (i = 1; i <= n; i++) { known[list[i]]; if (!(room(list[i]) in rooms)) { rooms[room(list[i])]; order[++room_count] = room(list[i]) } }
    }
    ($2 in known) && room($1) != room($2) && !((room($1), room($2)) in seen) {
        seen[room($1), room($2)]
        next_node[room($1), ++count[room($1)]] = room($2)
        arrows++
        if (verbose == "-v") print room($1) " -> " room($2)
    }
    END {
        for (i = 1; i <= room_count; i++) if (!(order[i] in number)) visit(order[i])
        printf "rooms %d, files %d, arrows %d, circles %d\n", room_count, n, arrows, circles
    }'
cat "${files[@]}" | wc -l | sed 's/ *//; s/^/lines /'
grep -lr 'SBP_CMD_' ir passes frontends backends runtime | wc -l | sed 's/ *//; s/^/files that name a command /'
cat runtime/options/options.def frontends/objectives/settings.def | grep '^OPTION(' | grep -c ' BUILT,' | sed 's/^/options that --help shows /'
[ -z "$build" ] || tests/layering/circles.sh "$build" | wc -l | sed 's/ *//; s/^/circles of files /'
find . -name README.md ! -path './tests/*' ! -path './build/*' ! -path './.git/*' -print0 | xargs -0 cat |
    awk '{ words += NF; if (length($0) > 120) long++; if (length($0) > 100) longer++ } END { printf "READMEs outside tests/: %d words, %d lines above 120 characters, %d above 100\n", words, long, longer }'
