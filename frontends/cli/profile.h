/* profile.h: machines that are not here, to plan for: a target_info as text.
 *
 * Text: words in pairs, a key and its value; '#' begins a comment that ends with the line. Keys, all required
 * unless a default is given: memory, process (bytes that the process takes beside the arena), allocation
 * (most at once; 0: no limit): sizes like 80GiB; bf16_flops, fp32_flops, bf16_attention, fp32_attention:
 * operations per second, as reached; memory_bytes, link_bytes (host to device, each direction), host_bytes
 * (row kernels on the host's cores), disk_bytes: bytes per second; half_rows: rows at which a product reaches
 * half its rate; command_seconds; chunk, head_chunk, chunk_most: rows. */
#ifndef SBP_FRONTENDS_CLI_PROFILE_H
#define SBP_FRONTENDS_CLI_PROFILE_H

#include "ir/target_info.h"

typedef struct sbp_profile {
    const char *name;
    int64_t memory_bytes;
    sbp_target_info info; /* rates of products and attention: those of bf16 */
    double fp32_flops, fp32_attention;
} sbp_profile;

/* A profile by name, else from a file; SBP_USAGE lists the names, SBP_INPUT names file and key. */
sbp_status sbp_profile_find(sbp_arena *arena, sbp_diag *diag, const char *name, sbp_profile *out) SBP_CHECKED;

#endif
