#!/usr/bin/env bash
# Which tests with a truth of their own went which way: tests/census/table.sh MODE LINES [LACKING..]
#   MODE     default, or all (SBP_TEST_ALL=1)
#   LINES    what processes appended to SBP_TEST_PATHS: the name of a test, and names of census.def
#   LACKING  devices that this machine or this build does not have: their paths are not asked for
# Prints a line for each path; exit status 1 when one was crossed by none, or an exemption is wrong. Files other than
# ours: CENSUS_DEF, CENSUS_TRUTHS, CENSUS_EXEMPT, CENSUS_CPUINFO.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mode=$1 lines=$2
shift 2
[ -s "$lines" ] || { echo "$lines: no test said which paths it crossed"; exit 1; }
export LC_ALL=C
awk -v mode="$mode" -v lacking=" $* " -v cpuinfo="$(cat "${CENSUS_CPUINFO:-/proc/cpuinfo}" 2> /dev/null)" '
    function wrong(text) { print "wrong: " text; failed = 1 }
    function add(name, when) { if (name in of) wrong(name " is there twice"); of[name] = when; order[++count] = name }
    # SBP_PATH(name, "when"), SBP_PATH_TYPED(name, "when")
    FILENAME ~ /\.def$/ {
        if (match($0, /^SBP_PATH(_TYPED)?\([a-z0-9_]+, "/)) {
            name = substr($0, index($0, "(") + 1)
            when = substr(name, index(name, "\"") + 1)
            sub(/,.*/, "", name)
            sub(/"\).*/, "", when)
            if (/^SBP_PATH_TYPED/) { add(name "_f32", when); add(name "_f64", when); add(name "_bf16", when) }
            else add(name, when)
        } else if (/^SBP_PATH/) wrong("census.def: " $0)
        next
    }
    /^#/ || NF == 0 { next }
    FILENAME ~ /truths\.txt$/ { # PATTERN KIND: a pattern of the shell, of names of tests
        pattern = "^" $1 "$"
        gsub(/\*/, ".*", pattern)
        truth[++truths] = pattern
        kind[truths] = $2
        if ($2 !~ /^(commands|models|values)$/) wrong("truths.txt: " $0)
        next
    }
    FILENAME ~ /exempt\.txt$/ { # NAME WHEN REASON
        name = $1
        if (!(name in of)) wrong("exempt.txt: there is no path " name)
        exempt[name] = $2
        $1 = $2 = ""
        reason[name] = substr($0, 3)
        if (exempt[name] !~ /^(never|all|machine|open|without:[a-z0-9_]+)$/) wrong("exempt.txt: " name " is exempt " exempt[name])
        next
    }
    {
        if (!($1 in known)) { # the first pattern that fits
            known[$1] = ""
            for (i = truths; i > 0; i--) if ($1 ~ truth[i]) known[$1] = kind[i]
        }
        if (known[$1] == "") next
        for (i = 2; i <= NF; i++) {
            if (known[$1] == "values" && $i !~ /^(disk|ranks|file|plan|run|train|data)_/) continue # what computes has other truths
            if (!($i in of)) { wrong("a process crossed " $i ", which census.def does not have"); continue }
            crossed[$i, known[$1]]++
            any[$i]++
        }
    }
    END {
        printf "%-40s %8s %8s %8s\n", "path", "commands", "models", "values"
        for (n = 1; n <= count; n++) {
            name = order[n]
            device = name
            sub(/_.*/, "", device)
            is_exempt = exempt[name]
            if (is_exempt ~ /^without:/ && (" " cpuinfo " ") ~ ("[ \t\n]" substr(is_exempt, 9) "[ \t\n]")) is_exempt = ""
            if (is_exempt == "all" && mode == "all") is_exempt = ""
            note = ""
            if (index(lacking, " " device " ")) note = "no " device " here"
            else if (is_exempt ~ /^(machine|open)$/ && any[name]) note = ""
            else if (is_exempt != "" && any[name]) { note = "EXEMPT, BUT CROSSED"; wrong_exempt[name] }
            else if (is_exempt != "") note = (is_exempt == "open" ? "OPEN: " : "exempt: ") reason[name] (exempt[name] == "all" ? " (--all crosses it)" : "")
            else if (!any[name]) { note = "CROSSED BY NONE: " of[name]; missing[name] }
            printf "%-40s %8d %8d %8d%s\n", name, crossed[name, "commands"], crossed[name, "models"], crossed[name, "values"], note == "" ? "" : "  " note
        }
        for (name in wrong_exempt) wrong(name " is in exempt.txt, but a test crosses it")
        for (name in missing) wrong(name " (" of[name] "): no test that compares with a truth of its own crosses it")
        if (count == 0) wrong("census.def has no path")
        exit failed
    }' "${CENSUS_DEF:-$here/../../ir/base/census.def}" "${CENSUS_TRUTHS:-$here/truths.txt}" "${CENSUS_EXEMPT:-$here/exempt.txt}" "$lines"
