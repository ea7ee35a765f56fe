/* ldmatrix, stmatrix ("Warp-level matrix load instruction: ldmatrix", "... store ...: stmatrix"), and how
 * many wavefronts an access to shared memory takes. Forms .m8n8.x1, .x2, .x4 of .b16, plain and .trans. */
#ifndef SBP_PTX_MATRIX_H
#define SBP_PTX_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

/* Row r (of 16 bytes) of matrix j is at the address that lane 8 * j + r gives; the addresses of lanes 8 *
 * matrices and up are ignored. Addresses must be multiples of 16. */
static inline int sbp_ptx_matrix_lane(int matrix, int row) {
    return 8 * matrix + row;
}

/* The element of an 8 x 8 matrix that half `half` (0: lower 16 bits) of a lane's register holds: row lane /
 * 4, column 2 * (lane % 4) + half; with .trans the other way round. */
static inline void sbp_ptx_matrix_element(bool trans, int lane, int half, int *out_row, int *out_col) {
    const int major = lane / 4, minor = 2 * (lane % 4) + half;
    *out_row = trans ? minor : major;
    *out_col = trans ? major : minor;
}

/* rows: 8 * matrices rows of 16 bytes, as lanes 0 .. 8 * matrices - 1 address them; d[j] and s[j] point at
 * the 32 lanes of register j. matrices: 1, 2 or 4. */
void sbp_ptx_ldmatrix(int matrices, bool trans, const uint8_t (*rows)[16], uint32_t *const *d);
void sbp_ptx_stmatrix(int matrices, bool trans, const uint32_t *const *s, uint8_t (*rows)[16]);

/* Wavefronts of an access to shared memory by the lanes in `mask`, `bytes` (1, 2, 4, 8, 16) at
 * addresses[lane]: 32 banks of 4 bytes; 32 lanes at a time, 16 of 8 bytes, 8 of 16 bytes (a phase of ldmatrix
 * and stmatrix: 16 bytes by 8 lanes); lanes of one phase that want the same word share it; a phase takes as
 * many wavefronts as the fullest bank has words. Free of conflicts are 1, 2 of 8 bytes, 4 of 16 (full warp),
 * and one per matrix. This is how the profiler counts, measured and not promised by NVIDIA. */
int sbp_ptx_wavefronts(const uint32_t addresses[32], uint32_t mask, int bytes);

#endif
