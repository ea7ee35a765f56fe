/* limits.h: sizes that no kernel of the CPU backend has room for. The target refuses programs that have them,
 * the device commands of plans that were made for another backend. */
#ifndef SBP_BACKENDS_CPU_LIMITS_H
#define SBP_BACKENDS_CPU_LIMITS_H

#include "ir/program/program.h"

/* What fits into a thread's scratch memory: columns of a head of attention, query heads for one of keys and
 * values, rows and columns of a head's state; columns that route chooses in a row. */
enum {
    SBP_CPU_MOST_HEAD = 512,
    SBP_CPU_MOST_GROUP = 96,
    SBP_CPU_MOST_STATE = 256,
    SBP_CPU_MOST_CHOSEN = 256,
    SBP_CPU_LIMIT_TEXT = 200
};

/* Whether a verified command is beyond a limit; text: which one. chosen: columns of index of route. */
bool sbp_cpu_beyond_limits(const sbp_command *command, int64_t chosen, char text[SBP_CPU_LIMIT_TEXT]);

#endif
