/* profile.h: machines that are not here, to plan for: a target_info as text.
 *
 * Text: words in pairs, a key and its value; '#' begins a comment that ends with the line. Keys, all required
 * unless a default is given: memory, process (bytes that the process takes beside the arena), allocation
 * (most at once; 0: no limit), backend (cuda:sm_90a: whose kernels are planned for, with their workspaces and
 * the rates of those that no library has; without it the plan knows none of these), host_memory (of the host,
 * for each such device; 0: any amount): sizes like 80GiB; chunk, head_chunk, chunk_most: rows; and the
 * throughput of ir/target/throughput.def, as reached ("link_bytes" and "disk_bytes" for both directions). */
#ifndef SBP_RUNTIME_CLI_SBPC_PROFILE_H
#define SBP_RUNTIME_CLI_SBPC_PROFILE_H

#include "ir/target/target_info.h"

typedef struct sbp_profile {
    const char *name;
    int64_t memory_bytes;
    int64_t host_memory_bytes; /* of the host, for each such device; 0: nothing is said */
    sbp_target_info info;
} sbp_profile;

/* A profile by name, or by what tells it from the others ("4090"), else from a file, else a card of so much
 * memory ("24GiB"), as fast as one of the profiles. SBP_USAGE, of the option, lists the names, SBP_INPUT
 * names file and key. */
sbp_status sbp_profile_find(sbp_arena *arena, sbp_diag *diag, const char *option, const char *name,
                            sbp_profile *out) SBP_CHECKED;

/* Names of the profiles, in order; NULL behind the last. */
const char *sbp_profile_at(int32_t index);

#endif
