#!/usr/bin/env bash
# The census sees a path that nobody crosses: tests/census/test_table.sh
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
wrong() { echo "wrong: $*"; failed=1; }
export CENSUS_DEF=$work/census.def CENSUS_TRUTHS=$work/truths.txt CENSUS_EXEMPT=$work/exempt.txt CENSUS_CPUINFO=$work/cpuinfo
cat > "$CENSUS_DEF" << END
SBP_PATH(cpu_short, "up to 3")
SBP_PATH(cpu_long, "more than 3")
SBP_PATH_TYPED(cpu_typed, "of each type")
SBP_PATH(gpu_odd, "no multiple of 8")
END
printf 'conformance_* commands\ntest_gold* models\n' > "$CENSUS_TRUTHS"
echo 'flags : fpu avx2 sse' > "$CENSUS_CPUINFO"
typed='cpu_typed_f32 cpu_typed_f64 cpu_typed_bf16'
# expect STATUS TEXT MODE [LACKING..]: of the lines and exemptions as they are
expect() {
    local status=$1 text=$2 got=0
    shift 2
    "$here/table.sh" "$1" "$work/lines" "${@:2}" > "$work/out" 2>&1 || got=$?
    [ $got -eq "$status" ] && grep -qE -- "$text" "$work/out" || wrong "status $got, not $status with '$text': $(cat "$work/out")"
}
: > "$CENSUS_EXEMPT"
: > "$work/lines"
expect 1 'no test said' default
printf 'conformance_cpu cpu_short cpu_long %s\nconformance_cpu cpu_short\ntest_gold_1 gpu_odd cpu_short\n' "$typed" > "$work/lines"
expect 0 '^cpu_short +2 +1 +0$' default
expect 0 '^gpu_odd +0 +1 +0$' default
# a path that nobody crosses, or only a test that compares with nothing
printf 'conformance_cpu cpu_short %s\ntest_gold gpu_odd\n' "$typed" > "$work/lines"
expect 1 '^wrong: cpu_long \(more than 3\): no test' default
echo 'test_other cpu_long' >> "$work/lines"
expect 1 '^cpu_long +0 +0 +0  CROSSED BY NONE' default
# values are a truth for what moves them alone
printf 'test_moves* values\n' >> "$CENSUS_TRUTHS"
printf 'test_moves cpu_long\n' >> "$work/lines"
expect 1 '^cpu_long +0 +0 +0  CROSSED BY NONE' default
# of one arithmetic of three
printf 'conformance_cpu cpu_short cpu_long cpu_typed_f32 cpu_typed_f64\ntest_gold gpu_odd\n' > "$work/lines"
expect 1 '^wrong: cpu_typed_bf16 ' default
# a device that is not there
printf 'conformance_cpu cpu_short cpu_long %s\n' "$typed" > "$work/lines"
expect 1 '^wrong: gpu_odd' default
expect 0 '^gpu_odd .* no gpu here' default gpu
# exemptions: with their reason, no longer than they hold
printf 'test_gold cpu_short gpu_odd %s\n' "$typed" > "$work/lines"
echo 'cpu_long never it would take 2^31 elements' > "$CENSUS_EXEMPT"
expect 0 '^cpu_long .* exempt: it would take 2\^31 elements$' default
expect 0 'exempt: it would' all
echo 'cpu_long all ten minutes' > "$CENSUS_EXEMPT"
expect 0 'exempt: ten minutes \(--all crosses it\)' default
expect 1 '^wrong: cpu_long ' all
echo 'cpu_long without:avx512_bf16 no instruction' > "$CENSUS_EXEMPT"
expect 0 'exempt: no instruction' default
echo 'cpu_long without:avx2 no instruction' > "$CENSUS_EXEMPT"
expect 1 '^wrong: cpu_long ' default
echo 'cpu_short machine it depends' > "$CENSUS_EXEMPT"
echo 'cpu_long machine it depends' >> "$CENSUS_EXEMPT"
expect 0 '^cpu_long .* exempt: it depends' default
sed -i 's/machine/open/' "$CENSUS_EXEMPT"
expect 0 '^cpu_long .* OPEN: it depends' default
echo 'cpu_short never because' > "$CENSUS_EXEMPT"
expect 1 'cpu_short is in exempt.txt, but a test crosses it' default
echo 'cpu_other never because' > "$CENSUS_EXEMPT"
expect 1 'there is no path cpu_other' default
: > "$CENSUS_EXEMPT"
echo 'conformance_cpu cpu_long cpu_unknown' >> "$work/lines"
expect 1 'crossed cpu_unknown' default
[ $failed -eq 0 ] && echo "the census sees what it should"
exit $failed
