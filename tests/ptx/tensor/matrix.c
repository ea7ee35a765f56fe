#include "tests/ptx/tensor/matrix.h"

#include <string.h>

void sbp_ptx_ldmatrix(int matrices, bool trans, const uint8_t (*rows)[16], uint32_t *const *d) {
    for (int j = 0; j < matrices; j++) {
        for (int lane = 0; lane < 32; lane++) {
            uint16_t halves[2];
            for (int half = 0; half < 2; half++) {
                int row, col;
                sbp_ptx_matrix_element(trans, lane, half, &row, &col);
                memcpy(&halves[half], rows[sbp_ptx_matrix_lane(j, row)] + 2 * col, 2);
            }
            d[j][lane] = halves[0] | (uint32_t)halves[1] << 16;
        }
    }
}

void sbp_ptx_stmatrix(int matrices, bool trans, const uint32_t *const *s, uint8_t (*rows)[16]) {
    for (int j = 0; j < matrices; j++) {
        for (int lane = 0; lane < 32; lane++) {
            for (int half = 0; half < 2; half++) {
                int row, col;
                sbp_ptx_matrix_element(trans, lane, half, &row, &col);
                const uint16_t element = (uint16_t)(s[j][lane] >> (16 * half));
                memcpy(rows[sbp_ptx_matrix_lane(j, row)] + 2 * col, &element, 2);
            }
        }
    }
}

// Wavefronts of one phase: the most distinct words that one bank has to give.
static int phase_wavefronts(const uint32_t *addresses, uint32_t mask, int lanes, int bytes) {
    uint32_t words[32][32]; // of each bank
    int counts[32] = {0}, most = 0;
    for (int lane = 0; lane < lanes; lane++) {
        if (!(mask >> lane & 1)) {
            continue;
        }
        const uint32_t last = (addresses[lane] + (uint32_t)bytes - 1) / 4;
        for (uint32_t word = addresses[lane] / 4; word <= last; word++) {
            const uint32_t bank = word % 32;
            int i = 0;
            while (i < counts[bank] && words[bank][i] != word) {
                i++;
            }
            if (i == counts[bank] && i < 32) {
                words[bank][counts[bank]++] = word;
                most = counts[bank] > most ? counts[bank] : most;
            }
        }
    }
    return most;
}

int sbp_ptx_wavefronts(const uint32_t addresses[32], uint32_t mask, int bytes) {
    const int lanes = bytes <= 4 ? 32 : 128 / bytes;
    int total = 0;
    for (int first = 0; first < 32; first += lanes) {
        total += phase_wavefronts(addresses + first, mask >> first, lanes, bytes);
    }
    return total;
}
