#!/usr/bin/env bash
# Lines of code per backend, as the table of README.md has them: without blank lines and lines of comment only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

count() { # FILE..: lines of code
    cat /dev/null "$@" | awk '
        /^[ \t]*\/\*/ { inside = 1 }
        { code = !inside && !/^[ \t]*(\/\/|#[ \t]*[A-Z][a-z ]|$)/ }
        inside && /\*\// { inside = 0 }
        code { lines++ }
        END { print lines + 0 }'
}

printf '| backend | host code | kernels | all |\n|---|---|---|---|\n'
for folder in */; do
    host=$(find "$folder" -type f ! -name '*.md' ! -path '*/kernels/*' ! -path '*/shaders/*' | sort)
    kernels=$(find "$folder" -type f ! -name '*.md' \( -path '*/kernels/*' -o -path '*/shaders/*' \) | sort)
    a=$(count $host) b=$(count $kernels)
    printf '| %s | %d | %d | %d |\n' "$folder" "$a" "$b" "$((a + b))"
done
a=$(count $(find . -maxdepth 1 -name '*.[ch]' | sort))
printf '| shared: target, device, rowmath | %d | | %d |\n' "$a" "$a"
