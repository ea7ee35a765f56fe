/* wgmma.mma_async ("Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"): descriptors,
 * layouts in shared memory, fragments, and the product of a warpgroup. A is [64, k], from registers or shared
 * memory, B [k, n] from shared memory, D [64, n] in registers; k is 32 bytes of elements: 16 of bf16 and f16,
 * 8 of tf32, 32 of e4m3 and e5m2.
 *
 * Fragments of 128 threads (sections "Register Fragments for wgmma.mma_async.m64nNk16", "...k8", "...k32"),
 * warp = 0 .. 3 in the warpgroup: A is row 16 * warp + row of the fragment of mma m16n8 with the same type,
 * see mma.h; element i of D is row 16 * warp + group + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * t + i % 2;
 * of f16 two share a register. */
#ifndef SBP_PTX_WGMMA_H
#define SBP_PTX_WGMMA_H

#include "tests/ptx/tensor/mma.h"

// ---- shared memory ----------------------------------------------------------------------------------------

/* The three swizzles, for wgmma and for tensor copies ("Tensor Swizzling Modes"): bits 4.. of an address are
 * xored with bits 7..; 16-byte pieces stay whole. The pattern is one of addresses, not of offsets: it repeats
 * every 8 * span bytes. span: 0 (none), 32, 64 or 128 bytes. It is its own inverse. */
static inline uint32_t sbp_ptx_swizzle(uint32_t span, uint32_t address) {
    return span ? address ^ (address >> 3 & (span - 1) & 0x70) : address;
}

// A decoded descriptor ("Matrix Descriptor Format").
typedef struct {
    uint32_t start;       // bits 13-0: bits 17-4 of the shared address
    uint32_t leading;     // bits 29-16: LBO in bytes
    uint32_t stride;      // bits 45-32: SBO in bytes
    uint32_t base_offset; // bits 51-49
    uint32_t span;        // bits 63-62: 0 none, 1: 128, 2: 64, 3: 32 bytes
} sbp_ptx_descriptor;

sbp_ptx_descriptor sbp_ptx_descriptor_decode(uint64_t bits);
uint64_t sbp_ptx_descriptor_encode(
    const sbp_ptx_descriptor *descriptor); // for tests; fields are cut to their bits

/* Why this descriptor cannot be executed here, or NULL: bits that are reserved, or a base offset that is not
 * 0 (a pattern that does not begin at a multiple of 8 * span: nobody's kernels do that, and what it does is
 * measured nowhere). */
const char *sbp_ptx_descriptor_fault(uint64_t bits);

/* Shared address of the 16 bytes that hold element (x, k), x along M or N. With T = 16 / bytes of an element
 * and W = span / 16 (sections "Shared Memory Matrix Layout", "Strides"; equal to the canonical layouts of
 * CuTe's GMMA):
 *   K-major, none      x % 8 * 16 + x / 8 * SBO + k / T * LBO
 *   K-major, span      x % 8 * span + x / 8 * SBO + k / T * 16                      (LBO unused)
 *   MN-major, none     k % 8 * 16 + k / 8 * LBO + x / T * SBO
 *   MN-major, span     k % 8 * span + k / 8 * SBO + x / T % W * 16 + x / (T * W) * LBO
 * is added to start and the sum is swizzled. The element is at piece + (K-major ? k : x) % T * bytes.
 * MN-major (transposed) exists for 16-bit elements only. */
uint32_t sbp_ptx_descriptor_piece(const sbp_ptx_descriptor *descriptor, bool mn_major, int element_bytes,
                                  int x, int k);

// ---- the product ------------------------------------------------------------------------------------------

// One form of the instruction with its immediates.
typedef struct {
    int n, k;              // n: 8, 16 .. 256
    sbp_ptx_type a, b;     // equal, but for e4m3 with e5m2
    sbp_ptx_type d;        // F32 or F16
    int a_regs, d_regs;    // 32-bit registers per thread: 4; n / 2, or n / 4 of f16
    bool a_from_registers; // else by descriptor
    bool a_trans, b_trans; // imm-trans: MN-major in shared memory
    bool a_minus, b_minus; // imm-scale -1
    bool keep_d;           // scale-d: D = A * B + D; false: D = A * B, and D may be anything
} sbp_ptx_wgmma;

/* Fills k, a_regs and d_regs from the other fields. Why there is no such form, or NULL. Forms: bf16 -> f32;
 * f16 -> f32, f16; tf32 -> f32; e4m3, e5m2 -> f32, f16. Transposition of 16-bit elements in shared memory
 * only. */
const char *sbp_ptx_wgmma_make(sbp_ptx_wgmma *op);

// Where element i (counted as in mma.h) of thread `thread` (0 .. 127) is, in [64, k] and [64, n].
sbp_ptx_place sbp_ptx_wgmma_a(const sbp_ptx_wgmma *op, int thread, int element);
sbp_ptx_place sbp_ptx_wgmma_d(const sbp_ptx_wgmma *op, int thread, int element);

/* Reads the 16 bytes at a shared address (of 18 bits, a multiple of 16) as the async proxy does. false (out
 * of bounds, pending, ...: the callee knows and has said why) stops the product. */
typedef bool (*sbp_ptx_read_fn)(void *user, uint32_t address, uint8_t out[16]);

/* A whole product. a_desc and b_desc: descriptors; a: with a_from_registers the registers of A, a[warp * 4 +
 * r] pointing at 32 lanes. d[warp * d_regs + r]: the registers of D, read where keep_d, then written. Sums
 * are formed as sbp_ptx_mma_warp forms them. Every piece of A and B is read exactly once, A first. false
 * where `read` refused; D is then unchanged. */
bool sbp_ptx_wgmma_group(const sbp_ptx_wgmma *op, const uint32_t *const *a, uint64_t a_desc, uint64_t b_desc,
                         uint32_t *const *d, sbp_ptx_read_fn read, void *user, uint64_t seed);

#endif
