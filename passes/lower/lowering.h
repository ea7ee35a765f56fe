/* lowering.h: what stands between the graph and the program: stages, loops around SSA bodies whose arguments
 * and results are bound to views.
 *
 *   streambp, head, optimizer   make stages (body, bindings)
 *   fuse                        turns the ops of a body into instructions: commands over values
 *   schedule                    orders the instructions, gives every value a place, emits program commands
 */
#ifndef SBP_PASSES_LOWERING_H
#define SBP_PASSES_LOWERING_H

#include "passes/lower/passes.h"

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

/* A rectangle of a term, where `rows` or `cols` is not 0; or with width > 0 all of it, reshaped to
 * `width` columns. */
typedef struct sbp_term_range {
    int64_t row, rows, col, cols, width;
} sbp_term_range;

typedef struct sbp_term {
    sbp_term_kind kind;
    sbp_value value;
    sbp_view view;
    sbp_term_range range;
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
    bool single;       /* one row in all */
    bool of_all;       /* rows of all ranks (D, W) */
    int64_t rows;      /* a fixed number of rows, whatever the chunk's are; 0: see the fields around */
    int64_t more_rows; /* beyond one per row */
    int64_t per;       /* one row for every `per` rows of the longest chunk, whole in every
                          chunk; 0: as above */
} sbp_temp;

/* How experts' matrices come to expert_linear: as numbers, all at once (count 0), or in `count` pieces, as
 * they are stored: from the host, or of blocks on the device (passes/rows/fuse_experts.c). */
typedef struct sbp_expert_pieces {
    int32_t count;
    sbp_format format;
    sbp_dtype stored;
    bool away;
} sbp_expert_pieces;

/* An instruction that runs before another, though no term says so: numbers of them. */
typedef struct sbp_instr_order {
    int32_t before, after;
} sbp_instr_order;

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
    bool generates;    /* rows that are appended go to their places, too (column `place`) */
    bool of_param;     /* done with a whole parameter and what is beside it, even if it has one element */
    sbp_place *places; /* per value of the body */
    sbp_expert_pieces *pieces; /* per value: of a parameter argument */
    sbp_view *accums; /* per value: accumulator of a trainable parameter argument; vector of a statistic */
    sbp_store *stores;
    int32_t store_count, store_capacity;
    sbp_instr *instrs;
    int32_t instr_count, instr_capacity;
    sbp_instr_order *orders;
    int32_t order_count, order_capacity;
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
    /* of a segment: those that it reads, among the segment's own, as its formals have them: one kept in
     * blocks that comes in pieces once for each of its parts */
    int32_t *params;
    int32_t param_count, param_capacity;
    sbp_expert_pieces *pieces; /* per value of the segment's function; NULL: it has no parameters */
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
    bool wanted; /* of an input: its gradient is needed */
} sbp_crossing;

/* ---- what passes give: written by the one that is named, const for all behind it --------------------- */

/* autodiff, per function of the module. */
typedef struct sbp_derivative {
    const sbp_func *func;       /* chunk function, forward only */
    const sbp_func *derivative; /* with its reverse sweep; NULL when nothing in it is differentiated */
    const bool *wanted;         /* per stream argument: its cotangent */
} sbp_derivative;

typedef struct sbp_derivatives {
    sbp_derivative *of; /* per function of the module */
    /* call that holds the lowest trainable parameter; call_count when there is none */
    int32_t first_trainable;
} sbp_derivatives;

/* streambp: what became of one function of the module. Program functions are -1 where there is none. Formals:
 *   forward, recompute   [x] y sides params saved      recompute: forward once more, reading the saved set;
 *                                                      forward itself where nothing is differentiated
 *   backward         [x] G sides params accumulators saved
 * x is absent when the segment has no stream argument; sides, params: those that the function reads or
 * writes; accumulators: one per trainable parameter. */
typedef struct sbp_segment_kind {
    int32_t forward, recompute, backward, generate;
    sbp_crossing *inputs, *outputs; /* stream arguments and plain results, in order: the first is the stream,
                                       the others are side values */
    int32_t input_count, input_capacity, output_count, output_capacity;
    sbp_saved *saved;
    int32_t saved_count, saved_capacity;
    sbp_saved *cached; /* while generating: keys, values and states, which last */
    int32_t cached_count, cached_capacity;
    /* names that --save could have asked for; only when one it asked for is not kept */
    const char **keepable;
    int32_t keepable_count, keepable_capacity;
} sbp_segment_kind;

typedef struct sbp_segments {
    sbp_segment_kind *kinds;         /* per function of the module */
    int32_t chunk_table, head_table; /* of the program: rows of the layers, of the head */
} sbp_segments;

/* head: forward only (score), and the way to the gradient in one pass or two. */
typedef struct sbp_head_lowering {
    int32_t gather, scatter; /* formal: H. Rows that count to its front; back to where they were, others 0.
                                -1: all rows are computed; scatter also where nobody reads the gradient */
    int32_t score;           /* formals: H params */
    /* while generating, formals as score's: logits of the rows; what score makes of them; -1: not */
    int32_t logits, choose;
    /* one pass: H params accumulators. H becomes its gradient in place. two: the second pass */
    int32_t backward;
    int32_t first;      /* two passes: the first, formals H params; -1 for one pass */
    int32_t objective;  /* loss and metrics from the per-row outputs; no formals */
    int32_t data;       /* one pass: what it reads that is made of data alone, computed before; -1: nothing */
    int32_t gradient;   /* two passes: cotangents of the per-row outputs; -1 for one pass */
    int32_t clear;      /* zeroes the statistics, before the first forward; -1: there are none */
    int32_t statistics; /* what the objective makes of them: results; -1: nothing */
    int32_t slopes;     /* and their cotangents, before the first backward; -1: none */
    int32_t count;      /* adds them to those of the whole step; -1: nothing is of it */
} sbp_head_lowering;

struct sbp_update;
struct sbp_rule;
struct sbp_call_schedule;

/* optimizer: buffers of what lasts, -1 where there is none. */
typedef struct sbp_lasting {
    const struct sbp_update **updates; /* per parameter of the module: its rule (passes/optimizers/update.h),
                                          NULL: it is not updated. NULL where nothing is trained */
    int32_t *params, *grads;           /* per parameter: where it and its gradient are kept */
    int32_t *states;                   /* per parameter and operand of its rule (SBP_MAX_UPDATE_OPERANDS) */
    int32_t norms;                     /* sums of squares per parameter, .. */
    int32_t norm_squared, grad_norm, clip; /* .. their sum, its root, the factor that clips */
} sbp_lasting;

/* The functions of the program as stages: streambp and head add them, fuse gives stages their instructions,
 * schedule makes bodies of these; then only the formals are looked at. */
typedef struct sbp_stages {
    sbp_function_lowering **functions; /* as the program has them */
    int32_t count, capacity;
} sbp_stages;

/* The program that is being made, what its buffers are called, and rules that were lowered before: streambp
 * begins it, the passes up to offload add to it by the functions below. */
typedef struct sbp_program_builder {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_module *module; /* functions are not changed; scalars and constants of rules are added */
    sbp_target_info target;
    sbp_pass_options options;
    sbp_program *program;      /* NULL: not begun */
    sbp_status status;         /* of what cannot fail but by a mistake of ours: the first such failure */
    sbp_map buffer_names;      /* what the passes call a buffer of their own -> its number */
    sbp_map labels;            /* names of buffers in the program -> number, or that one is kept */
    const char **param_labels; /* per parameter of the module: the name of its buffer */
    /* flush, conversions and the like (passes/optimizers/rule.h), found by their keys */
    struct sbp_rule **rules;
    int32_t rule_count, rule_capacity;
    sbp_map rule_keys;
    sbp_stage **rule_stages; /* of all rules: their graphs, for --print-after */
    int32_t rule_stage_count, rule_stage_capacity;
    /* What makes numbers of blocks, of the types that were asked for (dequantize.c). */
    sbp_rowkernel *dequantize[SBP_FORMAT_COUNT][SBP_DTYPE_COUNT];
} sbp_program_builder;

/* What the passes of one pipeline gave, in their order. pipeline.c alone hands it on, to each pass what that
 * takes. */
typedef struct sbp_pass_results {
    sbp_derivatives derivatives;
    sbp_program_builder builder;
    sbp_stages stages;
    sbp_segments segments;
    sbp_head_lowering head;
    sbp_lasting lasting;
    struct sbp_call_schedule *call_schedule; /* entries (offload/offload.h); NULL before */
} sbp_pass_results;

/* What calls are made of (calls/calls.h). */
typedef struct sbp_callables {
    const sbp_derivatives *derivatives;
    const sbp_stages *stages;
    const sbp_segments *segments;
    const sbp_head_lowering *head;
    const sbp_lasting *lasting;
} sbp_callables;

/* ---- the passes -------------------------------------------------------------------------------------- */

sbp_status sbp_pass_autodiff(const sbp_pass_input *in, sbp_module *module, sbp_derivatives *out) SBP_CHECKED;
/* Begins the program. */
sbp_status sbp_pass_streambp(const sbp_pass_input *in, sbp_module *module, const sbp_derivatives *derivatives,
                             sbp_program_builder *program, sbp_stages *stages, sbp_segments *out) SBP_CHECKED;
sbp_status sbp_pass_head(sbp_program_builder *program, const sbp_derivatives *derivatives,
                         const sbp_segments *segments, sbp_stages *stages,
                         sbp_head_lowering *out) SBP_CHECKED;
sbp_status sbp_pass_optimizer(sbp_program_builder *program, const sbp_head_lowering *head,
                              sbp_lasting *out) SBP_CHECKED;
sbp_status sbp_pass_fuse(sbp_program_builder *program, sbp_stages *stages) SBP_CHECKED;
sbp_status sbp_pass_schedule(sbp_program_builder *program, const sbp_stages *stages) SBP_CHECKED;
sbp_status sbp_pass_calls(sbp_program_builder *program, const sbp_callables *from,
                          struct sbp_call_schedule **out) SBP_CHECKED;
sbp_status sbp_pass_offload(sbp_program_builder *program, const sbp_lasting *lasting,
                            const struct sbp_call_schedule *call_schedule) SBP_CHECKED;

/* ---- shared by the passes that build program pieces ------------------------------------------------ */

/* Names. The source's names are anybody's: a parameter may be called as the passes call a buffer. In the
 * program a parameter has the name that it has in the source, unless that is what the runtime calls something
 * else ("logp", the gradient of another parameter); then it gets a number, and only the tensor table knows.
 * Buffers of the passes step aside for all of these, and are found by what the passes call them. */

/* Begins a program for calls of the module's functions. Keeps names for what the runtime looks for:
 * parameters, what belongs to them, outputs of the head. */
void sbp_lower_begin(const sbp_pass_input *in, sbp_module *module, sbp_program_builder *out);
/* Adds a buffer of the passes to the program and returns its number. */
int32_t sbp_lower_buffer(sbp_program_builder *p, const char *name, sbp_role role, sbp_space space,
                         sbp_dtype dtype, int32_t count, sbp_extent rows, int64_t cols, int32_t function);
/* The first buffer that was added by this name, -1 when there is none. */
int32_t sbp_lower_find_buffer(const sbp_program_builder *p, const char *name);
/* Adds an empty command to a body. */
sbp_command *sbp_lower_command(sbp_program_builder *p, sbp_body *body, sbp_command_kind kind);
void sbp_lower_call(sbp_program_builder *p, sbp_body *body, int32_t function, const sbp_view *views);
void sbp_lower_fill(sbp_program_builder *p, sbp_body *body, sbp_view view, double value);
void sbp_lower_copy(sbp_program_builder *p, sbp_body *body, sbp_view to, sbp_view from, int32_t queue);
/* Among ranks, in queue net, or where that is so in queue compute. */
void sbp_lower_collective(sbp_program_builder *p, sbp_body *body, sbp_collective_op op, sbp_view to,
                          sbp_view from, int32_t queue);
/* What runs only where this scalar is 1. */
void sbp_lower_when(sbp_program_builder *p, sbp_body *body, const char *when, sbp_body conditional);
/* Appends the commands of a rule, whose views ~i stand for views[i]. With flushes >= 0, the one that reads
 * operand `gradient` is marked as what flushes that parameter. stream: what random numbers are of, in place
 * of the kernels' scalar SBP_RULE_STREAM. */
#define SBP_RULE_STREAM sbp_scalar_names[SBP_SCALAR_STREAM]
void sbp_lower_inline(sbp_program_builder *p, sbp_body *body, const sbp_body *commands, const sbp_view *views,
                      int32_t flushes, int32_t gradient, double stream);
/* Rows and columns of a value: a row axis, then everything else; [n] is one row, [m, n] m rows. */
void sbp_lower_shape(const sbp_type *type, sbp_symbol chunk, sbp_extent *rows, int64_t *cols);
/* T, or W: the rows of the micro-batch, of a value that has those of a chunk or a carry. */
sbp_symbol sbp_lower_kept_rows(const sbp_type *type);
/* In which order row inputs come. */
typedef struct sbp_row_order {
    bool counted; /* the counted ones first */
    bool by_rank; /* of W rows those of rank 0 first */
} sbp_row_order;

/* The buffer of a row input or constant of the module; made on first use. rows: T or W. */
int32_t sbp_lower_row_buffer(sbp_program_builder *p, const char *name, sbp_dtype dtype, sbp_symbol rows,
                             sbp_row_order order);
int32_t sbp_lower_order_buffer(sbp_program_builder *p, const char *column, sbp_row_input_kind kind,
                               sbp_symbol chunk, bool counted);
/* The buffer of a parameter. Of one that is kept in blocks it is the first part, "<parameter>.<part>", behind
 * which the other parts are. */
int32_t sbp_lower_param_buffer(sbp_program_builder *p, int32_t param);
/* What belongs to a parameter (param: its buffer), "<parameter>.<what>"; made on first use. */
int32_t sbp_lower_buffer_of_param(sbp_program_builder *p, int32_t param, const char *what, sbp_role role,
                                  sbp_dtype dtype, sbp_extent rows, int64_t cols);
/* The vector of a per-row output of the head; made on first use. */
int32_t sbp_lower_output_buffer(sbp_program_builder *p, const char *name, sbp_dtype dtype, sbp_symbol rows);
/* The vector of a statistic, or of its cotangent; made on first use. */
int32_t sbp_lower_statistic(sbp_program_builder *p, const char *name, const sbp_type *type, bool cotangent);
/* A stage for a body; places of row inputs and constants are filled in. */
sbp_stage *sbp_lower_stage(sbp_program_builder *p, const char *name, sbp_func *body, int32_t table,
                           bool descending, sbp_row_order order);
/* The rows of the current chunk in a view of all T rows, or of all W rows. */
sbp_view sbp_lower_rows_of(const sbp_stage *stage, sbp_view whole);
void sbp_lower_add_stage(sbp_program_builder *p, sbp_function_lowering *function, sbp_stage *stage);
sbp_function_lowering *sbp_lower_function(sbp_program_builder *p, sbp_stages *stages, const char *name);
int32_t sbp_lower_formal(sbp_program_builder *p, int32_t function, const char *name, sbp_access access,
                         sbp_dtype dtype, sbp_extent rows, int64_t cols);
/* Formals for the parameters among the arguments of `from`, a function of segment number `segment`, which its
 * bodies read: p0, p1, ..
 *   - in the type that the bodies compute in;
 *   - in the stored type where nothing but rows of them is gathered;
 *   - one for each part, as stored, where they come in pieces.
 * With accums != NULL then A0, A1, .. for the trainable ones: their gradients, in the wide type, to be added
 * to. params and accums are indexed by the value. */
void sbp_lower_param_formals(sbp_program_builder *p, sbp_function_lowering *function, const sbp_func *from,
                             int32_t segment, const sbp_func *const *bodies, int32_t body_count,
                             int32_t *params, int32_t *accums);
/* pieces.c: how parameter `number` of a segment comes, which is `value` of its function with the
 * derivative. */
sbp_expert_pieces sbp_lower_pieces(const sbp_program_builder *p, const sbp_func *from, int32_t segment,
                                   sbp_value value, int32_t number);
/* dequantize.c, for parameters in blocks: the kernel that makes numbers of type `to` of blocks; NULL when the
 * table of formats is wrong. */
const sbp_rowkernel *sbp_dequantize_kernel(sbp_program_builder *p, sbp_format format, sbp_dtype to);
/* to = the numbers that the parts stand for. */
void sbp_lower_dequantize(sbp_program_builder *p, sbp_body *body, sbp_format format, sbp_view to,
                          sbp_dtype dtype, const sbp_view *parts);
/* loss.c: what the derivative of a function's first result, the loss, with respect to its stream arguments
 * is: gradients alone. */
sbp_status sbp_loss_slope(sbp_program_builder *p, const sbp_func *func, const char *name,
                          sbp_func **out) SBP_CHECKED;
/* statistics.c: the statistic that an argument is the cotangent of, by name; NULL: none. */
const char *sbp_statistic_of(const sbp_func *func, sbp_value cotangent);
/* Whether a function has any: then nothing but the first forward may call it. */
bool sbp_has_statistics(const sbp_func *func);
/* statistics.c: what is called around forward and backward. */
sbp_status sbp_statistics_lower(sbp_program_builder *p, const sbp_derivatives *derivatives,
                                sbp_stages *stages, sbp_head_lowering *out) SBP_CHECKED;
/* Whether states are what is kept: one per chunk. */
bool sbp_saved_is_state(const sbp_saved *saved);
/* Length of a value's name without the number that tells equal values of one segment apart ("gate.3": 4). */
size_t sbp_saved_base_length(const char *name);
/* Whether a value has no name but a number ("t56"). */
bool sbp_saved_is_numbered(const char *name);
/* fp64 for fp64, else fp32: accumulators, carried cotangents. */
sbp_dtype sbp_lower_wide(sbp_dtype dtype);

#endif
