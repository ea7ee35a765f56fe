/* Tensor maps and the boxes that cp.async.bulk.tensor moves ("Tensors", "Tensor Access Modes: tiled",
 * "Swizzling Modes").
 *
 * The map's 128 bytes are opaque on hardware; here they are sbp_ptx_tensor_map, encoded with the checks that
 * cuTensorMapEncodeTiled documents (CUDA driver API, "Tensor Map Object Management"). Tiled mode, no
 * interleave, element strides 1, no NaN fill. */
#ifndef SBP_PTX_TMA_H
#define SBP_PTX_TMA_H

#include <stdbool.h>
#include <stdint.h>

enum { SBP_PTX_TMA_RANK = 5 };

// Values of CUtensorMapDataType.
typedef enum {
    SBP_PTX_TMA_U8,
    SBP_PTX_TMA_U16,
    SBP_PTX_TMA_U32,
    SBP_PTX_TMA_S32,
    SBP_PTX_TMA_U64,
    SBP_PTX_TMA_S64,
    SBP_PTX_TMA_F16,
    SBP_PTX_TMA_F32,
    SBP_PTX_TMA_F64,
    SBP_PTX_TMA_BF16,
    SBP_PTX_TMA_F32_FTZ,
    SBP_PTX_TMA_TF32,
    SBP_PTX_TMA_TF32_FTZ,
} sbp_ptx_tma_type;

int sbp_ptx_tma_type_bytes(sbp_ptx_tma_type type); // 0: no such type

// By value in a kernel's parameters, or in memory; both at multiples of 64 bytes.
typedef struct {
    uint64_t magic;                         // SBP_PTX_TMA_MAGIC: a map that encode made
    uint64_t global;                        // address of element (0, ..., 0)
    uint64_t dims[SBP_PTX_TMA_RANK];        // elements, innermost first; 1 beyond rank
    uint64_t strides[SBP_PTX_TMA_RANK - 1]; // bytes from one element of dimension i + 1 to the next
    uint16_t box[SBP_PTX_TMA_RANK];         // elements; 1 beyond rank
    uint8_t rank, type, swizzle_bytes;      // 1 .. 5; sbp_ptx_tma_type; 0, 32, 64, 128
    uint8_t reserved[27];                   // zero
} sbp_ptx_tensor_map;

_Static_assert(sizeof(sbp_ptx_tensor_map) == 128, "a CUtensorMap has 128 bytes");
#define SBP_PTX_TMA_MAGIC UINT64_C(0x70616d2d786d7470)

/* As cuTensorMapEncodeTiled with interleave none, L2 promotion and fill of zeros. `map`: where the caller
 * wants it (its alignment is checked; nothing is written where something is wrong). strides: rank - 1 of
 * them. element_strides may be NULL (all 1). Returns NULL, or the rule that is broken: map 64-byte aligned,
 * global 16-byte aligned and not 0, rank 1 .. 5, dims 1 .. 2^32, strides multiples of 16 below 2^40, box 1 ..
 * 256, the inner box a multiple of 16 bytes and no longer than the swizzle, element strides 1. */
const char *sbp_ptx_tensor_map_encode(sbp_ptx_tensor_map *map, sbp_ptx_tma_type type, uint32_t rank,
                                      uint64_t global, const uint64_t *dims, const uint64_t *strides,
                                      const uint32_t *box, const uint32_t *element_strides,
                                      uint32_t swizzle_bytes);

// Why these 128 bytes are no map, or NULL.
const char *sbp_ptx_tensor_map_fault(const sbp_ptx_tensor_map *map);

/* A box is walked in pieces of 16 bytes of shared memory, innermost dimension first, dense: piece p lies at
 * base + 16 * p before the swizzle. Bytes of a box, of which the mbarrier is told whatever part of it lies in
 * the tensor: */
static inline uint32_t sbp_ptx_tma_pieces(const sbp_ptx_tensor_map *map) {
    uint32_t elements = 1;
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    for (int d = 0; d < SBP_PTX_TMA_RANK; d++) {
        elements *= map->box[d];
    }
    return elements * bytes[map->type] / 16;
}

typedef struct {
    uint32_t shared; // address of the 16 bytes, swizzled
    uint64_t global; // address of the piece's first byte, were it in bounds; elements of one piece are
                     // neighbours there
    int first, end;  // bytes [first, end) of the 16 are in the tensor; the others read 0 and are not written
} sbp_ptx_tma_piece;

/* Piece `index` of the box whose corner is at `coordinates` (innermost first; rank of them, may be negative)
 * and whose place in shared memory is `base` (a multiple of 128; with a swizzle the pattern is that of
 * sbp_ptx_swizzle, by address). A box narrower than its swizzle is dense too: that is this machine's reading,
 * measured nowhere. */
sbp_ptx_tma_piece sbp_ptx_tma_piece_at(const sbp_ptx_tensor_map *map, const int32_t *coordinates,
                                       uint32_t base, uint32_t index);

#endif
