/* sha256.h: the hash that the Hub names large files by (FIPS 180-4). No secret is ever hashed here. */
#ifndef SBP_FRONTENDS_FILES_SHA256_H
#define SBP_FRONTENDS_FILES_SHA256_H

#include "ir/base/base.h"

typedef struct sbp_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} sbp_sha256;

sbp_sha256 sbp_sha256_begin(void);
void sbp_sha256_add(sbp_sha256 *hash, const void *data, size_t length);
/* 64 hexadecimal digits and a NUL. */
void sbp_sha256_end(sbp_sha256 *hash, char out[65]);
/* All of a file. Needs no guard. */
sbp_status sbp_sha256_file(sbp_diag *diag, const char *path, char out[65]) SBP_CHECKED;

#endif
