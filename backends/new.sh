#!/usr/bin/env bash
# Begins a backend: backends/new.sh NAME copies null/ as NAME/, under that name, and lists it in backends.def.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
name=${1:-}
[[ $name =~ ^[a-z][a-z0-9_]*$ ]] || { echo "usage: backends/new.sh NAME, small letters, digits and _" >&2; exit 2; }
[ ! -e "$name" ] || { echo "error: backends/$name is there already: give another name" >&2; exit 1; }
mkdir "$name"
for file in null/*; do
    sed "s/null/$name/g" "$file" > "${file//null/$name}"
done
sed -i "s/^UNLISTED(null,/BACKEND($name, \"$name\", 0, \"\")\n&/" backends.def
echo "backends/$name is begun. What it lacks, when \`conformance\` is built anew: conformance $name"
