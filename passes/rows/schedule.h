/* schedule.h: the state of the schedule pass: schedule.c orders instructions and writes commands, place.c
 * decides where values live. */
#ifndef SBP_PASSES_ROWS_SCHEDULE_H
#define SBP_PASSES_ROWS_SCHEDULE_H

#include "passes/lower/lowering.h"

/* Memory that values of a body share, one after the other. */
typedef struct sbp_location {
    sbp_view view; /* fixed ones: where the caller wants them; ref is SBP_NO_VIEW for chunk scratch */
    bool writable;
    sbp_value *values;
    int32_t value_count, value_capacity;
    int32_t buffer; /* scratch: made when the location is complete, -1 before */
} sbp_location;

/* Arrays are indexed by values of the body. Times are positions in `order`; -1 is before the first,
 * instr_count after the last. */
typedef struct sbp_scheduler {
    sbp_program_builder *p;
    sbp_stage *stage;
    const sbp_function *code; /* whose body the stage belongs to: formals, name */
    int32_t function;         /* its number in the program; -1: a rule, which has no scratch */
    int32_t *order;           /* instructions in the order they run */
    int32_t *time;            /* per instruction */
    int32_t *born, *dies;
    int32_t *location_of; /* -1: none yet */
    sbp_location *locations;
    int32_t location_count, location_capacity;
    int32_t *temp_buffers;
} sbp_scheduler;

/* Access of a term, from the command's operand list. */
static inline sbp_access sbp_schedule_access(const sbp_instr *instr, int32_t term) {
    return sbp_command_access(&instr->attrs, instr->kernel, term);
}

/* Orders the instructions of a stage of `code` and appends its commands to `body`. */
sbp_status sbp_schedule_stage(sbp_program_builder *p, const sbp_function *code, int32_t function,
                              sbp_stage *stage, sbp_body *body) SBP_CHECKED;

/* Gives every value a location, sharing memory where an instruction may write over what it reads. */
sbp_status sbp_place_values(sbp_scheduler *s) SBP_CHECKED;

#endif
