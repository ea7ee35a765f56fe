/* executor_internal.h: the executor's own data, shared by executor.c (preparing and running),
 * executor_bind.c (micro-batches), executor_io.c (buffers) and executor_convert.c (elements). */
#ifndef SBP_RUNTIME_RUN_EXECUTOR_INTERNAL_H
#define SBP_RUNTIME_RUN_EXECUTOR_INTERNAL_H

#include "runtime/run/executor.h"

enum { SBP_STAGING_BYTES = 1 << 20 };

/* A view made ready: what never changes, and what changes only with T and S. */
typedef struct sbp_prepared_view {
    const sbp_view *view; /* NULL: absent */
    int32_t formal;       /* -1: of a buffer */
    sbp_space space;
    sbp_dtype dtype;
    int64_t offset;          /* bytes, of row 0 and the first column; without the formal's own */
    int64_t stride;          /* elements from row to row; 0: those of what is passed for the formal */
    int64_t local;           /* rows count from this many times the chunk's row0 */
    sbp_extent rows;         /* of the buffer or formal, seen with the view's width */
    sbp_symbol chunk_symbol; /* that stands for the rows at hand in `length`, or SBP_ONE */
    int32_t table;           /* of the loop, where that is one */
    /* set by bind */
    int64_t total; /* of `rows` */
    int64_t start_base, start_step, length_base, length_step;
    int64_t length_base_chunk, length_step_chunk; /* change per row that the chunk has fewer */
} sbp_prepared_view;

typedef struct sbp_prepared_body sbp_prepared_body;

typedef struct sbp_prepared_command {
    const sbp_command *command;
    sbp_prepared_view *views;
    sbp_row_rule *rules;
    int32_t rule_count;
    int32_t rows_operand; /* row commands */
    /* gather and scatter_add: rows of operand `indexed` must be above the largest number of row input `index`
     */
    int32_t index, indexed;
} sbp_prepared_command;

typedef struct sbp_prepared_call {
    const sbp_call *call;
    sbp_prepared_view *views; /* per formal */
} sbp_prepared_call;

typedef struct sbp_prepared_node {
    sbp_node_kind kind;
    const sbp_loop *loop;
    sbp_prepared_body *body; /* loops */
    sbp_prepared_command *command;
    sbp_prepared_call *call;
} sbp_prepared_node;

struct sbp_prepared_body {
    sbp_prepared_node *nodes;
    int32_t count;
};

/* An actual argument while its function runs. */
typedef struct sbp_frame {
    sbp_space space;
    int64_t offset, stride, first_row;
} sbp_frame;

/* What bind saw in an integer column. */
typedef struct sbp_column_range {
    int64_t least, most, most_at;
} sbp_column_range;

struct sbp_executor {
    sbp_arena *arena;
    const sbp_program *program;
    const sbp_device_class *class;
    sbp_device *device;
    sbp_prepared_body **functions, **entries;
    sbp_prepared_view **views; /* all of them, for bind */
    int32_t view_count, view_capacity;
    double *scalars;
    bool *scalar_set;
    sbp_column_range *ranges; /* per row input */
    int64_t **lo;             /* per table: [chunk * windows + window] */
    unsigned char *staging;
    int32_t *order;    /* [t_max * context] when orders cannot be sorted in mapped memory */
    int64_t rank;      /* among those that have a micro-batch together */
    int32_t *pick;     /* [context][t_max] a rank's row of each of its counted rows, where the program asks */
    int64_t *counts;   /* [context] how many */
    double *row_order; /* [t_max * context], with a context */
    bool bound, tuning;
    struct sbp_ranks *ranks;     /* NULL: this process alone */
    struct sbp_reading *reading; /* executor_shares.c; NULL: no rank reads of another's shares */
    sbp_flush_hook hook;
    void *hook_user;
    sbp_profile *profile; /* NULL: none */
    sbp_oracle *oracle;   /* likewise */
    /* while running */
    sbp_position position;
    sbp_frame *frames; /* of the function that runs */
    int32_t max_formals;
    sbp_diag *diag;
};

/* executor.c: buffers of which the program has the contents. */
sbp_status sbp_executor_write_constants(sbp_executor *x, sbp_diag *diag) SBP_CHECKED;
/* executor_tune.c: in place of running it. */
sbp_status sbp_executor_tune_command(sbp_executor *x, const sbp_dispatch *dispatch) SBP_CHECKED;
/* ---- executor_convert.c -------------------------------------------------------------------------------- */

/* Memory of the device, where it maps it; else NULL. */
void *sbp_executor_mapped(sbp_executor *x, sbp_space space, int64_t offset);
/* Elements of one type into elements of another. */
void sbp_executor_convert(sbp_dtype to, void *out, sbp_dtype from, const void *in, int64_t count);
/* Bytes of the arena at `offset` written from or read into memory, direct where mapped. */
sbp_status sbp_executor_put(sbp_executor *x, sbp_space space, int64_t offset, const void *data, int64_t bytes,
                            sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_executor_get(sbp_executor *x, sbp_space space, int64_t offset, void *data, int64_t bytes,
                            sbp_diag *diag) SBP_CHECKED;
/* Rows of a strided range, element by element converted: see sbp_executor_read. */
sbp_status sbp_executor_convert_out(sbp_executor *x, sbp_space space, int64_t offset, sbp_dtype from,
                                    int64_t count, sbp_dtype dtype, void *out, sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_executor_convert_in(sbp_executor *x, sbp_space space, int64_t offset, sbp_dtype to,
                                   int64_t count, sbp_dtype dtype, const void *data,
                                   sbp_diag *diag) SBP_CHECKED;

/* ---- executor_shares.c --------------------------------------------------------------------------------- */

/* The number of this process among all. */
int64_t sbp_executor_rank(const sbp_executor *x);
/* The functions below are for buffers that are shared (sbp_executor_is_shared). */
sbp_status sbp_executor_read_shared(sbp_executor *x, int32_t buffer, int64_t first, int64_t count,
                                    sbp_dtype dtype, void *out, sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_executor_write_shared(sbp_executor *x, int32_t buffer, int64_t first, int64_t count,
                                     sbp_dtype dtype, const void *data, sbp_diag *diag) SBP_CHECKED;
/* Elements as they are kept, into the staging of every rank: all of them call it, for no more than fit there.
 */
sbp_status sbp_executor_bring(sbp_executor *x, int32_t buffer, int64_t first, int64_t count,
                              sbp_diag *diag) SBP_CHECKED;

#endif
