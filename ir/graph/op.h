/* op.h: the five rules of an op, six where it has a state, and the table of them.
 *
 * A rule is a function sbp_<rule>_<op> in ops/<family>.c. Rules by class (ops.def):
 *   shape    types of the results from those of the operands; numbered constraints, checked by name
 *   seq      how rows of a result depend on rows of an operand (seq.h)
 *   vjp      emits IR for the cotangents of the operands (not COMPOSITE, BACKWARD, CHOICE)
 *   expand   emits IR that computes the same from smaller ops (COMPOSITE, LATE)
 *   eval     the result in double precision, written as plainly as possible
 *   examples operand types and attributes for the generic tests
 *   state    the type of its state, from those of the operands (RECUR)
 * A missing rule does not link.
 */
#ifndef SBP_IR_GRAPH_OP_H
#define SBP_IR_GRAPH_OP_H

#include "ir/graph/graph.h"

/* ---- shape ---------------------------------------------------------------------------------------- */

typedef struct sbp_shape {
    const sbp_op *op;
    const char *func;
    sbp_type in[SBP_MAX_OPERANDS]; /* undefined for absent operands */
    bool present[SBP_MAX_OPERANDS];
    sbp_type out[SBP_MAX_RESULTS];
    sbp_diag *diag;
} sbp_shape;

/* Fails with "<op>_c<number>: <message> (node '...', in @func)". */
sbp_status sbp_shape_fail(const sbp_shape *shape, int constraint, const char *format, ...) SBP_PRINTF(3, 4);
/* Requires a condition in a shape rule. */
#define SBP_SHAPE_REQUIRE(shape, constraint, condition, ...)                                                 \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return sbp_shape_fail((shape), (constraint), __VA_ARGS__);                                       \
    } while (0)
/* "f32[T,9,64]", in a static ring of buffers of this thread; for messages only. */
const char *sbp_shape_text(const sbp_type *type);

/* ---- vjp and expand ------------------------------------------------------------------------------- */

typedef struct sbp_vjp {
    sbp_builder *builder;
    sbp_op op; /* its arrays stay valid while ops are added */
    const sbp_value *in, *out;
    sbp_value dout[SBP_MAX_RESULTS]; /* SBP_NO_VALUE: zero */
    bool need[SBP_MAX_OPERANDS];     /* which operands want a cotangent */
    /* The running cotangent of a carry operand; the rule adds to it and returns the new state in din.
     * SBP_NO_VALUE for operands that are no carries. */
    sbp_value dcarry[SBP_MAX_OPERANDS];
    /* To fill in; SBP_NO_VALUE: zero. Already reduced to the operand's shape; its element type is that of the
     * operand's cotangent or wider, for autodiff to round once all of them are added. */
    sbp_value din[SBP_MAX_OPERANDS];
} sbp_vjp;

typedef struct sbp_expand {
    sbp_builder *builder;
    sbp_op op;
    const sbp_value *in;
    sbp_value out[SBP_MAX_RESULTS]; /* to fill in */
} sbp_expand;

/* The type in which sums are kept: fp64 stays, everything else is fp32. Norms and log-probabilities, too, are
 * computed in it. */
sbp_dtype sbp_rule_wide(sbp_dtype dtype);

/* The element type of the cotangent of a value of this type: its own; wide when the value has no rows, for
 * then the cotangent is a sum over rows (an accumulator). */
sbp_dtype sbp_cotangent_dtype(const sbp_type *type);

/* Sums a cotangent of a broadcast operand down to that operand's shape; not rounded. */
sbp_value sbp_vjp_reduce_to(sbp_builder *builder, sbp_value cotangent, const sbp_type *type);

/* ---- eval ----------------------------------------------------------------------------------------- */

/* Row-major doubles; dim: concrete dimensions. */
typedef struct sbp_tensor {
    sbp_type type;
    int64_t dim[SBP_MAX_RANK];
    int64_t elems;
    double *data;
} sbp_tensor;

typedef struct sbp_eval_env {
    sbp_arena *arena;
    sbp_sizes sizes; /* C: rows of this chunk */
    int64_t row0;    /* first row of this chunk */
    bool round;      /* every value is rounded to its type (f32 is not): what a device computes, but for the
                        order of sums. Else all is exact, whatever the types */
    bool round_factors; /* and so are p and ds inside of attention, as devices may (ir/program/program.h) */
    /* What takes the place of a value of a floating type that an op computed, to see how it is conditioned;
     * NULL: it. */
    double (*noise)(void *state, double value);
    void *noise_state;
    sbp_diag *diag;
} sbp_eval_env;

typedef struct sbp_eval {
    const sbp_eval_env *env;
    const sbp_op *op;
    const sbp_tensor *in[SBP_MAX_OPERANDS]; /* NULL: absent */
    sbp_tensor *out[SBP_MAX_RESULTS];       /* allocated, zeroed */
} sbp_eval;

/* ---- examples ------------------------------------------------------------------------------------- */

typedef enum sbp_example_fill {
    SBP_FILL_FLOAT, /* uniform in lo..hi */
    SBP_FILL_INT,   /* uniform integers in lo..hi-1 */
    SBP_FILL_FIRST, /* document structure of the rows */
    SBP_FILL_SHARED_END,
    SBP_FILL_OWN,
    SBP_FILL_ABSENT
} sbp_example_fill;

typedef struct sbp_example_operand {
    sbp_type type;
    sbp_example_fill fill;
    double lo, hi;
} sbp_example_operand;

typedef struct sbp_example {
    sbp_example_operand in[SBP_MAX_OPERANDS];
    int32_t in_count;
    sbp_attr attrs[SBP_MAX_ATTRS];
    int32_t attr_count;
} sbp_example;

/* Fills example number `index`; false when there are no more. */
typedef bool (*sbp_example_rule)(int32_t index, sbp_example *out);

/* Shorthands for the rule files. */
sbp_example_operand sbp_example_float(const char *type, double lo, double hi); /* type as text: "f32[T,6]" */
sbp_example_operand sbp_example_int(const char *type, int64_t lo, int64_t hi);
sbp_example_operand sbp_example_rows(sbp_example_fill fill); /* FIRST, SHARED_END, OWN: i32[T] */

/* ---- the table ------------------------------------------------------------------------------------ */

typedef struct sbp_op_rules {
    sbp_status (*shape)(sbp_shape *shape);
    sbp_seq (*seq)(const sbp_op *op, int32_t operand, int32_t result);
    sbp_status (*vjp)(sbp_vjp *vjp);
    sbp_status (*expand)(sbp_expand *expand);
    sbp_status (*eval)(const sbp_eval *eval);
    sbp_example_rule examples;
    sbp_status (*state)(const sbp_shape *shape, sbp_type *out); /* RECUR; constant dimensions only */
    bool (*rowop_example)(sbp_opcode code, int32_t index, sbp_example *out); /* ops of rowops.def share one */
} sbp_op_rules;

const sbp_op_rules *sbp_opcode_rules(sbp_opcode code);
bool sbp_opcode_example(sbp_opcode code, int32_t index, sbp_example *out);

/* How rows of result depend on rows of operand, with the types at hand: NONE when the operand has no rows. */
sbp_seq sbp_op_seq(const sbp_func *func, const sbp_op *op, int32_t operand, int32_t result);

#endif
