/* Fragments of mma.sync against the formulas that the PTX ISA prints for each shape, and products against
 * loops; ldmatrix, stmatrix and wavefronts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/ptx/tensor/tensor.h"

static const struct {
    int m, k;
    sbp_ptx_type ab, cd;
} forms[] = {
    {16, 16, SBP_PTX_BF16, SBP_PTX_F32}, {16, 16, SBP_PTX_F16, SBP_PTX_F32},
    {16, 16, SBP_PTX_F16, SBP_PTX_F16},  {16, 8, SBP_PTX_BF16, SBP_PTX_F32},
    {16, 8, SBP_PTX_F16, SBP_PTX_F32},   {16, 8, SBP_PTX_F16, SBP_PTX_F16},
    {16, 8, SBP_PTX_TF32, SBP_PTX_F32},  {16, 4, SBP_PTX_TF32, SBP_PTX_F32},
    {16, 32, SBP_PTX_E4M3, SBP_PTX_F32}, {16, 32, SBP_PTX_E5M2, SBP_PTX_F16},
    {16, 32, SBP_PTX_S8, SBP_PTX_S32},   {16, 16, SBP_PTX_U8, SBP_PTX_S32},
    {8, 4, SBP_PTX_F64, SBP_PTX_F64},    {16, 4, SBP_PTX_F64, SBP_PTX_F64},
    {16, 8, SBP_PTX_F64, SBP_PTX_F64},   {16, 16, SBP_PTX_F64, SBP_PTX_F64},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static sbp_ptx_mma form_of(int f) {
    sbp_ptx_mma op;
    assert_true(sbp_ptx_mma_make(forms[f].m, 8, forms[f].k, forms[f].ab, forms[f].ab, forms[f].cd, &op));
    return op;
}

static int per_register(sbp_ptx_type type) {
    return type == SBP_PTX_F64 ? 1 : 32 / sbp_ptx_type_bits(type);
}

typedef sbp_ptx_place place_fn(const sbp_ptx_mma *op, int lane, int element);

static void assert_bijection(const sbp_ptx_mma *op, place_fn *place, int elements, int rows, int cols) {
    uint8_t seen[32 * 32] = {0};
    assert_int_equal(elements * 32, rows * cols);
    for (int lane = 0; lane < 32; lane++) {
        for (int e = 0; e < elements; e++) {
            const sbp_ptx_place at = place(op, lane, e);
            assert_true(at.row >= 0 && at.row < rows && at.col >= 0 && at.col < cols);
            assert_int_equal(seen[at.row * cols + at.col]++, 0);
        }
    }
}

static void every_map_is_a_bijection(void **state) {
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        const sbp_ptx_mma op = form_of(f);
        assert_bijection(&op, sbp_ptx_mma_a, op.a_regs * per_register(op.a), op.m, op.k);
        assert_bijection(&op, sbp_ptx_mma_b, op.b_regs * per_register(op.b), op.k, op.n);
        assert_bijection(&op, sbp_ptx_mma_c, op.cd_regs * per_register(op.cd), op.m, op.n);
    }
    sbp_ptx_mma op;
    assert_false(sbp_ptx_mma_make(16, 8, 16, SBP_PTX_BF16, SBP_PTX_BF16, SBP_PTX_F16, &op));
    assert_false(sbp_ptx_mma_make(16, 8, 16, SBP_PTX_TF32, SBP_PTX_TF32, SBP_PTX_F32, &op));
    assert_false(sbp_ptx_mma_make(16, 8, 16, SBP_PTX_BF16, SBP_PTX_F16, SBP_PTX_F32, &op));
    assert_false(sbp_ptx_mma_make(8, 8, 16, SBP_PTX_BF16, SBP_PTX_BF16, SBP_PTX_F32, &op));
}

static void assert_place(sbp_ptx_place at, int row, int col) {
    assert_int_equal(at.row, row);
    assert_int_equal(at.col, col);
}

/* Shape by shape, as the sections "Matrix Fragments for mma.m..." print them: conditions on the index of the
 * element. */
static void maps_are_the_formulas_of_the_manual(void **state) {
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        const sbp_ptx_mma op = form_of(f);
        const int bits = sbp_ptx_type_bits(op.a);
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane >> 2, t = lane % 4;
            for (int i = 0; i < op.m * op.k / 32; i++) {
                const sbp_ptx_place at = sbp_ptx_mma_a(&op, lane, i);
                if (bits == 16 && op.k == 16) {
                    assert_place(at, (i >= 0 && i < 2) || (i >= 4 && i < 6) ? g : g + 8,
                                 i < 4 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8);
                } else if (bits == 16) {
                    assert_place(at, i < 2 ? g : g + 8, t * 2 + (i & 1));
                } else if (bits == 8 && op.k == 32) {
                    assert_place(at, i < 4 || (i >= 8 && i < 12) ? g : g + 8,
                                 t * 4 + (i & 3) + (i < 8 ? 0 : 16));
                } else if (bits == 8) {
                    assert_place(at, i < 4 ? g : g + 8, t * 4 + (i & 3));
                } else if (op.m == 8) {
                    assert_place(at, g, t);
                } else if (op.k == 4) {
                    assert_place(at, i == 0 ? g : g + 8, t);
                } else if (op.k == 8) {
                    assert_place(at, i == 0 || i == 2 ? g : g + 8, i == 0 || i == 1 ? t : t + 4);
                } else { // f64, k16
                    assert_place(at, i % 2 == 0 ? g : g + 8, i % 2 == 0 ? i * 2 + t : i * 2 - 2 + t);
                }
            }
            for (int i = 0; i < op.k * 8 / 32; i++) {
                const sbp_ptx_place at = sbp_ptx_mma_b(&op, lane, i);
                const int row = bits == 16  ? t * 2 + (i & 1) + (i < 2 ? 0 : 8)
                                : bits == 8 ? t * 4 + (i & 3) + (i < 4 ? 0 : 16)
                                            : i * 4 + t;
                assert_place(at, row, g);
            }
            for (int i = 0; i < op.m * 8 / 32; i++) {
                assert_place(sbp_ptx_mma_c(&op, lane, i), i < 2 ? g : g + 8, t * 2 + (i & 1));
            }
        }
    }
}

// A drawn element: of a few bits where `exact`, so that every sum is exact; else of the type's whole
// significand.
static double draw_element(sbp_ptx_type type, uint64_t seed, int i, bool exact) {
    const uint64_t bits = sbp_ptx_hash(seed, (uint64_t)i, 0, 0);
    double value = (double)(int)(bits % 17) - 8;
    if (type == SBP_PTX_U8) {
        return (double)(bits % 256);
    }
    if (type == SBP_PTX_S8) {
        return (double)(int8_t)bits;
    }
    if (type == SBP_PTX_S32) {
        return bits & 1 ? (double)(int32_t)(bits >> 8)
                        : (bits & 2 ? -1.0 : 1.0) * (0x7ffffff0 - (double)(bits >> 52));
    }
    if (!exact) {
        value = ldexp((double)(int64_t)bits, -62) * exp2((double)(int)(bits % 9) - 4);
    }
    return sbp_ptx_value(type, sbp_ptx_round(type, value, SBP_PTX_RN, 0));
}

// A matrix into the registers of a warp, by the maps.
static void deal(const sbp_ptx_mma *op, place_fn *place, sbp_ptx_type type, int regs, int cols,
                 const double *matrix, uint64_t file[][32]) {
    const int w = per_register(type), bits = sbp_ptx_type_bits(type);
    for (int r = 0; r < regs; r++) {
        for (int lane = 0; lane < 32; lane++) {
            file[r][lane] = 0;
            for (int j = 0; j < w; j++) {
                const sbp_ptx_place at = place(op, lane, r * w + j);
                const double value = matrix[at.row * cols + at.col];
                const bool integer = type == SBP_PTX_S8 || type == SBP_PTX_U8 || type == SBP_PTX_S32;
                const uint64_t element = integer ? (uint64_t)(int64_t)value & ((UINT64_C(1) << bits) - 1)
                                                 : sbp_ptx_round(type, value, SBP_PTX_RN, 0);
                file[r][lane] |= element << (j * bits);
            }
        }
    }
}

typedef struct {
    double a[16 * 32], b[32 * 8], c[16 * 8], d[16 * 8];
} matrices;

// Runs the form on drawn matrices; D by the maps into out->d.
static void run_form(const sbp_ptx_mma *op, bool exact, bool saturate, uint64_t draw, uint64_t seed,
                     matrices *out) {
    uint64_t wide[3][8][32];
    uint32_t narrow[3][8][32];
    const uint64_t *wp[3][8];
    const uint32_t *np[3][8];
    uint64_t *wd[8];
    uint32_t *nd[8];
    for (int i = 0; i < 16 * 32; i++) {
        out->a[i] = draw_element(op->a, 3 * draw, i, exact);
        out->b[i % 256] = draw_element(op->b, 3 * draw + 1, i % 256, exact);
        out->c[i % 128] = draw_element(op->cd, 3 * draw + 2, i % 128, exact);
    }
    deal(op, sbp_ptx_mma_a, op->a, op->a_regs, op->k, out->a, wide[0]);
    deal(op, sbp_ptx_mma_b, op->b, op->b_regs, 8, out->b, wide[1]);
    deal(op, sbp_ptx_mma_c, op->cd, op->cd_regs, 8, out->c, wide[2]);
    for (int i = 0; i < 3; i++) {
        for (int r = 0; r < 8; r++) {
            for (int lane = 0; lane < 32; lane++) {
                narrow[i][r][lane] = (uint32_t)wide[i][r][lane];
            }
            wp[i][r] = wide[i][r];
            np[i][r] = narrow[i][r];
            wd[r] = wide[2][r]; // D over C
            nd[r] = narrow[2][r];
        }
    }
    if (op->cd == SBP_PTX_F64) {
        sbp_ptx_mma_warp_f64(op, wp[0], wp[1], wp[2], wd);
    } else {
        sbp_ptx_mma_warp(op, np[0], np[1], np[2], nd, saturate, seed);
    }
    const int w = per_register(op->cd), bits = sbp_ptx_type_bits(op->cd);
    for (int r = 0; r < op->cd_regs; r++) {
        for (int lane = 0; lane < 32; lane++) {
            for (int j = 0; j < w; j++) {
                const sbp_ptx_place at = sbp_ptx_mma_c(op, lane, r * w + j);
                const uint64_t word =
                    op->cd == SBP_PTX_F64 ? wide[2][r][lane] : narrow[2][r][lane] >> (j * bits);
                out->d[at.row * 8 + at.col] = sbp_ptx_value(op->cd, word);
            }
        }
    }
}

static void exact_products_come_out_exactly_in_every_way(void **state) {
    (void)state;
    matrices *m = calloc(1, sizeof *m);
    for (int f = 0; f < FORMS; f++) {
        const sbp_ptx_mma op = form_of(f);
        const bool integer = op.cd == SBP_PTX_S32;
        for (uint64_t seed = 0; seed < 12; seed++) {
            run_form(&op, true, false, 100 + seed, seed, m);
            for (int i = 0; i < op.m * 8; i++) {
                double sum = m->c[i];
                for (int k = 0; k < op.k; k++) {
                    sum += m->a[i / 8 * op.k + k] * m->b[k * 8 + i % 8];
                }
                assert_true(m->d[i] == (integer ? (double)(int32_t)(uint32_t)(int64_t)sum : sum));
            }
        }
    }
    free(m);
}

static void every_way_keeps_its_bound_and_they_differ(void **state) {
    (void)state;
    matrices *m = calloc(1, sizeof *m), *first = calloc(1, sizeof *first);
    int different = 0;
    for (int f = 0; f < FORMS; f++) {
        const sbp_ptx_mma op = form_of(f);
        if (op.cd != SBP_PTX_F32 && op.cd != SBP_PTX_F16) {
            continue;
        }
        for (uint64_t seed = 0; seed < 16; seed++) {
            run_form(&op, false, false, 7, seed, seed == 0 ? first : m);
            const matrices *now = seed == 0 ? first : m;
            const sbp_ptx_accumulation way = sbp_ptx_accumulation_of(seed);
            for (int i = 0; i < op.m * 8; i++) {
                long double sum = now->c[i], size = fabs(now->c[i]);
                for (int k = 0; k < op.k; k++) {
                    const long double product = (long double)now->a[i / 8 * op.k + k] * now->b[k * 8 + i % 8];
                    sum += product;
                    size += fabsl(product);
                }
                const double steps = way.chunk ? op.k + 3 * ((op.k + way.chunk - 1) / way.chunk) : 0;
                const double half_ulp = ldexp((double)fabsl(sum), op.cd == SBP_PTX_F16 ? -11 : -24);
                assert_true(fabsl(now->d[i] - sum) <= half_ulp * (1 + ldexp(1, -10)) +
                                                          steps * ldexp((double)size, -23) +
                                                          ldexp((double)size, -49));
                different += seed && now->d[i] != first->d[i];
            }
        }
    }
    assert_true(different > 100);
    free(m);
    free(first);
}

static void integers_wrap_or_saturate(void **state) {
    (void)state;
    matrices *m = calloc(1, sizeof *m);
    int saturated = 0;
    for (int f = 0; f < FORMS; f++) {
        const sbp_ptx_mma op = form_of(f);
        for (uint64_t draw = 0; draw < 2000 && op.cd == SBP_PTX_S32; draw++) {
            run_form(&op, true, true, draw, 0, m);
            for (int i = 0; i < 128; i++) {
                int64_t sum = (int64_t)m->c[i];
                for (int k = 0; k < op.k; k++) {
                    sum += (int64_t)m->a[i / 8 * op.k + k] * (int64_t)m->b[k * 8 + i % 8];
                }
                const int64_t wanted = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
                saturated += wanted != sum;
                assert_int_equal((int64_t)m->d[i], wanted);
            }
        }
    }
    assert_true(saturated > 0);
    free(m);
}

static void infinities_and_nans_go_through(void **state) {
    (void)state;
    double a[16] = {0}, b[16 * 8] = {0}, c[8] = {0}, d[8];
    a[3] = (double)INFINITY;
    b[3 * 8 + 1] = 1;
    b[3 * 8 + 2] = -1;
    for (int i = 0; i < 16; i++) {
        b[i * 8] = 1;
    }
    const sbp_ptx_accumulation ways[] = {{0, 0}, {4, 0}, {8, 1}, {16, 2}};
    for (int w = 0; w < 4; w++) {
        sbp_ptx_multiply(1, 8, 16, a, b, c, d, SBP_PTX_F32, ways[w]);
        assert_true(d[0] == (double)INFINITY && d[1] == (double)INFINITY && d[2] == -(double)INFINITY);
        assert_true(isnan(d[3])); // infinity times zero
    }
}

// ---- ldmatrix, stmatrix, wavefronts -----------------------------------------------------------------------

static void ldmatrix_hands_out_fragments(void **state) {
    (void)state;
    uint8_t rows[32][16], back[32][16];
    uint32_t file[4][32];
    uint32_t *out[4] = {file[0], file[1], file[2], file[3]};
    const uint32_t *in[4] = {file[0], file[1], file[2], file[3]};
    for (int i = 0; i < 32 * 8; i++) {
        const uint16_t element = (uint16_t)(i / 8 * 256 + i % 8); // row of all four matrices, column
        memcpy(&rows[i / 8][i % 8 * 2], &element, 2);
    }
    sbp_ptx_mma op;
    assert_true(sbp_ptx_mma_make(16, 8, 16, SBP_PTX_F16, SBP_PTX_F16, SBP_PTX_F32, &op));
    // x4 of the quarters of a 16 x 16 in the order (0,0) (8,0) (0,8) (8,8) is the fragment of A of m16n8k16
    // ...
    sbp_ptx_ldmatrix(4, false, rows, out);
    for (int lane = 0; lane < 32; lane++) {
        for (int e = 0; e < 8; e++) {
            const sbp_ptx_place at = sbp_ptx_mma_a(&op, lane, e);
            const int quarter = at.row / 8 + at.col / 8 * 2;
            const uint32_t element = file[e / 2][lane] >> (16 * (e % 2)) & 0xffff;
            assert_int_equal(element, (quarter * 8 + at.row % 8) * 256 + at.col % 8);
        }
    }
    // ... and x2.trans of a row-major [16, 8] the fragment of B.
    sbp_ptx_ldmatrix(2, true, rows, out);
    for (int lane = 0; lane < 32; lane++) {
        for (int e = 0; e < 4; e++) {
            const sbp_ptx_place at = sbp_ptx_mma_b(&op, lane, e);
            assert_int_equal(file[e / 2][lane] >> (16 * (e % 2)) & 0xffff, at.row * 256 + at.col);
        }
    }
    for (int trans = 0; trans < 2; trans++) {
        for (int matrices_count = 1; matrices_count <= 4; matrices_count *= 2) {
            memset(back, 0, sizeof back);
            sbp_ptx_ldmatrix(matrices_count, trans, rows, out);
            sbp_ptx_stmatrix(matrices_count, trans, in, back);
            assert_memory_equal(rows, back, (size_t)matrices_count * 8 * 16);
        }
    }
}

static int strided(uint32_t stride, uint32_t mask, int bytes) {
    uint32_t addresses[32];
    for (uint32_t lane = 0; lane < 32; lane++) {
        addresses[lane] = lane * stride;
    }
    return sbp_ptx_wavefronts(addresses, mask, bytes);
}

static void wavefronts_are_counted(void **state) {
    (void)state;
    assert_int_equal(strided(4, ~0U, 4), 1);
    assert_int_equal(strided(0, ~0U, 4), 1); // one word for all
    assert_int_equal(strided(8, ~0U, 4), 2);
    assert_int_equal(strided(128, ~0U, 4), 32);
    assert_int_equal(strided(132, ~0U, 4), 1);
    assert_int_equal(strided(2, ~0U, 2), 1);
    assert_int_equal(strided(8, ~0U, 8), 2);
    assert_int_equal(strided(16, ~0U, 16), 4);
    assert_int_equal(strided(128, ~0U, 16), 32); // a column of 16-byte pieces without swizzle: 8 per phase
    assert_int_equal(strided(144, ~0U, 16), 4);  // rows padded by 16 bytes
    assert_int_equal(strided(128, 0xff, 16), 8);
    assert_int_equal(strided(128, 1, 4), 1);
    assert_int_equal(strided(4, 0, 4), 0);
    uint32_t addresses[32];
    for (uint32_t lane = 0; lane < 32; lane++) { // the same column, swizzled
        addresses[lane] = sbp_ptx_swizzle(128, lane * 128 + 48);
    }
    assert_int_equal(sbp_ptx_wavefronts(addresses, ~0U, 16), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_map_is_a_bijection),
        cmocka_unit_test(maps_are_the_formulas_of_the_manual),
        cmocka_unit_test(exact_products_come_out_exactly_in_every_way),
        cmocka_unit_test(every_way_keeps_its_bound_and_they_differ),
        cmocka_unit_test(integers_wrap_or_saturate),
        cmocka_unit_test(infinities_and_nans_go_through),
        cmocka_unit_test(ldmatrix_hands_out_fragments),
        cmocka_unit_test(wavefronts_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
