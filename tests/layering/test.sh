#!/usr/bin/env bash
# The tree keeps the rules of check.sh, and check.sh sees each of them broken: tests/layering/test.sh ROOT [BUILD]
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$1" && pwd)
"$here/check.sh" "$root" ${2:+"$2"} || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
(cd "$root" && find *.md ir passes frontends backends runtime examples tests -type f \
    \( -name '*.[ch]' -o -name '*.def' -o -name '*.md' -o -name '*.sh' -o -name '*.awk' -o -name '*.tsv' -o -name '*.py' \
    -o -name '*.cu*' -o -name '*.comp' -o -name '*.glsl' -o -name '*.kernel' \) -print0 | tar -c --null -T - -f -) | tar -x -C "$work/tree"
cd "$work/tree" || exit 1

planted=()
plant() { # RULE FILE LINE: a line at the end of the file
    printf '%s\n' "$3" >> "$2"
    planted+=("$2:[0-9]+: $1:")
}
plant include ir/base/types.c '#include "passes/lower/passes.h"'
plant include passes/stream/saved.c '#include "passes/planner/planner.h"'
plant include runtime/run/plan.c '#include "runtime/data/pack.h"'
plant include ir/graph/parse.c '#include "ir/base/file.h"'
plant include ir/base/file.c '#include "ir/rowkernel/rowkernel.h"'
plant include frontends/onnx/onnx_ops.c '#include "frontends/hf/hf.h"'
plant include frontends/formats/weights/recipe.c '#include "ir/graph/graph.h"'
plant include runtime/options/options.c '#include "frontends/source/frontend.h"'
plant include passes/planner/cost.c '#include "backends/target.h"'
plant include passes/lower/memory.c '#include "ir/base/json.h"'
plant include frontends/objectives/objective.c '#include "passes/lower/passes.h"'
plant include runtime/cli/sbpc/inspect.c '#include "runtime/run/plan.h"'
plant include backends/cpu/cpu_target.c '#include "backends/device.h"'
plant include backends/cpu/pool.c '#include "ir/graph/graph.h"'
plant include backends/vulkan/target/glsl.c '#include "backends/vulkan/device/vulkan.h"'
plant include backends/vulkan/device/stream.c '#include "backends/vulkan/target/shaders.h"'
plant include runtime/data/pack.c '#include "ir/graph/graph.h"'
plant include runtime/train/lr.c '#include "frontends/source/frontend.h"'
plant include runtime/run/plan.c '#include "ir/base/nothing_of_this_name.h"'
plant reach runtime/data/jsonl.c '#include "ir/graph/and_graph.h"'
printf '#ifndef SBP_P_H\n#define SBP_P_H\n#include "ir/graph/graph.h"\n#endif\n' > ir/graph/and_graph.h
plant include runtime/data/jsonl.c '' # that header is not for runtime/ either
planted+=('tests/layering/rooms.sh:1: folders: these include each other:') # by the plants above
plant library passes/fences/fence.c '#include <jansson.h>'
plant library ir/base/lex.c '#include <utf8proc.h>'
plant library runtime/train/trainer.c '#include <cblas.h>'
plant exit passes/graph/infer.c 'void sbp_f(void) { exit(1); }'
plant exit ir/base/types.c 'void sbp_g(void) { x = 1; abort (); }'
plant allocation runtime/data/pack.c 'void *sbp_h(void) { return calloc(1, 2); }'
plant call frontends/hf/hf.c 'void sbp_i(char *a, const char *b) { strcpy(a, b); }'
plant family passes/graph/sink.c '/* as in llama */'
plant family runtime/run/weights.c 'static const char *sbp_name = "model.embed_tokens.weight";'
plant family backends/device.h '/* for DPO */'
plant family passes/graph/split.c '/* phi3 has its own */'
plant family runtime/run/devices.c '/* GPT_NeoX */'
printf '/* Philox, sophisticated, philosophy: no family */\n' >> passes/stream/body.c
plant name ir/base/lex.c '#define _SBP_X 1'
plant name runtime/train/lr.c 'static int _hidden(void);'
plant name passes/lower/passes.h '} sbp_place_t;'
plant guard ir/graph/seq.h ''
sed -i '/^#ifndef\|^#define SBP_IR_GRAPH_SEQ_H/d' ir/graph/seq.h
plant operand passes/lower/lower.c 'static void f(sbp_command *copy) { copy->views[1] = copy->views[SBP_COPY_DST]; }'
plant backend runtime/run/plan_info.c 'static int f(const char *name) { return strcmp(name, "cuda") == 0; }'
plant backend backends/choice.c 'static const char *const sbp_default = "vulkan";'
plant backend runtime/cli/sbpc/throughput.c 'static int f(const char *target) { return strncmp(target, "cuda:", 5) == 0; }'
plant json runtime/train/lr.c 'static void f(FILE *file, const char *name) { fprintf(file, "{\"name\": %s}", name); }'
plant json frontends/formats/weights/recipe.c 'static void f(sbp_text *out) { sbp_text_add(out, ", \"%s\":1", out->data); }'
plant json runtime/data/pack.c 'static void f(sbp_text *out) { sbp_json_add_string(out, "", 0); }'
plant include backends/devices.c '#include "backends/cpu/cpu_device.h"'
plant length ir/graph/parse.c "$(yes '/* */' | head -n 801)"
plant readme passes/README.md "$(yes 'and so on' | head -n 121)"
plant readme backends/cpu/README.md "$(printf '%0101d' 0)"
plant readme runtime/data/README.md "$(printf '\n- a paragraph\n'; yes '  goes on' | head -n 6)"
planted+=('README.md:1: readme: all of them')
yes 'word word word word word word word word' | head -n 1200 | sed '1~6i\\' >> frontends/README.md
planted+=('frontends/README.md:120: readme:')
plant renamed passes/lower/lower.c 'static int f(int sbp_wish) { return sbp_wish; }'
plant word backends/README.md 'Bytes go over the wire.'
plant word runtime/cli/sbpc/inspect.c '/* */ static int f(sbp_diag *d) { return sbp_fail(d, SBP_USAGE, "%s: it has no home here"); }'
plant word runtime/options/options.def 'FIRST(RUN, "lr", "1", "how products are computed")'
plant 'comment: "so many"' runtime/options/options.def '       "how much memory so many tokens take")'
plant 'comment: "so many"' backends/README.md 'A buffer of so many rows.'
plant 'comment: it begins with "Of"' passes/lower/lower.c '/* Of all rows of a chunk. */'
plant 'comment: it begins with "Of"' runtime/train/lr.c 'static int sbp_j; /* Of a step. */'
plant 'comment: it begins with "Of"' ir/graph/parse.c "$(printf '/* What parsing is.\n *\n * Of a text all lines. */')"
plant 'comment: it begins with "Of"' tests/replay.sh '# Of all steps.'
plant 'comment: it begins with "Of"' backends/cuda/kernels/colsum.cu "$(printf '// Sums.\n// Of no rows: nothing.')"
plant 'comment: it begins with "Of"' backends/gpu/kernels/route.kernel '// Of equal scores the lower.'
plant 'comment: a line of 11[1-9] characters' backends/vulkan/target/shaders/gemm.glsl "// $(printf 'x%.0s' {1..109})"
plant 'comment: behind another comment' runtime/data/pack.c "$(printf '/* Rows of a batch. */\n/* Its columns. */\nint sbp_k;')"
printf '\n/* Offers of rows, and what comes\n * Of them. */\nstatic const char *const sbp_l = "/* Of a text */";\n' >> passes/stream/body.c
printf 'int sbp_m; /* one\n              line more */\n/* another */\nint sbp_n;\n' >> passes/stream/body.c
plant reference passes/README.md 'See [why](ADVICE.md).'
plant reference passes/lower/lower.c '/* as in passes/lowering_of_all.c */'
plant readme runtime/README.md ''
rm runtime/README.md
plant census ir/base/census.def 'SBP_PATH(cpu_rows_backwards, "from the last row on")'
plant tolerance tests/unit/test_base.c 'static void f(void) { assert_true(fabs(x - y) < 1e-3); }'
plant tolerance tests/common/testing.c '#define MY_TOLERANCE 1'
mkdir -p "$work/build/passes"
printf 'int other_name(void);\nint other_name(void) { return 1; }\nint sbp_fine(void);\nint sbp_fine(void) { return 1; }\n' > "$work/x.c"
if ${CC:-cc} -c "$work/x.c" -o "$work/x.o" && ar rc "$work/build/passes/libsbp_x.a" "$work/x.o" 2> /dev/null; then
    planted+=('passes/libsbp_x.a:[0-9]+: symbol: other_name')
    # A circle over three files, one over two folders, one of two files, one of a file with a known pair; and those that are
    # allowed: through a table, and a known pair.
    compile() { # FILE CODE
        local object="$work/build/${1%/*}/CMakeFiles/sbp.dir/${1##*/}.o"
        mkdir -p "${object%/*}"
        printf '%s\n' "$2" > "$1"
        "${CC:-cc}" -c "$1" -o "$object"
    }
    compile passes/x1.c 'void sbp_x2(void); void sbp_x1(void) { sbp_x2(); }'
    compile passes/x2.c 'void sbp_x3(void); void sbp_x2(void) { sbp_x3(); }'
    compile passes/x3.c 'void sbp_x1(void); void sbp_x3(void) { sbp_x1(); }'
    compile runtime/x4.c 'void sbp_x5(void); void sbp_x4(void) { sbp_x5(); }'
    compile runtime/cli/sbprun/x5.c 'void sbp_x4(void); void sbp_x5(void) { sbp_x4(); }'
    compile ir/base/x6.c 'void sbp_x7(void); void (*const sbp_x6[])(void) = {sbp_x7};'
    compile ir/graph/x7.c 'extern void (*const sbp_x6[])(void); void sbp_x7(void) { sbp_x6[0](); }'
    compile runtime/run/executor.c 'void sbp_x10(void); void sbp_x11(void) { sbp_x10(); }'
    compile runtime/run/executor_tune.c 'void sbp_x11(void); void sbp_x10(void) { sbp_x11(); }'
    compile frontends/formats/template/template_eval.c 'void sbp_x12(void); void sbp_x13(void) { sbp_x12(); }'
    compile frontends/formats/template/template_render.c 'void sbp_x14(void); void sbp_x12(void) { sbp_x14(); }'
    compile frontends/formats/template/x14.c 'void sbp_x13(void); void sbp_x14(void) { sbp_x13(); }'
    compile ir/base/x8.c 'void sbp_x9(void); void sbp_x8(void) { sbp_x9(); }'
    compile ir/base/x9.c 'void sbp_x8(void); void sbp_x9(void) { sbp_x8(); }'
    planted+=('passes/x1.c:1: circle: these call each other:( passes/x[123].c){3}$')
    planted+=('runtime/cli/sbprun/x5.c:1: circle: these call each other:( runtime/(cli/sbprun/x5|x4).c){2}$')
    planted+=('ir/base/x8.c:1: circle: these call each other: ir/base/x8.c ir/base/x9.c$')
    planted+=('frontends/formats/template/template_eval.c:1: circle: these call each other:( frontends/formats/template/(template_eval|template_render|x14).c){3}$')
else
    echo "skipped: no compiler for the rules on symbols and circles"
fi

"$here/check.sh" "$work/tree" "$work/build" > "$work/found" && { echo "the planted violations were not seen"; exit 1; }
missed=0
for pattern in "${planted[@]}"; do
    grep -qE "^$pattern" "$work/found" || { echo "not seen: $pattern"; missed=1; }
done
# Nothing else is blamed: what is found stands in a file where something was planted.
while IFS= read -r line; do
    file=${line%%:*}
    [[ " ${planted[*]}" == *" $file:"* ]] || { echo "blamed for nothing: $line"; missed=1; }
done < "$work/found"
[ $missed -eq 0 ] && echo "${#planted[@]} planted violations seen"
exit $missed
