#include "tests/ptx/tensor/tma.h"

#include <stddef.h>
#include <string.h>

#include "tests/ptx/tensor/wgmma.h"

int sbp_ptx_tma_type_bytes(sbp_ptx_tma_type type) {
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return (unsigned)type < sizeof bytes ? bytes[type] : 0;
}

// The rules that hold for a map's contents, wherever it came from.
static const char *contents_fault(const sbp_ptx_tensor_map *map) {
    if (map->rank < 1 || map->rank > SBP_PTX_TMA_RANK) {
        return "a tensor map's rank is 1 to 5";
    }
    const int bytes = sbp_ptx_tma_type_bytes((sbp_ptx_tma_type)map->type);
    if (bytes == 0) {
        return "a tensor map's data type is unknown";
    }
    if (map->global == 0 || map->global % 16 != 0) {
        return "a tensor map's global address is a multiple of 16";
    }
    if (map->swizzle_bytes != 0 && map->swizzle_bytes != 32 && map->swizzle_bytes != 64 &&
        map->swizzle_bytes != 128) {
        return "a tensor map's swizzle is 0, 32, 64 or 128 bytes";
    }
    for (int d = 0; d < map->rank; d++) {
        if (map->dims[d] < 1 || map->dims[d] > UINT64_C(1) << 32) {
            return "a tensor map's dimensions are 1 to 2^32";
        }
        if (map->box[d] < 1 || map->box[d] > 256) {
            return "a tensor map's box has 1 to 256 elements in each dimension";
        }
        if (d > 0 && (map->strides[d - 1] % 16 != 0 || map->strides[d - 1] >= UINT64_C(1) << 40)) {
            return "a tensor map's strides are multiples of 16 bytes below 2^40";
        }
    }
    const uint32_t inner = map->box[0] * (uint32_t)bytes;
    if (inner % 16 != 0) {
        return "a tensor map's inner box is a multiple of 16 bytes";
    }
    return map->swizzle_bytes != 0 && inner > map->swizzle_bytes
               ? "a tensor map's inner box is no longer than its swizzle"
               : NULL;
}

const char *sbp_ptx_tensor_map_encode(sbp_ptx_tensor_map *map, sbp_ptx_tma_type type, uint32_t rank,
                                      uint64_t global, const uint64_t *dims, const uint64_t *strides,
                                      const uint32_t *box, const uint32_t *element_strides,
                                      uint32_t swizzle_bytes) {
    if ((uintptr_t)map % 64 != 0) {
        return "a tensor map is aligned to 64 bytes";
    }
    if (rank < 1 || rank > SBP_PTX_TMA_RANK) {
        return "a tensor map's rank is 1 to 5";
    }
    sbp_ptx_tensor_map made = {.magic = SBP_PTX_TMA_MAGIC,
                               .global = global,
                               .rank = (uint8_t)rank,
                               .type = (uint8_t)type,
                               .swizzle_bytes = (uint8_t)(swizzle_bytes > 255 ? 255 : swizzle_bytes)};
    for (uint32_t d = 0; d < SBP_PTX_TMA_RANK; d++) {
        made.dims[d] = d < rank ? dims[d] : 1;
        made.box[d] = d < rank ? (uint16_t)(box[d] > 256 ? 257 : box[d]) : 1;
        if (d > 0 && d < rank) {
            made.strides[d - 1] = strides[d - 1];
        }
        if (d < rank && element_strides && element_strides[d] != 1) {
            return "a tensor map's element strides are 1 (others are not supported)";
        }
    }
    const char *fault = contents_fault(&made);
    if (!fault) {
        *map = made;
    }
    return fault;
}

const char *sbp_ptx_tensor_map_fault(const sbp_ptx_tensor_map *map) {
    return map->magic != SBP_PTX_TMA_MAGIC ? "this is no tensor map" : contents_fault(map);
}

sbp_ptx_tma_piece sbp_ptx_tma_piece_at(const sbp_ptx_tensor_map *map, const int32_t *coordinates,
                                       uint32_t base, uint32_t index) {
    const int bytes = sbp_ptx_tma_type_bytes((sbp_ptx_tma_type)map->type);
    const uint32_t per_row = map->box[0] * (uint32_t)bytes / 16;
    sbp_ptx_tma_piece piece = {.shared = sbp_ptx_swizzle(map->swizzle_bytes, base + 16 * index)};
    bool inside = true;
    uint64_t global = map->global;
    uint32_t rest = index / per_row;
    for (int d = 1; d < map->rank; d++) {
        const int64_t at = coordinates[d] + (int64_t)(rest % map->box[d]);
        rest /= map->box[d];
        inside = inside && at >= 0 && (uint64_t)at < map->dims[d];
        global += (uint64_t)at * map->strides[d - 1];
    }
    // Along the innermost dimension, in bytes: the piece, and the tensor's end.
    const int64_t begin = (int64_t)coordinates[0] * bytes + (int64_t)(index % per_row) * 16;
    const int64_t size = (int64_t)map->dims[0] * bytes;
    piece.global = global + (uint64_t)begin;
    const int64_t first = begin < 0 ? -begin : 0, end = size - begin;
    piece.first = (int)(first > 16 ? 16 : first);
    piece.end = (int)(end > 16 ? 16 : end < 0 ? 0 : end);
    if (!inside || piece.first >= piece.end) {
        piece.first = piece.end = 0;
    }
    return piece;
}
