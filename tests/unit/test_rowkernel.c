/* test_rowkernel.c: text round trip, verifier, aliasing and random numbers of the kernel IR. */
#include "tests/rowkernel_random.h"
#include "tests/unit/rowkernel_testing.h"

#include <math.h>

static const char norm_text[] = "kernel @norm f32 heads 1 n 576 {\n"
                                "  in x : f32 [row elem] length 576\n"
                                "  in w : bf16 [elem] length 576\n"
                                "  out y : f32 [row elem] length 576\n"
                                "  partial dw : f32 [elem] length 576\n"
                                "  scalar eps\n"
                                "  %0 = load x\n"
                                "  %1 = load w\n"
                                "  %2 = mul %0, %0\n"
                                "  %3 = sum[elem] %2\n"
                                "  %4 = const 576\n"
                                "  %5 = div %3, %4\n"
                                "  %6 = scalar eps\n"
                                "  %7 = add %5, %6\n"
                                "  %8 = rsqrt %7\n"
                                "  %9 = mul %0, %8\n"
                                "  %10 = mul %9, %1\n"
                                "  store y, %10\n"
                                "  accumulate dw, %9\n"
                                "}\n";

static const char rope_text[] = "kernel @rope f32 heads 3 n 32 {\n"
                                "  in x : bf16 [row head elem] length 64 stride 64\n"
                                "  in pos : i32 [row]\n"
                                "  out \"y 2\" : bf16 [row head elem] length 64 stride 64\n"
                                "  scalar seed\n"
                                "  %0 = load x[0:32]\n"
                                "  %1 = load x[32:64]\n"
                                "  %2 = load pos\n"
                                "  %3 = index 0:32\n"
                                "  %4 = const -0.28782313662425574\n"
                                "  %5 = mul %3, %4\n"
                                "  %6 = exp %5\n"
                                "  %7 = mul %2, %6\n"
                                "  %8 = cos %7\n"
                                "  %9 = sin %7\n"
                                "  %10 = mul %0, %8\n"
                                "  %11 = mul %1, %9\n"
                                "  %12 = sub %10, %11\n"
                                "  %13 = mul %0, %9\n"
                                "  %14 = mul %1, %8\n"
                                "  %15 = add %13, %14\n"
                                "  %16 = random seed [row elem] 3:35, %4, %2, %2\n"
                                "  %17 = add %15, %16\n"
                                "  %18 = round bf16 %17\n"
                                "  %19 = load x[7]\n"
                                "  %20 = max[head elem] %12\n"
                                "  %21 = max %19, %20\n"
                                "  %22 = add %21, %18\n"
                                "  store \"y 2\"[0:32], %12\n"
                                "  store \"y 2\"[32:64], %22\n"
                                "}\n";

static const char codes_text[] = "kernel @codes f32 heads 3 n 16 {\n"
                                 "  in codes : i8 [row head elem] length 16 stride 16\n"
                                 "  in word : i16 [row]\n"
                                 "  out y : f32 [row head elem] length 32 stride 32\n"
                                 "  table numbers [-1, 0.5, 0, 1e-30]\n"
                                 "  %byte = load codes\n"
                                 "  %1 = bits %byte, 4, 2\n"
                                 "  %low = signed_bits %byte, 0, 4\n"
                                 "  %found = lookup %1, numbers\n"
                                 "  %up = shl %low, 3\n"
                                 "  %5 = load word\n"
                                 "  %6 = index 0:16\n"
                                 "  %bit = bit %5, %6\n"
                                 "  %8 = add %up, %bit\n"
                                 "  store y[0:16], %found\n"
                                 "  store y[16:32], %8\n"
                                 "}\n";

static sbp_random_kernel_options random_options(sbp_rng *rng) {
    static const int64_t lengths[] = {1, 2, 6, 64};
    return (sbp_random_kernel_options){.compute = sbp_rng_below(rng, 2) ? SBP_F32 : SBP_F64,
                                       .heads = 1 + sbp_rng_below(rng, 3),
                                       .n = lengths[sbp_rng_below(rng, 4)],
                                       .smooth = sbp_rng_below(rng, 2)};
}

/* ---- text ----------------------------------------------------------------------------------------- */

static void test_fixed_text(void **state) {
    fixture *f = *state;
    assert_string_equal(print(f, parse_ok(f, norm_text)), norm_text);
    assert_string_equal(print(f, parse_ok(f, rope_text)), rope_text);
    assert_string_equal(print(f, parse_ok(f, codes_text)), codes_text);
}

static void assert_instr_equal(const sbp_rk_instr *a, const sbp_rk_instr *b) {
    assert_int_equal(a->op, b->op);
    if (a->op == SBP_RK_MAP)
        assert_int_equal(a->map, b->map);
    if (a->op == SBP_RK_INTEGER)
        assert_int_equal(a->integer, b->integer);
    assert_memory_equal(a->constants, b->constants, sizeof a->constants);
    if (a->op == SBP_RK_ROUND)
        assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->vary, b->vary);
    assert_int_equal(a->axes, b->axes);
    assert_int_equal(a->length, b->length);
    assert_int_equal(a->a, b->a);
    assert_int_equal(a->b, b->b);
    assert_int_equal(a->c, b->c);
    assert_int_equal(a->index, b->index);
    assert_int_equal(a->offset, b->offset);
    assert_memory_equal(&a->imm, &b->imm, sizeof a->imm);
}

static void test_random_round_trip(void **state) {
    fixture *f = *state;
    sbp_rng rng = {1};
    for (int i = 0; i < 500; i++) {
        sbp_random_kernel_options options = random_options(&rng);
        sbp_rowkernel *kernel = sbp_random_kernel(&rng, f->arena, &options);
        if (sbp_rowkernel_verify(kernel, f->diag) != SBP_OK)
            fail_msg("%s%s", sbp_diag_text(f->diag, SBP_NOTE), print(f, kernel));
        const char *text = print(f, kernel);
        sbp_rowkernel *again = parse_ok(f, text);
        assert_string_equal(print(f, again), text);
        assert_int_equal(again->n, kernel->n);
        assert_int_equal(again->instr_count, kernel->instr_count);
        for (int32_t k = 0; k < kernel->instr_count; k++)
            assert_instr_equal(&again->instrs[k], &kernel->instrs[k]);
    }
}

/* Text that is no kernel is refused or verified, and never crashes (run under ASan). */
static void test_mutated_text(void **state) {
    fixture *f = *state;
    sbp_rng rng = {2};
    static const char *const words[] = {
        "%99",         "%-1", "]",   "[row]",   "length 0", "stride -3",  "store y, %0", "sum",
        "[elem]",      "n 0", "{",   "}",       "load",     "9999999999", "x[5:5]",      "x[1:3]",
        "f16",         "\"",  "nan", "heads 7", "%low",     "bits",       ", 9",         "lookup",
        "table t [1]", "i32", "shl", "%\"",     "numbers",  "[1, 2]"};
    int32_t accepted = 0;
    for (int i = 0; i < 20000; i++) {
        const char *source = (const char *[]){norm_text, rope_text, codes_text}[sbp_rng_below(&rng, 3)];
        char text[4096];
        size_t length = strlen(source);
        memcpy(text, source, length);
        for (int64_t k = sbp_rng_below(&rng, 3); k >= 0; k--) {
            size_t at = (size_t)sbp_rng_below(&rng, (int64_t)length);
            switch (sbp_rng_below(&rng, 4)) {
            case 0:
                text[at] = (char)sbp_rng_next(&rng);
                break;
            case 1:
                length = at + 1;
                break;
            case 2: {
                size_t cut = (size_t)sbp_rng_below(&rng, 12);
                if (cut < length - at && length > 20) {
                    memmove(text + at, text + at + cut, length - at - cut);
                    length -= cut;
                }
                break;
            }
            default: {
                const char *word = words[sbp_rng_below(&rng, SBP_COUNT(words))];
                size_t n = strlen(word);
                memmove(text + at + n, text + at, length - at);
                memcpy(text + at, word, n);
                length += n;
            }
            }
        }
        char *exact = malloc(length); /* so that ASan sees reads beyond the end */
        memcpy(exact, text, length);
        sbp_rowkernel *kernel = NULL;
        if (parse(f, exact, length, &kernel) == SBP_OK && sbp_rowkernel_verify(kernel, f->diag) == SBP_OK) {
            accepted++;
            sbp_rowkernel *again = parse_ok(f, print(f, kernel));
            assert_string_equal(print(f, again), print(f, kernel));
        }
        sbp_diag_clear(f->diag);
        free(exact);
    }
    assert_true(accepted > 100);
}

/* ---- verifier ------------------------------------------------------------------------------------- */

typedef struct broken {
    const char *constraint;
    void (*edit)(sbp_rowkernel *kernel);
} broken;

#define BROKEN(name, statement)                                                                              \
    static void name(sbp_rowkernel *k) {                                                                     \
        statement;                                                                                           \
    }
/* Each breaks rope_text in one place. */
BROKEN(no_name, k->name = "")
BROKEN(bad_compute, k->compute = SBP_BF16)
BROKEN(no_heads, k->heads = 0)
BROKEN(huge_n, k->n = INT64_MAX)
BROKEN(many_operands, k->operand_count = SBP_ROWKERNEL_MAX_OPERANDS + 1)
BROKEN(negative_count, k->instr_count = -1)
BROKEN(same_operands, k->operands[1].name = "x")
BROKEN(nameless_operand, k->operands[1].name = NULL)
BROKEN(bad_mode, k->operands[0].mode = (sbp_rk_mode)7)
BROKEN(bad_dtype, k->operands[0].dtype = SBP_DTYPE_COUNT)
BROKEN(bad_axes, k->operands[0].vary = 16)
BROKEN(bad_length, k->operands[0].length = 0)
BROKEN(length_without_elem, k->operands[1].length = 2)
BROKEN(no_stride, k->operands[0].head_stride = 0)
BROKEN(stride_without_head, k->operands[1].head_stride = 1)
BROKEN(heads_overlap, k->operands[2].head_stride = 63)
BROKEN(out_without_row, k->operands[2].vary = SBP_VARY_HEAD | SBP_VARY_ELEM)
BROKEN(partial_with_row, k->operands[2].mode = SBP_RK_PARTIAL)
BROKEN(bad_op, k->instrs[3].op = (sbp_rk_op)99)
BROKEN(bad_map, k->instrs[5].map = SBP_ROWOP_COUNT)
BROKEN(forward_use, k->instrs[5].a = 6)
BROKEN(negative_use, k->instrs[5].b = -1)
BROKEN(extra_use, k->instrs[5].c = 0)
BROKEN(load_of_out, k->instrs[0].index = 2)
BROKEN(load_of_none, k->instrs[0].index = 3)
BROKEN(scalar_of_none, k->instrs[16].index = 1)
BROKEN(store_to_in, k->instrs[23].index = 0)
BROKEN(index_on_map, k->instrs[5].index = 0)
BROKEN(value_axes, k->instrs[5].vary = 64)
BROKEN(value_length, k->instrs[3].length = 33)
BROKEN(value_zero, k->instrs[3].length = 0)
BROKEN(negative_offset, k->instrs[0].offset = -1)
BROKEN(offset_on_map, k->instrs[5].offset = 1)
BROKEN(load_axes, k->instrs[0].vary = SBP_VARY_ROW | SBP_VARY_ELEM)
BROKEN(load_beyond, k->instrs[0].offset = 33)
BROKEN(store_beyond, k->instrs[24].offset = 40)
BROKEN(const_varies, k->instrs[4].vary = SBP_VARY_ROW)
BROKEN(index_varies, k->instrs[3].vary = SBP_VARY_ELEM | SBP_VARY_HEAD)
BROKEN(random_fixed, k->instrs[16].vary = SBP_VARY_ELEM)
BROKEN(stream_varies, k->instrs[16].a = 2)
BROKEN(random_of_elems, k->instrs[16].b = 3)
BROKEN(random_of_heads, k->instrs[16].vary |= SBP_VARY_HEAD)
BROKEN(random_of_half, k->instrs[16].c = -1)
BROKEN(stream_of_later, k->instrs[16].a = 17)
BROKEN(map_axes, k->instrs[12].vary = SBP_VARY_ELEM)
BROKEN(map_lengths, (k->instrs[3].length = 16, k->instrs[5].length = 16, k->instrs[6].length = 16))
BROKEN(bad_round, k->instrs[18].dtype = SBP_I64)
BROKEN(bad_round_to_bool, k->instrs[18].dtype = SBP_BOOL)
BROKEN(no_axes, k->instrs[20].axes = 0)
BROKEN(axes_of_row, k->instrs[20].axes = SBP_VARY_ROW)
BROKEN(axes_not_there, k->instrs[20].a = 2)
BROKEN(axes_on_map, k->instrs[5].axes = SBP_VARY_ELEM)
BROKEN(store_length, (k->instrs[23].length = 31))
BROKEN(store_axes, (k->operands[2].vary = SBP_VARY_ROW | SBP_VARY_ELEM, k->operands[2].head_stride = 0,
                    k->instrs[23].vary = SBP_VARY_ROW | SBP_VARY_ELEM))
BROKEN(store_twice, k->instrs[24].offset = 16)
BROKEN(value_after_store, k->instrs[24] = k->instrs[4])
BROKEN(store_of_store, k->instrs[24].a = 23)

static void test_verifier(void **state) {
    fixture *f = *state;
    static const broken cases[] = {{"c1", no_name},
                                   {"c1", bad_compute},
                                   {"c1", no_heads},
                                   {"c1", huge_n},
                                   {"c1", many_operands},
                                   {"c1", negative_count},
                                   {"c2", same_operands},
                                   {"c2", nameless_operand},
                                   {"c2", bad_mode},
                                   {"c2", bad_dtype},
                                   {"c2", bad_axes},
                                   {"c2", bad_length},
                                   {"c2", length_without_elem},
                                   {"c2", no_stride},
                                   {"c2", stride_without_head},
                                   {"c2", heads_overlap},
                                   {"c2", out_without_row},
                                   {"c2", partial_with_row},
                                   {"c3", bad_op},
                                   {"c3", bad_map},
                                   {"c3", forward_use},
                                   {"c3", negative_use},
                                   {"c3", extra_use},
                                   {"c3", store_of_store},
                                   {"c4", load_of_out},
                                   {"c4", load_of_none},
                                   {"c4", scalar_of_none},
                                   {"c4", store_to_in},
                                   {"c4", index_on_map},
                                   {"c5", value_axes},
                                   {"c5", value_length},
                                   {"c5", value_zero},
                                   {"c5", negative_offset},
                                   {"c5", offset_on_map},
                                   {"c6", load_axes},
                                   {"c6", load_beyond},
                                   {"c6", store_beyond},
                                   {"c7", const_varies},
                                   {"c7", index_varies},
                                   {"c7", random_fixed},
                                   {"c7", random_of_elems},
                                   {"c7", random_of_heads},
                                   {"c3", random_of_half},
                                   {"c7", stream_varies},
                                   {"c3", stream_of_later},
                                   {"c8", map_axes},
                                   {"c8", map_lengths},
                                   {"c9", bad_round},
                                   {"c9", bad_round_to_bool},
                                   {"c10", no_axes},
                                   {"c10", axes_of_row},
                                   {"c10", axes_not_there},
                                   {"c10", axes_on_map},
                                   {"c11", store_length},
                                   {"c11", store_axes},
                                   {"c12", store_twice},
                                   {"c13", value_after_store}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_rowkernel *kernel = parse_ok(f, rope_text);
        cases[i].edit(kernel);
        sbp_diag_clear(f->diag);
        assert_int_equal(sbp_rowkernel_verify(kernel, f->diag), SBP_INPUT);
        char expected[32];
        snprintf(expected, sizeof expected, "rowkernel_%s:", cases[i].constraint);
        if (!strstr(sbp_diag_text(f->diag, SBP_ERROR), expected))
            fail_msg("case %d: expected %s, got %s", i, expected, sbp_diag_text(f->diag, SBP_ERROR));
    }
}

/* ---- aliasing ------------------------------------------------------------------------------------- */

/* The least a device may do: in each pass it computes elements one at a time, loading from memory whenever it
 * needs a value, and stores each element at once. Loops over different lengths, and over values with and
 * without heads, run in an order of their own. */
typedef struct streamer {
    const sbp_rowkernel *kernel;
    const sbp_rk_view *views;
    const double *scalars;
    int32_t levels[SBP_ROWKERNEL_MAX_INSTRS];
    double *reduced[SBP_ROWKERNEL_MAX_INSTRS]; /* results of reductions: [heads, length] */
    double *stored;                            /* values of one step, per instruction */
    int64_t row;
} streamer;

static double stream_value(const streamer *s, int32_t index, int64_t head, int64_t j) {
    const sbp_rk_instr *i = &s->kernel->instrs[index];
    if (!(i->vary & SBP_VARY_HEAD))
        head = 0;
    if (!(i->vary & SBP_VARY_ELEM))
        j = 0;
    switch (i->op) {
    case SBP_RK_LOAD: {
        const sbp_rk_operand *o = &s->kernel->operands[i->index];
        int64_t row = o->vary & SBP_VARY_ROW ? s->row : 0;
        return sbp_element_get(s->views[i->index].data, o->dtype,
                               row * s->views[i->index].stride + head * o->head_stride + i->offset + j);
    }
    case SBP_RK_CONST:
        return i->imm;
    case SBP_RK_SCALAR:
        return s->scalars[i->index];
    case SBP_RK_INDEX:
        return (double)(i->offset + j);
    case SBP_RK_RANDOM: {
        uint32_t stream = i->a < 0 ? 0 : (uint32_t)stream_value(s, i->a, 0, 0), words[4];
        uint32_t counter[4] = {(uint32_t)s->row, stream, (uint32_t)head, (uint32_t)(i->offset + j) / 4};
        uint32_t key[2] = {(uint32_t)s->scalars[i->index], 0};
        sbp_philox_words(counter, key, words);
        return (double)(words[(i->offset + j) % 4] >> 8) * 0x1p-24;
    }
    case SBP_RK_MAP:
        return sbp_rowop_eval(i->map, stream_value(s, i->a, head, j),
                              i->b < 0 ? 0 : stream_value(s, i->b, head, j),
                              i->c < 0 ? 0 : stream_value(s, i->c, head, j));
    case SBP_RK_ROUND:
        return sbp_round_to(i->dtype, stream_value(s, i->a, head, j));
    default:
        return s->reduced[index][head * i->length + j];
    }
}

static double combine(sbp_rk_op op, double sum, double value) {
    if (op == SBP_RK_SUM)
        return sum + value;
    if (isnan(sum) || isnan(value))
        return NAN;
    return op == SBP_RK_MAX ? fmax(sum, value) : fmin(sum, value);
}

/* The axes a pass loops over for an instruction, and how far. */
static uint8_t chain_axes(const sbp_rowkernel *kernel, const sbp_rk_instr *i) {
    uint8_t axes = kernel->instrs[i->a].vary;
    if (i->op == SBP_RK_STORE)
        axes |= i->vary;
    return axes;
}

static int64_t chain_length(const sbp_rowkernel *kernel, const sbp_rk_instr *i) {
    if (!(chain_axes(kernel, i) & SBP_VARY_ELEM))
        return 0; /* a loop of its own */
    return i->op == SBP_RK_STORE ? i->length : kernel->instrs[i->a].length;
}

static void stream_pass(streamer *s, int32_t level, bool with_head, int64_t length) {
    const sbp_rowkernel *k = s->kernel;
    for (int64_t head = 0; head < (with_head ? k->heads : 1); head++)
        for (int64_t j = 0; j < (length ? length : 1); j++)
            for (int store = 0; store < 2; store++) /* all loads of the element, then all stores */
                for (int32_t n = 0; n < k->instr_count; n++) {
                    const sbp_rk_instr *i = &k->instrs[n];
                    bool reduction = i->op == SBP_RK_SUM || i->op == SBP_RK_MAX || i->op == SBP_RK_MIN;
                    if ((!reduction && i->op != SBP_RK_STORE) || s->levels[i->a] != level ||
                        ((chain_axes(k, i) & SBP_VARY_HEAD) != 0) != with_head ||
                        chain_length(k, i) != length)
                        continue;
                    if (!store) {
                        s->stored[n] = stream_value(s, i->a, head, j);
                    } else if (reduction) {
                        int64_t at = (i->vary & SBP_VARY_HEAD ? head * i->length : 0) +
                                     (i->vary & SBP_VARY_ELEM ? j : 0);
                        s->reduced[n][at] = combine(i->op, s->reduced[n][at], s->stored[n]);
                    } else {
                        const sbp_rk_operand *o = &k->operands[i->index];
                        sbp_element_set(s->views[i->index].data, o->dtype,
                                        s->row * s->views[i->index].stride + head * o->head_stride +
                                            i->offset + j,
                                        s->stored[n]);
                    }
                }
}

static void stream_run(fixture *f, sbp_rng *rng, const sbp_rowkernel *k, int64_t rows,
                       const sbp_rk_view *views, const double *scalars) {
    streamer s = {.kernel = k, .views = views, .scalars = scalars};
    sbp_rowkernel_levels(k, s.levels);
    s.stored = SBP_NEW_ARRAY(f->arena, double, k->instr_count);
    int32_t deepest = 0;
    for (int32_t i = 0; i < k->instr_count; i++) {
        s.reduced[i] = SBP_NEW_ARRAY(f->arena, double, k->heads * k->instrs[i].length);
        if (s.levels[i] > deepest)
            deepest = s.levels[i];
    }
    for (s.row = 0; s.row < rows; s.row++) {
        for (int32_t i = 0; i < k->instr_count; i++)
            for (int64_t j = 0; j < k->heads * k->instrs[i].length; j++)
                s.reduced[i][j] = k->instrs[i].op == SBP_RK_MAX   ? -INFINITY
                                  : k->instrs[i].op == SBP_RK_MIN ? INFINITY
                                                                  : 0;
        for (int32_t level = 0; level <= deepest; level++) {
            int64_t lengths[] = {0, k->n / 2, k->n, 1};
            bool done[4][2] = {{false}};
            for (int left = 8;
                 left > 0;) { /* the 8 loops of the pass, in random order; but in passes after the
                                 first those over no elements, with their stores, come last */
                int64_t l = sbp_rng_below(rng, 4), h = sbp_rng_below(rng, 2);
                if (done[l][h] || (level > 0 && l == 0 && left > 2))
                    continue;
                done[l][h] = true;
                left--;
                bool repeated = false;
                for (int64_t m = 0; m < l; m++)
                    repeated |= lengths[m] == lengths[l];
                if (!repeated)
                    stream_pass(&s, level, h, lengths[l]);
            }
        }
    }
}

enum { ALIAS_ROWS = 2 };

/* Fills the operands of a kernel with numbers in [-1, 1); out operands start as copies of the same. */
static void random_views(fixture *f, sbp_rng *rng, const sbp_rowkernel *k, sbp_rk_view *views) {
    for (int32_t i = 0; i < k->operand_count; i++) {
        const sbp_rk_operand *o = &k->operands[i];
        int64_t stride = (k->heads - 1) * o->head_stride + o->length;
        views[i] = (sbp_rk_view){.data = sbp_arena_alloc(f->arena, (size_t)(stride * ALIAS_ROWS * 8)),
                                 .stride = stride};
        for (int64_t j = 0; j < stride * ALIAS_ROWS; j++)
            sbp_element_set(views[i].data, o->dtype, j, sbp_rng_unit(rng));
    }
}

static void copy_views(fixture *f, const sbp_rowkernel *k, const sbp_rk_view *from, sbp_rk_view *to) {
    for (int32_t i = 0; i < k->operand_count; i++) {
        size_t bytes = (size_t)(from[i].stride * ALIAS_ROWS * 8);
        to[i] = (sbp_rk_view){.data = sbp_arena_alloc(f->arena, bytes), .stride = from[i].stride};
        memcpy(to[i].data, from[i].data, bytes);
    }
}

/* Where may_alias() agrees, running in place gives what running out of place does, whatever the order. Where
 * it does not, some orders must be seen to go wrong, else it would refuse without need. */
static void test_alias(void **state) {
    fixture *f = *state;
    sbp_rng rng = {3};
    int32_t allowed = 0, refused = 0, refused_and_wrong = 0;
    for (int i = 0; i < 3000; i++) {
        sbp_random_kernel_options options = random_options(&rng);
        options.n = options.n > 6 ? 6 : options.n;
        options.only_compute = sbp_rng_below(&rng, 2);
        sbp_arena *outer = f->arena;
        f->arena = sbp_arena_create();
        sbp_rowkernel *k = sbp_random_kernel(&rng, f->arena, &options);
        double scalars[] = {(double)sbp_rng_below(&rng, 1000), 0.25};
        for (int32_t out = 0; out < k->operand_count; out++)
            for (int32_t in = 0; in < out; in++) {
                const sbp_rk_operand *o = &k->operands[out], *a = &k->operands[in];
                if (o->mode != SBP_RK_OUT || a->mode != SBP_RK_IN || o->dtype != a->dtype ||
                    o->vary != a->vary || o->length != a->length || o->head_stride != a->head_stride)
                    continue;
                sbp_rk_view apart[SBP_ROWKERNEL_MAX_OPERANDS], together[SBP_ROWKERNEL_MAX_OPERANDS];
                sbp_rk_view reference[SBP_ROWKERNEL_MAX_OPERANDS];
                random_views(f, &rng, k, apart);
                memcpy(apart[out].data, apart[in].data, (size_t)(apart[in].stride * ALIAS_ROWS * 8));
                copy_views(f, k, apart, together);
                copy_views(f, k, apart, reference);
                together[out] = together[in];
                reference[out] = reference[in];
                sbp_rng order = rng;
                stream_run(f, &order, k, ALIAS_ROWS, apart, scalars);
                stream_run(f, &rng, k, ALIAS_ROWS, together, scalars);
                assert_int_equal(sbp_rowkernel_run_reference(k, ALIAS_ROWS, 0, reference, scalars), SBP_OK);
                bool may = sbp_rowkernel_may_alias(k, out, in), same = true, reference_same = true;
                for (int32_t n = 0; n < k->operand_count; n++)
                    if (k->operands[n].mode == SBP_RK_OUT) {
                        size_t bytes =
                            (size_t)(apart[n].stride * ALIAS_ROWS * sbp_dtype_bytes(k->operands[n].dtype));
                        same &= memcmp(apart[n].data, together[n].data, bytes) == 0;
                        reference_same &= n != out || memcmp(apart[n].data, reference[n].data, bytes) == 0;
                    }
                if (may && !(same && reference_same))
                    fail_msg("aliasing %s with %s goes wrong in\n%s", o->name, a->name, print(f, k));
                allowed += may;
                refused += !may;
                refused_and_wrong += !may && !same;
            }
        sbp_arena_destroy(f->arena);
        f->arena = outer;
    }
    if (allowed < 100 || refused_and_wrong < 100)
        fail_msg("allowed %d, refused %d, of these wrong %d", allowed, refused, refused_and_wrong);
}

static void test_alias_cases(void **state) {
    fixture *f = *state;
    sbp_rowkernel *norm = parse_ok(f, norm_text);
    assert_true(sbp_rowkernel_may_alias(norm, 2, 0));  /* the store waits for the sum of squares */
    assert_false(sbp_rowkernel_may_alias(norm, 2, 1)); /* another shape */
    sbp_rowkernel *rope = parse_ok(f, "kernel @rope f32 heads 3 n 32 {\n"
                                      "in x : f32 [row head elem] length 64 stride 64\n"
                                      "out y : f32 [row head elem] length 64 stride 64\n"
                                      "%0 = load x[0:32] %1 = load x[32:64] %2 = neg %1\n"
                                      "store y[0:32], %2 store y[32:64], %0 }");
    assert_true(sbp_rowkernel_may_alias(rope, 1, 0));
    sbp_rowkernel *skewed = parse_ok(f, "kernel @skewed f32 heads 3 n 32 {\n"
                                        "in x : f32 [row head elem] length 64 stride 64\n"
                                        "out y : f32 [row head elem] length 64 stride 64\n"
                                        "%0 = load x[1:33]\n"
                                        "store y[0:32], %0 }");
    assert_false(sbp_rowkernel_may_alias(skewed, 1, 0));
    sbp_rowkernel *later = parse_ok(f, "kernel @later f32 heads 1 n 32 {\n"
                                       "in x : f32 [row elem] length 32\n"
                                       "out y : f32 [row elem] length 32\n"
                                       "out z : f32 [row elem] length 32\n"
                                       "%0 = load x %1 = sum[elem] %0 %2 = sub %0, %1\n"
                                       "store y, %0 store z, %2 }");
    assert_false(sbp_rowkernel_may_alias(later, 1, 0)); /* z reads x in a later pass */
    assert_true(sbp_rowkernel_may_alias(later, 2, 0));
    sbp_rowkernel *scaled = parse_ok(f, "kernel @scaled f32 heads 1 n 32 {\n"
                                        "in x : f32 [row elem] length 32\n"
                                        "in s : f32 [row]\n"
                                        "out y : f32 [row elem] length 32\n"
                                        "out t : f32 [row]\n"
                                        "%0 = load x %1 = load s %2 = mul %0, %1 %3 = max[elem] %2\n"
                                        "%4 = div %2, %3 store y, %4 store t, %3 }");
    assert_true(sbp_rowkernel_may_alias(scaled, 2, 0));
    assert_true(sbp_rowkernel_may_alias(scaled, 3, 1)); /* stored when all elements of its pass are */
    sbp_rowkernel *first = parse_ok(f, "kernel @first f32 heads 1 n 32 {\n"
                                       "in x : f32 [row elem] length 32\n"
                                       "in s : f32 [row]\n"
                                       "out y : f32 [row elem] length 32\n"
                                       "out t : f32 [row]\n"
                                       "%0 = load x %1 = load s %2 = mul %0, %1\n"
                                       "store y, %2 store t, %1 }");
    assert_false(sbp_rowkernel_may_alias(first, 3, 1)); /* one pass, in which elements may be apart */
}

/* ---- reference, random numbers -------------------------------------------------------------------- */

static void test_reference(void **state) {
    fixture *f = *state;
    sbp_rowkernel *k = parse_ok(f, "kernel @r f32 heads 2 n 3 {\n"
                                   "in x : f32 [row head elem] length 3 stride 4\n"
                                   "in w : i32 [elem] length 3\n"
                                   "out s : f64 [row head] stride 1\n"
                                   "out t : i8 [row elem] length 3\n"
                                   "partial p : f32 [elem] length 3\n"
                                   "%0 = load x %1 = load w %2 = mul %0, %1 %3 = sum[elem] %2\n"
                                   "%4 = max[head] %2 store s, %3 store t, %4 accumulate p, %2 }");
    enum { ROWS = 130, BLOCKS = (ROWS + SBP_PARTIAL_ROWS - 1) / SBP_PARTIAL_ROWS };
    float x[ROWS * 8], p[BLOCKS * 3];
    int32_t w[3] = {1, 2, 300};
    double s[ROWS * 2];
    int8_t t[ROWS * 3];
    for (int i = 0; i < ROWS * 8; i++)
        x[i] = (float)(i % 13) - 6.5f;
    sbp_rk_view views[] = {{x, 8}, {w, 3}, {s, 2}, {t, 3}, {p, 3}};
    assert_int_equal(sbp_rowkernel_run_reference(k, ROWS, 0, views, NULL), SBP_OK);
    double sums[BLOCKS][3] = {{0}};
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < 2; h++) {
            double sum = 0;
            for (int j = 0; j < 3; j++) {
                double v = (double)x[r * 8 + h * 4 + j] * w[j];
                sum += v;
                sums[r / SBP_PARTIAL_ROWS][j] += v;
            }
            assert_true(s[r * 2 + h] == sum);
        }
    for (int b = 0; b < BLOCKS; b++)
        for (int j = 0; j < 3; j++)
            assert_true(p[b * 3 + j] == (float)sums[b][j]);
    assert_int_equal(t[0], x[0] > x[4] ? (int)rint((double)x[0]) : (int)rint((double)x[4]));
    assert_int_equal(t[2 + 3], x[10] > x[14] ? (x[10] > 0 ? 127 : -128) : (x[14] > 0 ? 127 : -128));
}

/* The share of numbers below p over positions, documents and columns, and of those where another stream or
 * the document behind is below it too, is what chance has it: within five standard errors. */
static void test_shares(void **state) {
    enum { DOCUMENTS = 40, ROWS = 50, COLUMNS = 130, COUNT = DOCUMENTS * ROWS * COLUMNS };
    static const double shares[] = {0.05, 0.3, 0.9};
    (void)state;
    for (int i = 0; i < SBP_COUNT(shares); i++) {
        double p = shares[i], key = 0x1.2345p50 + i, below = 0, streams = 0, documents = 0;
        for (int d = 0; d < DOCUMENTS; d++)
            for (int r = 0; r < ROWS; r++)
                for (int c = 0; c < COLUMNS; c++) {
                    bool here = sbp_random_at(key, 123456, r, d, c) < p;
                    below += here;
                    streams += here && sbp_random_at(key, 123457, r, d, c) < p;
                    documents += here && sbp_random_at(key, 123456, r, d + 1, c) < p;
                }
        double both = p * p, error = sqrt(p * (1 - p) / COUNT),
               error_of_both = sqrt(both * (1 - both) / COUNT);
        assert_true(fabs(below / COUNT - p) < 5 * error);
        assert_true(fabs(streams / COUNT - both) < 5 * error_of_both);
        assert_true(fabs(documents / COUNT - both) < 5 * error_of_both);
    }
}

/* Known answers of Random123's kat_vectors for philox4x32-10. */
static void test_philox(void **state) {
    (void)state;
    uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    uint32_t pi_key[2] = {0xa4093822, 0x299f31d0};
    static const uint32_t answers[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                           {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                           {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    const uint32_t *counters[] = {zero, ones, pi}, *keys[] = {zero, ones, pi_key};
    for (int i = 0; i < 3; i++) {
        uint32_t words[4];
        sbp_philox_words(counters[i], keys[i], words);
        assert_memory_equal(words, answers[i], sizeof words);
        assert_int_equal(sbp_philox(counters[i], keys[i]), words[0]);
    }
    /* element 4 n + w of a stream is word w of counter n */
    double key = 0x299f3 * 0x1p32 + 0xa4093822;
    const uint32_t counter[4] = {0x243f6a88, 7, 3, 5}, parts[2] = {0xa4093822, 0x299f3};
    uint32_t words[4];
    sbp_philox_words(counter, parts, words);
    for (int w = 0; w < 4; w++)
        assert_true(sbp_random_at(key, 7, 0x243f6a88, 3, 20 + w) == (words[w] >> 8) * 0x1p-24);
    for (int i = 0; i < 3; i++) /* what is no integer below 2^32 is stream 0 */
        assert_true(sbp_random_at(1, (double[]){NAN, -1, 0x1p32}[i], 1, 2, 3) ==
                    sbp_random_at(1, 0, 1, 2, 3));
    assert_true(sbp_rowkernel_rows_fit(0xffffffff, 1) && sbp_rowkernel_rows_fit(INT64_C(1) << 32, 0));
    assert_false(sbp_rowkernel_rows_fit(0xffffffff, 2) || sbp_rowkernel_rows_fit(-1, 1) ||
                 sbp_rowkernel_rows_fit(0, INT64_MAX) || sbp_rowkernel_rows_fit(INT64_MAX, 1));
}

/* Every allocation of parsing may fail: the arena's guard reports it. */
typedef struct parse_job {
    fixture *f;
    sbp_rowkernel *kernel;
} parse_job;

static sbp_status parse_body(void *user) {
    parse_job *job = user;
    return parse(job->f, rope_text, strlen(rope_text), &job->kernel);
}

static void test_allocation_failure(void **state) {
    fixture *f = *state;
    for (int n = 1;; n++) {
        fixture own = {.arena = sbp_arena_create(), .diag = f->diag};
        parse_job job = {.f = &own};
        sbp_test_fail_allocation(n);
        sbp_status status = sbp_guard(own.arena, NULL, parse_body, &job);
        sbp_test_fail_allocation(0);
        sbp_arena_destroy(own.arena);
        if (status == SBP_OK)
            break;
        assert_int_equal(status, SBP_MACHINE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fixed_text, set_up, tear_down),
        cmocka_unit_test(test_shares),
        cmocka_unit_test_setup_teardown(test_random_round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_mutated_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_verifier, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_alias, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_alias_cases, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reference, set_up, tear_down),
        cmocka_unit_test(test_philox),
        cmocka_unit_test_setup_teardown(test_allocation_failure, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
