/* wgmma against plain products, its operands laid out in shared memory by a second description of the
 * layouts: tiles of 8 rows of 16 bytes put together, and rows of 128, 64 or 32 bytes swizzled by position. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/ptx/tensor/tensor.h"

enum { SHARED_BYTES = 1 << 18 };

typedef struct {
    uint8_t bytes[SHARED_BYTES];
    uint8_t reads[SHARED_BYTES / 16];
    uint32_t refused; // address that is not to be read
} shared_memory;

static bool read_piece(void *user, uint32_t address, uint8_t out[16]) {
    shared_memory *shared = user;
    assert_true(address % 16 == 0 && address < SHARED_BYTES);
    if (address == shared->refused) {
        return false;
    }
    shared->reads[address / 16]++;
    memcpy(out, shared->bytes + address, 16);
    return true;
}

static void swizzles_are_involutions_of_their_pattern(void **state) {
    (void)state;
    for (uint32_t span = 0; span <= 128; span = span ? span * 2 : 32) {
        for (uint32_t address = 0; address < 8192; address++) {
            const uint32_t there = sbp_ptx_swizzle(span, address);
            assert_int_equal(sbp_ptx_swizzle(span, there), address);
            if (span == 0) {
                assert_int_equal(there, address);
                continue;
            }
            // By position: piece of a row of `span` bytes is xored with the number of the 128 bytes in the
            // pattern.
            const uint32_t piece = address % span / 16, line = address / 128 % (span / 16);
            assert_int_equal(there, address / span * span + (piece ^ line) * 16 + address % 16);
        }
    }
}

static void descriptors_go_both_ways(void **state) {
    (void)state;
    for (uint64_t draw = 0; draw < 1000; draw++) {
        const uint64_t used = UINT64_C(0xc00e3fff3fff3fff);
        const uint64_t bits = sbp_ptx_hash(1, draw, 0, 0) & used;
        const sbp_ptx_descriptor d = sbp_ptx_descriptor_decode(bits);
        assert_true(sbp_ptx_descriptor_encode(&d) == bits);
        assert_true((sbp_ptx_descriptor_fault(bits) != NULL) == (d.base_offset != 0));
        assert_non_null(sbp_ptx_descriptor_fault(bits | UINT64_C(1) << (draw % 2 ? 14 : 61)));
    }
    // 128 bytes, SBO 1024, start 0x400
    const sbp_ptx_descriptor d = sbp_ptx_descriptor_decode(UINT64_C(0x4000004000010040));
    assert_true(d.start == 0x400 && d.leading == 16 && d.stride == 1024 && d.span == 128 &&
                d.base_offset == 0);
}

/* Where a matrix of `size` along M or N and `depth` along K lies: `panels` that a row of `span` bytes is
 * wide, each of them rows of span bytes, swizzled; without a swizzle tiles of 8 rows of 16 bytes. */
typedef struct {
    bool mn_major;
    uint32_t span, start;
    int size, depth, bytes;
} layout;

static uint32_t element_address(const layout *l, int x, int k) {
    const int major = l->mn_major ? x : k,
              row = l->mn_major ? k : x; // along a row of shared memory, and which row
    const int rows = l->mn_major ? l->depth : l->size;
    const int byte = major * l->bytes;
    if (l->span == 0) { // tiles of 128 bytes, those along `row` first
        return l->start + (uint32_t)((byte / 16 * (rows / 8) + row / 8) * 128 + row % 8 * 16 + byte % 16);
    }
    const int span = (int)l->span, panel = byte / span, inside = byte % span;
    const uint32_t line = l->start + (uint32_t)(panel * rows * span + row * span);
    const uint32_t phase = line / 128 % (l->span / 16);
    return line + (((uint32_t)inside / 16) ^ phase) * 16 + (uint32_t)inside % 16;
}

// The descriptor of that layout, from element (x0, k0) on; k0 by whole steps of k.
static uint64_t descriptor_of(const layout *l, int k0) {
    const int rows = l->mn_major ? l->depth : l->size, span = (int)l->span;
    sbp_ptx_descriptor d = {.span = l->span};
    uint32_t offset;
    if (l->span == 0) {
        const uint32_t tile_row = 128, tile_column = (uint32_t)rows / 8 * 128;
        d.leading = l->mn_major ? tile_row : tile_column;
        d.stride = l->mn_major ? tile_column : tile_row;
        offset = l->mn_major ? (uint32_t)k0 / 8 * 128 : (uint32_t)(k0 * l->bytes / 16) * tile_column;
    } else if (l->mn_major) {
        d.stride = 8 * l->span;
        d.leading = (uint32_t)(rows * span);
        offset = (uint32_t)(k0 * span);
    } else {
        d.stride = 8 * l->span;
        d.leading = 16; // unused
        const int byte = k0 * l->bytes;
        offset = (uint32_t)(byte / span * rows * span + byte % span);
    }
    d.start = l->start + offset;
    return sbp_ptx_descriptor_encode(&d);
}

static void store_matrix(shared_memory *shared, const layout *l, sbp_ptx_type type, const double *values) {
    for (int x = 0; x < l->size; x++) {
        for (int k = 0; k < l->depth; k++) {
            const uint64_t bits = sbp_ptx_round(type, values[x * l->depth + k], SBP_PTX_RN, 0);
            memcpy(shared->bytes + element_address(l, x, k), &bits, (size_t)l->bytes);
        }
    }
}

static double small_value(uint64_t seed, int i) {
    return (double)(int)(sbp_ptx_hash(seed, (uint64_t)i, 0, 0) % 9) - 4;
}

typedef struct {
    double a[64 * 128], b[256 * 128], d[64 * 256];
    uint32_t d_file[4 * 128][32], a_file[16][32];
    uint32_t *d_pointers[4 * 128];
    const uint32_t *a_pointers[16];
    shared_memory shared;
} workspace;

static workspace *make_workspace(uint64_t seed) {
    workspace *w = calloc(1, sizeof *w);
    for (int i = 0; i < 64 * 128; i++) {
        w->a[i] = small_value(seed, i);
    }
    for (int i = 0; i < 256 * 128; i++) {
        w->b[i] = small_value(seed + 1, i);
    }
    for (int i = 0; i < 4 * 128; i++) {
        w->d_pointers[i] = w->d_file[i];
        for (int lane = 0; lane < 32; lane++) {
            w->d_file[i][lane] = 0x7fff7fff; // NaN: what scale-d 0 must not read
        }
    }
    for (int i = 0; i < 16; i++) {
        w->a_pointers[i] = w->a_file[i];
    }
    w->shared.refused = UINT32_MAX;
    return w;
}

// A's columns k0 .. into the registers, by the fragments.
static void deal_a(workspace *w, const sbp_ptx_wgmma *op, int depth, int k0) {
    const int bits = sbp_ptx_type_bits(op->a), per = 32 / bits;
    memset(w->a_file, 0, sizeof w->a_file);
    for (int thread = 0; thread < 128; thread++) {
        for (int e = 0; e < 4 * per; e++) {
            const sbp_ptx_place at = sbp_ptx_wgmma_a(op, thread, e);
            const double value = w->a[at.row * depth + k0 + at.col];
            const uint32_t element = (uint32_t)sbp_ptx_round(op->a, value, SBP_PTX_RN, 0);
            w->a_file[thread / 32 * 4 + e / per][thread % 32] |= element << (e % per * bits);
        }
    }
}

static double d_value(const workspace *w, const sbp_ptx_wgmma *op, int thread, int e) {
    const int bits = sbp_ptx_type_bits(op->d), per = 32 / bits;
    const uint32_t word = w->d_file[thread / 32 * op->d_regs + e / per][thread % 32];
    return sbp_ptx_value(op->d, word >> (e % per * bits));
}

// depth / k products in a row, as a kernel issues them; sums of small integers are exact.
static void run_case(sbp_ptx_wgmma op, uint32_t a_span, uint32_t b_span, int depth) {
    assert_null(sbp_ptx_wgmma_make(&op));
    workspace *w = make_workspace((uint64_t)op.n);
    const int bytes = sbp_ptx_type_bits(op.a) / 8;
    const layout la = {op.a_trans, a_span, 0x400, 64, depth, bytes};
    const layout lb = {op.b_trans, b_span, 0x20000, op.n, depth, bytes};
    store_matrix(&w->shared, &la, op.a, w->a);
    store_matrix(&w->shared, &lb, op.b, w->b);
    for (int k0 = 0; k0 < depth; k0 += op.k) {
        op.keep_d = k0 > 0;
        deal_a(w, &op, depth, k0);
        assert_true(sbp_ptx_wgmma_group(&op, w->a_pointers, descriptor_of(&la, k0), descriptor_of(&lb, k0),
                                        w->d_pointers, read_piece, &w->shared, (uint64_t)k0));
    }
    uint8_t seen[64 * 256] = {0};
    const double sign = op.a_minus == op.b_minus ? 1 : -1;
    for (int thread = 0; thread < 128; thread++) {
        for (int e = 0; e < op.n / 2; e++) {
            const sbp_ptx_place at = sbp_ptx_wgmma_d(&op, thread, e);
            assert_int_equal(seen[at.row * op.n + at.col]++, 0);
            double sum = 0;
            for (int k = 0; k < depth; k++) {
                sum += sign * w->a[at.row * depth + k] * w->b[at.col * depth + k];
            }
            assert_true(d_value(w, &op, thread, e) == sum);
        }
    }
    // Every piece of the operands was read once, and nothing else.
    size_t pieces = 0;
    for (int i = 0; i < SHARED_BYTES / 16; i++) {
        assert_true(w->shared.reads[i] <= 1);
        pieces += w->shared.reads[i];
    }
    assert_int_equal(pieces, (size_t)(((op.a_from_registers ? 0 : 64) + op.n) * depth * bytes / 16));
    free(w);
}

static void products_are_right_in_every_layout(void **state) {
    (void)state;
    static const struct {
        sbp_ptx_type ab, d;
    } types[] = {{SBP_PTX_BF16, SBP_PTX_F32}, {SBP_PTX_F16, SBP_PTX_F32},  {SBP_PTX_F16, SBP_PTX_F16},
                 {SBP_PTX_TF32, SBP_PTX_F32}, {SBP_PTX_E4M3, SBP_PTX_F32}, {SBP_PTX_E5M2, SBP_PTX_F16}};
    static const int sizes[] = {8, 24, 64, 128, 256};
    static const uint32_t spans[] = {0, 32, 64, 128};
    int cases = 0;
    for (int t = 0; t < 6; t++) {
        for (int s = 0; s < 4; s++) {
            for (int forms = 0; forms < 8; forms++) {
                const bool registers = forms & 1, a_trans = forms & 2, b_trans = forms & 4;
                const int n = sizes[cases % 5], bytes = sbp_ptx_type_bits(types[t].ab) / 8;
                const uint32_t b_span = spans[(s + cases) % 4];
                const bool narrow = b_trans && n * bytes % (b_span ? (int)b_span : 16) != 0;
                cases++;
                if ((registers && a_trans) || ((a_trans || b_trans) && bytes != 2)) {
                    continue;
                }
                const sbp_ptx_wgmma op = {.n = narrow ? 64 : n,
                                          .a = types[t].ab,
                                          .b = types[t].ab,
                                          .d = types[t].d,
                                          .a_from_registers = registers,
                                          .a_trans = a_trans,
                                          .b_trans = b_trans,
                                          .a_minus = cases % 3 == 0,
                                          .b_minus = cases % 5 == 0};
                run_case(op, spans[s], b_span, 128 / bytes);
            }
        }
    }
}

static void fragments_are_the_formulas_of_the_manual(void **state) {
    (void)state;
    sbp_ptx_wgmma op = {.n = 256, .a = SBP_PTX_F16, .b = SBP_PTX_F16, .d = SBP_PTX_F32};
    assert_null(sbp_ptx_wgmma_make(&op));
    for (int thread = 0; thread < 128; thread++) {
        const int lane = thread % 32, warp = thread / 32;
        for (int i = 0; i < 128; i++) {
            const sbp_ptx_place at = sbp_ptx_wgmma_d(&op, thread, i);
            assert_int_equal(at.row, 16 * warp + lane / 4 + (i & 2 ? 8 : 0));
            assert_int_equal(at.col, i / 4 * 8 + lane % 4 * 2 + (i & 1));
        }
        for (int i = 0; i < 8; i++) {
            const sbp_ptx_place at = sbp_ptx_wgmma_a(&op, thread, i);
            assert_int_equal(at.row, 16 * warp + lane / 4 + (i & 2 ? 8 : 0));
            assert_int_equal(at.col, (i & 4 ? 8 : 0) + lane % 4 * 2 + (i & 1));
        }
    }
}

static void a_refused_read_changes_nothing(void **state) {
    (void)state;
    workspace *w = make_workspace(3);
    sbp_ptx_wgmma op = {.n = 16, .a = SBP_PTX_BF16, .b = SBP_PTX_BF16, .d = SBP_PTX_F32};
    assert_null(sbp_ptx_wgmma_make(&op));
    const layout l = {false, 32, 0x1000, 64, 16, 2};
    const uint64_t descriptor = descriptor_of(&l, 0);
    w->shared.refused = 0x1000 + 15 * 32; // a row of B, of A too
    assert_false(
        sbp_ptx_wgmma_group(&op, NULL, descriptor, descriptor, w->d_pointers, read_piece, &w->shared, 0));
    for (int i = 0; i < 4 * 128; i++) {
        assert_int_equal(w->d_file[i][5], 0x7fff7fff);
    }
    free(w);
}

static void forms_that_do_not_exist_are_refused(void **state) {
    (void)state;
    const sbp_ptx_wgmma good = {.n = 64, .a = SBP_PTX_BF16, .b = SBP_PTX_BF16, .d = SBP_PTX_F32};
    sbp_ptx_wgmma op = good;
    assert_null(sbp_ptx_wgmma_make(&op));
    assert_true(op.k == 16 && op.d_regs == 32 && op.a_regs == 4);
    op = good, op.n = 12;
    assert_non_null(sbp_ptx_wgmma_make(&op));
    op = good, op.n = 264;
    assert_non_null(sbp_ptx_wgmma_make(&op));
    op = good, op.b = SBP_PTX_F16;
    assert_non_null(sbp_ptx_wgmma_make(&op));
    op = good, op.d = SBP_PTX_F16;
    assert_non_null(sbp_ptx_wgmma_make(&op));
    op = good, op.a = op.b = SBP_PTX_TF32, op.b_trans = true;
    assert_non_null(sbp_ptx_wgmma_make(&op));
    op = good, op.a_from_registers = op.a_trans = true;
    assert_non_null(sbp_ptx_wgmma_make(&op));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swizzles_are_involutions_of_their_pattern),
        cmocka_unit_test(descriptors_go_both_ways),
        cmocka_unit_test(products_are_right_in_every_layout),
        cmocka_unit_test(fragments_are_the_formulas_of_the_manual),
        cmocka_unit_test(a_refused_read_changes_nothing),
        cmocka_unit_test(forms_that_do_not_exist_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
