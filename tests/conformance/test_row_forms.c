/* test_row_forms.c: each form of row kernel on both sides of the sizes at which devices change their way (the
 * CPU: several rows a block until 512 numbers, whole rows until 1,024, then pieces of 512), with every
 * sharing of memory that sbp_rowkernel_may_alias() allows. */
#include "tests/common/sweep.h"
#include "tests/conformance/row_case.h"

/* $n: the length; $d: twice that; $m: another length. */
typedef struct form {
    const char *text;
    int sharings; /* how many ways its memory may be shared, none included */
} form;

static const form forms[] = {
    /* one pass, two results: one lies over what the other reads */
    {"kernel @gated f32 heads 1 n $n { in g : f32 [row elem] length $n in u : f32 [row elem] length $n "
     "in d : f32 [row elem] length $n out dg : f32 [row elem] length $n out du : f32 [row elem] length $n "
     "scalar b %0 = load g %1 = load u %2 = load d %3 = mul %2, %1 %4 = mul %2, %0 store dg, %3 store du, %4 "
     "}",
     37},
    /* the same in fp64 */
    {"kernel @gated64 f64 heads 1 n $n { in g : f64 [row elem] length $n in u : f64 [row elem] length $n "
     "out dg : f64 [row elem] length $n out du : f64 [row elem] length $n "
     "scalar b %0 = load g %1 = load u %2 = sigmoid %0 %3 = mul %2, %1 %4 = mul %1, %0 store dg, %3 store "
     "du, "
     "%4 }",
     11},
    /* loads that are stored themselves: two operands change places */
    {"kernel @swap f32 heads 1 n $n { in a : f32 [row elem] length $n in b : f32 [row elem] length $n "
     "in s : f32 [row] in r : f32 [row] out y : f32 [row elem] length $n out z : f32 [row elem] length $n "
     "out t : f32 [row] out v : f32 [row elem] length $n scalar b "
     "%0 = load a %1 = load b %2 = load s %3 = load r %4 = add %0, %1 store y, %1 store z, %0 store t, %3 "
     "store v, %2 }",
     38},
    /* loads behind a result, which convert or are stored themselves: copies of memory, late */
    {"kernel @late f32 heads 1 n $n { in a : f32 [row elem] length $n in b : f32 [row elem] length $n "
     "in i : i32 [row elem] length $n out y : f32 [row elem] length $n out z : f32 [row elem] length $n "
     "out v : f32 [row elem] length $n scalar b "
     "%0 = load a %1 = exp %0 %2 = load b %3 = load i %4 = tanh %3 store y, %1 store z, %2 store v, %4 }",
     52},
    /* passes: a factor and a sum of each row, written over as well */
    {"kernel @scaled f32 heads 1 n $n { in x : f32 [row elem] length $n in s : f32 [row] in p : f32 [row] "
     "out y : f32 [row elem] length $n out t : f32 [row] out q : f32 [row] scalar b "
     "%0 = load x %1 = load s %2 = mul %0, %1 %3 = scalar b %4 = add %2, %3 %5 = abs %4 %6 = max[elem] %5 "
     "%7 = div %4, %6 %8 = mul %7, %1 %9 = load p %10 = mul %9, %6 store y, %8 store t, %6 store q, %10 }",
     22},
    /* a norm's backward: sums of a product, a partial, a result of the first pass and one of the second */
    {"kernel @norm_backward f32 heads 1 n $n { in x : f32 [row elem] length $n in dy : f32 [row elem] length "
     "$n in w : f32 [elem] length $n in r : f32 [row] out dx : f32 [row elem] length $n "
     "out g : f32 [row elem] length $n out t : f32 [row] partial dw : f32 [elem] length $n scalar b "
     "%0 = load x %1 = load dy %2 = load w %3 = load r %4 = mul %1, %2 %5 = mul %4, %0 %6 = sum[elem] %5 "
     "%7 = mul %6, %3 %8 = mul %0, %7 %9 = sub %4, %8 %10 = mul %9, %3 %11 = mul %1, %0 %12 = tanh %10 "
     "store dx, %10 store g, %12 store t, %6 accumulate dw, %11 }",
     22},
    /* three passes, and a result of each */
    {"kernel @softmax f32 heads 1 n $n { in z : f32 [row elem] length $n in d : f32 [row elem] length $n "
     "in c : f32 [row elem] length $n in s : f32 [row] out p : f32 [row elem] length $n "
     "out y : f32 [row elem] length $n out e : f32 [row elem] length $n out t : f32 [row] scalar b "
     "%0 = load z %1 = load d %2 = load c %3 = load s %4 = tanh %2 %5 = max[elem] %0 %6 = sub %0, %5 "
     "%7 = exp %6 %8 = sum[elem] %7 %9 = div %7, %8 %10 = mul %9, %1 %11 = sum[elem] %10 %12 = sub %1, %11 "
     "%13 = mul %9, %12 %14 = mul %3, %8 store e, %4 store p, %9 store y, %13 store t, %14 }",
     40},
    /* halves of an operand, each over the other's */
    {"kernel @halves f32 heads 1 n $n { in x : f32 [row elem] length $d in u : f32 [row elem] length $n "
     "in c : f32 [row] out y : f32 [row elem] length $d out v : f32 [row elem] length $n scalar b "
     "%0 = load x[0:$n] %1 = load x[$n:$d] %2 = load u %3 = load c %4 = cos %2 %5 = sin %2 %6 = mul %0, %4 "
     "%7 = mul %1, %5 %8 = sub %6, %7 %9 = mul %0, %5 %10 = mul %1, %4 %11 = add %9, %10 %12 = mul %2, %3 "
     "store y[0:$n], %8 store y[$n:$d], %11 store v, %12 }",
     4},
    /* several lengths: loops of their own */
    {"kernel @lengths f32 heads 1 n $n { in x : f32 [row elem] length $n in h : f32 [row elem] length $m "
     "in k : f32 [row elem] length $m out y : f32 [row elem] length $n out g : f32 [row elem] length $m "
     "out l : f32 [row elem] length $m scalar b "
     "%0 = load x %1 = load h %2 = load k %3 = abs %0 %4 = max[elem] %3 %5 = abs %1 %6 = max[elem] %5 "
     "%7 = mul %0, %6 %8 = mul %1, %4 %9 = add %8, %2 %10 = mul %2, %1 store y, %7 store g, %9 store l, %10 "
     "}",
     10},
    /* heads, beside what has none: numbers of a row that every head reads, or none */
    {"kernel @heads f32 heads 3 n $n { in x : f32 [row head elem] length $n stride $n in u : f32 [row elem] "
     "length $n in c : f32 [row elem] length $n in s : f32 [row] in q : f32 [row head] stride 1 "
     "in w : f32 [elem] length $n out y : f32 [row head elem] length $n stride $n "
     "out z : f32 [row elem] length $n out v : f32 [row elem] length $n out t : f32 [row] "
     "out o : f32 [row head] stride 1 partial dw : f32 [elem] length $n scalar b "
     "%0 = load x %1 = load u %2 = load c %3 = load s %4 = load q %5 = load w %6 = mul %0, %1 %7 = add %6, "
     "%5 "
     "%8 = abs %1 %9 = max[elem] %8 %10 = mul %1, %9 %11 = tanh %2 %12 = mul %3, %9 %13 = abs %0 "
     "%14 = max[elem] %13 %15 = mul %14, %4 store y, %7 store z, %10 store v, %11 store t, %12 store o, %15 "
     "accumulate dw, %0 }",
     56},
    /* sums over heads: always whole rows */
    {"kernel @summed f32 heads 3 n $n { in x : f32 [row head elem] length $n stride $n in u : f32 [row elem] "
     "length $n out y : f32 [row elem] length $n out z : f32 [row elem] length $n "
     "out v : f32 [row head elem] length $n stride $n scalar b "
     "%0 = load x %1 = sum[head] %0 %2 = scalar b %3 = mul %1, %2 %4 = load u %5 = add %1, %4 %6 = sub %0, "
     "%1 "
     "store y, %3 store z, %5 store v, %6 }",
     6},
    /* loads that convert, and results of their size */
    {"kernel @converts f32 heads 1 n $n { in a : bf16 [row elem] length $n in i : i32 [row elem] length $n "
     "in f : f32 [row elem] length $n out y : bf16 [row elem] length $n out z : f32 [row elem] length $n "
     "out v : f16 [row elem] length $n scalar b "
     "%0 = load a %1 = load i %2 = load f %3 = mul %0, %1 %4 = mul %0, %2 %5 = add %1, %2 store y, %3 "
     "store z, %4 store v, %5 }",
     9},
    /* codes, tables, numbers that are rounded, random, counted or the same for a row */
    {"kernel @codes f32 heads 1 n $n { in q : i8 [row elem] length $n in x : f32 [row elem] length $n "
     "in s : f32 [row] out c : i8 [row elem] length $n out y : f32 [row elem] length $n out t : f32 [row] "
     "scalar seed table four [0, 1, -1, 3] "
     "%0 = load q %1 = load x %2 = load s %3 = bits %0, 0, 2 %4 = lookup %3, four %5 = round bf16 %4 "
     "%6 = random seed [row elem] 0:$n %7 = index 0:$n %8 = const 3 %9 = lt %7, %8 %10 = select %9, %6, %1 "
     "%11 = mul %10, %5 %12 = add %11, %2 %13 = max[elem] %5 %14 = mul %13, %2 store c, %3 store y, %12 "
     "store t, %14 }",
     8},
    /* one number of a row for all of its places, and a result that nothing is computed for */
    {"kernel @broadcast f32 heads 1 n $n { in x : f32 [row elem] length $n in a : f32 [row elem] length $n "
     "in s : f32 [row] out y : f32 [row elem] length $n out z : f32 [row elem] length $n "
     "out t : f32 [row] scalar b "
     "%0 = load x %1 = load s %2 = load a %3 = scalar b %4 = mul %1, %3 %5 = sub %2, %0 %6 = neg %1 "
     "store y, %4 store z, %5 store t, %6 }",
     11},
};

/* The text of a form at a length. */
static char *text_of(suite_case *c, const char *pattern, int64_t n) {
    sbp_text text;
    sbp_text_init(&text, c->arena);
    sbp_text_add(&text, "%s", "");
    for (const char *at = pattern; *at; at++)
        if (*at != '$')
            sbp_text_add(&text, "%c", *at);
        else if (*++at == 'n')
            sbp_text_add(&text, "%lld", (long long)n);
        else
            sbp_text_add(&text, "%lld", (long long)(*at == 'd' ? 2 * n : n - n / 3));
    return text.data;
}

typedef struct sharings {
    const sbp_rowkernel *kernel;
    int32_t alias[SBP_ROWKERNEL_MAX_OPERANDS];
    bool taken[SBP_ROWKERNEL_MAX_OPERANDS];
    int32_t (*found)[SBP_ROWKERNEL_MAX_OPERANDS];
    int count, capacity;
} sharings;

static bool same_shape(const sbp_rk_operand *a, const sbp_rk_operand *b) {
    return a->dtype == b->dtype && a->vary == b->vary && a->length == b->length &&
           a->head_stride == b->head_stride;
}

static void add_sharing(suite_case *c, sharings *s) {
    if (s->count == s->capacity) {
        int32_t(*more)[SBP_ROWKERNEL_MAX_OPERANDS] =
            suite_alloc(c, s->capacity = 2 * s->capacity + 8, sizeof *more);
        if (s->count)
            memcpy(more, s->found, (size_t)s->count * sizeof *more);
        s->found = more;
    }
    memcpy(s->found[s->count++], s->alias, sizeof s->alias);
}

/* Two ins that are one memory, over which a result lies that may lie over either. */
static void add_joined(suite_case *c, sharings *s) {
    for (int32_t out = 0; out < s->kernel->operand_count; out++) {
        int32_t in = s->kernel->operands[out].mode == SBP_RK_OUT ? s->alias[out] : -1;
        for (int32_t other = 0; in >= 0 && other < s->kernel->operand_count; other++) {
            if (other == in || s->taken[other] ||
                !same_shape(&s->kernel->operands[other], &s->kernel->operands[in]) ||
                !sbp_rowkernel_may_alias(s->kernel, out, other))
                continue;
            int32_t first = in < other ? in : other, second = in < other ? other : in;
            s->alias[out] = first;
            s->alias[second] = first;
            add_sharing(c, s);
            s->alias[second] = -1;
            s->alias[out] = in;
        }
    }
}

/* Each out from `out` on over none or one of the ins that it may lie over. */
static void find_sharings(suite_case *c, sharings *s, int32_t out) {
    if (out == s->kernel->operand_count) {
        add_sharing(c, s);
        add_joined(c, s);
        return;
    }
    find_sharings(c, s, out + 1);
    for (int32_t in = 0; in < out; in++) {
        if (s->taken[in] || !sbp_rowkernel_may_alias(s->kernel, out, in))
            continue;
        s->taken[in] = true;
        s->alias[out] = in;
        find_sharings(c, s, out + 1);
        s->alias[out] = -1;
        s->taken[in] = false;
    }
}

/* How many operands lie in the memory of another. */
static int shared_count(const int32_t *alias) {
    int count = 0;
    for (int i = 0; i < SBP_ROWKERNEL_MAX_OPERANDS; i++)
        count += alias[i] >= 0;
    return count;
}

/* The forms at some lengths: where at most one operand shares memory, and of the other sharings one of
 * `of`. */
static void check_forms(const int64_t *lengths, int length_count, int of) {
    for (int f = 0; f < SBP_COUNT(forms); f++)
        for (int l = 0; l < length_count; l++) {
            suite_case *c = suite_begin("", 0);
            row_case_parse(c, text_of(c, forms[f].text, lengths[l]));
            sharings s = {.kernel = c->kernel};
            memset(s.alias, -1, sizeof s.alias);
            find_sharings(c, &s, 0);
            if (s.count != forms[f].sharings)
                fail_msg("%s: memory can be shared in %d ways, not %d", c->kernel->name, s.count,
                         forms[f].sharings);
            for (int i = 0; i < s.count; i++)
                if (shared_count(s.found[i]) <= 1 || (i + l) % of == 0) /* 17 rows: two blocks of sums */
                    row_case_run(text_of(c, forms[f].text, lengths[l]), i % 2 ? 17 : 2, s.found[i],
                                 (uint64_t)(i + l), 0.25);
            suite_end(c);
        }
}

static void test_row_forms(void **state) {
    (void)state;
    static const int64_t lengths[] = {511, 512, 513, 1023, 1024, 1025, 1700};
    check_forms(lengths, SBP_COUNT(lengths), testing_all() ? 1 : 24);
}

const struct CMUnitTest suite_form_tests[] = {cmocka_unit_test(test_row_forms)};
const int suite_form_count = SBP_COUNT(suite_form_tests);
