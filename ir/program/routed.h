/* routed.h: the columns of a row that say which experts it goes to: "routed_experts.E.K.L.J" is the J-th of
 * the K experts, of E, that layer L of those with experts chooses; -1 in all of them: the router chooses. */
#ifndef SBP_IR_PROGRAM_ROUTED_H
#define SBP_IR_PROGRAM_ROUTED_H

#include <stdbool.h>
#include <stdio.h>

#define SBP_ROUTED "routed_experts"
#define SBP_ROUTED_PREFIX SBP_ROUTED "."

typedef struct sbp_routed {
    int experts, chosen, layer, slot;
} sbp_routed;

/* Whether a column is one of these, and which. */
static inline bool sbp_routed_of(const char *column, sbp_routed *out) {
    return sscanf(column, SBP_ROUTED_PREFIX "%d.%d.%d.%d", &out->experts, &out->chosen, &out->layer,
                  &out->slot) == 4;
}

#endif
