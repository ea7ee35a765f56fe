/* test_passes_structure.c: what the header of each pass promises, looked at after each pass, on real models
 * (tests/data/configs) and on the small ones of tests/golden, in all modes. Numbers are the matter of other
 * tests (test_op_chunks, test_two_passes, the goldens); here is what numbers cannot show: what is computed
 * once, what is never as long as the batch, what adds up where. */
#include <dirent.h>
#include <stdlib.h>

#include "frontends/source/frontend.h"
#include "tests/property/passes_structure.h"
#include "tests/unit/objective_test_group.h"

#define CONFIGS "tests/data/configs"
#define GOLDEN "tests/golden"

static const setting modes[] = {
    {.name = "stream"},
    {.name = "checkpoint", .whole = true},
    {.name = "standard", .whole = true, .save_all = true},
    {.name = "stream, k 3, bf16", .every = 3, .bf16 = true},
    {.name = "stream, g 2, offload, step", .segment = 2, .offload = true, .step = true},
    {.name = "save all, k 2, bf16, step", .save_all = true, .every = 2, .bf16 = true, .step = true},
    {.name = "two passes, gradients in bf16", .two_pass = true, .bf16 = true, .bf16_gradients = true},
    {.name = "frozen layer, k 2", .frozen = true, .every = 2},
    {.name = "no optimizer", .no_optimizer = true, .two_pass = true},
    {.name = "context 3, save all", .context = 3, .save_all = true, .no_optimizer = true},
    {.name = "context 2, g 2, two passes, offload",
     .context = 2,
     .segment = 2,
     .two_pass = true,
     .offload = true,
     .no_optimizer = true},
    {.name = "adapters, k 2, offload", .lora = true, .every = 2, .offload = true},
    {.name = "adapters, bf16, two passes", .lora = true, .bf16 = true, .two_pass = true},
};
enum { MODES_OF_REAL_MODELS = 3 };

/* ---- all passes ---------------------------------------------------------------------------------------- */

static void nothing(bench *b) {
    (void)b;
}

#define before_canonicalize nothing
#define before_sink nothing
#define before_segment nothing
#define before_expand nothing
#define before_context nothing
#define before_split nothing
#define before_autodiff nothing
#define before_streambp nothing
#define before_head nothing
#define before_optimizer nothing
#define before_calls nothing
#define before_fuse nothing
#define before_offload nothing
#define after_optimizer nothing /* its rules are looked at where they are used */

/* A new pass does not compile here before somebody writes down what it promises. */
static const struct {
    const char *name;
    void (*before)(bench *b);
    void (*after)(bench *b);
} passes[] = {
#define PASS(name, description) {#name, before_##name, after_##name},
#include "passes/passes.def"
#undef PASS
};

static bench open_bench(const char *name, const char *path, const char *set, const setting *mode, int64_t t) {
    bench b = {.t = testing_open(1), .model = name, .mode = mode};
    sbp_dtype compute = mode->bf16 ? SBP_BF16 : SBP_F32;
    sbp_model_options options = sbp_model_options_for(compute);
    const char *const frozen = "*layers.0.*";
    const sbp_lora_options lora = {.rank = 3, .alpha = 4, .all_linear = true};
    options.set = &set;
    options.set_count = set != NULL;
    options.freeze = &frozen;
    options.freeze_count = mode->frozen;
    options.lora = mode->lora ? &lora : NULL;
    sbp_model model;
    testing_check(&b.t, sbp_model_load(b.t.arena, b.t.diag, path, &options, &model));
    sbp_objective_choice choice = {.name = "sft", .build = mode->two_pass ? objective_test_group : NULL};
    testing_check(&b.t, sbp_objective_add(model.module, b.t.diag, &choice, NULL));
    b.vocabulary = model.vocab_size;
    b.p = (sbp_pipeline){
        .arena = b.t.arena,
        .diag = b.t.diag,
        .module = model.module,
        .target = {.name = "cpu", .alignment_bytes = 64, .attention_partials = 4},
        .options = {
            .t_max = t,
            .ranks = mode->context,
            .context = mode->context,
            .schedule = {.chunk = mode->whole ? t : t / 8,
                         .head_chunk = mode->whole ? t : t / 16,
                         .segment = mode->segment > 0 ? mode->segment : 1,
                         .checkpoint_every = mode->every > 0 ? mode->every : 1,
                         .save_all = mode->save_all,
                         .placement = {[SBP_TENSOR_CHECKPOINT] = mode->offload ? SBP_HOST : SBP_DEVICE,
                                       [SBP_TENSOR_SAVED] = mode->offload ? SBP_HOST : SBP_DEVICE}},
            .grad_dtype = mode->bf16_gradients ? SBP_BF16 : SBP_F32,
            .state_dtype = SBP_F32,
            .optimizer = mode->no_optimizer ? SBP_OPTIMIZER_NONE : SBP_OPTIMIZER_ADAMW,
            .step = mode->step}};
    return b;
}

static void run_pass(bench *b, int number) {
    b->pass = passes[number].name;
    testing_check(&b->t, sbp_pipeline_step(&b->p, number));
}

static int64_t examine(const char *name, const char *path, const setting *mode, int64_t t) {
    bench b = open_bench(name, path, NULL, mode, t);
    for (int i = 0; i < SBP_COUNT(passes); i++) {
        passes[i].before(&b);
        run_pass(&b, i);
        passes[i].after(&b);
        if (b.broken[0])
            fail_msg("%s, %s, after %s: %s", name, mode->name, b.pass, b.broken);
    }
    testing_close(&b.t);
    return b.checks;
}

static void small_models(void **state) {
    (void)state;
    static const char *const models[] = {"llama_tied_pad",
                                         "llama_bias",
                                         "gemma3_layer_types",
                                         "qwen2_sliding",
                                         "qwen3_plain",
                                         "mistral_window",
                                         "lfm2_v",
                                         "tests/data/onnx/side_values.json"};
    int64_t checks = 0;
    int programs = 0;
    for (int m = 0; m < SBP_COUNT(models); m++)
        for (int k = 0; k < SBP_COUNT(modes); k++) {
            char path[128];
            snprintf(path, sizeof path, strchr(models[m], '/') ? "%s" : GOLDEN "/%s/model", models[m]);
            if (modes[k].context > 1 && strcmp(models[m], "lfm2_v") == 0)
                continue; /* states are of one rank */
            checks += examine(models[m], path, &modes[k], 64);
            programs++;
        }
    printf("  %d programs, %lld checks\n", programs, (long long)checks);
}

/* ---- real models --------------------------------------------------------------------------------------- */

static void real_models(void **state) {
    (void)state;
    DIR *dir = opendir(CONFIGS);
    assert_non_null(dir);
    int programs = 0;
    int64_t checks = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const char *name = entry->d_name;
        size_t length = strlen(name);
        if (length < 5 || strcmp(name + length - 5, ".json") != 0)
            continue;
        char path[300];
        snprintf(path, sizeof path, CONFIGS "/%s", name);
        for (int k = 0; k < MODES_OF_REAL_MODELS; k++, programs++)
            checks += examine(name, path, &modes[k], 4096);
    }
    closedir(dir);
    printf("  %d programs, %lld checks\n", programs, (long long)checks);
    assert_true(programs >= 17 * MODES_OF_REAL_MODELS);
}

/* Kernels and functions of the program as text. */
static char *code_of(const char *config, const char *set, const setting *mode) {
    bench b = open_bench(config, config, set, mode, 4096);
    testing_check(&b.t, sbp_pipeline_run(&b.p));
    sbp_text out;
    sbp_text_init(&out, b.t.arena);
    sbp_program_print(&out, b.p.program);
    const char *begin = strstr(out.data, "\nkernel "), *end = strstr(out.data, "\nentry ");
    assert_true(begin && end && begin < end);
    char *code = test_malloc((size_t)(end - begin) + 1);
    memcpy(code, begin, (size_t)(end - begin));
    code[end - begin] = 0;
    testing_close(&b.t);
    return code;
}

/* A deeper model has more calls and more tensors, and not one kernel or function more. */
static void depth_adds_no_code(void **state) {
    (void)state;
    for (int k = 0; k < MODES_OF_REAL_MODELS; k++) {
        char *deep = code_of(CONFIGS "/Qwen3-32B.json", NULL, &modes[k]),
             *flat = code_of(CONFIGS "/Qwen3-32B.json", "num_hidden_layers=2", &modes[k]);
        testing_same_text(deep, flat, modes[k].name);
        test_free(deep);
        test_free(flat);
    }
}

/* ---- the checks can fail ------------------------------------------------------------------------------- */

/* Each check objects when its pass did not run. */
static void a_missing_pass_is_noticed(void **state) {
    (void)state;
    static const char *const silent[] = {"infer", "canonicalize", "optimizer",
                                         "fence"}; /* may change nothing */
    for (int missing = 0; missing < SBP_COUNT(passes); missing++) {
        bool may = false;
        for (int i = 0; i < SBP_COUNT(silent); i++)
            may |= strcmp(silent[i], passes[missing].name) == 0;
        int mode = 0;
        while (strcmp(passes[missing].name, "lora") == 0 && !modes[mode].lora)
            mode++;
        while (strcmp(passes[missing].name, "context") == 0 && modes[mode].context < 2)
            mode++;
        bench b = open_bench("llama_bias", GOLDEN "/llama_bias/model", NULL, &modes[mode], 64);
        for (int i = 0; i < missing; i++)
            run_pass(&b, i);
        passes[missing].before(&b);
        passes[missing].after(&b);
        if (!may && !b.broken[0])
            fail_msg("nobody noticed that %s did not run", passes[missing].name);
        testing_close(&b.t);
    }
}

/* Gradients that are not added, not cleared, not taken: one command of a good program after the other. */
static void broken_sums_are_noticed(void **state) {
    (void)state;
    bench b = open_bench("llama_bias", GOLDEN "/llama_bias/model", NULL, &modes[6], 64);
    int gemms = 0, commands = 0;
    for (int i = 0; i < SBP_COUNT(passes); i++) {
        passes[i].before(&b);
        run_pass(&b, i);
    }
    sbp_program *p = b.p.program;
    for (int32_t n = 0; n < p->function_count; n++)
        for (int32_t i = 0; i < p->functions[n].body.count; i++) {
            sbp_node *node = &p->functions[n].body.nodes[i];
            for (int32_t k = 0; node->kind == SBP_NODE_LOOP && k < node->u.loop->body.count; k++) {
                sbp_command *command = node->u.loop->body.nodes[k].u.command;
                int32_t to = command->kind == SBP_CMD_GEMM ? command->views[0].ref : 0;
                if (to >= 0 || p->functions[n].formals[~to].name[0] != 'A')
                    continue;
                command->u.gemm.beta = 0;
                b.broken[0] = 0;
                after_schedule(&b);
                assert_true(b.broken[0]);
                command->u.gemm.beta = 1;
                gemms++;
            }
        }
    sbp_body *body = NULL;
    for (int32_t i = 0; i < p->entry_count; i++)
        if (strcmp(p->entries[i].name, "accumulate") == 0)
            body = &p->entries[i].body;
    for (int32_t i = 0; i < body->count; i++) {
        sbp_command fence = {.kind = SBP_CMD_FENCE};
        sbp_node node = body->nodes[i];
        bool flush = false;
        for (int32_t k = 0; node.kind == SBP_NODE_COMMAND && node.u.command->kind == SBP_CMD_ROW &&
                            k < node.u.command->view_count;
             k++)
            flush |= p->buffers[node.u.command->views[k].ref].role == SBP_ROLE_ACCUM;
        bool clear = node.kind == SBP_NODE_COMMAND && node.u.command->kind == SBP_CMD_FILL;
        if (!flush && !clear)
            continue;
        body->nodes[i].u.command = &fence;
        b.broken[0] = 0;
        after_offload(&b);
        if (!b.broken[0])
            fail_msg("nobody noticed that %s is missing", sbp_command_name(node.u.command->kind));
        body->nodes[i] = node;
        commands++;
    }
    b.broken[0] = 0;
    after_offload(&b);
    assert_false(b.broken[0]);
    printf("  %d products, %d commands\n", gemms, commands);
    assert_true(gemms == 8 && commands > 40); /* seven products of a layer, one of the head */
    testing_close(&b.t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_models), cmocka_unit_test(real_models), cmocka_unit_test(depth_adds_no_code),
        cmocka_unit_test(a_missing_pass_is_noticed), cmocka_unit_test(broken_sums_are_noticed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
