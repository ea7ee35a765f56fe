/* test_cli_bf16.c: what a type means, through the real programs: gradients in bf16 against the double
 * evaluator with the same roundings (ir/graph/evaluate.h), and the same bits whatever is kept, fused,
 * recomputed or moved. Beside it the errors against float64 are printed, ours and those of transformers in
 * bf16 (tests/golden/bf16.json): they say what bf16 costs, and are no test. */
#include "passes/lower/passes.h"
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"
#include "tests/unit/frontend_testing.h"

/* A golden case, its rows, and the graph of its step. */
typedef struct golden {
    io_fixture *io;
    fixture f;
    const char *path, *name, *source; /* source: what is compiled */
    sbp_model model;
    sbp_func *step;
    batch *rows;
    sbp_weights *weights;
} golden;

static const char *const cases[] = {
    "llama_plain",    "llama_bias",         "llama_tied_pad",  "llama_gelu",
    "llama_dft",      "llama_mqa",          "llama_rope_yarn", "llama_rope_llama3",
    "mistral_window", "qwen2_sliding",      "qwen2_tied",      "qwen3_plain",
    "qwen3_bias",     "gemma3_layer_types", "gemma3_softcap",  "gemma3_untied_bias"};

/* source: in the case's folder. rows: the folder of others than the case's; NULL: none. */
static golden golden_open_rows(io_fixture *io, const char *name, const char *source, const char *rows,
                               const sbp_model_options *options) {
    golden g = {.io = io, .f = fixture_create(), .name = name};
    fixture *f = &g.f;
    f->round = true;
    g.path = sbp_file_join(f->arena, "tests/golden", name);
    g.source = sbp_file_join(f->arena, g.path, source);
    g.path = rows ? rows : g.path;
    check(f, sbp_model_load(f->arena, f->diag, g.source, options, &g.model));
    append_objective(f, &g.model, sbp_objective_find("sft"), loss_type_of(f, g.path));
    g.step = differentiate(f, g.model.module, sbp_module_find_func(g.model.module, "model"));
    g.rows = batch_read(f, sbp_file_join(f->arena, g.path, "train.jsonl"));
    check(f, sbp_weights_open(f->arena, f->diag, g.model.weights, &g.weights));
    return g;
}

static golden golden_open_source(io_fixture *io, const char *name, const char *source,
                                 const sbp_model_options *options) {
    return golden_open_rows(io, name, source, NULL, options);
}

static golden golden_open(io_fixture *io, const char *name, const sbp_model_options *options) {
    return golden_open_source(io, name, "model", options);
}

static void golden_close(golden *g) {
    sbp_weights_close(g->weights);
    test_free(g->rows);
    fixture_destroy(&g->f);
}

/* Gradients of the case by the real programs, to $D/g.safetensors. */
static void dump(golden *g, const char *compile) {
    const sbp_json *args = read_json(&g->f, sbp_file_join(g->f.arena, g->path, "args.json"));
    const char *text[2] = {"", ""};
    for (int i = 0; i < 2; i++) {
        const sbp_json *list = sbp_json_member(args, i == 0 ? "compile" : "run");
        for (int64_t k = 0; k < list->count; k++)
            text[i] = sbp_arena_printf(g->f.arena, "%s '%s'", text[i], list->items[k].string);
    }
    cli_ok(g->io, sbp_arena_printf(g->f.arena, "$C compile %s -o $D/p %s %s", g->source, text[0], compile));
    cli_ok(g->io,
           sbp_arena_printf(g->f.arena, "$R $D/p --data %s/train.jsonl %s --dump-gradients $D/g.safetensors",
                            g->path, text[1]));
}

static gradient_errors against_oracle(golden *g, double tolerance) {
    sbp_weights *got;
    sbp_tensor **values = run(&g->f, g->model.module, g->step, g->rows, g->weights, "d_loss");
    check(&g->f, sbp_weights_open(g->f.arena, g->f.diag, io_path(g->io, "g.safetensors"), &got));
    gradient_errors e = measure_gradients(&g->f, g->model.module, g->step, values, got, tolerance);
    sbp_weights_close(got);
    return e;
}

/* Errors of the dump against the golden gradients in float64. */
static gradient_errors against_float64(golden *g) {
    gradient_errors e = {0};
    double difference = 0, norm = 0;
    sbp_weights *got, *want;
    check(&g->f, sbp_weights_open(g->f.arena, g->f.diag, io_path(g->io, "g.safetensors"), &got));
    check(&g->f, sbp_weights_open(g->f.arena, g->f.diag,
                                  sbp_file_join(g->f.arena, g->path, "grads.safetensors"), &want));
    for (int32_t i = 0; i < sbp_weights_count(want); i++) {
        const sbp_weight *w = sbp_weights_at(want, i);
        double *x = cli_read_tensor(g->io, got, sbp_weights_find(got, w->name)),
               *y = cli_read_tensor(g->io, want, w), error = relative_error(x, y, w->elems);
        e.worst = error > e.worst ? error : e.worst;
        for (int64_t k = 0; k < w->elems; k++) {
            difference += (x[k] - y[k]) * (x[k] - y[k]);
            norm += y[k] * y[k];
        }
        free(x);
        free(y);
    }
    e.whole = sqrt(difference / norm);
    sbp_weights_close(got);
    sbp_weights_close(want);
    return e;
}

/* "1.2e-02/3.4e-02": of the worst tensor, and of all as one. */
static const char *errors_text(golden *g, double worst, double whole) {
    return sbp_arena_printf(g->f.arena, "%.1e/%.1e", worst, whole);
}

static const char *transformers_text(golden *g, const char *way) {
    const sbp_json *all = sbp_json_member(read_json(&g->f, "tests/golden/bf16.json"), "cases");
    const sbp_json *e = sbp_json_member(sbp_json_member(all, g->name), way);
    return e ? errors_text(g, cli_number(g->io, e, "worst"), cli_number(g->io, e, "whole")) : "-";
}

typedef struct way {
    const char *name, *compile;
    sbp_dtype compute, residual, storage;
    double tolerance;
} way;

/* The last rounds the finished gradients too. */
static const way ways[] = {
    {"bf16", "--dtype bf16", SBP_BF16, SBP_BF16, SBP_F32, SBP_TOLERANCE_BF16_ANY},
    {"fp32 residual", "--dtype bf16 --residual-dtype fp32", SBP_BF16, SBP_F32, SBP_F32,
     SBP_TOLERANCE_BF16_ANY},
    {"bf16 weights", "--dtype fp32 --param-dtype bf16 --master none", SBP_F32, SBP_F32, SBP_BF16,
     SBP_TOLERANCE_F32},
    {"bf16 throughout", "--dtype bf16 --master none --grad-dtype bf16", SBP_BF16, SBP_BF16, SBP_BF16,
     SBP_TOLERANCE_BF16_ANY},
};

/* A step of a case against the evaluator: how far the worst tensor is off. What bf16 costs is
 * said beside it. */
static double evaluate_case(io_fixture *io, const char *name, const way *w) {
    sbp_model_options options = sbp_model_options_for(w->compute);
    options.residual = w->residual;
    options.trainable_storage = w->storage;
    golden g = golden_open(io, name, &options);
    g.f.round_factors = !strstr(w->compile, "--backend vulkan"); /* the CPU multiplies bf16 there, too */
    dump(&g, w->compile);
    gradient_errors e = against_oracle(&g, w->tolerance), exact = against_float64(&g);
    print_message("%-15s %-18s %s (%s); against float64 %s, transformers in bf16 %s, autocast %s\n", w->name,
                  g.name, errors_text(&g, e.worst, e.whole), e.tensor,
                  errors_text(&g, exact.worst, exact.whole), transformers_text(&g, "loaded"),
                  transformers_text(&g, "autocast"));
    golden_close(&g);
    return e.worst;
}

/* Every case agrees with the evaluator to what roundings that fell the other way make of a step, most of them
 * to what a few such make, and a quarter, where none did, to fp32. A rounding too many or too few shows in
 * all of them. step: only every step-th case is taken. */
static void against_the_evaluator(io_fixture *io, const way *w, int step) {
    int agree = 0, close = 0, all = 0;
    for (int c = 0; c < SBP_COUNT(cases); c += step, all++) {
        double off = evaluate_case(io, cases[c], w);
        agree += off <= SBP_TOLERANCE_F32;
        close += off <= SBP_TOLERANCE_BF16_STEP;
    }
    print_message("%s: of %d cases %d within %g, %d without a rounding that fell the other way\n", w->name,
                  all, close, SBP_TOLERANCE_BF16_STEP, agree);
    assert_true(4 * close >= 3 * all);
    if (!strstr(w->compile, "--grad-dtype bf16"))
        assert_true(4 * agree >= all);
}

static void test_against_the_evaluator(void **state) {
    for (int w = 0; w < SBP_COUNT(ways); w++)
        against_the_evaluator(*state, &ways[w], w > 1 && !testing_all() ? 3 : 1);
}

/* One document of a case with states; whether it agrees to fp32. all: counts those of which
 * something counts. */
static bool document_agrees(io_fixture *io, const char *name, const way *w, int line, int *all) {
    sbp_model_options options = sbp_model_options_for(w->compute);
    options.residual = w->residual;
    cli_ok(io, sbp_arena_printf(io->arena,
                                "sed -n %dp $G/%s/train.jsonl >$D/train.jsonl && cp $G/%s/args.json $D", line,
                                name, name));
    golden g = golden_open_rows(io, name, "model", io->directory, &options);
    double counted = 0, worst = HUGE_VAL;
    g.f.round_factors = true;
    for (int64_t i = 0; i < g.rows->rows; i++)
        counted += g.rows->weight[i];
    if (counted > 0) {
        dump(&g, sbp_arena_printf(g.f.arena, "%s --chunk 7", w->compile));
        gradient_errors e = against_oracle(&g, w->tolerance);
        worst = e.worst;
        *all += 1;
        print_message("%-15s %-18s %lld rows: %s (%s)\n", w->name, g.name, (long long)g.rows->rows,
                      errors_text(&g, e.worst, e.whole), e.tensor);
    }
    golden_close(&g);
    return worst <= SBP_TOLERANCE_F32;
}

/* Models that carry states round so often that in a step of six documents a rounding falls the other way: so
 * each document alone, too, and of each model two or more agree to fp32, of which one has but two rows.
 * transformers (without its kernels) rounds the same values but q and k of the delta rule, whose heads of
 * length 1 it keeps in fp32. */
static void test_states_against_the_evaluator(void **state) {
    static const char *const models[] = {"lfm2_v", "qwen3_5_dense_v", "qwen3_next_dense"};
    for (int m = 0; m < SBP_COUNT(models); m++) {
        (void)evaluate_case(*state, models[m], &ways[0]);
        for (int w = 0; w < 2; w++) { /* of the ways */
            int agree = 0, all = 0;
            for (int line = 1; line <= 6; line++)
                agree += document_agrees(*state, models[m], &ways[w], line, &all);
            assert_true(all >= 4 && agree >= 2);
        }
    }
}

/* What drops in the first step of a run with seed 42, as runtime/train/trainer.h has it. */
static double key_of_dropout(void) {
    static const uint64_t of_step[] = {42, 1};
    static const char name[] = "random_dropout";
    return (double)(sbp_hash_bytes(name, strlen(name), sbp_hash_bytes(of_step, sizeof of_step, 0)) >> 11);
}

/* Adapters, one of them with dropout: after pass `lora` the graph has their products and random numbers. */
static void test_adapters_against_the_evaluator(void **state) {
    static const struct {
        const char *name, *base;
    } adapters[] = {{"dropped", "phi3_plain"}, {"all_linear", "qwen2_plain"}, {"patterns", "llama_tied_pad"}};
    static const way types[] = {
        {"adapters fp64", "--dtype fp64", SBP_F64, SBP_F64, SBP_F64, SBP_TOLERANCE_F64},
        {"adapters bf16", "--dtype bf16 --chunk 16", SBP_BF16, SBP_BF16, SBP_F32, SBP_TOLERANCE_BF16_ANY}};
    io_fixture *io = *state;
    int agree = 0;
    for (int i = 0; i < SBP_COUNT(adapters) * SBP_COUNT(types); i++) {
        const way *w = &types[i / SBP_COUNT(adapters)];
        golden g = {.io = io, .f = fixture_create(), .name = adapters[i % SBP_COUNT(adapters)].name};
        fixture *f = &g.f;
        sbp_model_options options = sbp_model_options_for(w->compute);
        const char *path = sbp_arena_printf(f->arena, "tests/golden/lora/%s/adapter", g.name),
                   *rows = sbp_arena_printf(f->arena, "tests/golden/%s/train.jsonl",
                                            adapters[i % SBP_COUNT(adapters)].base);
        sbp_weights *adapter;
        options.trainable_storage = w->storage;
        f->round = f->round_factors = true;
        f->random_dropout = key_of_dropout();
        check(f, sbp_model_load(f->arena, f->diag, path, &options, &g.model));
        const sbp_pass_input in = {.arena = f->arena, .diag = f->diag};
        check(f, sbp_pass_lora(&in, g.model.module));
        append_objective(f, &g.model, sbp_objective_find("sft"), NULL);
        g.step = differentiate(f, g.model.module, sbp_module_find_func(g.model.module, "model"));
        g.rows = batch_read(f, rows);
        check(f, sbp_weights_open(f->arena, f->diag, g.model.weights, &g.weights));
        check(f, sbp_weights_open(f->arena, f->diag,
                                  sbp_file_join(f->arena, path, "adapter_model.safetensors"), &adapter));
        f->adapter = adapter;
        cli_ok(io,
               sbp_arena_printf(f->arena,
                                "$C compile %s -o $D/p --seq-len 94 %s && $R $D/p --data %s --batch-size 100 "
                                "--dump-gradients $D/g.safetensors",
                                path, w->compile, rows));
        gradient_errors e = against_oracle(&g, w->tolerance);
        agree += w->compute == SBP_BF16 && e.worst <= SBP_TOLERANCE_F32;
        print_message("%-15s %-18s %s (%s)\n", w->name, g.name, errors_text(&g, e.worst, e.whole), e.tensor);
        sbp_weights_close(adapter);
        golden_close(&g);
    }
    assert_true(agree > 0);
}

/* Exports, raised: roundings are where their graph has them, not where that of the model's directory does. */
static void test_exports_against_the_evaluator(void **state) {
    static const struct {
        const char *name, *source, *options;
    } exports[] = {{"gemma3_softcap", "model/export18.json", ""},
                   {"gemma3_softcap", "model/export23.json", "--chunk 7 --segment 2"},
                   {"mistral_window", "model/export18.json", ""},
                   {"gpt2", "model/export18.json", "--seq-len 48"}};
    io_fixture *io = *state;
    int close = 0, all = 0;
    for (int c = 0; c < SBP_COUNT(exports); c++)
        for (int w = 0; w < 3; w++, all++) { /* of the ways */
            sbp_model_options options = sbp_model_options_for(ways[w].compute);
            options.residual = ways[w].residual;
            options.trainable_storage = ways[w].storage;
            golden g = golden_open_source(io, exports[c].name, exports[c].source, &options);
            g.f.round_factors = true;
            dump(&g, sbp_arena_printf(g.f.arena, "%s %s", ways[w].compile, exports[c].options));
            gradient_errors e = against_oracle(&g, ways[w].tolerance), exact = against_float64(&g);
            close += e.worst <= SBP_TOLERANCE_BF16_STEP;
            print_message("%-15s %s: %s (%s); against float64 %s\n", ways[w].name, g.source,
                          errors_text(&g, e.worst, e.whole), e.tensor,
                          errors_text(&g, exact.worst, exact.whole));
            golden_close(&g);
        }
    assert_true(4 * close >= 3 * all);
}

/* ---- the same bits ----------------------------------------------------------------------------------- */

#define SAVED "attn_norm+q+k+v+attn_out+lse+gate+up"

static const char *const schedules[] = {
    "--save none",
    "--save " SAVED,
    "--save attn_residual+mlp_norm+act",
    "--segment 2",
    "--segment 3 --save attn_out+lse+up",
    "--checkpoint-every 2",
    "--checkpoint-every 3 --offload host",
    "--segment 2 --checkpoint-every 2 --offload host --save gate+q+lse",
    "--clip none --accumulate 1",
};

/* With the same chunks, nothing else that the schedule decides changes a bit. */
static void same_bits(io_fixture *io, const char *name, const char *chunks) {
    sbp_model_options options = sbp_model_options_for(SBP_BF16);
    golden g = golden_open(io, name, &options);
    for (int i = 0; i < SBP_COUNT(schedules); i++) {
        dump(&g, sbp_arena_printf(g.f.arena, "--dtype bf16 %s %s", chunks, schedules[i]));
        if (i == 0)
            cli_ok(io, "mv $D/g.safetensors $D/first.safetensors");
        else
            cli_same(io, "first.safetensors", "g.safetensors");
    }
    golden_close(&g);
}

static void test_same_bits(void **state) {
    static const char *const few[] = {"llama_plain", "gemma3_layer_types", "qwen2_sliding", "lfm2_v"};
    for (int i = 0; i < SBP_COUNT(few); i++)
        same_bits(*state, few[i], "--chunk 7 --head-chunk 5");
    same_bits(*state, few[0], "--chunk 7 --head-chunk 5 --residual-dtype fp32");
    for (int i = 0; testing_all() && i < SBP_COUNT(cases); i++)
        same_bits(*state, cases[i], "--chunk 16 --head-chunk 64");
}

static void test_same_bits_of_stories(void **state) {
    io_fixture *io = *state;
    for (int i = 0; i < SBP_COUNT(schedules); i++) {
        cli_ok(io,
               sbp_arena_printf(io->arena,
                                "$C compile $S -o $D/p --dtype bf16 --seq-len 512 --chunk 96 --head-chunk "
                                "64 %s && $R $D/p --data $G/stories260k_trl/train.jsonl --batch-size 2 "
                                "--dump-gradients $D/g.safetensors",
                                schedules[i]));
        if (i == 0)
            cli_ok(io, "mv $D/g.safetensors $D/first.safetensors");
        else
            cli_same(io, "first.safetensors", "g.safetensors");
    }
}

static const char *backend = "cpu";

static const char *backend_options(void) {
    return strcmp(backend, "cuda") == 0 ? "--backend cuda --arch sm_90a" : "--backend vulkan";
}

static void test_same_bits_on_device(void **state) {
    char options[100];
    if (!cli_has_device(*state, backend, "gradients in bf16"))
        skip();
    snprintf(options, sizeof options, "%s --chunk 7 --head-chunk 5", backend_options());
    same_bits(*state, "llama_plain", options);
}

/* The evaluator's roundings are no other device's: its gradients against it. Weights in fp32, since one
 * of llama_gelu's is halfway between two bf16 numbers, where that of a master is the other one. */
static void test_against_the_evaluator_on_device(void **state) {
    char compile[100];
    snprintf(compile, sizeof compile, "%s --dtype bf16 --param-dtype fp32", backend_options());
    const way w = {"bf16", compile, SBP_BF16, SBP_BF16, SBP_F32, SBP_TOLERANCE_BF16_ANY};
    if (!cli_has_device(*state, backend, "gradients in bf16"))
        skip();
    against_the_evaluator(*state, &w, testing_all() ? 1 : 3);
}

/* The residual stream is a choice for bf16 alone; its bytes are most of what a token costs. */
static void test_residual_dtype(void **state) {
    io_fixture *io = *state;
    double bytes[2];
    for (int i = 0; i < 2; i++) {
        cli_ok(io, sbp_arena_printf(io->arena,
                                    "$C compile $S -o $D/p --seq-len 4096 --dtype bf16 %s && $C inspect $D/p "
                                    "--json",
                                    i == 0 ? "" : "--residual-dtype fp32"));
        bytes[i] = cli_number(io, cli_json(io, "out"), "bytes_per_token");
    }
    assert_true(bytes[1] >= bytes[0] + 6 * 2 * 64); /* five layers' inputs and the gradient, 64 wide */
    cli_fails(io, 2, "needs --dtype bf16", "$C compile $S -o $D/p --residual-dtype bf16");
    cli_fails(io, 2, "needs --dtype bf16", "$C compile $S -o $D/p --dtype fp64 --residual-dtype fp32");
}

/* ---- norms ------------------------------------------------------------------------------------------- */

/* rms_norm with the roundings that transformers' modules have, element by element: in the op's own rule and
 * in its expansion. w: the type of the weight. */
static void check_norm(fixture *f, const sbp_json *norms, const char *key, const char *cast, sbp_dtype w) {
    const sbp_json *x = sbp_json_member(norms, "x"), *weight = sbp_json_member(norms, "w"),
                   *want = sbp_json_member(norms, key);
    int64_t rows = x->count, n = weight->count;
    sbp_module *m = sbp_module_create(f->arena, "norm");
    sbp_func *func = sbp_module_add_func(m, "f"), *expanded;
    sbp_builder b = sbp_builder_on(m, func, f->diag);
    sbp_type type = {.dtype = SBP_BF16, .rank = 2, .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(n)}};
    sbp_type vector = {.dtype = w, .rank = 1, .dim = {sbp_dim_const(n)}};
    sbp_value in[] = {sbp_func_add_arg(func, SBP_VALUE_STREAM, "x", &type, -1),
                      sbp_func_add_arg(func, SBP_VALUE_PARAM, "w", &vector, -1)};
    sbp_value y = sbp_build(&b, SBP_OP_rms_norm, "y", in, 2,
                            (sbp_attr[]){sbp_attr_double("eps", sbp_json_member(norms, "eps")->real),
                                         sbp_attr_double("offset", strcmp(cast, "after") == 0),
                                         sbp_attr_symbol("cast", cast)},
                            3, NULL);
    sbp_func_add_result(func, y, SBP_RESULT_VALUE, SBP_NO_VALUE, "y");
    check(f, b.status);
    check(f, sbp_expand_func(m, func, false, f->diag, &expanded));
    sbp_eval_env env = {.arena = f->arena, .diag = f->diag, .round = true};
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = rows;
    for (int e = 0; e < 2; e++) {
        const sbp_func *how = e == 0 ? func : expanded;
        sbp_tensor **values = SBP_NEW_ARRAY(f->arena, sbp_tensor *, how->value_count + 1);
        sbp_tensor *tx = values[how->args[0]] = sbp_tensor_create(f->arena, &type, &env.sizes);
        sbp_tensor *tw = values[how->args[1]] = sbp_tensor_create(f->arena, &vector, &env.sizes);
        for (int64_t i = 0; i < rows * n; i++)
            tx->data[i] = x->items[i / n].items[i % n].real;
        for (int64_t j = 0; j < n; j++)
            tw->data[j] = weight->items[j].real;
        check(f, sbp_evaluate(m, how, &env, values));
        const sbp_tensor *got = values[how->results[0].value];
        assert_int_equal(got->type.dtype, w);
        for (int64_t i = 0; i < rows * n; i++) {
            double expected = want->items[i / n].items[i % n].real;
            if (!(fabs(got->data[i] - expected) <= sbp_tolerance(w == SBP_BF16 ? SBP_F64 : SBP_F32)))
                fail_msg("%s: element %lld is %.9g, transformers has %.9g", key, (long long)i, got->data[i],
                         expected);
        }
    }
}

static void test_norms_of_transformers(void **state) {
    (void)state;
    fixture f = fixture_create();
    const sbp_json *norms = sbp_json_member(read_json(&f, "tests/golden/bf16.json"), "norms");
    check_norm(&f, norms, "before bfloat16", "before", SBP_BF16);
    check_norm(&f, norms, "before float32", "before", SBP_F32);
    check_norm(&f, norms, "after bfloat16", "after", SBP_BF16);
    fixture_destroy(&f);
}

int main(int argc, char **argv) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, cli_setup, io_teardown)
    const struct CMUnitTest tests[] = {TEST(test_against_the_evaluator),
                                       TEST(test_adapters_against_the_evaluator),
                                       TEST(test_exports_against_the_evaluator),
                                       TEST(test_states_against_the_evaluator),
                                       TEST(test_same_bits),
                                       TEST(test_same_bits_of_stories),
                                       TEST(test_residual_dtype),
                                       TEST(test_norms_of_transformers)};
    const struct CMUnitTest device[] = {TEST(test_against_the_evaluator_on_device),
                                        TEST(test_same_bits_on_device)};
    backend = argc > 1 ? argv[1] : backend;
    return strcmp(backend, "cpu") != 0 ? cmocka_run_group_tests(device, NULL, NULL)
                                       : cmocka_run_group_tests(tests, NULL, NULL);
}
