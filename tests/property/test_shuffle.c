/* test_shuffle.c: real models on the CPU device and on the one that runs commands in random order, as far as
 * fences allow (backends/cpu/cpu_device.h): gradients, updated weights and scores must be the same bits. */
#include "backends/cpu/cpu_device.h"
#include "runtime/run/executor.h"
#include "tests/common/compile_model.h"
#include "tests/unit/objective_test_group.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/"
#define SIDE_VALUES "tests/data/onnx/side_values.json"

enum { T_MAX = 17, DOCUMENTS = 4, SEEDS = 5 };

static uint64_t state;

/* In [0, 1). */
static double draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 40) / (1 << 24);
}

/* ---- a model on a device ----------------------------------------------------------------------------- */

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *name;
    sbp_program *program;
    sbp_executor *executor;
} bench;

static void check(bench *b, sbp_status status) {
    if (status != SBP_OK)
        fail_msg("%s: status %d: %s", b->name, (int)status, sbp_diag_text(b->diag, SBP_ERROR));
}

static int64_t elems_of(const bench *b, int32_t buffer) {
    return sbp_executor_elems(b->executor, buffer);
}

/* Weights around 0, those of norms around 1 (one row); all else of the host is 0. */
static void fill(bench *b) {
    const sbp_program *p = b->program;
    static const double scalars[] = {0.01, 0.1, 0.1, 0.99, 0.01, 1e-8, 0.1, 0.1, 1, 20};
    static const char *const names[] = {
        "lr",  "weight_decay", "one_minus_beta1", "beta2",         "one_minus_beta2",
        "eps", "bias1",        "bias2_sqrt",      "max_grad_norm", "labels"};
    for (int k = 0; k < SBP_COUNT(names); k++)
        sbp_executor_set_scalar(b->executor, names[k], scalars[k]);
    const sbp_role zero[] = {SBP_ROLE_GRAD, SBP_ROLE_STATE, SBP_ROLE_RESULT};
    for (int k = 0; k < SBP_COUNT(zero); k++)
        check(b, sbp_executor_fill_role(b->executor, zero[k], 0, b->diag));
    state = 7;
    for (int32_t i = 0; i < p->buffer_count; i++) {
        if (p->buffers[i].role != SBP_ROLE_PARAM)
            continue;
        int64_t n = elems_of(b, i);
        double *values = malloc((size_t)n * sizeof *values);
        bool vector = sbp_extent_as_const(p->buffers[i].rows) == 1;
        for (int64_t k = 0; k < n; k++)
            values[k] = vector ? 0.5 + draw() : (draw() - 0.5) * 0.5;
        check(b, sbp_executor_write(b->executor, i, 0, 0, n, SBP_F64, values, b->diag));
        free(values);
    }
}

static bench open_bench(const char *name, const compile_request *request, const sbp_device_class *class,
                        int32_t threads, uint64_t seed) {
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .name = name};
    check(&b, compile_model(b.arena, b.diag, request, &b.program));
    check(&b, sbp_program_verify(b.program, b.diag));
    sbp_device_options options = {.threads = threads, .shuffle_seed = seed, .offload_dir = "."};
    check(&b, sbp_executor_create(b.diag, class, &options, b.program, &b.executor));
    fill(&b);
    return b;
}

static void close_bench(bench *b) {
    sbp_executor_destroy(b->executor);
    sbp_diag_destroy(b->diag);
    sbp_arena_destroy(b->arena);
}

static void bind(bench *b, int64_t t) {
    int32_t tok[T_MAX], pos[T_MAX], first[T_MAX], label[T_MAX], doc[T_MAX], document = -1;
    double weight[T_MAX];
    for (int32_t r = 0; r < t; r++) {
        bool begins = r == 0 || r == 2 || r == 3 || r == 11; /* documents of 2, 1, 8 rows and the rest */
        document += begins;
        first[r] = begins ? r : first[r - 1];
        pos[r] = r - first[r];
        tok[r] = (int32_t)(draw() * 50);
        label[r] = (int32_t)(draw() * 50);
        weight[r] = draw() < 0.8;
        doc[r] = document;
    }
    const sbp_column columns[] = {
        {"tok", SBP_I32, tok, t},          {"pos", SBP_I32, pos, t},   {"first", SBP_I32, first, t},
        {"shared_end", SBP_I32, first, t}, {"own", SBP_I32, first, t}, {"label", SBP_I32, label, t},
        {"weight", SBP_F64, weight, t},    {"doc", SBP_I32, doc, t},
    };
    check(b, sbp_executor_bind(b->executor, t, document + 1, columns, SBP_COUNT(columns), b->diag));
}

/* Two micro-batches and an update, two scores; nothing waits in between but bind. */
static void train(bench *b) {
    const int64_t sizes[] = {T_MAX, 5};
    const char *backward = sbp_program_find_entry(b->program, "step") ? "step" : "accumulate";
    state = 11;
    for (int k = 0; k < SBP_COUNT(sizes); k++) {
        bind(b, sizes[k]);
        check(b, sbp_executor_run(b->executor, backward, b->diag));
        if (k == 1 && sbp_program_find_entry(b->program, "update"))
            check(b, sbp_executor_run(b->executor, "update", b->diag));
        check(b, sbp_executor_run(b->executor, "score", b->diag));
    }
}

/* Gradients before the update, for programs that keep them. */
static void only_gradients(bench *b) {
    state = 11;
    bind(b, T_MAX);
    check(b, sbp_executor_run(b->executor, "accumulate", b->diag));
    check(b, sbp_executor_run(b->executor, "accumulate", b->diag));
}

/* Every buffer that outlives an entry, bit for bit. */
static int64_t compare(bench *x, bench *y, const char *what) {
    const sbp_program *p = x->program;
    int64_t compared = 0;
    for (int32_t i = 0; i < p->buffer_count; i++) {
        const sbp_buffer *buffer = &p->buffers[i];
        if (buffer->role != SBP_ROLE_PARAM && buffer->role != SBP_ROLE_GRAD &&
            buffer->role != SBP_ROLE_STATE && buffer->role != SBP_ROLE_RESULT)
            continue;
        int64_t n = elems_of(x, i);
        double *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b), sum = 0;
        check(x, sbp_executor_read(x->executor, i, 0, 0, n, SBP_F64, a, x->diag));
        check(y, sbp_executor_read(y->executor, i, 0, 0, n, SBP_F64, b, y->diag));
        for (int64_t k = 0; k < n; k++) {
            sum += a[k] * a[k];
            if (memcmp(&a[k], &b[k], sizeof a[k]) != 0)
                fail_msg("%s, %s: %s[%lld] is %.17g, in order %.17g", x->name, what, buffer->name,
                         (long long)k, b[k], a[k]);
        }
        if (!(sum >= 0 && sum < 1e30))
            fail_msg("%s: %s is not finite", x->name, buffer->name);
        if (buffer->role == SBP_ROLE_GRAD && strcmp(what, "gradients") == 0 && sum == 0)
            fail_msg("%s: the gradient %s is zero", x->name, buffer->name);
        compared += n;
        free(a);
        free(b);
    }
    return compared;
}

static int64_t examine(const char *name, const compile_request *request) {
    int64_t compared = 0;
    bench plain = open_bench(name, request, &sbp_cpu_device, 1, 0);
    bool keeps = sbp_program_find_entry(plain.program, "accumulate") != NULL;
    for (int pass = keeps ? 0 : 1; pass < 2; pass++) {
        void (*run)(bench *) = pass == 0 ? only_gradients : train;
        const char *what = pass == 0 ? "gradients" : "training";
        fill(&plain);
        run(&plain);
        for (uint64_t seed = 1; seed <= SEEDS + 1; seed++) {
            bool shuffled = seed <= SEEDS; /* and once with threads, in order */
            bench other = open_bench(name, request, shuffled ? &sbp_cpu_shuffle_device : &sbp_cpu_device,
                                     shuffled ? 1 : 3, seed);
            run(&other);
            compared += compare(&plain, &other, what);
            close_bench(&other);
        }
    }
    close_bench(&plain);
    return compared;
}

/* ---- the models -------------------------------------------------------------------------------------- */

static void examine_modes(sbp_dtype compute) {
    static const struct {
        const char *model, *mode;
        bool offload, save_all, step, two_pass, counted, no_states;
        int64_t segment, every;
        sbp_space away; /* where everything lives; SBP_DEVICE: as `offload` says */
        int32_t first;  /* how many of each class, from the first; 0: all */
    } cases[] = {
        {"llama_plain", "stream", .segment = 1, .every = 1},
        {"qwen2_sliding", "offload", .offload = true, .segment = 1, .every = 1},
        {"qwen2_sliding", "offload, save all, k 2", .offload = true, .save_all = true, .segment = 1,
         .every = 2},
        {"gemma3_layer_types", "g 2", .segment = 2, .every = 1},
        {"llama_tied_pad", "step, offload", .offload = true, .step = true, .segment = 1, .every = 1},
        {"qwen3_plain", "two passes, k 2", .two_pass = true, .segment = 1, .every = 2},
        {"llama_tied_pad", "all on the host", .away = SBP_HOST, .save_all = true, .segment = 1, .every = 1},
        {"qwen2_sliding", "all on disk, k 2", .away = SBP_DISK, .segment = 1, .every = 2},
        {"llama_plain", "all on disk, step", .away = SBP_DISK, .step = true, .segment = 1, .every = 1},
        {"qwen3_plain", "some on the host", .away = SBP_HOST, .first = 3, .save_all = true, .segment = 1,
         .every = 1},
        {"gemma3_softcap", "counted", .counted = true, .segment = 1, .every = 1},
        {"qwen3_plain", "counted, two passes, offload", .counted = true, .two_pass = true, .offload = true,
         .segment = 1, .every = 2},
        {"llama_tied_pad", "counted, all on disk, step", .counted = true, .away = SBP_DISK, .step = true,
         .segment = 1, .every = 1},
        {"llama_tied_pad", "some on disk, step", .away = SBP_DISK, .first = 9, .step = true, .segment = 1,
         .every = 1},
        {SIDE_VALUES, "k 2", .segment = 1, .every = 2},
        {"lfm2_v", "states", .segment = 1, .every = 2},
        {"lfm2_v", "states on disk, step", .away = SBP_DISK, .step = true, .segment = 1, .every = 1},
        {"lfm2_v", "no states, g 2, k 2", .no_states = true, .segment = 2, .every = 2},
        {SIDE_VALUES, "all on the host, step", .away = SBP_HOST, .step = true, .segment = 1, .every = 1},
        {SIDE_VALUES, "all on disk, save all", .away = SBP_DISK, .save_all = true, .segment = 1, .every = 3},
    };
    int64_t compared = 0;
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        char name[128], path[128];
        snprintf(name, sizeof name, "%s, %s, %s", cases[k].model, cases[k].mode, sbp_dtype_name(compute));
        bool file = strchr(cases[k].model, '/') != NULL; /* a model with as many layers as its file has */
        snprintf(path, sizeof path, file ? "%s" : GOLDEN "%s/model", cases[k].model);
        compile_request request = compile_request_for(path, T_MAX, 5, 3);
        request.compute = request.options.grad_dtype = request.options.state_dtype = compute;
        request.options.schedule.segment = cases[k].segment;
        request.options.schedule.checkpoint_every = cases[k].every;
        compile_offload(&request, cases[k].offload);
        if (cases[k].away != SBP_DEVICE)
            compile_away(&request, cases[k].away, cases[k].first);
        request.options.schedule.save_all = cases[k].save_all;
        request.options.schedule.drop_states = cases[k].no_states;
        request.options.step = cases[k].step;
        request.set = (cases[k].offload || cases[k].first > 0) && !file ? "num_hidden_layers=5" : NULL;
        request.objective = cases[k].two_pass ? objective_test_group : NULL;
        request.options.counted = cases[k].counted ? "weight" : NULL;
        compared += examine(name, &request);
    }
    print_message("%lld numbers compared\n", (long long)compared);
}

static void same_bits_in_fp32(void **unused) {
    (void)unused;
    examine_modes(SBP_F32);
}

static void same_bits_in_fp64(void **unused) {
    (void)unused;
    examine_modes(SBP_F64);
}

/* The shuffle device would notice: without fences some seed gives other bits. */
static void fences_matter(void **unused) {
    (void)unused;
    compile_request request = compile_request_for(GOLDEN "llama_plain/model", T_MAX, 5, 3);
    bench plain = open_bench("no fences", &request, &sbp_cpu_device, 1, 0);
    only_gradients(&plain);
    bool differs = false;
    request.stop_after = "memory";
    for (uint64_t seed = 1; seed <= SEEDS && !differs; seed++) {
        bench other = open_bench("no fences", &request, &sbp_cpu_shuffle_device, 1, seed);
        only_gradients(&other);
        int32_t result = sbp_program_find_buffer(plain.program, "results");
        double a = 0, b = 0;
        check(&plain, sbp_executor_read(plain.executor, result, 0, 0, 1, SBP_F64, &a, plain.diag));
        check(&other, sbp_executor_read(other.executor, result, 0, 0, 1, SBP_F64, &b, other.diag));
        differs = memcmp(&a, &b, sizeof a) != 0;
        close_bench(&other);
    }
    close_bench(&plain);
    assert_true(differs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_in_fp32),
        cmocka_unit_test(same_bits_in_fp64),
        cmocka_unit_test(fences_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
