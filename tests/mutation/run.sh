#!/usr/bin/env bash
# Breaks the sources in a copy, one small edit at a time, and demands that a test fails: the edits are in mutants.txt.
#   tests/mutation/run.sh             all of them
#   tests/mutation/run.sh WORDS       those whose description or file contains it
# Builds in build/mutation/ (with ccache where there is one). Exit status 1: a mutant survived, does not build, or
# does not apply. MUTATION_JOBS: how many compilers at a time.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
wanted=${1:-}
top=$PWD/build/mutation
jobs=${MUTATION_JOBS:-$(nproc)}
command -v ccache > /dev/null && export CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$top/main
die() { echo "error: $*" >&2; exit 1; }

# A copy under another name, so that paths beside the sources are not found: what needs them skips.
mkdir -p "$top/main"
while IFS= read -r -d '' name; do
    cmp -s "$name" "$top/main/$name" || install -D "$name" "$top/main/$name" || die "cannot copy $name"
done < <(git ls-files -z)
cd "$top/main" || exit 1
cmake --preset release -DBUILD_TESTING=ON > "$top/configure.log" 2>&1 || die "configure failed ($top/configure.log)"

# build TEST..: their targets. Tests with words behind a dot or an underscore share the program before it.
build() {
    local targets=() test
    for test in "$@"; do
        case $test in
            conformance_*) targets+=(conformance) ;;
            *) targets+=("${test%%.*}") ;;
        esac
    done
    nice -n 10 cmake --build build/release -j "$jobs" --target "${targets[@]}" > "$top/build.log" 2>&1
}
run() { # TEST..
    local pattern="^($(IFS='|'; echo "$*"))\$"
    nice -n 10 ctest --test-dir build/release/tests -R "${pattern//./\\.}" --timeout 600 > "$top/test.log" 2>&1 < /dev/null
}

killed=0 survived=() broken=()
declare -A sound
about='' file='' from='' to=''
try() { # TEST..
    local test original status
    [[ "$about $file" == *"$wanted"* ]] || return 0
    for test in "$@"; do # a test that fails without an edit says nothing
        [ -z "${sound[$test]:-}" ] || continue
        build "$test" || die "cannot build $test ($top/build.log)"
        run "$test" || die "$test fails without an edit, or is no test ($top/test.log)"
        grep -q 'tests passed' "$top/test.log" || die "there is no test $test"
        sound[$test]=1
    done
    original=$(mktemp)
    cp "$file" "$original" || die "no file $file"
    FROM=$from TO=$to perl -0pi -e 'my $n = () = /\Q$ENV{FROM}\E/g; exit 3 if $n != 1; s/\Q$ENV{FROM}\E/$ENV{TO}/' "$file"
    status=$?
    if [ $status -ne 0 ] || cmp -s "$file" "$original"; then
        broken+=("$file: $about: '$from' does not occur once")
    elif ! build "$@"; then
        broken+=("$file: $about: does not build: $(grep -m1 'error:' "$top/build.log")")
    elif run "$@"; then
        survived+=("$file: $about ($*)")
    else
        killed=$((killed + 1))
        echo "seen      $file: $about"
    fi
    cp "$original" "$file" # newer than what was built from the edit
    rm -f "$original"
}
while IFS= read -r line || [ -n "$line" ]; do
    case $line in
        'file '*) file=${line#file } ;;
        'from '*) from=${line#from }; from=${from#"${from%%[! ]*}"} ;;
        'to '*) to=${line#to }; to=${to#"${to%%[! ]*}"} ;;
        'test '*) read -ra tests <<< "${line#test }"; try "${tests[@]}" ;;
        '# '*) about=${line#\# } ;;
    esac
done < tests/mutation/mutants.txt
for line in "${survived[@]}"; do echo "SURVIVED  $line"; done
for line in "${broken[@]}"; do echo "BROKEN    $line"; done
echo "$killed seen, ${#survived[@]} survived, ${#broken[@]} broken, of $((killed + ${#survived[@]} + ${#broken[@]})) mutants"
[ $killed -gt 0 ] && [ ${#survived[@]} -eq 0 ] && [ ${#broken[@]} -eq 0 ]
