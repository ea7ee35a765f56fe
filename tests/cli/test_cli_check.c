/* test_cli_check.c: `sbprun check`, with an argument on that backend: plans that are right pass, plans and
 * devices that are wrong do not; what it cannot check it says, by its exit status. What else it sees show the
 * mutants of tests/mutation: kernels, schedules and an executor with faults. */
#include "tests/cli/cli_testing.h"

#include "backends/devices.h"
#include "ir/program/plan_file.h"
#include "runtime/data/dataset.h"
#include "runtime/run/weights.h"
#include "runtime/train/trainer.h"
#include "tests/rowkernel_random.h"

static const char *backend; /* NULL: the CPU */

#define DATA "tests/golden/stories260k_trl/train.jsonl"

/* Rows longer than pieces of the CPU's row kernels (ROW_WHOLE), two heads to each of keys and values; chunks
 * and documents that begin anywhere. */
static const char wide[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 96, "
    "\"intermediate_size\": 1160, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 300, "
    "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": false}";

/* The findings of a check, with this status; of a part, and with this verdict: how many. */
static const sbp_json *check(io_fixture *f, int expected, const char *arguments) {
    int status = cli(f, sbp_arena_printf(f->arena, "$R check %s --json", arguments));
    if (status != expected)
        fail_msg("check %s: exit status %d, expected %d: %s%s", arguments, status, expected,
                 cli_text(f, "out"), cli_text(f, "err"));
    return sbp_json_member(cli_json(f, "out"), "findings");
}

static int count(const sbp_json *findings, const char *part, const char *verdict) {
    int found = 0;
    for (int64_t i = 0; findings && i < findings->count; i++)
        found += (!part || strcmp(sbp_json_member(&findings->items[i], "part")->string, part) == 0) &&
                 (!verdict || strcmp(sbp_json_member(&findings->items[i], "verdict")->string, verdict) == 0);
    return found;
}

/* The last has numbers up to some 200,000, which no 16-bit float but bf16 has. */
static void test_right(void **state) {
    static const struct {
        const char *options;
        bool clear; /* nothing is smaller than rounding */
    } plans[] = {{"--chunk 32 --seq-len 96", true},
                 {"--chunk 24 --seq-len 96 --dtype fp64 --segment 2", true},
                 {"--chunk 32 --seq-len 96 --set initializer_range=4", false}};
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/wide");
    cli_put(f, "wide/config.json", wide);
    for (int i = 0; i < SBP_COUNT(plans); i++) {
        const sbp_json *findings =
            check(f, 0, sbp_arena_printf(f->arena, "$D/wide --weights random:3 %s", plans[i].options));
        assert_int_equal(count(findings, "loss along gradient", NULL), 12); /* kinds of parameters */
        assert_int_equal(count(findings, "commands", "right"), 9);          /* functions, and update */
        assert_int_equal(count(findings, "schedule", "right"), 1);
        assert_int_equal(count(findings, "twice", "right"), 1);
        if (plans[i].clear)
            assert_int_equal(count(findings, NULL, "right"), (int)findings->count);
    }
}

/* All commands of hybrids and of experts are compared; and what is right is not called wrong: jumps of the
 * loss, where a step makes rows choose other experts (the first three); a slope that is steeper than steps in
 * bf16 let one see; a gradient of few numbers, which flipped bits leave as it is (the third, too); a loss of
 * few bits; a gradient of few bits; numbers that nearly cancel. */
static void test_no_false_alarms(void **state) {
    static const struct {
        const char *options;
        const char *unseen; /* a finding that is, or NULL */
    } plans[] = {
        {"granite_hybrid_v/model --seq-len 96 --chunk 32 --weights random:6", "router"},
        {"qwen3_moe_norm_v/model --seq-len 96 --chunk 32 --weights random:12", "mlp.gate"},
        {"qwen3_next_moe_v/model --seq-len 96 --chunk 32 --weights random:8", "mlp.gate"},
        {"gemma3_softcap/model --seq-len 96 --chunk 50 --weights random:76 --dtype bf16", "embed_tokens"},
        {"phi3_plain/model --seq-len 128 --chunk 7 --weights random:11 --objective grpo --loss-type dapo "
         "--freeze '*norm*'",
         NULL},
        {"lfm2_v/model --seq-len 200 --chunk 96 --weights random:42 --objective kto --grad-dtype bf16", NULL},
        {"olmoe_balanced/model --seq-len 200 --chunk 7 --weights random:95 --lora r=4 --base-dtype nf4 "
         "--objective grpo --beta 0.04",
         NULL},
    };
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(plans); i++) {
        const sbp_json *findings = check(f, 0, sbp_arena_printf(f->arena, "$G/%s", plans[i].options));
        bool found = !plans[i].unseen;
        assert_int_equal(count(findings, "commands", NULL), count(findings, "commands", "right"));
        for (int64_t k = 0; k < findings->count && !found; k++) {
            const sbp_json *what = sbp_json_member(&findings->items[k], "what");
            found = strcmp(sbp_json_member(&findings->items[k], "verdict")->string, "unseen") == 0 &&
                    what->kind == SBP_JSON_STRING && strstr(what->string, plans[i].unseen);
        }
        if (!found)
            fail_msg("%s: '%s' is not unseen", plans[i].options, plans[i].unseen);
    }
}

/* ---- settings ----------------------------------------------------------------------------------------- */

static const char *const models[] = {"llama_plain",     "qwen3_sliding",    "gemma3_softcap",
                                     "llama_tied_pad",  "gemma4_shared",    "glm4_moe_norms",
                                     "olmoe_balanced",  "gpt_oss_v",        "lfm2_v",
                                     "qwen3_5_dense_v", "granite_hybrid_v", "nemotron_h_latent"};

/* One of each is drawn; the first of each is what is taken most often. */
static const char *const settings[][13] = {
    {"--chunk 32 --seq-len 96", "--chunk 7 --seq-len 96", "--chunk 96 --seq-len 200"},
    {"", "--dtype bf16", "--dtype fp64", "--grad-dtype bf16", "--dtype bf16 --residual-dtype fp32",
     "--dtype bf16 --param-dtype bf16 --master none", "--state-dtype int8"},
    {"", "--lora r=4", "--lora r=4,dropout=0.3", "--lora r=4,alpha=9 --lora-rslora on", "--freeze '*norm*'",
     "--train '*layers.1.*'"},
    {"", "--offload host", "--offload states", "--offload checkpoints:disk", "--offload gradients+states"},
    {"", "--objective dpo", "--objective orpo", "--objective simpo", "--objective kto", "--objective grpo",
     "--objective ppo", "--objective dpo --loss-type ipo", "--objective grpo --loss-type dapo --beta 0.04",
     "--objective kto --loss-type apo_zero_unpaired", "--objective grpo --importance sequence"},
    {"", "--optimizer sgd", "--optimizer lion", "--optimizer sgd-momentum", "--optimizer none"},
    {"", "--deterministic off", "--packing none", "--head-rows all", "--clip none", "--head-chunk 16"},
    {"", "--backward checkpoint", "--backward standard", "--save none", "--checkpoint-every 2",
     "--segment 2"},
};

static const char *draw_settings(io_fixture *f, sbp_rng *rng) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    const char *model = models[sbp_rng_below(rng, SBP_COUNT(models))];
    sbp_text_add(&text, "$G/%s/model --weights random:%d", model, 1 + (int)sbp_rng_below(rng, 1000));
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        int n = 0;
        while (n < SBP_COUNT(settings[i]) && settings[i][n])
            n++;
        sbp_text_add(&text, " %s", settings[i][sbp_rng_below(rng, 2) ? 0 : sbp_rng_below(rng, n)]);
    }
    return text.data;
}

/* Models, types, adapters, offload, objectives, optimizers and schedules together: each is right. With
 * SBP_TEST_ALL many; SBP_TEST_SEED=N begins elsewhere. */
static void test_settings(void **state) {
    static const char *const others[] = {"--lora r=4 --base-dtype nf4", "--lora r=4 --base-dtype q8_0",
                                         "--objective grpo --share-prompt on"}; /* not for all models */
    io_fixture *f = *state;
    const char *seed = getenv("SBP_TEST_SEED");
    int first = seed ? atoi(seed) : 1;
    for (int i = first; i < first + testing_sweep(4, 400); i++) {
        sbp_rng rng = {.state = (uint64_t)i};
        const char *options = draw_settings(f, &rng);
        const sbp_json *findings = check(f, 0, options);
        if (count(findings, "commands", "unseen") || count(findings, "schedule", "right") != 1)
            fail_msg("check %s: not all of it: %s", options, cli_text(f, "out"));
    }
    cli_ok(f, "mkdir $D/wide");
    cli_put(f, "wide/config.json", wide);
    for (int i = 0; i < SBP_COUNT(others); i++)
        check(f, 0,
              sbp_arena_printf(f->arena, "$D/wide --weights random:3 --chunk 32 --seq-len 96 %s", others[i]));
}

/* ---- what is wrong ------------------------------------------------------------------------------------ */

/* A plan whose program has one line otherwise. */
static void edit_plan(io_fixture *f, const char *from, const char *to) {
    const sbp_plan_file *file;
    assert_ok(f, sbp_plan_file_read(f->arena, f->diag, io_path(f, "p"), &file));
    for (int32_t i = 0; i < file->count; i++) {
        sbp_plan_section *section = &file->sections[i];
        if (strcmp(section->name, SBP_PLAN_PROGRAM) != 0)
            continue;
        const char *text = section->data, *at = strstr(text, from);
        if (!at || strstr(at + 1, from))
            fail_msg("'%s' is not once in the program", from);
        section->data = sbp_arena_printf(f->arena, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
        section->length = (int64_t)strlen(section->data);
    }
    assert_ok(f, sbp_plan_file_write(f->diag, io_path(f, "q"), file->sections, file->count));
}

static void test_wrong_plans(void **state) {
    static const struct {
        const char *what, *from, *to, *part; /* where it shows */
    } edits[] = {
        {"all but a chunk dropped", "c = %A6) {ta, beta = 1}", "c = %A6) {ta}", "schedule"},
        {"another factor", "a = layer0.backward.t65, b = layer0.backward.mlp_norm, c = %A6",
         "a = layer0.backward.t65, b = layer0.backward.attn_norm.2, c = %A6", "loss along gradient"},
        {"a factor missing", "c = %A2) {ta, beta = 1}", "c = %A2) {ta, alpha = 0.98, beta = 1}",
         "loss along gradient"},
        {"gradients of values begin as they were", "fill(dst := layer0.backward.d_carry_v) {value = 0}",
         "fill(dst := layer0.backward.d_carry_k) {value = 0}", "twice"},
    };
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/wide");
    cli_put(f, "wide/config.json", wide);
    cli_ok(f, "$C compile $D/wide -o $D/p --seq-len 96 --chunk 32 -q");
    for (int i = 0; i < SBP_COUNT(edits); i++) {
        edit_plan(f, edits[i].from, edits[i].to);
        const sbp_json *findings = check(f, 1, "$D/q --weights random:3");
        if (count(findings, edits[i].part, "WRONG") == 0)
            fail_msg("%s: not by '%s'", edits[i].what, edits[i].part);
        assert_int_equal(count(findings, "commands", "WRONG"), 0); /* each is what it says */
    }
    cli_fails(f, 1, "", "$R check $D/q --weights random:3");
    if (!strstr(cli_text(f, "out"), "\nwrong: "))
        fail_msg("no verdict: %s", cli_text(f, "out"));
}

/* The CPU, with a fault in a result of a kind of command: the last number is off by a thousandth, or by 1. */
static struct {
    const sbp_device_class *right;
    sbp_command_kind kind;
    int operand, faults;
} faulty;

static sbp_status submit(sbp_device *device, const sbp_dispatch *dispatch, sbp_diag *diag) {
    SBP_TRY(faulty.right->submit(device, dispatch, diag));
    const sbp_span *s = &dispatch->spans[faulty.operand];
    if (dispatch->command->kind != faulty.kind || s->space == SBP_SPACE_COUNT || s->rows == 0)
        return SBP_OK;
    int64_t unit = sbp_dtype_bytes(s->dtype),
            at = s->offset + ((s->rows - 1) * s->stride + s->cols - 1) * unit;
    double value;
    faulty.faults++;
    SBP_TRY(faulty.right->read(device, s->space, at, &value, unit, diag));
    double was = sbp_element_get(&value, s->dtype, 0);
    sbp_element_set(&value, s->dtype, 0,
                    s->dtype == SBP_F32 || s->dtype == SBP_F64 ? 1.001 * was + 1e-3 : was + 1);
    return faulty.right->write(device, s->space, at, &value, unit, diag);
}

/* The worst of a step's commands, as a multiple of what rounding makes. */
static double worst_of_step(io_fixture *f, const sbp_plan *plan, const sbp_device_class *class) {
    const sbp_device_options one = {.threads = 1};
    const char *files[] = {io_path(f, "rows.jsonl")};
    const sbp_dataset_options options = {.files = files, .file_count = 1};
    const int64_t rows[] = {0, 1, 2};
    const sbp_oracle_group *group;
    sbp_executor *x;
    sbp_trainer t;
    sbp_dataset *data;
    sbp_oracle *oracle;
    double worst = 0;
    assert_ok(f, sbp_dataset_load(f->diag, &options, &data));
    assert_ok(f, sbp_executor_create(f->diag, class, &one, plan->program, &x));
    assert_ok(f, sbp_trainer_init(&t, f->diag, x));
    assert_ok(f, sbp_trainer_reset(&t, f->diag));
    assert_ok(f, sbp_params_randomize(x, plan, 3, 1, f->diag));
    assert_ok(f, sbp_oracle_create(f->diag, plan->program, false, &oracle));
    sbp_executor_set_oracle(x, oracle);
    assert_ok(f, sbp_trainer_step(&t, f->diag, data, rows, 3, 1, 1e-3));
    for (int32_t i = 0; (group = sbp_oracle_group_at(oracle, i)); i++) {
        worst = fmax(worst, group->over);
        if (group->unknown > 0)
            fail_msg("%s: no loops for %s", group->name, group->unknown_kind);
    }
    sbp_oracle_destroy(oracle);
    sbp_trainer_close(&t);
    sbp_executor_destroy(x);
    sbp_dataset_destroy(data);
    return worst;
}

/* A fault in each result of a kind of command; how many results there are. */
static int try_faults(io_fixture *f, const sbp_plan *plan, const sbp_device_class *class,
                      const char *compile) {
    const sbp_command command = {.kind = faulty.kind};
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS] = {{.name = "the first", .access = SBP_WRITE}};
    int count = faulty.kind == SBP_CMD_ROW ? 1 : sbp_command_operands(plan->program, &command, operands),
        tried = 0;
    for (faulty.operand = 0; faulty.operand < count; faulty.operand++) {
        const char *name = operands[faulty.operand].name;
        if (operands[faulty.operand].access == SBP_READ || strcmp(name, "work") == 0)
            continue;
        faulty.faults = 0;
        double wrong = worst_of_step(f, plan, class);
        tried += faulty.faults > 0;
        if (faulty.faults > 0 && !(wrong > 16))
            fail_msg("%s: %d faults in %s of %s, %g times what rounding makes", compile, faulty.faults, name,
                     sbp_command_name(faulty.kind), wrong);
    }
    return tried;
}

static void write_ids(sbp_text *out, int tokens, int seed) {
    for (int i = 0; i < tokens; i++)
        sbp_text_add(out, "%s%d", i ? "," : "", (7 * i + seed + i / 40) % 40);
}

/* Documents of a few rows, and of several blocks of SBP_DELTA_BLOCK, which chunks cut anywhere. */
static void test_wrong_devices(void **state) {
    static const struct {
        const char *compile;
        struct {
            sbp_command_kind kind;
            int results;
        } kinds[8];
    } faults[] = {
        {"$D/wide --seq-len 120 --chunk 50",
         {{SBP_CMD_GEMM, 1},
          {SBP_CMD_ROW, 1},
          {SBP_CMD_ATTN_FWD, 2},
          {SBP_CMD_ATTN_BWD, 3},
          {SBP_CMD_GATHER, 1},
          {SBP_CMD_FILL, 1},
          {SBP_CMD_REDUCE, 1},
          {SBP_CMD_COLSUM, 1}}},
        {"$G/qwen3_next_moe_v/model --seq-len 120 --chunk 50",
         {{SBP_CMD_EXPERT_GEMM, 1},
          {SBP_CMD_EXPERT_GEMM_DW, 1},
          {SBP_CMD_ROUTE, 1},
          {SBP_CMD_EXPERT_ORDER, 2},
          {SBP_CMD_CONV_ROWS, 2},
          {SBP_CMD_CONV_ROWS_BWD, 3},
          {SBP_CMD_DELTA_RULE, 2},
          {SBP_CMD_DELTA_RULE_BWD, 6}}},
        {"$G/granite_hybrid_v/model --seq-len 120 --chunk 50",
         {{SBP_CMD_DELTA_RULE, 2}, {SBP_CMD_DELTA_RULE_BWD, 6}}},
    };
    io_fixture *f = *state;
    const sbp_plan *plan;
    sbp_text row;
    sbp_text_init(&row, f->arena);
    for (int r = 0; r < 3; r++) {
        sbp_text ids;
        sbp_text_init(&ids, f->arena);
        write_ids(&ids, r == 2 ? 80 : 18, r);
        sbp_text_add(&row, "{\"input_ids\": [%s], \"labels\": [%s]}\n", ids.data, ids.data);
    }
    cli_put(f, "rows.jsonl", row.data);
    cli_ok(f, "mkdir $D/wide");
    cli_put(f, "wide/config.json", wide);
    faulty.right = sbp_device_find("cpu");
    sbp_device_class class = *faulty.right;
    class.submit = submit;
    for (int m = 0; m < SBP_COUNT(faults); m++) {
        cli_ok(f, sbp_arena_printf(f->arena, "$C compile %s -o $D/p -q", faults[m].compile));
        assert_ok(f, sbp_plan_open(f->arena, f->diag, io_path(f, "p"), &plan));
        double right = worst_of_step(f, plan, faulty.right);
        if (!(right > 0 && right < 16)) /* SBP_CHECK_ROUNDING */
            fail_msg("%s: %g times what rounding makes", faults[m].compile, right);
        for (int k = 0; k < SBP_COUNT(faults[m].kinds) && faults[m].kinds[k].results > 0; k++) {
            faulty.kind = faults[m].kinds[k].kind;
            assert_int_equal(try_faults(f, plan, &class, faults[m].compile), faults[m].kinds[k].results);
        }
    }
}

/* ---- commands ----------------------------------------------------------------------------------------- */

static void test_plan_and_data(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 256 --chunk 64 --lora r=4 --optimizer none");
    const sbp_json *findings = check(f, 0, "$D/p --data " DATA);
    assert_null(strstr(cli_text(f, "err"), "random tokens"));
    assert_int_equal(count(findings, "loss along gradient", "right"), 4); /* A and B of two modules */
    cli_ok(f, "$R check $D/p --data " DATA);
    if (!strstr(cli_text(f, "out"), "\nright: "))
        fail_msg("no verdict: %s", cli_text(f, "out"));
}

/* Before a run: it begins, or does not. */
static void test_before_a_run(void **state) {
    io_fixture *f = *state;
    cli_put(f, "rows.jsonl",
            "{\"text\": \"Once upon a time there was a bird.\"}\n{\"text\": \"It could not fly.\"}\n");
    cli_ok(f, "$C compile $S -o $D/p --seq-len 100 --chunk 32 -q && $R $D/p --data $D/rows.jsonl --steps 1 "
              "--check --out $D/o");
    if (!strstr(cli_text(f, "err"), "\nright: ") || !cli_exists(f, "o/model.safetensors"))
        fail_msg("no check, or no run: %s", cli_text(f, "err"));
    edit_plan(f, "c = %A6) {ta, beta = 1}", "c = %A6) {ta}");
    cli_fails(f, 1, "nothing is trained", "$R $D/q --data $D/rows.jsonl --steps 1 --check --out $D/o2");
    assert_false(cli_exists(f, "o2/model.safetensors"));
    cli_ok(f, "$R $D/q --data $D/rows.jsonl --steps 1 --out $D/o3"); /* which nothing else sees */
}

static void test_cannot(void **state) {
    static const char *const constants[] = {"--loss-type dft",
                                            "--objective grpo --loss-type cispo --epsilon-high 5",
                                            "--objective grpo --loss-type vespo"};
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 64 && cp -r $S $D/moved && "
              "$C compile $D/moved -o $D/q --seq-len 64 && rm -r $D/moved");
    cli_fails(f, 3, "what several ranks do together is not checked", "$R check $S --ranks 2");
    cli_fails(f, 3, "what several ranks do together is not checked", "$R check $S --ranks 2 --zero 2");
    cli_fails(f, 3, "what several ranks do together is not checked",
              "$R check $S --ranks 2 --context-parallel 2");
    cli_ok(f, "$C compile $S -o $D/two --seq-len 64 --ranks 2");
    cli_fails(f, 3, "what several ranks do together is not checked", "$R check $D/two");
    cli_fails(f, 2, "--resume", "$R check $D/p --resume");
    cli_fails(f, 2, "from files", "$R check $D/p --data -");
    const sbp_json *findings = check(f, 3, "$D/q --weights $S/model.safetensors");
    assert_int_equal(count(findings, "schedule", "not checked"), 1);
    assert_non_null(
        strstr(cli_unfolded(f, "err"), "not all of the plan can be checked here: schedule: the model"));
    assert_null(strstr(cli_text(f, "err"), "out of memory"));
    for (int i = 0; i < SBP_COUNT(constants); i++) { /* of which the gradient is no derivative */
        findings =
            check(f, 3, sbp_arena_printf(f->arena, "$G/llama_plain/model --seq-len 64 %s", constants[i]));
        assert_int_equal(count(findings, "loss along gradient", "not checked"), 1);
        assert_int_equal(count(findings, NULL, "not checked"), 1);
        assert_int_equal(count(findings, NULL, "WRONG"), 0);
    }
    cli_ok(f, "for i in 1 2 3 4 5 6 7 8; do printf '{\"input_ids\": [5,6,7,8,9,1,2,3], \"labels\": "
              "[-100,-100,-100,-100,-100,-100,-100,-100]}\\n'; "
              "done >$D/rows.jsonl");
    cli_fails(f, 3, "no gradient to check", "$R check $D/p --data $D/rows.jsonl");
    cli_ok(f, "$R check --help | grep -q '^usage: sbprun check'");
}

/* On another device: a right plan, whole; with SBP_TEST_ALL long rows, states and experts too. */
static void test_device(void **state) {
    static const char *const plans[] = {"$G/llama_plain/model", "$D/wide --weights random:3",
                                        "$G/qwen3_next_moe_v/model --dtype fp32",
                                        "$G/granite_hybrid_v/model --dtype fp32"};
    io_fixture *f = *state;
    if (!cli_has_device(f, backend, "checks"))
        return;
    cli_ok(f, "mkdir $D/wide");
    cli_put(f, "wide/config.json", wide);
    for (int i = 0; i < testing_sweep(1, SBP_COUNT(plans)); i++) {
        const sbp_json *findings = check(
            f, 0, sbp_arena_printf(f->arena, "%s --seq-len 40 --chunk 16 --backend %s", plans[i], backend));
        assert_int_equal(count(findings, "commands", NULL), count(findings, "commands", "right"));
        assert_int_equal(count(findings, "schedule", "right"), 1);
        assert_int_equal(count(findings, "twice", "right"), 1);
        assert_true(count(findings, "loss along gradient", "right") > 3);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest on_device[] = {
        cmocka_unit_test_setup_teardown(test_device, cli_setup, io_teardown),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_right, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_no_false_alarms, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_settings, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_plans, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_devices, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_plan_and_data, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_before_a_run, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_cannot, cli_setup, io_teardown),
    };
    backend = argc > 1 ? argv[1] : NULL;
    return backend ? cmocka_run_group_tests(on_device, NULL, NULL)
                   : cmocka_run_group_tests(tests, NULL, NULL);
}
