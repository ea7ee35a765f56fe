/* test_odd_graphs.c: graphs that nobody would write by hand (odd_graphs.h) compile, with memory that is
 * linear in their size, and have the right gradients.
 *
 * Memory is what sbpc compile allocates, summary included; arenas are cleared when they are given out, so it
 * also bounds the time that most walks over a graph take. What is quadratic in time alone would show as a
 * test that does not end: sizes are such that it would take minutes. */
#include "tests/common/odd_graphs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cli/sbpc/cli.h"
#include "tests/common/compile_model.h"
#include "tests/common/whole_step.h"

static char directory[] = "/tmp/sbp_odd_XXXXXX", model[sizeof directory + 20], plan[sizeof directory + 20];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(model, sizeof model, "%s/model.json", directory);
    snprintf(plan, sizeof plan, "%s/plan.bin", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    unlink(model);
    unlink(plan);
    return rmdir(directory);
}

/* ---- size --------------------------------------------------------------------------------------------- */

static sbp_status compile(void *user) {
    testing *t = user;
    char *words[] = {model, "-o", plan, "--backend", "cpu", "--seq-len", "64", "--chunk", "16"};
    return sbp_cli_compile(t->arena, t->diag, SBP_COUNT(words), words);
}

/* Bytes per node that sbpc compile allocates for n steps of the shape. Its summary is not shown. */
static double compile_bytes(odd_shape shape, int32_t n) {
    testing t = testing_open(1);
    int32_t nodes = odd_graph_write(&t, shape, n, false, model);
    int kept = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    assert_true(kept >= 0 && nowhere >= 0);
    dup2(nowhere, STDERR_FILENO);
    int64_t before = sbp_test_allocated_bytes();
    sbp_status status = sbp_guard(t.arena, t.diag, compile, &t);
    double bytes = (double)(sbp_test_allocated_bytes() - before);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(nowhere);
    testing_check(&t, status);
    testing_close(&t);
    return bytes / nodes;
}

/* Steps of each shape. */
static const int32_t usual_steps[ODD_SHAPE_COUNT] = {
    [ODD_CHAIN] = 400,   [ODD_DOUBLING] = 400,   [ODD_DIAMONDS] = 100, [ODD_SKIPS] = 400,
    [ODD_RANDOM] = 100,  [ODD_ROTATIONS] = 40,   [ODD_NORMS] = 30,     [ODD_FAN] = 40,
    [ODD_PRODUCTS] = 30, [ODD_PRODUCT_FAN] = 30, [ODD_RESIDUALS] = 30, [ODD_POSITIONS] = 50,
    [ODD_LAYERS] = 10,   [ODD_KINDS] = 5,        [ODD_SCALES] = 10,    [ODD_SHARED] = 10,
};

/* Per node, four times as many may take half as much again: tables that grow by doubling, names with more
 * digits. */
static void memory_is_linear(void **state) {
    (void)state;
    bool linear = true;
    for (int s = 0; s < ODD_SHAPE_COUNT; s++) {
        int32_t n = usual_steps[s];
        double few = compile_bytes((odd_shape)s, n), many = compile_bytes((odd_shape)s, 4 * n);
        printf("  %-12s %6d steps: %8.0f bytes a node; %6d: %8.0f\n", odd_shape_name((odd_shape)s), n, few,
               4 * n, many);
        linear &= many <= 1.5 * few;
    }
    assert_true(linear);
}

/* Whatever has no rows crosses nowhere and stops no cut: a layer more is a call more. */
static void layers_are_segments(void **state) {
    (void)state;
    static const odd_shape shapes[] = {ODD_LAYERS, ODD_SCALES};
    for (int s = 0; s < SBP_COUNT(shapes); s++) {
        testing t = testing_open(1);
        sbp_program *program;
        odd_graph_write(&t, shapes[s], 5, false, model);
        compile_request request = compile_request_for(model, 32, 16, 16);
        testing_check(&t, compile_model(t.arena, t.diag, &request, &program));
        int32_t calls = 0;
        for (int32_t f = 0; f < program->function_count; f++)
            if (strncmp(program->functions[f].name, "layer", 5) == 0 &&
                strstr(program->functions[f].name, ".backward"))
                calls += whole_step_calls(program, "accumulate", program->functions[f].name);
        printf("  %s: %d\n", odd_shape_name(shapes[s]), calls);
        assert_int_equal(calls, 5);
        testing_close(&t);
    }
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static void gradients_are_right(void **state) {
    (void)state;
    testing t = testing_open(1);
    for (int s = 0; s < ODD_SHAPE_COUNT; s++) {
        /* behind more positions gradients are too small for slopes, behind more layers fp32 is too far
         * away */
        int most = s >= ODD_POSITIONS ? 4 : 9;
        odd_graph_write(&t, (odd_shape)s, testing_sweep(4, most), true, model);
        printf("  %s:", odd_shape_name((odd_shape)s));
        whole_step_check(model, true);
    }
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_linear),
                                       cmocka_unit_test(layers_are_segments),
                                       cmocka_unit_test(gradients_are_right)};
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
