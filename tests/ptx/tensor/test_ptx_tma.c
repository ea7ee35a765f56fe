/* Tensor maps: what is refused, and boxes against loops over coordinates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ptx/tensor/tensor.h"

static _Alignas(64) sbp_ptx_tensor_map map;

typedef struct {
    sbp_ptx_tma_type type;
    uint32_t rank;
    uint64_t global, dims[5], strides[4];
    uint32_t box[5], element_strides[5], swizzle;
} request;

static const request good = {.type = SBP_PTX_TMA_BF16,
                             .rank = 3,
                             .global = 0x10000,
                             .dims = {40, 30, 7},
                             .strides = {96, 96 * 30},
                             .box = {32, 16, 2},
                             .element_strides = {1, 1, 1, 1, 1},
                             .swizzle = 64};

static const char *encode(const request *r) {
    return sbp_ptx_tensor_map_encode(&map, r->type, r->rank, r->global, r->dims, r->strides, r->box,
                                     r->element_strides, r->swizzle);
}

static void what_the_driver_refuses_is_refused(void **state) {
    (void)state;
    assert_null(encode(&good));
    assert_null(sbp_ptx_tensor_map_fault(&map));
    const sbp_ptx_tensor_map before = map;
    request bad[13];
    for (int i = 0; i < 13; i++) {
        bad[i] = good;
    }
    bad[0].rank = 0;
    bad[1].rank = 6;
    bad[2].global = 0x10008;
    bad[3].dims[1] = 0;
    bad[4].dims[2] = (UINT64_C(1) << 32) + 1;
    bad[5].strides[0] = 88;
    bad[6].strides[1] = UINT64_C(1) << 40;
    bad[7].box[1] = 257;
    bad[8].box[2] = 0;
    bad[9].box[0] = 33;  // inner box beyond the swizzle's 64 bytes, and no multiple of 16
    bad[10].box[0] = 20; // 40 bytes
    bad[11].element_strides[1] = 2;
    bad[12].swizzle = 96;
    for (int i = 0; i < 13; i++) {
        assert_non_null(encode(&bad[i]));
        assert_memory_equal(&before, &map, sizeof map);
    }
    request longer = good;
    longer.box[0] = 40; // 80 bytes: too long for 64, not for 128
    assert_non_null(encode(&longer));
    longer.swizzle = 128;
    assert_null(encode(&longer));
    assert_non_null(sbp_ptx_tensor_map_encode((sbp_ptx_tensor_map *)(void *)((char *)&map + 16), good.type,
                                              good.rank, good.global, good.dims, good.strides, good.box, NULL,
                                              good.swizzle));
    memset(&map, 0, sizeof map);
    assert_non_null(sbp_ptx_tensor_map_fault(&map));
}

/* The box, element by element: its place in the tensor if it has one, and the one byte of shared memory where
 * position says that it lies. Pieces must agree, and cover the box once. */
static void assert_box(const request *r, const int32_t *corner, uint32_t base, long *inside_elements) {
    assert_null(encode(r));
    const uint32_t bytes = (uint32_t)sbp_ptx_tma_type_bytes(r->type), pieces = sbp_ptx_tma_pieces(&map);
    uint8_t *seen = calloc(pieces, 1);
    uint32_t box_elements = 1;
    for (uint32_t d = 0; d < r->rank; d++) {
        box_elements *= r->box[d];
    }
    assert_int_equal(pieces * 16, box_elements * bytes);
    for (uint32_t e = 0; e < box_elements; e++) {
        uint32_t rest = e;
        uint64_t global = r->global;
        bool inside = true;
        for (uint32_t d = 0; d < r->rank; d++) {
            const int64_t at = corner[d] + (int64_t)(rest % r->box[d]);
            rest /= r->box[d];
            inside = inside && at >= 0 && at < (int64_t)r->dims[d];
            global += (uint64_t)at * (d == 0 ? bytes : r->strides[d - 1]);
        }
        const uint32_t dense = base + e * bytes, span = r->swizzle;
        const uint32_t wanted =
            span ? dense / span * span + ((dense % span / 16) ^ (dense / 128 % (span / 16))) * 16 + dense % 16
                 : dense;
        const sbp_ptx_tma_piece piece = sbp_ptx_tma_piece_at(&map, corner, base, e * bytes / 16);
        const int byte = (int)(e * bytes % 16);
        assert_int_equal(piece.shared + (uint32_t)byte, wanted);
        assert_int_equal(byte >= piece.first && byte < piece.end, inside);
        if (inside) {
            assert_true(piece.global + (uint64_t)byte == global);
            assert_true(byte + (int)bytes <= piece.end);
            (*inside_elements)++;
        }
        seen[(piece.shared - base) / 16] = 1;
    }
    for (uint32_t p = 0; p < pieces; p++) {
        assert_int_equal(seen[p], 1);
    }
    free(seen);
}

static void boxes_are_walked_as_loops_walk_them(void **state) {
    (void)state;
    static const sbp_ptx_tma_type types[] = {SBP_PTX_TMA_BF16, SBP_PTX_TMA_F32, SBP_PTX_TMA_U8,
                                             SBP_PTX_TMA_F64};
    long inside = 0, all = 0;
    for (uint64_t draw = 0; draw < 400; draw++) {
        request r = {.rank = 1 + (uint32_t)(draw % 5), .type = types[draw / 5 % 4], .global = 0x123450};
        const uint32_t bytes = (uint32_t)sbp_ptx_tma_type_bytes(r.type);
        r.swizzle = (uint32_t[]){0, 32, 64, 128}[draw / 20 % 4];
        r.box[0] = (r.swizzle ? r.swizzle : 16 * (1 + (uint32_t)(draw % 3))) / bytes;
        int32_t corner[5];
        uint64_t stride = 0;
        for (uint32_t d = 0; d < 5; d++) {
            const uint64_t bits = sbp_ptx_hash(draw, d, 0, 0);
            r.dims[d] = 1 + bits % 20;
            r.box[d] = d == 0 ? r.box[0] : 1 + (uint32_t)(bits >> 8) % 9;
            r.element_strides[d] = 1;
            corner[d] = (int32_t)(bits >> 16 & 15) - 4;
            stride = d == 0 ? (r.dims[0] * bytes + 15) / 16 * 16 : stride * r.dims[d] + 16;
            if (d < 4) {
                r.strides[d] = stride;
            }
        }
        // pieces of a whole pattern, so that a box has one without gaps: base at a multiple of 1024
        assert_box(&r, corner, 1024 * (1 + (uint32_t)draw % 7), &inside);
        all += sbp_ptx_tma_pieces(&map) * 16 / bytes;
    }
    assert_true(inside > all / 50 && inside < all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_driver_refuses_is_refused),
        cmocka_unit_test(boxes_are_walked_as_loops_walk_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
