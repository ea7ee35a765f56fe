/* graphs.h: functions of the graph IR for tests: one op from its examples, evaluation with given inputs,
 * derivatives against finite differences.
 *
 * Arguments are told apart by position: expand, autodiff and canonicalize keep the arguments of a function in
 * place and append theirs. */
#ifndef SBP_TESTS_COMMON_GRAPHS_H
#define SBP_TESTS_COMMON_GRAPHS_H

#include "passes/lower/passes.h"
#include "tests/common/documents.h"
#include "tests/common/testing.h"

/* ---- one op ------------------------------------------------------------------------------------------ */

/* A module with one function @f that holds one op. Arguments stand for the operands that are present, in
 * order: carries of `append` and `take`; i32 vectors are row inputs; floats without rows trainable
 * parameters; everything else streams. Results are plain and called y0, y1, ...; those whose derivative the
 * op does not have (log-sum-exp of attention) are left out. */
typedef struct example_graph {
    sbp_module *module;
    sbp_func *func;
    sbp_opcode code;
    sbp_example example;
    int32_t operand[SBP_MAX_OPERANDS]; /* operand number per argument */
} example_graph;

/* Example `index` with f64 replaced by dtype; false when there are no more. */
bool example_graph_build(testing *t, sbp_opcode code, int32_t index, sbp_dtype dtype, example_graph *out);

/* T = rows, S = 3 groups; the chunk is rows row0 .. row0+C with C <= 3. */
sbp_eval_env example_env(testing *t, int64_t rows);

/* A tensor filled as the example operand says. */
sbp_tensor *example_tensor(testing *t, const sbp_example_operand *in, const documents *rows,
                           const sbp_eval_env *env);

/* A tensor per argument, filled as the example says. */
sbp_tensor **example_inputs(testing *t, const example_graph *graph, const documents *rows,
                            const sbp_eval_env *env);

/* ---- evaluation -------------------------------------------------------------------------------------- */

/* Uniform numbers in lo..hi. */
sbp_tensor *graph_tensor(testing *t, const sbp_type *type, const sbp_eval_env *env, double lo, double hi);

/* One tensor per value of func, in `arena`; inputs: one per argument (constants may be NULL). */
sbp_tensor **graph_evaluate(testing *t, sbp_arena *arena, const sbp_module *module, const sbp_func *func,
                            const sbp_eval_env *env, sbp_tensor *const *inputs);

/* ---- derivatives ------------------------------------------------------------------------------------- */

/* expand, autodiff, expand late; verified. */
sbp_func *graph_differentiate(testing *t, sbp_module *module, const sbp_func *func);

/* A function whose plain results are the gradients of `derivative`, and whose cotangents are streams: so that
 * it can be differentiated again. */
sbp_func *graph_gradient_function(testing *t, sbp_module *module, const sbp_func *derivative);

typedef struct slope_report {
    int tensors;  /* compared */
    int zeros;    /* arguments without gradient whose slope is zero */
    double worst; /* relative error */
} slope_report;

/* Compares the gradients of `func` with central differences of `value_of` (func itself, or something that
 * must compute the same), for random weights of the results, at `inputs`. Fails with `what` when they differ,
 * and when a gradient has another type than its argument. */
slope_report graph_check_gradients(testing *t, sbp_module *module, const sbp_func *func,
                                   const sbp_func *value_of, const sbp_eval_env *env, sbp_tensor **inputs,
                                   const char *what);

/* ---- dependence -------------------------------------------------------------------------------------- */

/* How `value` depends on argument `arg` by the rules of the ops between them, composed; false when it does
 * not depend on it at all. */
bool graph_dependence(testing *t, const sbp_func *func, sbp_value arg, sbp_value value, sbp_seq *out);

#endif
