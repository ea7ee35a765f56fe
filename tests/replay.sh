#!/usr/bin/env bash
# Replays what the compiler does at two commits, for changes that must not change it: a move, a rename, a table.
#   tests/replay.sh BASE             BASE (a commit) beside the working tree
#   tests/replay.sh BASE PATTERN     only cases whose name matches (an extended regular expression)
# Every config.json of tests/golden in the sets of options below: plans byte for byte, with what sbpc says. Then what
# the passes print, the refusals of replay_refusals.txt, and the help. At a difference: the case, the first lines that
# differ, and where both sides lie. Exit status 1: there are differences. Builds in build/replay; minutes on two cores.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
[ $# -ge 1 ] && [ $# -le 2 ] && [[ $1 != -* ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
base=$(git -C "$top" rev-parse --verify --quiet "$1^{commit}") || die "'$1' is no commit"
wanted=${2:-.}
work=$top/build/replay
export work LC_ALL=C HOME=$work/home XDG_CACHE_HOME=$work/home
export LD_LIBRARY_PATH=$top/build/cuda-tools/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # NVRTC, where it was fetched
export SBP_BACKEND=cpu
rm -rf "$work/runs" "$work/base/tree" "$work/home"
mkdir -p "$work/base/tree" "$work/new" "$work/runs" "$work/home"

make_side() { # SIDE SOURCES
    say "building $1"
    cmake -S "$2" --preset release -B "$work/$1/build" -DBUILD_TESTING=OFF > "$work/$1/configure.log" 2>&1 ||
        die "cmake failed ($work/$1/configure.log)"
    cmake --build "$work/$1/build" -j "$cores" --target sbpc sbprun > "$work/$1/build.log" 2>&1 ||
        die "the build failed ($work/$1/build.log)"
}
git -C "$top" archive "$base" | tar -x -C "$work/base/tree"
make_side base "$work/base/tree"
make_side new "$top"

# ---- the cases: NAME, a tabulator, a command line -----------------------------------------------------------------

# Settings for every model.
sets=(
    "plain|"
    "small|--seq-len 40 --chunk 7 --head-chunk 5 --backward segment=2 --save none --accumulate 1 --clip none"
    "standard|--seq-len 64 --backward standard --accumulate any"
    "checkpoint|--seq-len 64 --backward checkpoint,checkpoint_every=2 --head-rows counted"
    "away|--seq-len 96 --chunk 32 --offload host --dtype bf16 --expert-pieces 2"
    "disk|--seq-len 48 --chunk 16 --offload checkpoints+states:disk --save auto --freeze *embed*"
    "zero1|--seq-len 64 --chunk 16 --ranks 4 --zero 1 --precision reduce=bf16"
    "zero2|--seq-len 64 --chunk 16 --ranks 4 --zero 2 --shard-group 2"
    "zero3|--seq-len 64 --chunk 16 --ranks 4 --zero 3 --keep-gathered 1"
    "context|--seq-len 64 --chunk 16 --ranks 2 --context-parallel 2"
    "lora|--seq-len 64 --chunk 16 --lora r=4 --base-dtype nf4 --objective dpo"
    "states8|--seq-len 64 --chunk 16 --optimizer adamw --state-dtype int8 --dtype bf16 --precision param=bf16,master=none"
    "grpo|--seq-len 64 --chunk 16 --loss grpo,beta=0.1,router_aux_loss_coef=0.01"
    "kto|--seq-len 64 --chunk 16 --objective kto --optimizer adafactor"
    "ppo|--seq-len 64 --chunk 16 --objective ppo --dtype fp64"
    "budget|--seq-len max --memory 24MiB"
)
# Settings for a few models: these take seconds each, or differ by the device only.
few='^(llama_plain|qwen3_moe_norm_v|qwen3_5_dense_v|nemotron_h_latent|gpt_oss_v|gemma3_softcap)$'
sets_of_few=(
    "vulkan|--seq-len 64 --chunk 16 --backend vulkan"
    "cuda|--seq-len 64 --chunk 16 --backend cuda --arch sm_90a --dtype bf16"
    "offer|--seq-len 131072 --device-profile h100-80gb"
)
passes=$({ "$work/new/build/sbpc" compile "$top/tests/golden/llama_plain/model" -o "$work/none" --print-after none 2>&1 || true; } |
    sed -n 's/.*the passes are //p')
[ -n "$passes" ] || die "sbpc does not say which passes there are"

cases() {
    local path name entry pass topic line number=0
    for path in "$top"/tests/golden/*/model/config.json "$top"/tests/golden/wide/*/config.json; do
        path=$(dirname "${path#"$top"/tests/golden/}")
        name=${path%/model}
        for entry in "${sets[@]}"; do
            printf '%s\t%s\n' "$name:${entry%%|*}" "sbpc compile models/$path -o plan.bin --throughput table ${entry#*|}"
        done
        [[ $name =~ $few ]] || continue
        for entry in "${sets_of_few[@]}"; do
            printf '%s\t%s\n' "$name:${entry%%|*}" "sbpc compile models/$path -o plan.bin ${entry#*|}"
        done
        for pass in $passes; do
            printf '%s\t%s\n' "$name:after-$pass" \
                "sbpc compile models/$path -o plan.bin --seq-len 64 --chunk 16 --print-after $pass"
        done
    done
    for topic in '' all $(sed -n 's/^GROUP(\([A-Z]*\), .*/\L\1/p' "$top/runtime/options/options.def"); do
        for line in sbpc 'sbpc compile' 'sbpc inspect' 'sbpc fit' sbprun 'sbprun check' 'sbprun export' 'sbprun tokenize'; do
            printf '%s\t%s\n' "help:${line// /-}-$topic" "$line --help $topic"
        done
    done
    while read -r line; do
        [[ -z $line || $line == '#'* ]] || printf '%s\t%s\n' "refusal:$((++number))" "$line"
    done < "$top/tests/replay_refusals.txt"
}

# ---- one case --------------------------------------------------------------------------------------------------------

# replay NAME COMMAND [COMMAND of the new side]: prints "same", "refused" (alike), or the difference.
replay() {
    local name=$1 side status words
    for side in base new; do
        [ $side = base ] && read -ra words <<< "$2" || read -ra words <<< "${3:-$2}" # a GLOB in it stays
        mkdir -p "$work/runs/$name/$side"
        cd "$work/runs/$name/$side"
        ln -s "$top/tests/golden" models
        ln -s "$top/tests/data" data
        status=0
        "$work/$side/build/${words[0]}" "${words[@]:1}" > said 2>&1 < /dev/null || status=$?
        echo "exit status $status" >> said
    done
    cd "$work/runs/$name"
    if ! diff base/said new/said > said.diff; then
        printf 'DIFFERS %s: %s\n' "$name" "$2"
        head -n 8 said.diff
    elif [ -e base/plan.bin ] && ! cmp base/plan.bin new/plan.bin > bytes.diff 2>&1; then
        printf 'DIFFERS %s: %s\n%s\n' "$name" "$2" "$(cat bytes.diff)"
        for side in base new; do
            (cd $side && "$work/$side/build/${words[0]}" "${words[@]:1}" --print-after fence > program 2>&1) || true
        done
        diff base/program new/program | head -n 8 || true
    else
        if grep -qx 'exit status 0' new/said; then echo same; else echo refused; fi
        rm -r "$work/runs/$name"
    fi
}
export -f replay
export top

# Both kinds of difference have to be seen, or silence says nothing.
planted="sbpc compile models/llama_plain/model -o plan.bin --json --seq-len 64 --chunk 16"
[[ $(replay planted-text "$planted" "$planted --backward segment=2") == DIFFERS* ]] || die "a planted difference in what sbpc says is not seen"
planted+=" --set rms_norm_eps="
[[ $(replay planted-plan "${planted}1e-5" "${planted}1e-6") == *"plan.bin differ"* ]] || die "a planted difference in a plan is not seen"

say "replaying"
cases | grep -E "^[^	]*($wanted)[^	]*	" > "$work/cases" || die "no case matches '$wanted'"
status=0
tr '\t' '\n' < "$work/cases" | tr '\n' '\0' | xargs -0 -n 2 -P "$cores" bash -c 'replay "$1" "$2"' replay > "$work/result" ||
    die "a case could not be replayed ($work/result)"
same=$(grep -cx same "$work/result" || true)
refused=$(grep -cx refused "$work/result" || true)
differs=$(grep -c '^DIFFERS ' "$work/result" || true)
grep -vxE 'same|refused' "$work/result" | head -n 100 || true
echo "$((same + refused + differs)) cases: $same alike, $refused refused alike, $differs differ"
[ $((same + refused + differs)) -eq "$(wc -l < "$work/cases")" ] || die "some cases have no result ($work/result)"
[ "$differs" -eq 0 ] || die "they differ: $work/runs"
