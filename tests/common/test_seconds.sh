#!/usr/bin/env bash
# seconds.c passes on what a test does, and counts all of its processes: tests/common/test_seconds.sh SECONDS
set -uo pipefail
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SBP_TEST_SECONDS=$work/seconds
failed=0
wrong() { echo "wrong: $*"; failed=1; }
expect() { # STATUS COMMAND..
    local expected=$1 status=0
    shift
    "$program" a_test "$@" 2> /dev/null || status=$?
    [ $status -eq "$expected" ] || wrong "'$*' ends with $status, not $expected"
}
spin='i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done' # some hundredths of a second, or tenths

expect 0 true
expect 7 sh -c 'exit 7'
expect 137 sh -c 'kill -KILL $$'
expect 139 sh -c 'kill -SEGV $$'
expect 127 "$work/no_such_program"
[ "$(grep -c '^a_test [0-9]*\.[0-9][0-9]$' "$work/seconds")" -eq 5 ] || wrong "not a line each: $(cat "$work/seconds")"

# It ends with the program that it passes a signal on to.
mkfifo "$work/ready"
"$program" ended sh -c "trap 'exit 9' TERM; echo > $work/ready; while :; do sleep 0.05; done" &
pid=$!
read -r < "$work/ready"
kill -TERM $pid
wait $pid
[ $? -eq 9 ] || wrong "SIGTERM did not reach the program"

# The program is in the process group of its caller, and ignores what that ignores.
group() { local of; read -r -a of < "/proc/$1/stat"; echo "${of[4]}"; }
[ "$("$program" group sh -c 'read -r a b c d group rest < /proc/$$/stat; echo $group')" = "$(group $$)" ] ||
    wrong "the program has a process group of its own"
(trap '' INT; "$program" ignores sh -c 'kill -INT $$; exit 3')
[ $? -eq 3 ] || wrong "a signal that the caller ignores is not ignored"

# A process that nobody waits for counts too: it says how many ticks it took.
cat > "$work/orphan" << END
$spin
read -r -a of < /proc/\$\$/stat
echo "\$\$ \$((of[13] + of[14]))" > "$work/ready"
END
"$program" orphan bash -c "(bash $work/orphan &); read -r pid ticks < $work/ready; echo \$ticks > $work/ticks
    while grep -q "^State:.[RSD]" /proc/\$pid/status 2> /dev/null; do sleep 0.01; done"
awk -v ticks="$(cat "$work/ticks")" '$1 == "orphan" && $2 * 100 >= ticks - 1 { found = 1 } END { exit !found }' \
    "$work/seconds" || wrong "the time of an orphan is missing: $(grep orphan "$work/seconds"), $(cat "$work/ticks") ticks"

# Without the variable nothing is written, and the program takes its place.
unset SBP_TEST_SECONDS
[ "$("$program" a_test sh -c 'echo $PPID')" = "$$" ] || wrong "a process stays between"
[ $failed -eq 0 ] && echo "seconds passes everything on"
exit $failed
