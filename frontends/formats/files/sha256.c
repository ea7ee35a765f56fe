/* sha256.c: FIPS 180-4, sections 4.1.2, 5 and 6.2. */
#include "frontends/formats/files/sha256.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/file.h"

enum { PIECE = 1 << 16 }; /* bytes of a file that are read at a time */

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

/* A round: what the standard calls a to h are eight variables, whose names move on by one from
 * round to round. */
#define ROUND(a, b, c, d, e, f, g, h, t)                                                                     \
    do {                                                                                                     \
        uint32_t first = (h) + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + (((e) & (f)) ^ (~(e) & (g))) +     \
                         constants[t] + w[t];                                                                \
        (d) += first;                                                                                        \
        (h) = first + (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)));  \
    } while (0)

static void add_block(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5],
                    g = state[6], h = state[7];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3,
                 s1 = turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    for (int t = 0; t < 64; t += 8) {
        ROUND(a, b, c, d, e, f, g, h, t);
        ROUND(h, a, b, c, d, e, f, g, t + 1);
        ROUND(g, h, a, b, c, d, e, f, t + 2);
        ROUND(f, g, h, a, b, c, d, e, t + 3);
        ROUND(e, f, g, h, a, b, c, d, t + 4);
        ROUND(d, e, f, g, h, a, b, c, t + 5);
        ROUND(c, d, e, f, g, h, a, b, t + 6);
        ROUND(b, c, d, e, f, g, h, a, t + 7);
    }
    const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += sums[i];
}

sbp_sha256 sbp_sha256_begin(void) {
    return (sbp_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                  0x1f83d9ab, 0x5be0cd19}};
}

void sbp_sha256_add(sbp_sha256 *hash, const void *data, size_t length) {
    const unsigned char *p = data;
    while (length > 0) {
        size_t held = hash->bytes % 64, part = 64 - held < length ? 64 - held : length;
        if (part == 64) {
            add_block(hash->state, p);
        } else {
            memcpy(hash->block + held, p, part);
            if (held + part == 64)
                add_block(hash->state, hash->block);
        }
        hash->bytes += part;
        p += part;
        length -= part;
    }
}

void sbp_sha256_end(sbp_sha256 *hash, char out[65]) {
    static const unsigned char padding[64] = {0x80};
    uint64_t bits = hash->bytes * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    sbp_sha256_add(hash, padding, 1 + (119 - hash->bytes % 64) % 64);
    sbp_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", hash->state[i]);
}

sbp_status sbp_sha256_file(sbp_diag *diag, const char *path, char out[65]) {
    unsigned char piece[PIECE];
    sbp_sha256 hash = sbp_sha256_begin();
    int fd;
    ssize_t got;
    SBP_TRY(sbp_file_open_regular(diag, path, &fd));
    while ((got = read(fd, piece, sizeof piece)) > 0)
        sbp_sha256_add(&hash, piece, (size_t)got);
    int reason = errno;
    close(fd);
    if (got < 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(reason));
    sbp_sha256_end(&hash, out);
    return SBP_OK;
}
