#!/usr/bin/env bash
# House rules that a script can see: tests/layering/check.sh ROOT [BUILD]. A line for each violation, "FILE:LINE: rule:
# what"; exit status 1 when there is one. With a build folder, the symbols of its libraries are looked at as well.
# Needs bash, grep, sed, awk, find, nm and objdump.
set -uo pipefail
root=$1
build=${2:+$(cd "$2" && pwd)}
cd "$root" || exit 2
export LC_ALL=C

sources() { # FOLDER...: the C files below
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' \) | sort
}

# Lines of C files without comments and the text of strings: "FILE:LINE:CODE".
code() {
    awk '
        FNR == 1 { inside = 0 }
        {
            line = $0
            out = ""
            while (line != "") {
                if (inside) {
                    at = index(line, "*/")
                    if (!at) break
                    line = substr(line, at + 2)
                    inside = 0
                } else if (match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|'"'"'([^'"'"'\\]|\\.)+'"'"'/)) {
                    found = substr(line, RSTART, RLENGTH)
                    out = out substr(line, 1, RSTART - 1)
                    line = substr(line, RSTART + RLENGTH)
                    if (found == "//") break
                    if (found == "/*") inside = 1
                    else out = out "\"\""
                } else {
                    out = out line
                    break
                }
            }
            if (out ~ /[^ ]/) print FILENAME ":" FNR ":" out
        }' "$@"
}

libraries=(ir passes frontends backends runtime)

# ---- dependencies ----------------------------------------------------------------------------------------------------

# The first line whose file pattern fits decides; what is included must match one of its patterns.
# `transitive` names what a folder must not reach even through others.
allowed() {
    local plain='ir/base/[!fjpy]*' # of base: no files, JSON, patterns, YAML
    local languages='ir/graph/* ir/rowkernel/* ir/program/[!p]* ir/program/program*.h ir/target/*'
    local device="$plain ir/rowkernel/rowkernel.h ir/rowkernel/intops.def ir/program/program.h ir/program/traits.h ir/program/commands.def ir/program/collective_steps.h" # what a device knows: programs and kernels
    local chosen='backends/backends.h backends/choice.h backends/devices.h'
    case $1 in
        # the languages know nothing of files; base knows no language
        ir/base/*) echo 'ir/base/*' ;;
        ir/program/plan_*) echo 'ir/base/* ir/program/*' ;;
        ir/graph/*) echo "$plain ir/graph/* ir/rowkernel/*" ;;
        ir/rowkernel/*) echo "$plain ir/rowkernel/*" ;;
        ir/program/*) echo "$plain ir/rowkernel/* ir/program/*" ;;
        ir/target/*) echo "$plain ir/target/*" ;;
        passes/planner/*) echo "passes/* $plain $languages" ;;
        passes/lower/*) echo "passes/lower/* $plain $languages" ;; # what all passes build with
        passes/*) echo "passes/[!p]* passes/passes.def $plain $languages" ;; # the planner uses the passes, not they it
        frontends/formats/files/*) echo 'frontends/formats/files/* ir/base/*' ;;
        frontends/formats/weights/*) echo 'frontends/formats/files/* frontends/formats/weights/* ir/base/* ir/rowkernel/format.h' ;;
        frontends/formats/tokenizer/* | frontends/formats/template/*) echo "frontends/formats/files/* frontends/formats/weights/* ${1%/*}/* ir/base/*" ;;
        frontends/formats/export/*) echo 'frontends/formats/export/* frontends/formats/files/* frontends/formats/weights/* frontends/formats/tokenizer/* ir/base/*' ;;
        frontends/onnx/* | frontends/gguf/*) echo "${1%/*}/* frontends/formats/weights/* frontends/formats/files/* frontends/source/* ir/*" ;; # not hf/
        frontends/source/*) echo 'frontends/source/* frontends/formats/weights/* ir/*' ;;
        frontends/*) echo 'frontends/* ir/*' ;;
        backends/backends.* | backends/target.c | backends/devices.c) echo 'backends/backends.* backends/target.h backends/devices.h ir/base/base.h' ;; # by the list, none by name
        backends/gpu/emit/*) echo 'backends/gpu/* backends/rowmath.h ir/*' ;;
        backends/gpu/*) echo "backends/device.h backends/gpu/gpu.h backends/gpu/row.h $device" ;;
        backends/vulkan/target/* | backends/cuda/target/*) echo "backends/target.h backends/rowmath.h backends/gpu/* ${1%/*/*}/[!d]* ir/*" ;; # not device/
        backends/cuda/device/timeline.c) echo 'backends/cuda/device/cuda.h ir/base/json_write.h' ;; # the one device file that people read
        backends/vulkan/device/* | backends/cuda/device/*) echo "backends/device.h backends/choice.h backends/composite/* backends/ranks/* backends/cpu/cpu_cores.h backends/gpu/gpu.h backends/gpu/row.h ${1%/*/*}/[!t]* $device" ;;
        backends/*/*_target.*) echo "backends/target.h backends/rowmath.h ${1%/*}/* ir/*" ;;
        backends/cpu/rows.h) echo "backends/cpu/* ir/rowkernel/format.h" ;; # kernels of formats that it has loops for
        backends/*/*) echo "backends/device.h backends/rowmath.h backends/gpu/gpu.h backends/gpu/row.h ${1%/*}/* $(dirname "$(dirname "$1")")/* $device" ;;
        backends/*) echo "backends/*.h backends/backends.def ir/target/* $device" ;;
        # values of options are those of tables, which are data
        runtime/options/*) echo 'runtime/options/* ir/base/* backends/backends.def passes/lower/optimizers.def frontends/objectives/*.def' ;;
        runtime/cli/sbpc/*) echo "runtime/cli/sbpc/* runtime/options/* frontends/* passes/* $chosen backends/target.h backends/measure.h ir/*" ;;
        runtime/*)
            local rooms='runtime/[!c]* runtime/cli/sbprun/*' # cli > train > data > run > options
            case $1 in
                runtime/run/*) rooms='runtime/run/* runtime/options/*' ;;
                runtime/data/*) rooms='runtime/data/* runtime/run/*' ;;
                runtime/generate/*) rooms='runtime/generate/* runtime/data/* runtime/run/*' ;;
                runtime/reward/*) rooms='runtime/reward/*' ;;
                runtime/train/*) rooms='runtime/[!c]*' ;;
            esac
            echo "$rooms backends/device.h $chosen backends/ranks/ranks.h frontends/formats/files/* frontends/formats/weights/* frontends/formats/tokenizer/* frontends/formats/template/* frontends/formats/export/export.h ir/base/* ir/rowkernel/rowkernel.h ir/program/* ir/graph/prepare.h" ;;
        examples/*) echo 'ir/* frontends/formats/weights/*' ;;
        *) echo '*' ;;
    esac
}

includes() { # FILE...: "FILE:LINE:WHAT"
    grep -HnE '^ *# *include *"' "$@" | sed -E 's/^([^:]*:[0-9]+):.*"(.*)".*/\1:\2/'
}

check_includes() {
    local file line what pattern fits
    includes $(sources "${libraries[@]}" examples) | while IFS=: read -r file line what; do
        fits=
        set -f
        for pattern in $(allowed "$file"); do
            # shellcheck disable=SC2053
            [[ $what == $pattern ]] && fits=1
        done
        set +f
        [ "$fits" ] || echo "$file:$line: include: $what is not for ${file%/*}/"
        [ -f "$what" ] || echo "$file:$line: include: no file '$what' from the root"
    done
}

# What runtime/, devices and the files of frontends/ reach through other headers: never the graph IR.
check_reach() {
    includes $(sources "${libraries[@]}") | awk -F: '
        { edge[$1] = edge[$1] " " $3; if (!($1 in seen)) { seen[$1]; file[++n] = $1 } }
        function reach(from, start, way,    k, next_one, list) {
            if ((start, from) in visited) return
            visited[start, from]
            k = split(edge[from], list, " ")
            for (; k > 0; k--) {
                next_one = list[k]
                if (next_one == "ir/graph/graph.h" || next_one == "ir/graph/op.h" || next_one == "passes/lower/passes.h" || next_one == "frontends/source/frontend.h")
                    print start ":1: reach: " next_one " through" way " " from
                else
                    reach(next_one, start, way " " from)
            }
        }
        END {
            for (i = 1; i <= n; i++)
                if ((file[i] ~ /^(runtime|frontends\/formats)\// && file[i] !~ /^runtime\/cli\/sbpc\//) || (file[i] ~ /^backends\/[^\/]*\// && file[i] !~ /_target\.[ch]$/))
                    reach(file[i], file[i], "")
        }'
}

# Libraries of others, where they may be known.
check_system() {
    local file line what
    grep -HnE '^ *# *include *<' $(sources "${libraries[@]}") | sed -E 's/^([^:]*:[0-9]+):.*<(.*)>.*/\1:\2/' |
        while IFS=: read -r file line what; do
            case "$what:$file" in
                jansson.h:ir/base/json.c | yaml.h:ir/base/yaml.c | pcre2.h:ir/base/pattern.c | pcre2.h:frontends/formats/tokenizer/* | utf8proc.h:frontends/* | xxhash.h:ir/base/base.c) ;;
                cblas.h:backends/cpu/* | shaderc/*:backends/vulkan/* | vulkan/*:backends/vulkan/* | immintrin.h:backends/cpu/* | sched.h:backends/cpu/* | sched.h:ir/base/machine.c | malloc.h:backends/cpu/*) ;;
                vulkan/vulkan_core.h:backends/vulkan/* | dlfcn.h:backends/*) ;;
                pthread.h:backends/* | pthread.h:runtime/* | pthread.h:ir/* | malloc.h:runtime/cli/sbprun/run_data.c | malloc.h:runtime/cli/sbpc/sbpc.c | stdatomic.h:*) ;;
                sys/wait.h:runtime/cli/sbprun/child.c | signal.h:runtime/* | signal.h:runtime/cli/sbpc/sbpc.c | dirent.h:runtime/* | dirent.h:frontends/formats/files/named_path.c | dirent.h:ir/base/file.c | signal.h:ir/base/file.c | dirent.h:frontends/formats/export/export_special.c | spawn.h:frontends/formats/files/hub_fetch.c | sys/*) ;;
                jansson.h:* | yaml.h:* | pcre2.h:* | utf8proc.h:* | xxhash.h:* | cblas.h:* | immintrin.h:* | sched.h:* | malloc.h:* | \
                    pthread.h:* | spawn.h:* | signal.h:* | dirent.h:* | */*.h:*)
                    echo "$file:$line: library: <$what> is not for this file" ;;
            esac
        done
}

# ---- calls -----------------------------------------------------------------------------------------------------------

check_calls() {
    code $(sources "${libraries[@]}") > "$work/code"
    # Only main ends the process; arena.c for a bug of ours, child.c and worker.c a child that has not become another program, choice.c and
    # starter.c one that never does.
    grep -E '[^_[:alnum:]](_?exit|_Exit|quick_exit|abort|longjmp)[[:space:]]*\(' "$work/code" |
        grep -vE '^ir/base/arena\.c:|^runtime/(cli/sbprun/child|reward/worker)\.c:[0-9]+:.* _exit\(127\)|^(backends/choice|runtime/cli/sbprun/starter)\.c:[0-9]+:.* _exit\(0\)' | sed -E 's/^([^:]*:[0-9]+):.*/\1: exit: only main ends the process/'
    # Every allocation can be made to fail by a test.
    grep -E '[^_[:alnum:]](malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup|asprintf|alloca)[[:space:]]*\(' \
        "$work/code" | grep -vE '^ir/base/allocate\.c:' |
        sed -E 's/^([^:]*:[0-9]+):.*/\1: allocation: sbp_malloc, sbp_realloc or an arena/'
    grep -E '[^_[:alnum:]](gets|strcpy|strcat|sprintf|rand|srand|strtok|atoi|atof|gmtime|localtime)[[:space:]]*\(' "$work/code" |
        grep -vE '^ir/base/diag\.c:' | sed -E 's/^([^:]*:[0-9]+):.*/\1: call: unbounded, not thread safe, or blind to errors/'
}

# ---- names -----------------------------------------------------------------------------------------------------------

# No family, parameter or objective is known to passes, backends and runtime, not even in a string or a comment; but to
# sbpc's command line and to the options, which name what a user may ask for.
check_families() {
    local families parameters objectives
    # "phi3" is phi, followed by a digit or the end of the word: no Philox.
    families=$(sed -nE 's/^(ARCHITECTURE|GGUF)\("([a-z_]*[a-z])[0-9]*(_text)?".*/\2/p' frontends/hf/registry.def | sort -u | paste -sd'|')
    parameters='q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|embed_tokens|lm_head|self_attn|input_layernorm|token_embd|attn_q'
    objectives='dpo|grpo|ppo|kto|orpo'
    grep -nHiE "(^|[^[:alnum:]])((${families:-llama})([^[:alpha:]]|$)|$parameters)|(^|[^[:alnum:]_])($objectives)([^[:alnum:]_]|$)" \
        $(sources passes backends runtime | grep -vE '^runtime/(options|cli/sbpc)/') | sed -E 's/^([^:]*:[0-9]+):.*/\1: family: the name of a model, parameter or objective/'
}

check_names() {
    grep -nHE '^[[:space:]]*#[[:space:]]*define[[:space:]]+_|^(static |typedef |struct |enum )[^;(]*[ *]_[A-Za-z]|^}[[:space:]]*_?[[:alnum:]_]*_t;' \
        $(sources "${libraries[@]}" examples tests) | sed -E 's/^([^:]*:[0-9]+):.*/\1: name: reserved for C and POSIX/'
    local file guard
    for file in $(find "${libraries[@]}" -name '*.h' | sort); do
        guard=$(grep -m1 -oE '^#(ifndef [A-Z0-9_]+|pragma once)' "$file" | cut -d' ' -f2)
        case $guard in
            SBP_*_H) grep -q "^#define $guard\$" "$file" || echo "$file:1: guard: $guard is not defined" ;;
            *) case $file in
                *_body.h | backends/cpu/kernels/real.h | backends/cpu/kernels/tile.h) ;; # included more than once, on purpose
                *) echo "$file:1: guard: an include guard SBP_..._H is missing" ;;
            esac ;;
        esac
    done
    [ -z "$build" ] && return
    # sbp_ everywhere; a device may use its own name within its folder.
    local library prefix
    for library in $(find "$build" -name 'libsbp_*.a' ! -path '*/tests/*' | sort); do
        prefix='sbp_'
        case $library in */backends/*/*) prefix="(sbp|$(basename "$(dirname "$library")"))_" ;; esac
        nm -g --defined-only "$library" 2> /dev/null |
            awk -v library="${library#"$build"/}" -v prefix="^$prefix" \
                'NF == 3 && $3 !~ prefix && $3 !~ /^__(asan|ubsan|tsan|odr)/ { print library ":1: symbol: " $3 }'
    done
}

# ---- circles ---------------------------------------------------------------------------------------------------------

# Files that call each other in a circle can only be understood together: there is none but these, each a pair. A table of
# functions, as registries are, is data and no call.
known_circles=(
    # a macro of a template may call itself, and stands in an expression of what it renders
    'frontends/formats/template/template_eval.c frontends/formats/template/template_render.c'
    # a program is tuned by running it, and one that is being tuned tunes each command in place of running it
    'runtime/run/executor.c runtime/run/executor_tune.c'
)

check_circles() {
    [ -z "$build" ] && return
    local members known
    tests/layering/circles.sh "$build" | while IFS= read -r members; do
        for known in "${known_circles[@]}"; do
            [ "$members" = "$known" ] && continue 2
        done
        echo "${members%% *}:1: circle: these call each other: $members"
    done
}

# Folders that include each other's headers in a circle are one folder in several places.
check_rooms() {
    tests/layering/rooms.sh . | sed -n 's/^circle:/tests\/layering\/rooms.sh:1: folders: these include each other:/p'
}

# JSON is written by ir/base/json_write.h, which makes text of any string; not by formats, which do not.
check_json() {
    grep -nHE '\\": ?%|%[a-z.0-9*]*\\":|sbp_json_add_string\(' $(sources passes frontends backends runtime | grep -E '\.[ch]$') |
        sed -E 's/^([^:]*:[0-9]+):.*/\1: json: by hand, where ir\/base\/json_write.h writes it/'
}

# A backend is named in its folder and in the list of them: what others must know of one is a column there.
check_backends() {
    local names
    names=$(sed -nE 's/^BACKEND\(([a-z0-9_]+),.*/\1/p' backends/backends.def | paste -sd'|')
    awk -v pattern="\"(${names:-cpu})[\":]" '
        { sub(/\/\*.*/, "") }
        $0 ~ pattern { print FILENAME ":" FNR ": backend: a name that backends.def has: ask backends.h" }' \
        $(sources passes frontends backends runtime | grep -E '\.c$' | grep -vE "^backends/(${names:-cpu})/")
}

# An operand of a command is called by its name in commands.def, never by a number.
check_operands() {
    code $(sources ir passes backends runtime) > "$work/code"
    grep -E '(dispatch|command|instr|gemm|copy|fill|reduce|colsum|gather|attn)->(views|spans|terms)\[[0-9]' "$work/code" |
        sed -E 's/^([^:]*:[0-9]+):.*/\1: operand: a number where commands.def has a name/'
}

# ---- size, tolerances ------------------------------------------------------------------------------------------------

check_length() {
    find "${libraries[@]}" examples tests -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.py' -o -name '*.sh' -o -name '*.cu' \
        -o -name '*.comp' -o -name '*.kernel' \) -exec awk 'END { if (NR > 800) print FILENAME ":800: length: " NR " lines want to be two files" }' {} \;
    local folder
    for folder in "${libraries[@]}"; do
        [ -f "$folder/README.md" ] || echo "$folder/README.md:1: readme: missing"
    done
}

# ---- texts that people read ------------------------------------------------------------------------------------------

# READMEs are for reading: a page, lines and paragraphs that an eye can follow, and not too many words in all. Code and
# tables count as lines and words; a paragraph is prose, or one item of a list. Tables of tests/ may be wider.
check_readmes() {
    local page=120 columns=100 lines=6 words=9000
    find README.md "${libraries[@]}" tests -name README.md -exec awk -v page=$page 'END { if (NR > page) print FILENAME ":" page ": readme: more than a page" }' {} \;
    find README.md "${libraries[@]}" tests -name README.md | sort | xargs awk -v columns=$columns -v lines=$lines -v most=$words '
        FNR == 1 { paragraph = 0; fenced = 0; blank = 1 }
        FILENAME !~ /^tests\// { words += NF }
        length($0) > columns && !(/^\|/ && FILENAME ~ /^tests\//) { print FILENAME ":" FNR ": readme: a line of " length($0) " characters, more than " columns }
        /^```/ { fenced = !fenced; paragraph = 0; next }
        fenced || /^ *$/ || /^[|#]/ || (blank && /^    /) { paragraph = 0; if (/^ *$/) blank = 1; next }
        /^ *([-*]|[0-9]+\.) / { paragraph = 0 }
        { blank = 0; if (++paragraph == lines + 1) print FILENAME ":" FNR ": readme: a paragraph of more than " lines " lines" }
        END { if (words > most) print "README.md:1: readme: all of them outside tests/ have " words " words, more than " most }'
}

# Words of ours for what the field has a name for (ARCHITECTURE.md, GLOSSARY): not in what users see, where the field's
# stand behind "=". Identifiers, paths and code are not looked at, nor messages about errors of our own.
private_words='wires?=interconnect
homes?=placement
resides?=placed
slots?=staging buffer
teams?=process group
meets?=rendezvous
wish(es)?=request
worth=recompute savings
draws|drawn=random
products?=matmul
proper=backend device
(takes?|by|in) turns=double buffering
counted rows=loss-masked tokens'

check_words() {
    local files
    files=$(find *.md "${libraries[@]}" -name '*.md' | sort)
    {
        # prose: no code, no `code`, no paths, no names of files, nothing of the glossary
        awk '
            FNR == 1 { fenced = glossary = 0; blank = 1 }
            /^## GLOSSARY/ { glossary = 1 }
            /^```/ { fenced = !fenced; next }
            /^ *$/ { blank = 1; next }
            glossary || fenced || (blank && /^    /) { next }
            {
                blank = 0
                gsub(/`[^`]*`|\]\([^)]*\)|[^ ]*[A-Za-z0-9_][._\/][A-Za-z0-9_*][^ ]*/, "")
                print FILENAME ":" FNR ":" $0
            }' $files
        # the text of messages, and of what options are for
        awk '
            FNR == 1 { text = "" }
            function strings(line,    out) {
                out = ""
                while (match(line, /"([^"\\]|\\.)*"/)) {
                    out = out substr(line, RSTART + 1, RLENGTH - 2)
                    line = substr(line, RSTART + RLENGTH)
                }
                return out
            }
            function begins() {
                return /(fail|warn|note|refuse|remedy)[a-z_]*\(|fprintf\(stderr|^(OPTION|REFUSED|FIRST)\(/ ||
                       (FILENAME ~ /^(runtime\/(cli|options)|passes\/planner)\// && /sbp_(text_add|arena_printf)\(/)
            }
            text == "" && begins() { text = " "; at = FNR; ours = 0 }
            text != "" {
                if (/SBP_INTERNAL/) ours = 1
                text = text strings($0)
                if (/\);|;[ ]*$|\)$|\{$/) {
                    if (!ours) {
                        gsub(/\\n/, " ", text)
                        gsub(/\\"[^"\\]*\\"|wire type|--map-by slot/, "", text) # keys of JSON; names of others
                        print FILENAME ":" at ":" text
                    }
                    text = ""
                }
            }' $(sources runtime frontends passes backends | grep -vE '/(kernels|shaders)/')
    } > "$work/texts"
    local word better
    while IFS='=' read -r word better; do
        grep -iE ":.*:.*(^|[^[:alnum:]_.\/'-])($word)([^[:alnum:]_\/'-]|\$)" "$work/texts" |
            sed -E "s/^([^:]*:[0-9]+):.*/\1: word: '${word//\//}' is a word of ours: say $better (ARCHITECTURE.md, GLOSSARY)/"
    done <<< "$private_words"
}

# ---- comments --------------------------------------------------------------------------------------------------------

# A comment says what its declaration is to a reader who does not know the file: it has a subject (none begins with "Of"),
# names the variable that a number stands in (never "so many"), stands on one declaration, and fits the width of the code.
# Messages and help are held to the second. Data, and the table of what was renamed, are as they are.
check_comments() {
    local columns=110
    find *.md $(ls run-demo run-tests 2> /dev/null) "${libraries[@]}" examples tests -type f \( -name '*.md' -o -name '*.[ch]' -o -name '*.def' -o -name '*.cu' \
        -o -name '*.cuh' -o -name '*.comp' -o -name '*.glsl' -o -name '*.kernel' -o -name '*.py' -o -name '*.sh' -o -name 'run-*' -o -name 'mutants.txt' \) \
        ! -path 'tests/data/*' ! -path 'tests/layering/*' ! -path '*/build/*' -print0 | sort -z | xargs -0 awk -v columns=$columns '
        function blame(what) { print FILENAME ":" FNR ": comment: " what }
        FNR == 1 {
            c = FILENAME ~ /\.(c|h|def|cu|cuh|comp|glsl|kernel)$/
            sharp = FILENAME ~ /(\.py|\.sh|run-demo|run-tests)$/
            inside = was = closed = alone = 0
            before = ""
        }
        tolower($0) ~ /(^|[^a-z])so many([^a-z]|$)/ { blame("\"so many\": name the variable, or what is counted") }
        !c && !sharp { next }
        {
            # text: the comment of this line, without its mark; own: nothing stands before it; opens: it begins here;
            # alone: the one in /* */ has lines of its own
            line = $0
            text = ""
            comment = own = opens = 0
            if (sharp) {
                if (match(line, /^[ \t]*# ?/)) { comment = own = 1; opens = !was; text = substr(line, RLENGTH + 1) }
            } else if (inside) {
                comment = own = 1
                text = line
                sub(/^[ \t]*(\*([^\/]|$))?[ \t]?/, "", text)
                if (line ~ /^[ \t]*\*\//) text = ""
            }
            while (c && line != "") {
                if (inside) {
                    if (!(at = index(line, "*/"))) break
                    line = substr(line, at + 2)
                    inside = 0
                } else if (match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|'"'"'([^'"'"'\\]|\\.)+'"'"'/)) {
                    found = substr(line, RSTART, RLENGTH)
                    if (found == "/*" || found == "//") {
                        own = substr($0, 1, length($0) - length(line) + RSTART - 1) !~ /[^ \t]/
                        text = substr(line, RSTART + 2)
                        sub(/^\*?[ \t]?/, "", text)
                        comment = 1
                        opens = found == "/*" || !own || !was
                        if (found == "/*" && own && closed && text !~ /^(----|clang-format)/ && FILENAME !~ /\.def$/)
                            blame("behind another comment: which declaration is that one of?")
                    }
                    line = substr(line, RSTART + RLENGTH)
                    if (found == "//") break
                    if (found == "/*") {
                        inside = 1
                        alone = own
                    }
                } else break
            }
            closed = comment && alone && !inside && $0 ~ /\*\/[ \t]*$/ && $0 !~ /---- \*\//
            if (comment) {
                if (text ~ /^[ \t]*Of / && (opens || before ~ /(^|[.:;])[ \t]*$/))
                    blame("it begins with \"Of\": say what it is")
                wide = $0
                gsub(/[\200-\277]/, "", wide)
                if (c && length(wide) > columns) blame("a line of " length(wide) " characters: more than " columns)
            }
            was = comment && own
            before = text
        }'
}

# Identifiers that tests/renames/table.tsv gave the field's names do not come back: those that it renames wherever they stand.
check_renamed() {
    awk -F'\t' '/^#/ { next }
        { new[$5] = 1 }
        $2 == "id" && $3 == "*" && $4 !~ /\*$/ && $6 == "" { old[$4] = $5 }
        END { for (o in old) if (!(o in new)) print o "\t" old[o] }' tests/renames/table.tsv > "$work/renamed"
    code $(sources "${libraries[@]}" tests) | awk -F'\t' '
        NR == FNR { renamed[$1] = $2; next }
        {
            split($0, part, ":")
            rest = substr($0, length(part[1]) + length(part[2]) + 3)
            while (match(rest, /[A-Za-z_][A-Za-z0-9_]*/)) {
                word = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                if (word in renamed)
                    print part[1] ":" part[2] ": renamed: \047" word "\047 is \047" renamed[word] "\047 (tests/renames/table.tsv)"
            }
        }' "$work/renamed" -
}

# A file that a text or a comment names is there: by its path from the root, or a page (NAME.md) anywhere. First tasks name
# files to come.
check_references() {
    git ls-files --cached --others --exclude-standard > "$work/tree" 2> /dev/null || find . -type f | sed 's/^\.\///' > "$work/tree"
    local texts
    texts=$(find *.md "${libraries[@]}" tests -type f \( -name '*.md' -o -name '*.[ch]' -o -name '*.def' \) ! -path 'tests/layering/*' ! -name CONTRIBUTING.md | sort)
    awk '
        NR == FNR { there[$0]; sub(/.*\//, ""); if (/\.md$/) page[$0]; next }
        {
            rest = $0
            while (match(rest, /[A-Za-z0-9_.\/-]+\.(md|c|h|def|cuh?|comp|glsl|kernel|sh|py)/)) {
                name = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                if (rest ~ /^[A-Za-z0-9_]/) continue
                if (name ~ /^(ir|passes|frontends|backends|runtime)\// && !(name in there) || name ~ /^[A-Z]+\.md$/ && !(name in page))
                    print FILENAME ":" FNR ": reference: there is no file " name
            }
        }' "$work/tree" $texts
}

# A comparison with a small number, or a macro or constant called tolerance, belongs in tests/tolerance.h.
check_tolerances() {
    code $(sources tests | grep -v '^tests/tolerance\.h$') > "$work/code"
    grep -E '(<=?|>=?)[[:space:]]*([0-9.]+e-[0-9]+|0x[0-9.]+p-[0-9]+)|#[[:space:]]*define[[:space:]]+[A-Z_]*(TOLERANCE|EPSILON)|[a-z_]*tolerance[a-z_]* = [0-9.]+e-|assert_float_equal' \
        "$work/code" | sed -E 's/^([^:]*:[0-9]+):.*/\1: tolerance: belongs in tests\/tolerance.h/'
}

# A way that size chooses has a name, and somewhere in the code it is crossed (ir/base/census.h).
check_census() {
    code $(sources "${libraries[@]}" | grep -v '^ir/base/census\.') > "$work/code"
    awk '
        NR == FNR {
            while (match($0, /[a-z][a-z0-9_]+/)) {
                used[substr($0, RSTART, RLENGTH)]
                $0 = substr($0, RSTART + RLENGTH)
            }
            next
        }
        match($0, /^SBP_PATH[A-Z_]*\([a-z0-9_]+/) {
            name = substr($0, index($0, "(") + 1, RLENGTH - index($0, "("))
            if (!(name in used)) print FILENAME ":" FNR ": census: nothing crosses " name
        }' <(grep CROSS -A 2 "$work/code") ir/base/census.def
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    check_includes
    check_reach
    check_system
    check_calls
    check_families
    check_names
    check_circles
    check_rooms
    check_operands
    check_backends
    check_json
    check_length
    check_readmes
    check_words
    check_comments
    check_renamed
    check_references
    check_tolerances
    check_census
} > "$work/found"
cat "$work/found"
[ -s "$work/found" ] && exit 1
echo "$(sources "${libraries[@]}" examples tests | wc -l) files, no violation"
