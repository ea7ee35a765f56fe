/* test_side_values.c: values that more than the next layer reads: keys and values of earlier layers, read as
 * a whole; embedded rows, queries and whole layers' outputs, read row by row. Gradients are those of @model
 * as one function over all rows, evaluated in double (whole_step.h), in drawn settings of the schedule; and a
 * segment is a layer: nothing is computed twice, or kept twice, because it is shared. */
#include "tests/common/odd_graphs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "passes/lower/passes.h"
#include "tests/common/compile_model.h"
#include "tests/common/whole_step.h"

#define MODEL "tests/data/onnx/side_values.json"

static char directory[] = "/tmp/sbp_side_XXXXXX", path[sizeof directory + 20];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/model.json", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    unlink(path);
    return rmdir(directory);
}

static sbp_program *compile(testing *t, const char *model, int64_t segment, int64_t every) {
    sbp_program *p;
    compile_request request = compile_request_for(model, WHOLE_STEP_ROWS, 5, 5);
    request.options.schedule.segment = segment;
    request.options.schedule.checkpoint_every = every;
    testing_check(t, compile_model(t->arena, t->diag, &request, &p));
    testing_check(t, sbp_program_verify(p, t->diag));
    return p;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static void one_model_in_all_settings(void **state) {
    (void)state;
    whole_step_check(MODEL, false);
}

static void one_model_in_drawn_settings(void **state) {
    (void)state;
    whole_step_draw(MODEL, 1, testing_draws(40, 400));
}

static void drawn_models(void **state) {
    (void)state;
    for (int seed = 1; seed <= testing_draws(24, 200); seed++) {
        testing t = testing_open((uint64_t)seed);
        odd_graph_write(&t, ODD_SHARED, 3 + seed % 4, true, path);
        whole_step_draw(path, (uint64_t)seed, 8);
        testing_close(&t);
    }
}

/* ---- structure ---------------------------------------------------------------------------------------- */

static bool is_called(const char *begin, const char *end, const char *name) {
    size_t length = strlen(name), tail = strlen(end);
    return strncmp(name, begin, strlen(begin)) == 0 && length >= tail &&
           strcmp(name + length - tail, end) == 0;
}

/* Calls of functions whose names begin and end so. */
static int32_t calls_of(const sbp_program *p, const char *begin, const char *end) {
    int32_t count = 0;
    for (int32_t f = 0; f < p->function_count; f++)
        if (is_called(begin, end, p->functions[f].name))
            count += whole_step_calls(p, "accumulate", p->functions[f].name);
    return count;
}

/* Five layers are five segments; g layers make one. */
static void a_layer_is_a_segment(void **state) {
    (void)state;
    testing t = testing_open(1);
    for (int64_t g = 1; g <= 5; g++) {
        sbp_program *p = compile(&t, MODEL, g, 1);
        assert_int_equal(calls_of(p, "layer", ".backward"), (5 + g - 1) / g);
    }
    testing_close(&t);
}

static int32_t buffers_called(const sbp_program *p, const char *begin) {
    int32_t count = 0;
    for (int32_t b = 0; b < p->buffer_count; b++)
        count += strncmp(p->buffers[b].name, begin, strlen(begin)) == 0;
    return count;
}

/* What an entry does to a buffer: how many calls and fills have it with each access. */
typedef struct uses {
    int32_t reads, writes, updates, fills;
} uses;

static void count_view(const sbp_view *view, sbp_access access, int32_t buffer, uses *out) {
    if (view->ref != buffer)
        return;
    out->reads += access == SBP_READ;
    out->writes += access == SBP_WRITE;
    out->updates += access == SBP_UPDATE;
}

static uses uses_of(const sbp_program *p, const char *entry, int32_t buffer) {
    const sbp_body *body = &sbp_program_find_entry(p, entry)->body;
    uses u = {0};
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_CALL) {
            const sbp_function *f = &p->functions[node->u.call->function];
            for (int32_t k = 0; k < f->formal_count; k++)
                count_view(&node->u.call->views[k], f->formals[k].access, buffer, &u);
        } else if (node->kind == SBP_NODE_COMMAND && node->u.command->kind == SBP_CMD_FILL) {
            u.fills += node->u.command->views[0].ref == buffer;
        }
    }
    return u;
}

/* Keys, values, embedded rows and the output of layer 0: each is written by one call, however often layers
 * run again, and read by the others; its cotangent is zeroed once, added to by each reader, and read by the
 * writer. */
static void each_is_written_once(void **state) {
    (void)state;
    testing t = testing_open(1);
    for (int64_t every = 1; every <= 3; every++) {
        sbp_program *p = compile(&t, MODEL, 1, every);
        assert_int_equal(buffers_called(p, "side"), 4);
        assert_int_equal(buffers_called(p, "d_side"), 4);
        for (int32_t b = 0; b < p->buffer_count; b++) {
            uses u = uses_of(p, "accumulate", b), score = uses_of(p, "score", b);
            if (strncmp(p->buffers[b].name, "side", 4) == 0) {
                assert_int_equal(u.writes + u.updates, 1);
                assert_int_equal(score.writes + score.updates, 1);
                assert_int_equal(u.fills, 0);
                assert_true(u.reads >= score.reads && score.reads > 0);
            } else if (strncmp(p->buffers[b].name, "d_side", 6) == 0) {
                assert_int_equal(u.fills, 1);
                assert_int_equal(u.writes, 0);
                assert_int_equal(score.reads + score.writes + score.updates, 0);
                assert_true(u.updates > 0 && u.updates + u.reads > 1);
            }
        }
    }
    testing_close(&t);
}

/* Nobody adds up cotangents of values below the lowest trained layer: what layer 0 gives has none then. */
static void frozen_writers_want_none(void **state) {
    (void)state;
    testing t = testing_open(1);
    compile_request request = compile_request_for(MODEL, WHOLE_STEP_ROWS, 5, 5);
    sbp_program *p;
    request.freeze = "*layers.0.*"; /* and both tables */
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    assert_int_equal(buffers_called(p, "side"), 4);
    assert_int_equal(buffers_called(p, "d_side"), 2); /* keys and values of layer 1 */
    testing_close(&t);
}

/* The keys of layer 1 are computed by its forward alone: neither readers nor its own backward have the
 * product. */
static void keys_are_not_computed_again(void **state) {
    (void)state;
    testing t = testing_open(1);
    sbp_program *shared = compile(&t, MODEL, 1, 3);
    for (int32_t f = 0; f < shared->function_count; f++) {
        const sbp_function *fn = &shared->functions[f];
        for (int32_t k = 0; k < fn->formal_count; k++)
            if (fn->formals[k].name[0] == 'y' && fn->formals[k].name[1] != 0)
                assert_true(strstr(fn->name, ".forward") ? fn->formals[k].access != SBP_READ
                                                         : fn->formals[k].access == SBP_READ);
        for (int32_t i = 0; i < shared->buffer_count; i++)
            if (shared->buffers[i].function == f && is_called("layer1", ".backward", fn->name))
                assert_null(strstr(shared->buffers[i].name, "carry"));
    }
    testing_close(&t);
}

/* ---- ranks -------------------------------------------------------------------------------------------- */

static bool moves_keys(const sbp_node *node) {
    if (node->kind != SBP_NODE_COMMAND || !sbp_is_exchange(node->u.command))
        return false;
    sbp_collective_op op = node->u.command->u.collective.op;
    return op == SBP_TO_HEADS || op == SBP_TO_ROWS ? node->u.command->u.collective.heads.keys : true;
}

/* How often the loops of a function, over each chunk, exchange keys or values, or their cotangents. */
static int32_t exchanges_of(const sbp_program *p, const char *name) {
    int32_t f = 0, count = 0;
    while (f < p->function_count && strcmp(p->functions[f].name, name) != 0)
        f++;
    for (int32_t n = 0; f < p->function_count && n < p->functions[f].body.count; n++) {
        const sbp_node *loop = &p->functions[f].body.nodes[n];
        for (int32_t i = 0; loop->kind == SBP_NODE_LOOP && i < loop->u.loop->body.count; i++)
            count += moves_keys(&loop->u.loop->body.nodes[i]);
    }
    return count;
}

/* Ranks that have documents together exchange shared keys and values where they are written, once: the
 * forward of layer 1 both, its backward both cotangents; what it computes again, and layers that read them,
 * nothing. A layer with keys of its own exchanges them once more in its backward, and where it is computed
 * again. */
static void ranks_exchange_once(void **state) {
    (void)state;
    static const struct {
        const char *layer;
        int32_t forward, recompute, backward;
    } want[] = {{"layer0", 2, 2, 4},
                {"layer1", 2, 0, 2},
                {"layer2", 0, 0, 0},
                {"layer3", 1, 1, 2},
                {"layer4", 0, 0, 0}};
    testing t = testing_open(1);
    for (int way = SBP_CONTEXT_ALL_TO_ALL; way <= SBP_CONTEXT_ALL_GATHER; way++) {
        compile_request request = compile_request_for(MODEL, WHOLE_STEP_ROWS, 5, 5);
        sbp_program *p;
        request.options.schedule.checkpoint_every = 3;
        request.options.ranks = request.options.context = 2;
        request.options.context_exchange = (sbp_context_exchange)way;
        testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
        testing_check(&t, sbp_program_verify(p, t.diag));
        for (int i = 0; i < SBP_COUNT(want); i++) {
            const char *names[] = {"forward", "recompute", "backward"};
            const int32_t counts[] = {want[i].forward, want[i].recompute, want[i].backward};
            for (int k = 0; k < SBP_COUNT(names); k++)
                assert_int_equal(exchanges_of(p, sbp_arena_printf(t.arena, "%s.%s", want[i].layer, names[k])),
                                 counts[k]);
        }
    }
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_model_in_all_settings),
                                       cmocka_unit_test(one_model_in_drawn_settings),
                                       cmocka_unit_test(drawn_models),
                                       cmocka_unit_test(a_layer_is_a_segment),
                                       cmocka_unit_test(each_is_written_once),
                                       cmocka_unit_test(frozen_writers_want_none),
                                       cmocka_unit_test(keys_are_not_computed_again),
                                       cmocka_unit_test(ranks_exchange_once)};
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
