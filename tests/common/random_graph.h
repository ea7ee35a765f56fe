/* random_graph.h: random functions over the whole op table, in f64, for tests that a rewrite preserves
 * values.
 *
 * Ops come with the operand types of their examples; operands are values of that type made before, or new
 * arguments. Constants, ops that change nothing and repeated ops are mixed in, for canonicalize to find. */
#ifndef SBP_TESTS_COMMON_RANDOM_GRAPH_H
#define SBP_TESTS_COMMON_RANDOM_GRAPH_H

#include "tests/common/graphs.h"

typedef struct random_graph {
    sbp_module *module;
    sbp_func *func;
    sbp_example_operand *fills; /* per argument */
    int32_t fill_count, fill_capacity;
    int32_t plants; /* constants, identities and repetitions that were mixed in */
} random_graph;

typedef struct random_graph_options {
    int32_t ops;
    bool streamable; /* only ops that read rows as ROW, PREFIX or WINDOW */
    bool smooth;     /* no truth values, extremes or stop_gradient: finite differences hold */
} random_graph_options;

/* used: per opcode, counts what was built; may be NULL. */
random_graph random_graph_build(testing *t, const random_graph_options *options, int *used);

sbp_tensor **random_graph_inputs(testing *t, const random_graph *graph, const documents *rows,
                                 const sbp_eval_env *env);

#endif
