/* test_attention_bounds.c: what the main loops of attention's kernels cost, by the machine code that ptxas
 * made: clocks of a quarter of an SM for one tile, by the unit that has them. No unit should need more
 * than 1.25 times the clocks of the tensor cores. A lower bound, no measurement: latencies, caches and memory
 * are not in it.
 *
 * Golden: bounds.txt (SBP_TEST_ALL=1 SBP_UPDATE_GOLDENS=1 writes all of it anew). SBP_TEST_ALL=1: all sizes
 * and architectures; else a few. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/cuda/attention/golden.h"
#include "tests/cuda/attention/kernels.h"
#include "tests/cuda/attention/sass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE "tests/cuda/attention/bounds.txt"

/* ---- rates ------------------------------------------------------------------------------------------ */

/* Clocks of a quarter of an SM (a scheduler with its units) per instruction of a warp.
 *   issue    1: one scheduler, one instruction a clock
 *   MUFU     8: 16 results a clock and SM (CUDA C++ Programming Guide, arithmetic instructions)
 *   integers, comparisons, conversions: 2: 64 results a clock and SM (the same table)
 *   fp32     1: 128 results; 2 on sm_80: 64 (the same)
 *   products of 16 x 8 x 16: 2048 multiplications, divided by what a data sheet's TFLOP/s say of a card whose
 *            tensor cores are not cut down: A100 312, A40 150, L40S 362, RTX PRO 6000 Blackwell 504 TFLOP/s
 *            (those of GeForce cards run at half of that with fp32 sums, and everything else is cheaper by
 *            comparison). On sm_90 mma.sync has 62.9 % of the rate of wgmma (arXiv 2402.13499, table of
 *            tensor cores), which is 1024 multiplications a clock: 989 TFLOP/s. For sm_100 nothing is known;
 *            the rate of sm_80 is taken.
 * Shared memory serves 128 bytes a clock and SM, so a quarter of that for a quarter: an access of a warp to
 * what lies in one row of banks counts 4 clocks of a quarter when all four do the same. That there are no
 * conflicts is shown by test_attention_run. */
typedef struct rates {
    int32_t number;
    double product, fp32;
} rates;
static const rates all_rates[] = {{80, 8, 2},    {86, 16, 1}, {89, 16, 1},
                                  {90, 6.36, 1}, {100, 8, 1}, {120, 16, 1}};
enum { MUFU = 8, INTEGER = 2, QUARTERS = 4, ROW_OF_BANKS = 128 };

static const rates *rates_of(sbp_cuda_arch arch) {
    for (int i = 0; i < SBP_COUNT(all_rates); i++)
        if (all_rates[i].number == arch.number)
            return &all_rates[i];
    fail_msg("no rates of sm_%d", (int)arch.number);
    return NULL;
}

/* ---- a loop ----------------------------------------------------------------------------------------- */

typedef struct cost {
    int32_t products, issued;
    double mma, shared, mufu, fp32, integer; /* clocks; shared: rows of banks of the whole SM */
} cost;

/* HGMMA.64xNx16: a warpgroup's, a quarter of an SM has 16 of the rows. */
static int32_t columns_of(const sass_instruction *i) {
    int32_t n = 0;
    assert_int_equal(sscanf(i->op, "HGMMA.64x%dx16", &n), 1);
    return n;
}

/* Operands in shared memory, of 16 bits, in rows of banks: a warp's share of them. */
static double operand_rows(const sass_instruction *i) {
    /* "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24": both factors; with R4 before gdesc: one */
    const char *first = strchr(i->text, ',');
    assert_non_null(first);
    bool both = strncmp(first + 2, "gdesc", 5) == 0;
    return ((both ? 64 : 0) + columns_of(i)) * 16 * 2 / (double)ROW_OF_BANKS / QUARTERS;
}

static bool is_any(const sass_instruction *i, const char *const *ops) {
    for (; *ops; ops++)
        if (sass_is(i, *ops))
            return true;
    return false;
}

static void add_instruction(const sass_instruction *i, const rates *r, cost *c) {
    static const char *const fp32[] = {"FFMA", "FADD", "FMUL", NULL};
    static const char *const elsewhere[] = {"HMMA",      "HGMMA", "MUFU",  "LDSM", "LDS",   "STS",
                                            "LDGSTS",    "LDG",   "BRA",   "BAR",  "SYNCS", "NOP",
                                            "WARPGROUP", "BSSY",  "BSYNC", "LDC",  "ULDC",  NULL};
    c->issued++;
    if (i->never)
        return;
    if (sass_is(i, "HMMA")) {
        c->products++;
        c->mma += r->product;
    } else if (sass_is(i, "HGMMA")) {
        c->products++;
        c->mma += columns_of(i) / 2.0;
        c->shared += operand_rows(i);
    } else if (sass_is(i, "LDSM")) {
        assert_true(strstr(i->op, ".4") != NULL); /* four matrices of 8 rows of 16 bytes */
        c->shared += 4;
    } else if (sass_is(i, "LDGSTS")) {
        assert_true(strstr(i->op, ".128") != NULL);
        c->shared += 4;
    } else if (sass_is(i, "LDS") || sass_is(i, "STS")) {
        c->shared += strstr(i->op, ".128") ? 4 : strstr(i->op, ".64") ? 2 : 1;
    } else if (sass_is(i, "MUFU")) {
        c->mufu += MUFU;
    }
    if (is_any(i, fp32))
        c->fp32 += r->fp32;
    else if (!is_any(i, elsewhere))
        c->integer += INTEGER;
}

static cost cost_of(const sass_kernel *kernel, const int32_t *path, int32_t count, const rates *r) {
    cost c = {0};
    for (int32_t i = 0; i < count; i++)
        add_instruction(&kernel->items[path[i]], r, &c);
    return c;
}

static void join(cost *c, const cost *more) {
    c->products += more->products;
    c->issued += more->issued;
    c->mma += more->mma;
    c->shared += more->shared;
    c->mufu += more->mufu;
    c->fp32 += more->fp32;
    c->integer += more->integer;
}

/* ---- kernels ---------------------------------------------------------------------------------------- */

/* Rows of banks that TMA writes for a tile, and reads for the sums of dq. */
static double bulk_rows(const sbp_gpu_key *key) {
    int64_t slab = sbp_round_up(key->d_qk, 64) * 2, bytes = 2 * 128 * slab;
    if (key->kind == SBP_CMD_ATTN_BWD)
        bytes = 2 * 64 * slab + 2 * 64 * 4 + 64 * 4 * key->d_qk;
    return (double)bytes / ROW_OF_BANKS;
}

/* Columns that a warp sums where a head is summed in parts (Parts of mma.cuh); else all. */
static int32_t part_of(int32_t columns) {
    return columns > 256 ? (int32_t)sbp_round_up(columns / 2, columns % 64 == 0 ? 64 : 16) : columns;
}

/* Products of a tile: how many the loop must have (of one warp, or of two warps of both warpgroups). */
static int32_t expected_products(const sbp_gpu_key *key, const char *text) {
    const char *keys = strstr(text, "#define KEYS "), *queries = strstr(text, "#define QUERIES ");
    bool has_dk = !strstr(text, "#define WANT_DK 0"), has_dv = !strstr(text, "#define WANT_DV 0");
    const char *strips = strstr(text, "#define STRIPS ");
    int32_t d_qk = key->d_qk, d_v = key->d_v, strip = strips ? atoi(strips + 15) : 1;
    int32_t own_qk = part_of(d_qk), own_v = part_of(d_v);
    if (key->variant == SBP_CUDA_WGMMA && key->kind == SBP_CMD_ATTN_FWD)
        return 2 * (d_qk / 16 + 128 / 16);
    if (key->variant == SBP_CUDA_WGMMA) /* s, dp, dv, dk of both; dq by those who have columns */
        return 2 * (d_qk / 16 + d_v / 16 + 64 / 16 + 64 / 16) + (d_qk > 64 ? 2 : 1) * 128 / 16;
    if (key->kind == SBP_CMD_ATTN_FWD) {
        int32_t n = atoi(keys + 13);
        return strip * (n / 8 * d_qk / 16 + n / 16 * own_v / 8);
    }
    if (key->step == 1) {
        int32_t n = atoi(keys + 13);
        return n / 8 * (d_qk + d_v) / 16 + n / 16 * own_qk / 8;
    }
    int32_t n = atoi(queries + 16);
    return n / 8 * (d_qk + (has_dk ? d_v : 0)) / 16 +
           n / 16 * ((has_dk ? own_qk : 0) + (has_dv ? own_v : 0)) / 8;
}

/* The cost of a kernel; with WGMMA that of both warpgroups, and of what TMA does for them. */
static cost kernel_cost(sbp_arena *arena, const sbp_gpu_key *key, const sass_kernel *kernel, const rates *r) {
    int32_t *path, count;
    bool *first, *second;
    count = sass_main_loop(arena, kernel, NULL, &path, &first);
    assert_true(count > 0);
    cost c = cost_of(kernel, path, count, r);
    if (key->variant != SBP_CUDA_WGMMA) {
        c.shared *= QUARTERS;
        return c;
    }
    count = sass_main_loop(arena, kernel, first, &path, &second);
    cost other =
        count > 0 ? cost_of(kernel, path, count, r) : c; /* the same code for both, or one for each */
    join(&c, &other);
    c.shared = c.shared * QUARTERS + bulk_rows(key);
    return c;
}

static double largest(const cost *c) {
    double most = c->issued;
    const double others[] = {c->shared, c->mufu, c->fp32, c->integer};
    for (int i = 0; i < SBP_COUNT(others); i++)
        most = others[i] > most ? others[i] : most;
    return most / c->mma;
}

#define BOUND 1.25

/* Where the bound is missed, by how much: the first line that fits. All of it is shared memory. A warp by
 * mma.sync reads the passing tile once for 16 rows of its own, which is as long as its products take on
 * sm_80; its own rows, copies, and lse and delta, of which every lane reads its own, come on top. Forward,
 * and of heads that leave registers for it, a warp has 32 rows; backward it has none left. On sm_90 mma.sync
 * is for what wgmma is not there for. Heads in parts leave room for few rows in shared memory, and for half
 * of their columns each warp reads the tile of the scores whole. wgmma's backward pass has dq in fp32 go
 * through shared memory twice (0.2 of the products), and lse and delta (0.1); small heads have the same sums
 * of fewer products. */
static const struct {
    int32_t arch;
    bool backward;
    sbp_cuda_variant variant;
    int32_t d_qk; /* 0: any */
    double bound;
} known[] = {
    {80, false, SBP_CUDA_MMA, 512, 1.83},  {80, true, SBP_CUDA_MMA, 512, 2.04},
    {90, false, SBP_CUDA_MMA, 512, 1.89},  {90, true, SBP_CUDA_MMA, 512, 2.44},
    {100, false, SBP_CUDA_MMA, 512, 1.50}, {100, true, SBP_CUDA_MMA, 512, 1.94},
    {80, false, SBP_CUDA_MMA, 256, 1.38},  {80, false, SBP_CUDA_MMA, 192, 1.27},
    {80, true, SBP_CUDA_MMA, 256, 1.55},   {80, true, SBP_CUDA_MMA, 128, 1.26},
    {80, true, SBP_CUDA_MMA, 0, 1.34},     {100, true, SBP_CUDA_MMA, 256, 1.47},
    {100, true, SBP_CUDA_MMA, 192, 1.39},  {100, true, SBP_CUDA_MMA, 128, 1.26},
    {100, true, SBP_CUDA_MMA, 0, 1.33},    {90, false, SBP_CUDA_MMA, 256, 1.57},
    {90, true, SBP_CUDA_MMA, 0, 1.85},     {90, true, SBP_CUDA_WGMMA, 128, 1.26},
    {90, true, SBP_CUDA_WGMMA, 96, 1.38},  {90, true, SBP_CUDA_WGMMA, 80, 1.47},
    {90, true, SBP_CUDA_WGMMA, 64, 1.42},
};

static double allowed(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    bool backward = key->kind == SBP_CMD_ATTN_BWD;
    for (int i = 0; i < SBP_COUNT(known); i++)
        if (known[i].arch == arch.number && known[i].backward == backward &&
            (int)known[i].variant == key->variant && (known[i].d_qk == 0 || known[i].d_qk == key->d_qk))
            return known[i].bound;
    return BOUND;
}

/* ---- the table -------------------------------------------------------------------------------------- */

static int failed;

/* A line of the table; nothing for kernels without such a loop (those before and behind the main ones). */
static void describe(sbp_arena *arena, const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_text *out) {
    char name[SBP_GPU_NAME], *text;
    const char *message;
    sbp_cuda_object object;
    sbp_cuda_resources resources;
    kernel_name(key, arch, name);
    if (!kernel_wanted(name))
        return;
    text = kernel_text(key, arch);
    if (!kernel_compile(text, key, arch, &object, &resources, &message))
        fail_msg("%s: %s", name, message);
    sass_kernel kernel = sass_read(arena, object.data, object.cubin_bytes);
    for (int32_t i = 0; i < kernel.count; i++)
        if (sass_is(&kernel.items[i], "LDL") || sass_is(&kernel.items[i], "STL"))
            fail_msg("%s: local memory: %s", name, kernel.items[i].text);
    cost c = kernel_cost(arena, key, &kernel, rates_of(arch));
    double bound = largest(&c), most = allowed(key, arch);
    if (c.products != expected_products(key, text))
        fail_msg("%s: the main loop has %d products, not %d", name, (int)c.products,
                 (int)expected_products(key, text));
    sbp_text_add(
        out,
        "%-40s %3d products %5.0f  issue %.2f shared %.2f mufu %.2f fp32 %.2f integer %.2f  bound %.2f\n",
        name, (int)c.products, c.mma, c.issued / c.mma, c.shared / c.mma, c.mufu / c.mma, c.fp32 / c.mma,
        c.integer / c.mma, bound > 1 ? bound : 1);
    if (bound > most + 0.005) {
        print_message("%s: bound %.3f, at most %.2f\n", name, bound, most);
        failed++;
    }
    free(object.data);
    free(text);
}

static bool has_loop(const sbp_gpu_key *key, int32_t steps) {
    if (key->kind == SBP_CMD_ATTN_FWD)
        return true;
    return key->step > 0 && (key->variant != SBP_CUDA_WGMMA || key->step + 1 < steps);
}

static const char *const archs[] = {"sm_80", "sm_90a", "sm_86", "sm_89", "sm_100", "sm_120"};
static const int32_t sizes[][2] = {{128, 128}, {64, 64},   {80, 80},  {96, 96},
                                   {256, 256}, {192, 128}, {512, 512}};

static void test_bounds(void **state) {
    (void)state;
    if (!kernels_open() || !sass_can_read())
        skip();
    sbp_arena *kept = sbp_arena_create();
    assert_non_null(kept);
    sbp_text lines;
    sbp_text_init(&lines, kept);
    int arch_count = golden_everything() ? SBP_COUNT(archs) : 2,
        size_count = golden_everything() ? SBP_COUNT(sizes) : 2;
    for (int a = 0; a < arch_count; a++)
        for (int s = 0; s < size_count; s++)
            for (int backward = 0; backward < 2; backward++)
                for (int v = SBP_CUDA_MMA; v < SBP_CUDA_VARIANTS; v++) {
                    sbp_cuda_arch arch = kernel_arch(archs[a]);
                    sbp_gpu_key key = kernel_key(backward, (sbp_cuda_variant)v, sizes[s][0], sizes[s][1]);
                    int32_t steps = sbp_cuda_attention_steps(&key, arch);
                    for (int32_t i = 0; i < steps; i++) {
                        key.step = (uint8_t)i;
                        sbp_arena *arena = sbp_arena_create();
                        assert_non_null(arena);
                        if (has_loop(&key, steps) &&
                            (v != SBP_CUDA_MMA || arch.number != 90 || golden_everything()))
                            describe(arena, &key, arch, &lines);
                        sbp_arena_destroy(arena);
                    }
                }
    print_message("%s", lines.data);
    failed += golden_check(TABLE, &lines, golden_everything());
    sbp_arena_destroy(kept);
    kernels_close();
    assert_int_equal(failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests_name("what attention's main loops cost", tests, NULL, NULL);
}
