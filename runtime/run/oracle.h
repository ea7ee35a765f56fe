/* oracle.h: commands of a program as they run, compared with plain loops in double precision over the same
 * operands: samples of the first few runs of each command, so that the work does not grow with the model.
 *
 * What is compared: elements at the beginning, the end and in the middle of each result, with what the loops
 * give; beside them, what rounding makes of these: sums in the type of the arithmetic in order, or inputs off
 * by its last bits, and the result in its own type. For commands without loops here it only says how many
 * ran.
 *
 * An executor with an oracle (sbp_executor_set_oracle) waits for each command that is compared.
 * Memory: the rows of operands that a sample reads, at most those of all keys and values of a head.
 * Threads: one at a time. */
#ifndef SBP_RUNTIME_RUN_ORACLE_H
#define SBP_RUNTIME_RUN_ORACLE_H

#include "backends/device.h"

typedef struct sbp_oracle sbp_oracle;

/* The commands of a function of the program, or of an entry itself. */
typedef struct sbp_oracle_group {
    const char *name;
    int32_t commands, compared; /* runs that were compared; commands that ran at least once */
    int32_t unknown;            /* likewise, of those without loops here */
    const char *unknown_kind;   /* the first of them */
    /* the result that is farthest off, as a multiple of what rounding makes: norms over the sample, relative
     * to the numbers; what: the command and the result */
    double over, found, rounding;
    const char *what;
} sbp_oracle_group;

/* tf32: factors of fp32 products are rounded to 10 bits of mantissa. */
sbp_status sbp_oracle_create(sbp_diag *diag, const sbp_program *program, bool tf32,
                             sbp_oracle **out) SBP_CHECKED;
void sbp_oracle_destroy(sbp_oracle *oracle);
/* Submits a command, no fence, and compares it where it is its turn. */
sbp_status sbp_oracle_run(sbp_oracle *oracle, const sbp_device_class *class, sbp_device *device,
                          const sbp_dispatch *dispatch, sbp_diag *diag) SBP_CHECKED;
/* Groups of which something ran, in the order of the program; NULL behind the last. */
const sbp_oracle_group *sbp_oracle_group_at(const sbp_oracle *oracle, int32_t index);

#endif
