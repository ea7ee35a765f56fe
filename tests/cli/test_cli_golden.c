/* Golden gradients (tests/golden) through the real programs: compile, run, compare. Settings of the schedule,
 * micro-batches and the way gradients are consumed must not change them. SBP_TEST_ALL=1 runs every setting on
 * every case.
 *
 *     test_cli_golden [cpu|cuda|vulkan [TEST]]     the cpu (default), or what a driver makes of it
 *     test_cli_golden structures                   the cpu, one case of each structure: for each instruction
 * set */
#include "tests/cli/cli_testing.h"
#include "tests/cli/golden_lists.h"
#include "tests/common/links.h"
#include "tests/common/sweep.h"

#include <dirent.h>

/* Names after --save: a case gets those that its backward can keep. */
#define SAVED "attn_norm+q+k+v+attn_out+lse+gate+up"

/* Little more than the longest document, so that a step has several micro-batches. */
#define MICRO_BATCHES "--seq-len 45"

typedef struct setting {
    const char *name, *compile;
    sbp_dtype dtype;
    bool every_case;
    double tolerance; /* 0: that of the type */
} setting;

static const setting settings[] = {
    {"fp64", "", SBP_F64, true, 0},
    {"fp32", "", SBP_F32, true, 0},
    {"C 7, C_head 5, g 2, k 2", "--chunk 7 --head-chunk 5 --segment 2 --checkpoint-every 2", SBP_F64, true,
     0},
    {"C 1, C_head 1", "--chunk 1 --head-chunk 1", SBP_F64, false, 0},
    {"C 64", "--chunk 64 --head-chunk 64", SBP_F64, false, 0},
    {"checkpoint", "--backward checkpoint", SBP_F64, false, 0},
    {"standard", "--backward standard", SBP_F64, false, 0},
    {"offload", "--chunk 7 --offload host", SBP_F64, false, 0},
    {"offload, saved set, k 3", "--chunk 7 --offload host --checkpoint-every 3 --save q+k+v+attn_out+lse",
     SBP_F64, false, 0},
    {"one step, gradients consumed at once", "--clip none --accumulate 1", SBP_F64, false, 0},
    {"g 3, saved", "--chunk 16 --segment 3 --save attn_out+lse+gate+up", SBP_F64, false, 0},
    {"no optimizer", "--optimizer none", SBP_F64, false, 0},
    {"micro-batches", MICRO_BATCHES, SBP_F64, false, 0},
    {"fp32, C 7", "--chunk 7 --head-chunk 5", SBP_F32, false, 0},
    {"saved", "--chunk 7 --save " SAVED, SBP_F64, false, 0},
    {"saved, g 2, k 2", "--chunk 7 --segment 2 --checkpoint-every 2 --save gate+q+lse", SBP_F64, false, 0},
    {"saved, offload, k 2", "--chunk 7 --checkpoint-every 2 --offload host --save " SAVED, SBP_F64, false, 0},
    {"standard, offload", "--backward standard --offload host", SBP_F64, false, 0},
    {"sgd", "--optimizer sgd", SBP_F64, false, 0},
    {"sgd, gradients consumed at once", "--optimizer sgd --clip none --accumulate 1", SBP_F64, false, 0},
    {"clipped", "--clip 0.001", SBP_F64, false, 0}, /* dumped before clipping */
    {"wide weights, gradients, states", "--param-dtype fp64 --grad-dtype fp64 --state-dtype fp64", SBP_F32,
     false, 0},
    {"bf16 gradients", "--grad-dtype bf16", SBP_F32, false, SBP_TOLERANCE_BF16},
    {"bf16 gradients, consumed at once", "--grad-dtype bf16 --clip none --accumulate 1", SBP_F32, false, 0},
};

/* Other devices. */
static const setting device_settings[] = {
    {"fp32", "", SBP_F32, true, 0},
    {"C 7, C_head 5, g 2, k 2", "--chunk 7 --head-chunk 5 --segment 2 --checkpoint-every 2", SBP_F32, false,
     0},
    {"C 1, C_head 1", "--chunk 1 --head-chunk 1", SBP_F32, false, 0},
    {"checkpoint", "--backward checkpoint", SBP_F32, false, 0},
    {"standard", "--backward standard", SBP_F32, false, 0},
    {"offload, saved set, k 3", "--chunk 7 --offload host --checkpoint-every 3 --save q+k+v+attn_out+lse",
     SBP_F32, false, 0},
    {"one step, gradients consumed at once", "--clip none --accumulate 1", SBP_F32, false, 0},
    {"micro-batches", MICRO_BATCHES, SBP_F32, false, 0},
    {"bf16 gradients", "--grad-dtype bf16", SBP_F32, false, SBP_TOLERANCE_BF16},
};

/* More, with SBP_TEST_ALL=1. */
static const setting device_sweep[] = {
    {"C 64", "--chunk 64 --head-chunk 64", SBP_F32, false, 0},
    {"g 3, saved", "--chunk 16 --segment 3 --save attn_out+lse+gate+up", SBP_F32, false, 0},
    {"saved, g 2, k 2", "--chunk 7 --segment 2 --checkpoint-every 2 --save gate+q+lse", SBP_F32, false, 0},
    {"saved, offload, k 2", "--chunk 7 --checkpoint-every 2 --offload host --save " SAVED, SBP_F32, false, 0},
    {"standard, offload", "--backward standard --offload host", SBP_F32, false, 0},
    {"no optimizer", "--optimizer none", SBP_F32, false, 0},
};

/* On the PTX machine. */
static const struct {
    const char *name;
    setting setting;
} cuda_sample[] = {
#define ROW(case, setting, options, dtype) {case, {setting, options, dtype, true, 0}},
    GOLDEN_CUDA(ROW)
#undef ROW
};

static const char *backend = "cpu";

/* All cases but those of architectures that are only examples of how one is added. */
enum { CASES = 82 };

/* A member of args.json as it would be typed. */
static const char *arguments(io_fixture *f, const sbp_json *args, const char *key) {
    const sbp_json *list;
    sbp_text text;
    sbp_text_init(&text, f->arena);
    assert_ok(f, sbp_json_get_array(f->diag, args, key, SBP_JSON_REQUIRED, &list));
    for (int64_t i = 0; i < list->count; i++)
        sbp_text_add(&text, " '%s'", list->items[i].string);
    return text.data;
}

static bool in_list(const char *list, const char *name, size_t length) {
    for (const char *at = list; (at = strstr(at, name)); at++)
        if ((at == list || at[-1] == ' ') && strchr(", \n", at[length]))
            return true;
    return false;
}

/* The options with those names after --save that the model at `path` has. */
static const char *with_known_values(io_fixture *f, const char *path, const char *options) {
    const char *save = strstr(options, "--save ");
    if (!save || strstr(options, "--save none"))
        return options;
    cli_fails(f, 2, "it could keep ",
              sbp_arena_printf(f->arena, "$C compile %s/model -o $D/p --save nothing_of_this_name", path));
    const char *known = strstr(sbp_arena_strdup(f->arena, cli_text(f, "err")), "it could keep ");
    const char *at = save + strlen("--save ");
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_text_add_n(&text, options, (size_t)(at - options));
    int32_t count = 0;
    for (size_t length; (length = strcspn(at, "+ ")) > 0; at += length + (at[length] == '+')) {
        const char *name = sbp_arena_strndup(f->arena, at, length);
        if (in_list(known, name, length))
            sbp_text_add(&text, "%s%s", count++ > 0 ? "+" : "", name);
        if (at[length] == ' ')
            fail_msg("%s: --save comes last", options);
    }
    if (count == 0)
        fail_msg("%s has none of '%s'", path, save);
    return text.data;
}

static int runs;
static double worst; /* relative error of any tensor in fp32 */

static const sbp_json *args_of(io_fixture *f, const char *path) {
    const sbp_json *args;
    assert_ok(f,
              sbp_json_read(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/args.json", path), 0, &args));
    return args;
}

/* The gradients of a case, in $D/g.safetensors. path: of the case, "tests/golden/llama_plain". */
static void dump_case(io_fixture *f, const char *path, sbp_dtype dtype, const char *compile) {
    const sbp_json *args = args_of(f, path);
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile %s/model -o $D/p --backend %s --dtype %s %s %s", path,
                               strcmp(backend, "cuda") == 0 ? "cuda --arch sm_90a" : backend,
                               dtype == SBP_F64   ? "fp64"
                               : dtype == SBP_F32 ? "fp32"
                                                  : "bf16",
                               arguments(f, args, "compile"), with_known_values(f, path, compile)));
    cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p --data %s/train.jsonl %s --dump-gradients $D/g.safetensors",
                               path, arguments(f, args, "run")));
}

/* The settings of micro-batches, which have room for the longest document of a case. */
static const char *of_the_longest(io_fixture *f, const char *path, const char *compile) {
    static const char refused[] = "compile with --seq-len ";
    if (strcmp(compile, MICRO_BATCHES) != 0)
        return compile;
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile %s/model -o $D/p %s %s", path,
                               arguments(f, args_of(f, path), "compile"), compile));
    if (cli(f, sbp_arena_printf(f->arena, "$R $D/p --data %s/train.jsonl --dry-run", path)) == SBP_OK)
        return compile;
    const char *said = strstr(sbp_arena_strdup(f->arena, cli_text(f, "err")), refused);
    assert_non_null(said);
    return sbp_arena_printf(f->arena, "--seq-len %ld", strtol(said + strlen(refused), NULL, 10));
}

/* In fp32 three times what transformers itself is off there, where that is more. */
static double tolerance_of(io_fixture *f, const char *path, const setting *s) {
    const sbp_json *expect;
    if (s->tolerance > 0 || s->dtype != SBP_F32)
        return s->tolerance > 0 ? s->tolerance : sbp_tolerance(s->dtype);
    assert_ok(
        f, sbp_json_read(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/expect.json", path), 0, &expect));
    const sbp_json *theirs = sbp_json_member(expect, "hf_float32");
    return theirs ? fmax(SBP_TOLERANCE_F32,
                         SBP_TIMES_TRANSFORMERS_F32 * cli_number(f, theirs, "max_relative_error"))
                  : SBP_TOLERANCE_F32;
}

static void run_case(io_fixture *f, const char *path, const setting *s) {
    const char *what = sbp_arena_printf(f->arena, "%s (%s)", path, s->name);
    dump_case(f, path, s->dtype, of_the_longest(f, path, s->compile));
    double error =
        cli_compare(f, what, sbp_arena_strdup(f->arena, io_path(f, "g.safetensors")),
                    sbp_arena_printf(f->arena, "%s/grads.safetensors", path), tolerance_of(f, path, s));
    if (s->dtype == SBP_F32 && s->tolerance == 0 && error > worst)
        worst = error;
    runs++;
}

typedef struct parts {
    const char *name, *compile;
    int32_t tensors; /* that are trained */
} parts;

/* Models of 3 layers with 9 tensors each, the embedding, the last norm and the head. The bottom of the
 * backward is in each place once: between embedding and layers, between groups of checkpoints, between layers
 * and head, within a layer. */
static const parts frozen[] = {
    {"llama_plain", "--train 'model.layers.2.*'", 9},
    {"llama_plain", "--train '*layers.2.*' --chunk 7 --checkpoint-every 3", 9},
    {"llama_plain", "--freeze '*embed*' --freeze '*layers.[01].*'", 11},
    {"llama_plain", "--train '*layers.1.*' --chunk 7 --checkpoint-every 2", 9},
    {"llama_plain", "--train '*layers.1.*' --checkpoint-every 2 --offload host --save q+attn_out+lse", 9},
    {"llama_plain", "--train '*layers.1.*' --freeze '*mlp*' --freeze '*norm*' --backward standard", 4},
    {"llama_plain", "--train '*layers.0.*' --clip none --accumulate 1", 9},
    {"llama_plain", "--train '*q_proj*'", 3},
    {"llama_plain", "--train '*q_proj*' --segment 3 --chunk 5", 3},
    {"llama_plain", "--train '*layers.1.self_attn.q_proj.weight'", 1},
    {"llama_plain", "--train '*k_proj*' --backward checkpoint", 3},
    {"llama_plain", "--train '*layers.2.self_attn.v_proj.weight' --chunk 1", 1},
    {"llama_plain", "--train '*embed*'", 1},
    {"llama_plain", "--train lm_head.weight --checkpoint-every 2", 1},
    {"llama_plain", "--freeze '*layers*'", 3},
    {"gemma3_layer_types", "--train '*layers.2.self_attn.q_proj.weight' --checkpoint-every 3 --chunk 7", 1},
    {"gemma3_layer_types", "--freeze '*embed*' --freeze '*layers.[02].*' --checkpoint-every 2", 27},
    {"llama_tied_pad", "--freeze '*embed*'", 19},
    {"llama_tied_pad", "--train '*embed*'", 1},
    {"qwen3_moe_balanced", "--train '*layers.1.*' --checkpoint-every 3 --chunk 7",
     11}, /* routers above, below */
    {"qwen3_moe_balanced", "--train '*self_attn*' --checkpoint-every 2 --segment 2 --chunk 7", 18},
};

/* False for a case of an architecture that nobody registered, which is refused by its name (or as a
 * multimodal model), and of a loss that balances experts. */
static bool is_built(io_fixture *f, const char *path) {
    const sbp_json *config;
    assert_ok(f, sbp_json_read(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/model/config.json", path),
                               SBP_JSON_PYTHON, &config));
    const char *type = sbp_arena_printf(f->arena, "'%s'", sbp_json_member(config, "model_type")->string);
    /* the weights of others may be elsewhere: their config alone */
    const char *alone =
        "mkdir -p $D/alone && cp %s/model/config.json $D/alone && $C compile $D/alone --stop-after infer";
    if (cli(f, sbp_arena_printf(f->arena, alone, path)) != 1)
        return true;
    const char *text = cli_text(f, "err");
    if (strstr(text, "the loss that balances experts"))
        return false;
    return !strstr(text, type) ||
           (!strstr(text, " is not supported") && !strstr(text, "only text models are supported"));
}

/* Calls visit for every case of a folder that can be compiled; returns how many there are. */
static int each_case(io_fixture *f, const char *folder, void (*visit)(io_fixture *f, const char *path)) {
    int cases = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        const char *name = entry->d_name;
        const char *path = sbp_arena_printf(f->arena, "%s/%s", folder, name);
        const char *gradients = sbp_arena_printf(f->arena, "%s/grads.safetensors", path);
        if (name[0] == '.' || !sbp_file_exists(gradients) || !is_built(f, path))
            continue;
        if (testing_is_path_of_another(gradients)) {
            print_message("skipped: %s: a link is a file there\n", path);
            continue;
        }
        cases++;
        if (testing_wants(name))
            visit(f, path);
    }
    closedir(dir);
    return cases;
}

/* Whether a case runs a setting that not every case does: the first thorough one runs all of them, the
 * others every fourth, each another. */
static bool is_its_turn(const char *name, int number) {
    for (int i = 0; i < SBP_COUNT(golden_thorough); i++)
        if (strcmp(name, golden_thorough[i]) == 0)
            return i == 0 || (i + number) % 4 == 0;
    return false;
}

/* Its experts are, over all documents of a micro-batch: gradients are those of the case where that
 * has all of them.
 */
static bool is_balanced(io_fixture *f, const char *path) {
    const sbp_json *expect;
    assert_ok(
        f, sbp_json_read(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/expect.json", path), 0, &expect));
    return sbp_json_member(sbp_json_member(expect, "metrics"), "aux_loss") != NULL;
}

static void run_all_of(io_fixture *f, const char *path, const setting *list, int count) {
    bool balanced = is_balanced(f, path);
    for (int i = 0; i < count; i++)
        if (!(balanced && strcmp(list[i].name, "micro-batches") == 0) &&
            (list[i].every_case || testing_all() || is_its_turn(strrchr(path, '/') + 1, i)))
            run_case(f, path, &list[i]);
}

/* Cases that run every setting which each case may run; of the others one setting tells, in chunks, where
 * not everything is asked for. */
static bool is_whole(const char *path) {
    const char *name = strrchr(path, '/') + 1;
    bool found = testing_all();
    for (int i = 0; i < SBP_COUNT(golden_thorough); i++)
        found |= strcmp(name, golden_thorough[i]) == 0;
    for (int i = 0; i < SBP_COUNT(golden_structures); i++)
        found |= strcmp(name, golden_structures[i]) == 0;
    return found;
}

/* Whether a case is of a family that no other case stands for on this device. */
static bool is_of_another_family(const char *path) {
    for (int i = 0; i < SBP_COUNT(golden_others); i++)
        if (strcmp(strrchr(path, '/') + 1, golden_others[i]) == 0)
            return true;
    return false;
}

/* Whether a case of others has a copy in tests/golden, which another test runs. */
static bool has_copy(io_fixture *f, const char *path) {
    return strncmp(path, "tests/", 6) != 0 &&
           sbp_file_exists(sbp_arena_printf(f->arena, "tests/golden%s/expect.json", strrchr(path, '/')));
}

static void run_settings(io_fixture *f, const char *path) {
    if (!testing_all() && has_copy(f, path))
        return;
    if (!is_whole(path)) {
        run_case(f, path, &settings[2]);
        if (strncmp(path, "tests/", 6) != 0) /* others' models are structures of their own */
            run_case(f, path, &settings[1]);
        return;
    }
    run_all_of(f, path, settings, SBP_COUNT(settings));
}

static void run_device_settings(io_fixture *f, const char *path) {
    /* a software driver takes seconds a run: by default each structure once, and some thoroughly */
    if (!testing_all() && !is_its_turn(strrchr(path, '/') + 1, 0)) {
        if (is_whole(path) || is_of_another_family(path))
            run_case(f, path, &device_settings[1]);
        return;
    }
    run_all_of(f, path, device_settings, SBP_COUNT(device_settings));
    if (testing_all())
        run_all_of(f, path, device_sweep, SBP_COUNT(device_sweep));
}

/* Layers that carry a state: chunks shorter than it and of the kernels' blocks, states kept, and made
 * again. */
static void test_states(void **state) {
    static const char *const cases[] = {"lfm2_v", "qwen3_5_dense_v", "qwen3_next_dense",
                                        "granite_hybrid_groups", "falcon_h1_plain"};
    static const setting list[] = {
        {"C 1", "--chunk 1", SBP_F64, true, 0},
        {"C 1, no states", "--chunk 1 --save none", SBP_F64, true, 0},
        {"C 3, no states, k 2", "--chunk 3 --save none --checkpoint-every 2", SBP_F64, true, 0},
        {"C 63, g 2", "--chunk 63 --segment 2", SBP_F64, true, 0},
        {"C 64, no states, g 3", "--chunk 64 --segment 3 --save none", SBP_F64, true, 0},
        {"C 65, offload", "--chunk 65 --offload host", SBP_F64, true, 0},
        {"C 3, all on disk, k 2", "--chunk 3 --checkpoint-every 2 --offload checkpoints:disk+saved:disk",
         SBP_F64, true, 0},
        {"C 2, fp32", "--chunk 2", SBP_F32, true, 0},
        {"C 5, step, no states", "--chunk 5 --clip none --accumulate 1 --save none", SBP_F32, true, 0}};
    for (int c = 0; c < SBP_COUNT(cases); c++)
        for (int i = 0; i < SBP_COUNT(list); i++)
            run_case(*state, sbp_arena_printf(((io_fixture *)*state)->arena, "tests/golden/%s", cases[c]),
                     &list[i]);
}

/* Saved activations of several layers of experts: their row kernels sum over the slots of a row, and write
 * over what has none. */
static void test_saved_of_experts(void **state) {
    static const char *const cases[] = {"qwen3_moe_norm_v", "mixtral_v", "gpt_oss_v"};
    static const setting saved = {"g 3, saved", "--chunk 16 --segment 3 --save q+attn_out+lse", SBP_F64, true,
                                  0};
    for (int c = 0; c < SBP_COUNT(cases); c++)
        run_case(*state, sbp_arena_printf(((io_fixture *)*state)->arena, "tests/golden/%s", cases[c]),
                 &saved);
}

/* The dump of the last run again: the same bits. */
static void run_again(io_fixture *f, const char *name) {
    const char *path = sbp_arena_printf(f->arena, "tests/golden/%s", name);
    run_case(f, path, &device_settings[1]);
    cli_ok(f, "mv $D/g.safetensors $D/first.safetensors");
    run_case(f, path, &device_settings[1]);
    cli_same(f, "first.safetensors", "g.safetensors");
}

static void test_golden_gradients_on_device(void **state) {
    if (!cli_has_device(*state, backend, "golden gradients"))
        skip();
    int cases = each_case(*state, "tests/golden", run_device_settings);
    print_message("%d cases, %d runs; worst relative error in fp32: %.2g\n", cases, runs, worst);
    assert_true(cases >= CASES);
}

static void test_golden_sample(void **state) {
    io_fixture *f = *state;
    if (!cli_has_device(f, backend, "golden gradients"))
        skip();
    for (int i = 0; i < SBP_COUNT(cuda_sample); i++)
        run_case(f, sbp_arena_printf(f->arena, "tests/golden/%s", cuda_sample[i].name),
                 &cuda_sample[i].setting);
    print_message("%d runs; worst relative error in fp32: %.2g\n", runs, worst);
}

/* Cases that somebody else made, of all objectives, where they are beside the sources. */
static void test_other_goldens(void **state) {
    static const char folder[] = "../shared/golden";
    io_fixture *f = *state;
    if (!sbp_file_exists(sbp_arena_printf(f->arena, "%s/README.md", folder))) {
        print_message("skipped: golden gradients of %s: it is missing\n", folder);
        skip();
    }
    bool cpu = strcmp(backend, "cpu") == 0;
    if (!cpu && !cli_has_device(f, backend, "golden gradients of others"))
        skip();
    runs = 0;
    worst = 0;
    int cases = each_case(f, folder, cpu ? run_settings : run_device_settings);
    print_message("%d cases, %d runs; worst relative error in fp32: %.2g\n", cases, runs, worst);
    assert_true(cases >= 5 && runs >= cases / 2);
}

static void test_same_bits_on_device(void **state) {
    if (!cli_has_device(*state, backend, "golden gradients"))
        skip();
    for (int i = 0; i < (testing_all() ? SBP_COUNT(golden_thorough) : 1); i++)
        run_again(*state, golden_thorough[i]);
}

/* What other hardware would make the device do gives the same bits: memory that the host does not reach, a
 * queue for copies, small allocations. The validation layer, watching over addresses and barriers, has no
 * objection. */
static void test_ways_to_run_on_vulkan(void **state) {
    io_fixture *f = *state;
    static const char *const ways[] = {
        "SBP_VULKAN_TEST=staging", "SBP_VULKAN_TEST=streams", "SBP_VULKAN_TEST=blocks",
        "SBP_VULKAN_TEST=staging,streams,blocks SBP_VULKAN_VALIDATION=sync", "SBP_VULKAN_VALIDATION=gpu"};
    static const char *const cases[] = {"qwen2_sliding"};
    if (!cli_has_vulkan(f, "golden gradients"))
        skip();
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const char *run = sbp_arena_printf(
            f->arena, "$R $D/p --data $G/%s/train.jsonl --batch-tokens 94 --dump-gradients $D/g.safetensors",
            cases[i]);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile $G/%s/model -o $D/p --backend vulkan --seq-len 94 --chunk 7 "
                                   "--head-chunk 5 --offload host",
                                   cases[i]));
        cli_ok(f, sbp_arena_printf(f->arena, "%s && mv $D/g.safetensors $D/first.safetensors", run));
        for (int w = testing_all() ? 0 : 3; w < SBP_COUNT(ways); w++) { /* by default all at once */
            const char *command = sbp_arena_printf(f->arena, "%s %s", ways[w], run);
            if (cli(f, command) == 3 && strstr(cli_text(f, "err"), "validation layer")) {
                print_message("skipped: vulkan under validation: %s", cli_text(f, "err"));
                continue;
            }
            cli_ok(f, command);
            cli_same(f, "first.safetensors", "g.safetensors");
        }
    }
}

/* A plan is for one backend; a machine without a driver, or without that device, says so. */
static void test_plans_and_devices(void **state) {
    io_fixture *f = *state;
#define RUN " --data $G/llama_plain/train.jsonl --batch-tokens 94 --dump-gradients $D/g.safetensors"
    cli_ok(f, "$C compile $G/llama_plain/model -o $D/cpu --seq-len 94");
    cli_fails(f, 2, "--backend was decided when", "$R $D/cpu --backend vulkan" RUN);
    cli_fails(f, 3, "there is one cpu device", "$R $D/cpu --device 1" RUN);
    if (!cli_has_vulkan(f, "golden gradients"))
        skip();
    cli_ok(f, "$C compile $G/llama_plain/model -o $D/p --seq-len 94 --backend vulkan");
    cli_fails(f, 3, "no usable Vulkan driver", "VK_ICD_FILENAMES=/nonexistent $R $D/p" RUN);
    cli_fails(f, 3, "there is no device 99", "$R $D/p --device 99" RUN);
    cli_fails(f, 2, "--backend was decided when", "$R $D/p --backend cpu" RUN);
    /* A pipeline cache that is damaged is as good as none. */
    cli_ok(f, "XDG_CACHE_HOME=$D/cache $R $D/p" RUN " && mv $D/g.safetensors $D/first.safetensors");
    cli_ok(f, "test -s $D/cache/streambp/vulkan-*.bin && for f in $D/cache/streambp/*; do echo x >$f; done");
    cli_ok(f, "XDG_CACHE_HOME=$D/cache $R $D/p" RUN);
    cli_same(f, "first.safetensors", "g.safetensors");
    cli_ok(f, "test $(stat -c %s $D/cache/streambp/vulkan-*.bin) -gt 16");
#undef RUN
}

/* One case of each structure: what others differ by are numbers. By default one of the two ways, the other on
 * the next instruction set: drawn models of each family run on each (test_random_models). */
static void test_structures(void **state) {
    static const setting ways[] = {{"fp32, C 7", "--chunk 7 --head-chunk 5", SBP_F32, true, 0},
                                   {"C 7, C_head 5, g 2, k 2",
                                    "--chunk 7 --head-chunk 5 --segment 2 --checkpoint-every 2", SBP_F64,
                                    true, 0}};
    static const char *const sets[] = {"base", "v3", "v4"};
    io_fixture *f = *state;
    const char *set = getenv("SBP_CPU_ISA");
    int turn = 0;
    while (set && turn < SBP_COUNT(sets) && strcmp(sets[turn], set) != 0)
        turn++;
    if (!cli_has_isa(f, "golden gradients"))
        return;
    for (int i = 0; i < SBP_COUNT(golden_structures); i++)
        for (int w = 0; w < SBP_COUNT(ways); w++)
            if (testing_all() || (i + turn) % SBP_COUNT(ways) == w)
                run_case(f, sbp_arena_printf(f->arena, "tests/golden/%s", golden_structures[i]), &ways[w]);
    print_message("%d runs; worst relative error in fp32: %.2g\n", runs, worst);
}

static void test_golden_gradients(void **state) {
    int cases = each_case(*state, "tests/golden", run_settings);
    print_message("%d cases, %d runs\n", cases, runs);
    assert_true(cases >= CASES);
}

/* What is trained has the gradients that it has when everything is; the rest has none. */
static void test_frozen_parts(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(frozen); i++) {
        const parts *p = &frozen[i];
        const char *path = sbp_arena_printf(f->arena, "tests/golden/%s", p->name);
        const char *what = sbp_arena_printf(f->arena, "%s (%s)", path, p->compile);
        dump_case(f, path, SBP_F64, p->compile);
        const char *got = sbp_arena_strdup(f->arena, io_path(f, "g.safetensors"));
        int32_t tensors = cli_count_tensors(f, got);
        if (tensors != p->tensors)
            fail_msg("%s: %d gradients, expected %d", what, tensors, p->tensors);
        cli_compare_some(f, what, got, sbp_arena_printf(f->arena, "%s/grads.safetensors", path),
                         sbp_tolerance(SBP_F64));
    }
}

static void compile_without_streambp(io_fixture *f, const char *path) {
    static const char *const modes[] = {"stream", "checkpoint", "standard"};
    static int turn;
    turn++;
    for (int i = 0; i < SBP_COUNT(modes); i++)
        if (testing_all() || (i + turn) % SBP_COUNT(modes) == 0) /* a mode of each case */
            cli_fails(f, 70, "the streambp pass did not make loops and entries",
                      sbp_arena_printf(f->arena, "$C compile %s/model -o $D/p --backward %s --skip-streambp",
                                       path, modes[i]));
    if (!strstr(cli_text(f, "err"), "note: this is an error of sbpc itself: please report it"))
        fail_msg("%s: nothing says what to do about an internal error: %s", path, cli_text(f, "err"));
    if (cli_exists(f, "p"))
        fail_msg("%s: there is a plan although streambp was skipped", path);
}

/* No mode has a way around the one pass that makes schedules: without it every case fails for lack of one. */
static void test_nothing_works_without_streambp(void **state) {
    assert_true(each_case(*state, "tests/golden", compile_without_streambp) >= CASES);
}

/* The names of what the plan keeps, as --save takes them. */
static const char *saved_names(io_fixture *f) {
    const sbp_json *list;
    sbp_text names;
    cli_ok(f, "$C inspect $D/p --json");
    assert_ok(f, sbp_json_get_array(f->diag, cli_json(f, "out"), "saved", SBP_JSON_REQUIRED, &list));
    sbp_text_init(&names, f->arena);
    for (int64_t i = 0; i < list->count; i++)
        sbp_text_add(&names, "%s%s", i > 0 ? "+" : "", list->items[i].string);
    return list->count > 0 ? names.data : "none";
}

/* checkpoint and standard are names for settings of the one schedule: the program is the same, to the byte,
 * when they are spelled out. */
static void test_presets_are_settings(void **state) {
    io_fixture *f = *state;
    static const char *const presets[] = {"checkpoint", "standard"};
    for (int i = 0; i < SBP_COUNT(golden_thorough); i++)
        for (int k = 0; k < SBP_COUNT(presets); k++) {
            cli_ok(f,
                   sbp_arena_printf(f->arena,
                                    "$C compile $G/%s/model -o $D/p --seq-len 64 --backward %s --print-after "
                                    "fence && cp $D/out $D/preset",
                                    golden_thorough[i], presets[k]));
            const char *saved = saved_names(f);
            bool inputs_only = strcmp(saved, "none") == 0 || strcmp(saved, "recurrent_states") == 0;
            assert_true(inputs_only == (k == 0));
            cli_ok(f, sbp_arena_printf(
                          f->arena,
                          "$C compile $G/%s/model -o $D/p --seq-len 64 --backward stream --chunk 64 "
                          "--head-chunk 64 --segment 1 --checkpoint-every 1 --offload none --save %s "
                          "--print-after fence && cp $D/out $D/spelled",
                          golden_thorough[i], saved));
            cli_same(f, "preset", "spelled");
        }
}

/* --offload host moves bytes in the cases with more layers than stay on the device anyway, so the runs above
 * show something. */
static void test_offloading_moves_bytes(void **state) {
    io_fixture *f = *state;
    static const char *const offload[] = {"--offload none", "--offload host"};
    static const char *const deep[] = {"llama_plain", "gemma3_layer_types", "qwen2_sliding"};
    for (int i = 0; i < SBP_COUNT(deep); i++) {
        double host[2], device[2];
        for (int k = 0; k < 2; k++) {
            cli_ok(f, sbp_arena_printf(f->arena,
                                       "$C compile $G/%s/model -o $D/p --seq-len 94 --chunk 7 --save gate %s "
                                       "&& $C inspect $D/p --json",
                                       deep[i], offload[k]));
            const sbp_json *peak = sbp_json_member(cli_json(f, "out"), "peak_bytes");
            host[k] = cli_number(f, peak, "host");
            device[k] =
                cli_number(f, peak, "device") -
                cli_number(f, sbp_json_member(cli_json(f, "out"), "categories"), "the process itself");
        }
        if (host[0] != 0 || host[1] <= 0 || device[1] >= device[0])
            fail_msg("%s: host %g and %g bytes, device %g and %g", deep[i], host[0], host[1], device[0],
                     device[1]);
    }
}

/* Rotary tables that depend on the longest document take that of the whole evaluation, not of the micro-batch
 * at hand: with room for little more than that document the others are apart from it. */
static void test_evaluations_know_the_longest_document(void **state) {
    static const char *const cases[] = {"llama_rope_longrope_long", "llama_rope_dynamic", "phi3_su_long"};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_json *expect;
        const char *path = sbp_arena_printf(f->arena, "tests/golden/%s/expect.json", cases[i]);
        assert_ok(f, sbp_json_read(f->arena, f->diag, path, 0, &expect));
        cli_ok(f, sbp_arena_printf(f->arena, "$C compile $G/%s/model -o $D/p --dtype fp64 --seq-len 45",
                                   cases[i]));
        cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p --eval $G/%s/train.jsonl --json", cases[i]));
        double got = cli_number(f, cli_json(f, "out"), "eval_loss"), want = cli_number(f, expect, "loss");
        if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * want))
            fail_msg("%s: eval_loss is %.17g, expected %.17g", cases[i], got, want);
    }
}

/* A model whose weights are bf16 numbers already loses nothing by --param-dtype bf16, not even without a
 * master. */
static void test_weights_that_are_bf16(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $G/qwen3_plain/model -o $D/p --seq-len 94 --param-dtype bf16 --master none");
    cli_ok(f, "$R $D/p --data $G/qwen3_plain/train.jsonl --lr 0 --steps 1 --out $D/rounded");
    assert_string_equal(sbp_json_member(cli_json(f, "rounded/config.json"), "dtype")->string, "bfloat16");
    cli_ok(f, "$C compile $D/rounded -o $D/q --seq-len 94 --dtype fp64");
    cli_ok(
        f,
        "$R $D/q --data $G/qwen3_plain/train.jsonl --batch-tokens 94 --dump-gradients $D/want.safetensors");
    cli_ok(f,
           "$R $D/p --data $G/qwen3_plain/train.jsonl --batch-tokens 94 --dump-gradients $D/got.safetensors");
    cli_compare(f, "bf16 weights", sbp_arena_strdup(f->arena, io_path(f, "got.safetensors")),
                sbp_arena_strdup(f->arena, io_path(f, "want.safetensors")), SBP_TOLERANCE_F32);
}

int main(int argc, char **argv) {
    const struct CMUnitTest vulkan[] = {
        cmocka_unit_test_setup_teardown(test_golden_gradients_on_device, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_same_bits_on_device, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ways_to_run_on_vulkan, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_plans_and_devices, cli_setup, io_teardown),
    };
    const struct CMUnitTest cuda[] = {
        cmocka_unit_test_setup_teardown(test_golden_sample, cli_setup, io_teardown),
    };
    const struct CMUnitTest all_of_cuda[] = {
        cmocka_unit_test_setup_teardown(test_golden_sample, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_golden_gradients_on_device, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_other_goldens, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_same_bits_on_device, cli_setup, io_teardown),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    backend = argc > 1 ? argv[1] : backend;
    if (strcmp(backend, "structures") == 0) {
        const struct CMUnitTest each[] = {
            cmocka_unit_test_setup_teardown(test_structures, cli_setup, io_teardown)};
        backend = "cpu";
        return cmocka_run_group_tests(each, NULL, NULL);
    }
    if (strcmp(backend, "vulkan") == 0) {
        const struct CMUnitTest others[] = {
            cmocka_unit_test_setup_teardown(test_other_goldens, cli_setup, io_teardown)};
        int failed = cmocka_run_group_tests(vulkan, NULL, NULL);
        return failed + (testing_all() ? cmocka_run_group_tests(others, NULL, NULL) : 0);
    }
    if (strcmp(backend, "cuda") == 0)
        return testing_all() ? cmocka_run_group_tests(all_of_cuda, NULL, NULL)
                             : cmocka_run_group_tests(cuda, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_other_goldens, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_frozen_parts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_states, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_saved_of_experts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_works_without_streambp, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_presets_are_settings, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_offloading_moves_bytes, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_evaluations_know_the_longest_document, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_weights_that_are_bf16, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
