/* test_gemm.c: products against triple loops. */
#include "tests/common/sweep.h"
#include "tests/conformance/conformance.h"

typedef struct product {
    int64_t m, n, k;
    sbp_dtype d, a, b, c, bias;
    bool ta, tb, with_c, in_place, with_bias;
    double alpha, beta;
    double tolerance; /* 0: that of the type */
    bool same_bits;   /* in every instruction set of the CPU */
    int64_t every;    /* one of every `every` numbers along k has a factor in a that is not 0; 0: all have */
    uint32_t only_on; /* of suite_case */
} product;

static void check_product(const product *p, uint64_t seed) {
    char name[128];
    snprintf(name, sizeof name, "gemm %lld x %lld x %lld %s<-%s,%s%s%s seed %llu", (long long)p->m,
             (long long)p->n, (long long)p->k, sbp_dtype_name(p->d), sbp_dtype_name(p->a),
             sbp_dtype_name(p->b), p->ta ? " ta" : "", p->tb ? " tb" : "", (unsigned long long)seed);
    suite_case *s = suite_begin(name, seed);
    suite_tensor *d = suite_add(s, p->d, p->m, p->n);
    suite_tensor *a = p->ta ? suite_add(s, p->a, p->k, p->m) : suite_add(s, p->a, p->m, p->k);
    suite_tensor *b = p->tb ? suite_add(s, p->b, p->n, p->k) : suite_add(s, p->b, p->k, p->n);
    suite_tensor *c = p->with_c ? suite_add(s, p->in_place ? p->d : p->c, p->m, p->n) : suite_add_absent(s);
    suite_tensor *bias = p->with_bias ? suite_add(s, p->bias, 1, p->n) : suite_add_absent(s);
    if (p->with_c && p->in_place) {
        c->same_as = 0;
        memcpy(c->values, d->values, (size_t)(p->m * p->n) * sizeof(double));
    }
    s->command.kind = SBP_CMD_GEMM;
    s->command.u.gemm.alpha = p->alpha;
    s->command.u.gemm.beta = p->beta;
    s->command.u.gemm.ta = p->ta;
    s->command.u.gemm.tb = p->tb;
    d->tolerance = p->tolerance;
    s->same_bits = p->same_bits;
    s->only_on = p->only_on;
    int64_t every = p->every > 0 ? p->every : 1;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t k = 0; k < p->k && every > 1; k++)
            if (k % every != 0 && k != p->k - 1)
                a->values[p->ta ? k * p->m + i : i * p->k + k] = 0;
    suite_expect(s, d);
    for (int64_t i = 0; i < p->m && suite_wants(s); i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < p->k; k = k + every < p->k || k == p->k - 1 ? k + every : p->k - 1)
                sum += a->values[p->ta ? k * p->m + i : i * p->k + k] *
                       b->values[p->tb ? j * p->k + k : k * p->n + j];
            sum *= p->alpha;
            if (p->with_c && p->beta != 0)
                sum += p->beta * c->values[i * p->n + j];
            if (p->with_bias)
                sum += bias->values[j];
            d->expected[i * p->n + j] = sum;
        }
    suite_check(s);
    suite_end(s);
}

/* One at a time: in an initializer, C leaves the order of draws open. */
static void draw_options(sbp_rng *rng, product *p) {
    p->ta = sbp_rng_below(rng, 2);
    p->tb = sbp_rng_below(rng, 2);
    p->with_c = sbp_rng_below(rng, 2);
    p->in_place = sbp_rng_below(rng, 2);
    p->with_bias = sbp_rng_below(rng, 2);
    p->alpha = sbp_rng_below(rng, 2) ? 1 : -0.75;
    p->beta = sbp_rng_below(rng, 2) ? 1 : 0.5;
}

/* Random sizes and options; every combination of types (both operands have one, program_c20). */
static void test_gemm_types(void **state) {
    (void)state;
    static const sbp_dtype types[] = {SBP_F32, SBP_BF16, SBP_F16, SBP_F64};
    sbp_rng rng = {1};
    for (int d = 0; d < 4; d++)
        for (int a = 0; a < 4; a++)
            for (int round = 0; round < 4; round++) {
                product p = {.d = types[d], .a = types[a], .b = types[a]};
                p.m = 1 + sbp_rng_below(&rng, 70);
                p.n = 1 + sbp_rng_below(&rng, 120);
                p.k = 1 + sbp_rng_below(&rng, 90);
                p.c = types[sbp_rng_below(&rng, 3)];
                p.bias = types[sbp_rng_below(&rng, 3)];
                draw_options(&rng, &p);
                check_product(&p, sbp_rng_next(&rng));
            }
}

static void test_gemm_sizes(void **state) {
    (void)state;
    static const int64_t rows[] = {0, 1, 7, 63, 64, 97, 200}, columns[] = {1, 15, 48, 49, 193, 250};
    static const int64_t depths[] = {0, 1, 30, 513};
    sbp_rng rng = {2};
    for (int m = 0; m < SBP_COUNT(rows); m++)
        for (int n = 0; n < SBP_COUNT(columns); n++) {
            product p = {.m = rows[m], .n = columns[n]};
            p.k = depths[sbp_rng_below(&rng, 4)];
            p.d = sbp_rng_below(&rng, 3) ? SBP_F32 : SBP_F64;
            draw_options(&rng, &p);
            p.a = p.b = p.c = p.bias = p.d;
            check_product(&p, sbp_rng_next(&rng));
        }
}

/* Both operands of 16 bits, which devices multiply in ways of their own: around the edges of tiles, with
 * every option. */
static void test_gemm_half(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 63, 64, 65, 130}, columns[] = {1, 8, 61, 64, 128, 201};
    static const int64_t depths[] = {0, 1, 31, 32, 33, 96, 300};
    static const sbp_dtype results[] = {SBP_F32, SBP_F32, SBP_BF16, SBP_F16};
    sbp_rng rng = {3};
    for (int m = 0; m < SBP_COUNT(rows); m++)
        for (int n = 0; n < SBP_COUNT(columns); n++) {
            sbp_dtype type = (m + n) % 3 ? SBP_F16 : SBP_BF16;
            product p = {.m = rows[m], .n = columns[n], .a = type, .b = type};
            p.k = depths[sbp_rng_below(&rng, SBP_COUNT(depths))];
            p.d = results[sbp_rng_below(&rng, SBP_COUNT(results))];
            draw_options(&rng, &p);
            p.c = p.bias = SBP_F32;
            check_product(&p, sbp_rng_next(&rng));
        }
}

/* Pairs of k are what instructions for bf16 take: odd depths, none, those at the edges of blocks of k; every
 * pair of transposes, with each option; and the same bits in every instruction set. */
static void test_gemm_bf16(void **state) {
    (void)state;
    static const int64_t depths[] = {0, 1, 2, 7, 64, 513, 640, 641, 1283, 2048, 2049, 4099};
    static const int64_t rows[] = {0, 1, 7, 8, 95, 96, 97}, columns[] = {1, 47, 48, 49, 100, 193};
    static const sbp_dtype results[] = {SBP_F32, SBP_F32, SBP_BF16, SBP_F16};
    sbp_rng rng = {4};
    for (int k = 0; k < SBP_COUNT(depths); k++)
        for (int transposes = 0; transposes < 4; transposes++)
            for (int layout = 0; layout < SUITE_LAYOUTS; layout++) {
                product p = {.a = SBP_BF16, .b = SBP_BF16, .k = depths[k], .same_bits = true};
                p.m = rows[sbp_rng_below(&rng, SBP_COUNT(rows))];
                p.n = columns[sbp_rng_below(&rng, SBP_COUNT(columns))];
                p.d = results[sbp_rng_below(&rng, SBP_COUNT(results))];
                draw_options(&rng, &p);
                p.ta = transposes & 1;
                p.tb = transposes & 2;
                p.c = p.bias = sbp_rng_below(&rng, 2) ? SBP_F32 : SBP_BF16;
                check_product(&p, sbp_rng_next(&rng) * SUITE_LAYOUTS + (uint64_t)layout);
            }
}

/* What a device cuts: long sums, wide results, transposed left sides, rows a power of two apart. */
static void test_gemm_large(void **state) {
    (void)state;
    static const product products[] = {
        {.m = 9, .n = 620, .k = 4100, .d = SBP_F32, .a = SBP_F32, .b = SBP_F32, .tb = true, .alpha = 1},
        {.m = 9,
         .n = 70,
         .k = 9000,
         .d = SBP_BF16,
         .a = SBP_BF16,
         .b = SBP_BF16,
         .with_bias = true,
         .alpha = 1},
        {.m = 700,
         .n = 20,
         .k = 4100,
         .d = SBP_F32,
         .a = SBP_BF16,
         .b = SBP_BF16,
         .ta = true,
         .with_c = true,
         .in_place = true,
         .alpha = 1,
         .beta = 1},
        {.m = 100, .n = 60, .k = 2048, .d = SBP_F32, .a = SBP_F32, .b = SBP_F32, .alpha = 2},
        {.m = 33,
         .n = 40,
         .k = 4097,
         .d = SBP_F64,
         .a = SBP_F64,
         .b = SBP_F64,
         .ta = true,
         .with_c = true,
         .c = SBP_F64,
         .alpha = 1,
         .beta = -1},
        /* bf16 that the CPU widens: cut both ways, with one block of k and with two */
        {.m = 100, .n = 150, .k = 2000, .d = SBP_BF16, .a = SBP_BF16, .b = SBP_BF16, .tb = true, .alpha = 1},
        {.m = 100,
         .n = 150,
         .k = 2100,
         .d = SBP_F32,
         .a = SBP_BF16,
         .b = SBP_BF16,
         .ta = true,
         .with_c = true,
         .c = SBP_F32,
         .alpha = 1,
         .beta = -1}};
    for (int i = 0; i < SBP_COUNT(products); i++)
        for (uint64_t layout = 0; layout < SUITE_LAYOUTS; layout++)
            check_product(&products[i], (uint64_t)(i + 10) * 2 + layout);
}

/* More than the memory for packed operands, or for sums of narrow results, has room for: columns of b, rows
 * of a, rows of sums. Thin in the other direction, or with few factors that are not 0. */
static void test_gemm_cuts(void **state) {
    (void)state;
    static const struct {
        sbp_dtype type, result;
        int64_t columns, rows, sum_rows, sum_columns;
    } types[] = {{SBP_F32, SBP_F32, 930, 900, 600, 900},
                 {SBP_F64, SBP_F64, 480, 450, 620, 450},
                 {SBP_BF16, SBP_BF16, 1850, 1760, 600, 900}};
    for (int t = 0; t < SBP_COUNT(types); t++) {
        sbp_dtype type = types[t].type, result = types[t].result;
        const product products[] = {{.m = 17, .n = types[t].columns, .k = 2048, .tb = true, .alpha = 1},
                                    {.m = 17, .n = types[t].columns, .k = 2500, .alpha = 1},
                                    {.m = types[t].rows,
                                     .n = 5,
                                     .k = 2048,
                                     .ta = true,
                                     .alpha = 1,
                                     .with_bias = true,
                                     .bias = result},
                                    {.m = types[t].rows, .n = 5, .k = 2100, .ta = true, .alpha = 1},
                                    {.m = types[t].sum_rows,
                                     .n = types[t].sum_columns,
                                     .k = 2049,
                                     .tb = true,
                                     .with_c = true,
                                     .c = result,
                                     .alpha = 1,
                                     .beta = -1,
                                     .every = 40},
                                    {.m = types[t].sum_rows,
                                     .n = types[t].sum_columns,
                                     .k = 2049,
                                     .ta = true,
                                     .alpha = 1,
                                     .every = 40},
                                    {.m = 4000, .n = 60, .k = 5, .ta = true, .alpha = 1}};
        for (int i = 0; i < SBP_COUNT(products); i++) {
            product p = products[i];
            p.a = p.b = type;
            p.d = result;
            p.only_on = SUITE_ON_CPU;
            check_product(&p, (uint64_t)(20 + 2 * i + t % 2));
        }
    }
}

/* On each side of the size from which on a GPU has tiles of 128 x 128, and of the depth that these sum. */
static void test_gemm_by_size(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{897, 900, 20}, {900, 897, 16}, {130, 200, 20}, {897, 897, 4097}};
    const char *variant = getenv("SBP_VULKAN_GEMM");
    int count = testing_all() ? SBP_COUNT(sizes) : SBP_COUNT(sizes) - 1; /* the last takes 20 seconds */
    for (int i = 0; i < count && variant && strcmp(variant, "by_size") == 0; i++) {
        product p = {
            .m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .alpha = 1, .only_on = SUITE_ON_VULKAN};
        p.d = SBP_F32;
        p.a = p.b = i == 1 ? SBP_BF16 : SBP_F32;
        p.tb = i == 3;
        p.every = i == 3 ? 200 : 0;
        check_product(&p, (uint64_t)(40 + 2 * i));
    }
}

/* Sums as long as a vocabulary keep the precision of short ones: a single chain of that length would not. The
 * last tiles are no whole ones; a software driver must not stop there (backends/vulkan/README.md). */
static void test_gemm_long_sums(void **state) {
    (void)state;
    static const sbp_dtype types[] = {SBP_F32, SBP_BF16};
    for (int t = 0; t < SBP_COUNT(types); t++)
        for (int transposes = 0; transposes < 4; transposes++) {
            product p = {.m = 9,
                         .n = 10,
                         .k = 70001,
                         .d = SBP_F32,
                         .a = types[t],
                         .b = types[t],
                         .ta = transposes & 1,
                         .tb = transposes & 2,
                         .alpha = 1,
                         .tolerance = SBP_TOLERANCE_LONG_SUM};
            check_product(&p, (uint64_t)(t + transposes));
        }
}

/* beta 0 means that c is not read, whatever it holds. */
static void test_gemm_beta_zero(void **state) {
    (void)state;
    product p = {.m = 20,
                 .n = 30,
                 .k = 10,
                 .d = SBP_F32,
                 .a = SBP_F32,
                 .b = SBP_F32,
                 .alpha = 1,
                 .with_c = true,
                 .in_place = true};
    check_product(&p, 5);
}

const struct CMUnitTest suite_gemm_tests[] = {
    cmocka_unit_test(test_gemm_types),     cmocka_unit_test(test_gemm_sizes),
    cmocka_unit_test(test_gemm_half),      cmocka_unit_test(test_gemm_large),
    cmocka_unit_test(test_gemm_bf16),      cmocka_unit_test(test_gemm_long_sums),
    cmocka_unit_test(test_gemm_beta_zero), cmocka_unit_test(test_gemm_cuts),
    cmocka_unit_test(test_gemm_by_size)};
const int suite_gemm_count = SBP_COUNT(suite_gemm_tests);
