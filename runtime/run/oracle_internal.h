/* oracle_internal.h: a comparison at hand, between oracle.c, the loops in oracle_*.c, and oracle_samples.c,
 * which they share. */
#ifndef SBP_RUNTIME_RUN_ORACLE_INTERNAL_H
#define SBP_RUNTIME_RUN_ORACLE_INTERNAL_H

#include "runtime/run/oracle.h"

/* What a part of a result must be; `rounded`: what rounding makes of it. */
typedef struct oracle_expected {
    int32_t operand;
    int64_t row, rows, col, cols;
    double *exact, *rounded; /* [rows, cols] */
} oracle_expected;

typedef struct oracle_job {
    const sbp_program *program;
    sbp_arena *names; /* that groups keep */
    sbp_oracle_group *group;
    const sbp_device_class *class;
    sbp_device *device;
    const sbp_dispatch *dispatch;
    sbp_diag *diag;
    sbp_arena *arena;
    bool tf32, ran, passed_over; /* passed_over: nothing of it was compared */
    double work;                 /* of loops that may take long: operations, about */
    void *piece;                 /* room for reading several rows at once */
    int64_t piece_bytes;
    oracle_expected **expected;
    int32_t expected_count, expected_capacity;
} oracle_job;

/* ---- oracle_samples.c --------------------------------------------------------------------------------- */

/* Numbers of an operand as doubles, in the arena. Inputs before sbp_oracle_submit, results after it. */
sbp_status sbp_oracle_fetch(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                            int64_t cols, double **out) SBP_CHECKED;
/* The same as they are kept. */
sbp_status sbp_oracle_fetch_raw(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                                int64_t cols, void *out) SBP_CHECKED;
/* Runs the command to its end. */
sbp_status sbp_oracle_submit(oracle_job *job) SBP_CHECKED;

/* A result, over the elements that were noted. */
typedef struct oracle_sum {
    double found, rounding, size; /* squares */
} oracle_sum;

/* An element: what the loops give, what rounding makes of it, what is there. */
void sbp_oracle_note(oracle_sum *sum, double truth, double rounded, double got, sbp_dtype dtype);
/* Takes a result that is noted into account. operand: its name. */
void sbp_oracle_judge(const oracle_job *job, const oracle_sum *sum, const char *operand);

/* Rows and columns of a result that will be compared, zeros so far; NULL: nobody asks for that result. */
oracle_expected *sbp_oracle_expect(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols);
/* Runs the command and compares all that is expected. */
sbp_status sbp_oracle_settle(oracle_job *job) SBP_CHECKED;

/* Up to three runs of `each` of `count` things: at the beginning, in the middle, at the end; all, where these
 * are few. Begins at multiples of `align`. */
typedef struct oracle_runs {
    int64_t first[3], count[3];
    int32_t runs;
} oracle_runs;
oracle_runs sbp_oracle_choose(int64_t count, int64_t each, int64_t align);

/* Half a unit in the last place of a type, relative; 0 of integers. */
double sbp_oracle_unit(sbp_dtype dtype);
/* In [-1, 1], by number. */
double sbp_oracle_draw(uint64_t number);

/* ---- the loops of commands ---------------------------------------------------------------------------- */

sbp_status sbp_oracle_gemm(oracle_job *job) SBP_CHECKED;
sbp_status sbp_oracle_experts(oracle_job *job) SBP_CHECKED;
sbp_status sbp_oracle_attention(oracle_job *job) SBP_CHECKED;
sbp_status sbp_oracle_rule(oracle_job *job) SBP_CHECKED;
sbp_status sbp_oracle_convolution(oracle_job *job) SBP_CHECKED;
sbp_status sbp_oracle_row(oracle_job *job) SBP_CHECKED;
sbp_status sbp_oracle_choices(oracle_job *job) SBP_CHECKED;
sbp_status sbp_oracle_simple(oracle_job *job) SBP_CHECKED;

#endif
