/* host.h: host.py, as the build puts it into the program. */
#ifndef SBP_RUNTIME_REWARD_HOST_H
#define SBP_RUNTIME_REWARD_HOST_H

#include <stddef.h>

typedef struct sbp_reward_file {
    const char *name, *text; /* NULL behind the last */
} sbp_reward_file;

extern const sbp_reward_file sbp_reward_files[];

#endif
