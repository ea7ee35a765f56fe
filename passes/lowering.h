/* lowering.h: what stands between the graph and the program: stages, loops around SSA bodies whose arguments
 * and results are bound to views.
 *
 *   streambp, head, optimizer   make stages (body, bindings)
 *   fuse                        turns the ops of a body into instructions: commands over values
 *   schedule                    orders the instructions, gives every value a place, emits program commands
 */
#ifndef SBP_PASSES_LOWERING_H
#define SBP_PASSES_LOWERING_H

#include "passes/passes.h"

/* Where a value of a body lives, when the caller decides: ref is SBP_NO_VIEW otherwise. A carry is the whole
 * buffer; readers narrow it to the rows they may see. */
typedef sbp_view sbp_place;

/* An operand of an instruction. */
typedef enum sbp_term_kind {
    SBP_TERM_NONE,
    SBP_TERM_VALUE, /* value of the body (never a reshape of another: see sbp_stage.base) */
    SBP_TERM_TEMP,  /* temporary number `value` of the stage */
    SBP_TERM_VIEW   /* a fixed view: parameters, accumulators, row inputs, carries */
} sbp_term_kind;

typedef struct sbp_term {
    sbp_term_kind kind;
    sbp_value value;
    sbp_view view;
} sbp_term;

/* A command over values. Terms stand in the order of the command's operands. */
typedef struct sbp_instr {
    sbp_command_kind kind;
    sbp_rowkernel *kernel; /* row */
    sbp_term *terms;
    int32_t term_count;
    sbp_command attrs;  /* its union `u` */
    sbp_value after[6]; /* values that must be there before, though no term names them; SBP_NO_VALUE: none */
    sbp_value defines[2]; /* values that are there afterwards, though no term names them */
    int32_t position;     /* in the body, of the latest op it stands for */
    const char *node;
} sbp_instr;

/* Memory that only instructions know: column sums of a row kernel, workspace. */
typedef struct sbp_temp {
    sbp_dtype dtype;
    int64_t cols;
    bool blocks;       /* one row per SBP_PARTIAL_ROWS rows, not one per row */
    bool of_all;       /* rows of all ranks (D, W) */
    int64_t more_rows; /* beyond one per row */
} sbp_temp;

/* A second place where a result must be stored. */
typedef struct sbp_store {
    sbp_value value;
    sbp_view to;
} sbp_store;

typedef struct sbp_stage {
    const char *name;
    sbp_func *body;
    int32_t table;   /* loop over this chunk table; -1: once, over all rows */
    sbp_symbol rows; /* what C of the body means: C, H, or T when there is no loop */
    bool descending;
    bool of_param;     /* done with a whole parameter and what is beside it, even if it has one element */
    sbp_place *places; /* per value of the body */
    sbp_view *accums;  /* per value: accumulator of a trainable parameter argument */
    sbp_store *stores;
    int32_t store_count, store_capacity;
    sbp_instr *instrs;
    int32_t instr_count, instr_capacity;
    sbp_temp *temps;
    int32_t temp_count, temp_capacity;
    sbp_value *base;       /* per value: the value whose memory it is (reshapes and the like) */
    sbp_value *defined_by; /* per value: itself, or the value whose computation makes it available (take) */
} sbp_stage;

/* Items of a function in order: ready-made commands and stages. */
typedef struct sbp_item {
    sbp_node node; /* used when stage is NULL */
    sbp_stage *stage;
} sbp_item;

/* A value that crosses beside the stream, as one function of a segment names it: one that the segment reads
 * or writes, by its number there (0 is the stream), or its cotangent. */
typedef struct sbp_side {
    int32_t number;
    bool output, cotangent;
} sbp_side;

typedef struct sbp_function_lowering {
    int32_t function; /* in the program */
    sbp_side *sides;  /* of a segment: formals behind the stream's, in this order */
    int32_t side_count, side_capacity;
    int32_t
        *params; /* of a segment: those that it reads, among the segment's own, as its formals have them */
    int32_t param_count, param_capacity;
    sbp_item *items;
    int32_t item_count, item_capacity;
} sbp_function_lowering;

/* A value of a segment that the forward keeps for the backward, one per call of the segment. */
typedef struct sbp_saved {
    const char *name;
    sbp_dtype dtype;
    int64_t cols;
    sbp_extent rows; /* T, or W; N + 1 of states */
    bool is_carry;   /* keys or values, or states: the carry itself is kept */
} sbp_saved;

/* A value that crosses between segments, as one of them has it: rows of the chunk. */
typedef struct sbp_crossing {
    const char *name;
    sbp_type type;
    bool wanted; /* of one that is read: somebody below wants its cotangent */
} sbp_crossing;

/* What became of one function of the module. Program functions are -1 where there is none. Formals:
 *   forward, again   [x] y sides params saved      again: forward once more, reading the saved set; forward
 *                                                  itself where nothing is differentiated
 *   backward         [x] G sides params accumulators saved
 * x is absent when the segment has no stream argument; sides, params: those that the function reads or
 * writes; accumulators: one per trainable parameter. */
typedef struct sbp_segment_kind {
    sbp_func *func;       /* chunk function, forward only */
    sbp_func *derivative; /* with its reverse sweep; NULL when nothing in it is differentiated */
    int32_t forward, again, backward;
    sbp_crossing *inputs, *outputs; /* stream arguments and plain results, in order: the first is the stream,
                                       the others are side values */
    int32_t input_count, input_capacity, output_count, output_capacity;
    const bool *wanted; /* per stream argument: its cotangent */
    sbp_saved *saved;
    int32_t saved_count, saved_capacity;
    const char *
        *keepable; /* names that --save could have asked for; only when one it asked for is not kept */
    int32_t keepable_count, keepable_capacity;
} sbp_segment_kind;

/* The head: forward only (score), and the way to the gradient in one pass or two. */
typedef struct sbp_head_lowering {
    int32_t gather, scatter; /* formal: H. Rows that count to its front; back to where they were, others 0.
                                -1: all rows are computed; scatter also where nobody reads the gradient */
    int32_t score;           /* formals: H params */
    int32_t
        backward; /* one pass: H params accumulators. H becomes its gradient in place. two: the second pass */
    int32_t first;     /* two passes: the first, formals H params; -1 for one pass */
    int32_t objective; /* loss and metrics from the per-row outputs; no formals */
    int32_t data;      /* one pass: what it reads that is made of data alone, computed before; -1: nothing */
    int32_t gradient;  /* two passes: cotangents of the per-row outputs; -1 for one pass */
} sbp_head_lowering;

typedef struct sbp_lowering {
    sbp_function_lowering **functions;
    int32_t function_count, function_capacity;
    int32_t chunk_table, head_table;
    bool counted;              /* rows of stages that are being made are the counted ones (pass `head`) */
    bool by_rank;              /* and of W rows those of rank 0 come first */
    sbp_map buffer_names;      /* what the passes call a buffer of their own -> its number */
    sbp_map labels;            /* names of buffers in the program -> number, or that one is kept */
    const char **param_labels; /* per parameter of the module: the name of its buffer */
    const struct sbp_update *
        *updates; /* per parameter of the module: its optimizer rule (passes/optimizers/update.h) */
    /* Buffers: per parameter, where it and its gradient are kept; per operand of its rule, its state; the
     * sums of squares per parameter, their sum, its root, the factor that clips. -1: none. */
    int32_t *param_buffers, *grad_buffers, *state_buffers;
    int32_t norms, norm_squared, grad_norm, clip;
    struct sbp_residency *residency; /* between entries and reside */
    struct sbp_rule *
        *rules; /* flush, conversions and the like (passes/optimizers/rule.h), found by their keys */
    int32_t rule_count, rule_capacity;
    sbp_map rule_keys;
    sbp_stage **rule_stages; /* of all rules: their graphs, for --print-after */
    int32_t rule_stage_count, rule_stage_capacity;
    sbp_segment_kind *kinds; /* per function of the module */
    sbp_head_lowering head;
    /* What makes numbers of blocks, of the types that were asked for (residency/dequantize.c). */
    sbp_rowkernel *dequantize[SBP_FORMAT_COUNT][SBP_DTYPE_COUNT];
    bool failed; /* a rule of ours could not be lowered: the message is in the diagnostics */
    int32_t
        first_trainable; /* call that holds the lowest trainable parameter; call_count when there is none */
} sbp_lowering;

/* ---- shared by the passes that build program pieces ------------------------------------------------ */

/* Names. The source's names are anybody's: a parameter may be called as the passes call a buffer. In the
 * program a parameter has the name that it has in the source, unless that is what the runtime calls something
 * else ("logp", the gradient of another parameter); then it gets a number, and only the tensor table knows.
 * Buffers of the passes step aside for all of these, and are found by what the passes call them. */

/* Keeps names for what the runtime looks for: parameters, what belongs to them, outputs of the head. Before
 * the first buffer. */
void sbp_lower_keep_names(sbp_pipeline *p);
/* Adds a buffer of the passes to the program and returns its number. */
int32_t sbp_lower_buffer(sbp_pipeline *p, const char *name, sbp_role role, sbp_space space, sbp_dtype dtype,
                         int32_t count, sbp_extent rows, int64_t cols, int32_t function);
/* The first buffer that was added by this name, -1 when there is none. */
int32_t sbp_lower_find_buffer(const sbp_pipeline *p, const char *name);
/* Adds an empty command to a body. */
sbp_command *sbp_lower_command(sbp_pipeline *p, sbp_body *body, sbp_command_kind kind);
void sbp_lower_call(sbp_pipeline *p, sbp_body *body, int32_t function, const sbp_view *views);
void sbp_lower_fill(sbp_pipeline *p, sbp_body *body, sbp_view view, double value);
void sbp_lower_copy(sbp_pipeline *p, sbp_body *body, sbp_view to, sbp_view from, int32_t queue);
/* Among ranks, in queue net, or where that is so in queue compute. */
void sbp_lower_collective(sbp_pipeline *p, sbp_body *body, sbp_collective_op op, sbp_view to, sbp_view from,
                          int32_t queue);
/* What runs only where this scalar is 1. */
void sbp_lower_when(sbp_pipeline *p, sbp_body *body, const char *when, sbp_body conditional);
/* Appends the commands of a rule, whose views ~i stand for views[i]. With flushes >= 0, the one that reads
 * operand `gradient` is marked as what flushes that parameter. stream: what random numbers are of, in place
 * of the kernels' scalar SBP_RULE_STREAM. */
#define SBP_RULE_STREAM "stream"
void sbp_lower_inline(sbp_pipeline *p, sbp_body *body, const sbp_body *commands, const sbp_view *views,
                      int32_t flushes, int32_t gradient, double stream);
/* Rows and columns of a value: a row axis, then everything else; [n] is one row, [m, n] m rows. */
void sbp_lower_shape(const sbp_type *type, sbp_symbol chunk, sbp_extent *rows, int64_t *cols);
/* The buffer of a row input or constant of the module; made on first use. rows: T; W, of which stages over
 * vectors want them in the order of ranks (by_rank). */
int32_t sbp_lower_row_buffer(sbp_pipeline *p, const char *name, sbp_dtype dtype, sbp_symbol rows);
int32_t sbp_lower_order_buffer(sbp_pipeline *p, const char *column, sbp_row_input_kind kind, sbp_symbol chunk,
                               bool counted);
int32_t sbp_lower_const_buffer(sbp_pipeline *p, int32_t constant);
/* Of one that is kept in blocks the first part, behind which the others are: "<parameter>.<part>". */
int32_t sbp_lower_param_buffer(sbp_pipeline *p, int32_t param);
/* What belongs to a parameter (param: its buffer), "<parameter>.<what>"; made on first use. */
int32_t sbp_lower_buffer_of_param(sbp_pipeline *p, int32_t param, const char *what, sbp_role role,
                                  sbp_dtype dtype, sbp_extent rows, int64_t cols);
/* The vector of a per-row output of the head; made on first use. */
int32_t sbp_lower_output_buffer(sbp_pipeline *p, const char *name, sbp_dtype dtype, sbp_symbol rows);
/* A stage for a body; places of row inputs and constants are filled in. */
sbp_stage *sbp_lower_stage(sbp_pipeline *p, const char *name, sbp_func *body, int32_t table, bool descending);
/* Of a view of all T rows, or W, those of the chunk. */
sbp_view sbp_lower_rows_of(const sbp_stage *stage, sbp_view whole);
void sbp_lower_add_stage(sbp_pipeline *p, sbp_function_lowering *function, sbp_stage *stage);
sbp_function_lowering *sbp_lower_function(sbp_pipeline *p, const char *name);
int32_t sbp_lower_formal(sbp_pipeline *p, int32_t function, const char *name, sbp_access access,
                         sbp_dtype dtype, sbp_extent rows, int64_t cols);
/* Formals for the parameters among the arguments of `from`, a function of segment number `segment`: p0, p1,
 * .. for those that its bodies read, as they compute with them, or as they are kept where nothing but rows of
 * them are gathered; with accums != NULL then A0, .. for the trainable ones, wide, to be added to. params and
 * accums are indexed by the value. */
void sbp_lower_param_formals(sbp_pipeline *p, sbp_function_lowering *function, const sbp_func *from,
                             int32_t segment, const sbp_func *const *bodies, int32_t body_count,
                             int32_t *params, int32_t *accums);
/* Text of a stage: its body, or its instructions once there are any. */
void sbp_stage_print(sbp_text *out, const sbp_pipeline *p, const sbp_stage *stage);
/* Whether states are what is kept: one per chunk. */
bool sbp_saved_is_state(const sbp_saved *saved);
/* Length of a value's name without the number that tells equal values of one segment apart ("gate.3": 4). */
size_t sbp_saved_base_length(const char *name);
/* Whether a value has no name but a number ("t56"). */
bool sbp_saved_is_numbered(const char *name);
/* fp64 for fp64, else fp32: accumulators, carried cotangents. */
sbp_dtype sbp_lower_wide(sbp_dtype dtype);

#endif
