/* The loss that balances experts (tests/data/balance, tests/golden/make_balance.py): gradients, losses and
 * metrics against TRL's losses and transformers' aux_loss in float64, however a step is cut into chunks and
 * among ranks; and what it depends on: how it is cut into micro-batches. */
#include "tests/cli/cli_testing.h"
#include "tests/cli/ranks_testing.h"

#define BALANCE "tests/data/balance"
#define MODEL "tests/golden/qwen3_moe_balanced/model"

static const struct {
    const char *name, *compile, *run;
    int rows; /* of a micro-batch, so that all documents are one; or, `parts`, each */
} cases[] = {
    {"parts", "--objective sft", "--batch-size 4", 19},
    {"dpo", "--objective dpo --beta 0.3", "--beta 0.3 --batch-size 4", 300},
    {"grpo", "--objective grpo --beta 0.05 --epsilon 0.2 --epsilon-high 0.28",
     "--beta 0.05 --epsilon 0.2 --epsilon-high 0.28 --batch-size 4", 300},
};

static const cli_cut cuts[] = {
    {"--dtype fp64 --chunk 7 --head-chunk 5", SBP_TOLERANCE_F64},
    {"--dtype fp64 --chunk 5 --segment 2 --checkpoint-every 3 --head-rows counted", SBP_TOLERANCE_F64},
    {"--dtype fp64 --backward standard --clip none --accumulate 1", SBP_TOLERANCE_F64},
    {"--dtype fp32 --chunk 9 --checkpoint-every 2 --offload host", SBP_TOLERANCE_F32},
};

static const char *wanted(io_fixture *f, int i) {
    return sbp_arena_printf(f->arena, BALANCE "/%s.safetensors", cases[i].name);
}

static void near(const char *what, double got, double want) {
    if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * fmax(1, fabs(want))))
        fail_msg("%s is %.17g, expected %.17g", what, got, want);
}

static void test_gradients(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++)
        for (int c = 0; c < SBP_COUNT(cuts); c++) {
            bool at_once = strstr(cuts[c].compile, "--accumulate 1") != NULL;
            if (at_once && strcmp(cases[i].name, "parts") == 0) /* it has several micro-batches */
                continue;
            const char *compile = sbp_arena_printf(f->arena, "$C compile " MODEL " %s --seq-len %d",
                                                   cases[i].compile, cases[i].rows);
            cli_check_cut(
                f, sbp_arena_printf(f->arena, "%s, %s", cases[i].name, cuts[c].compile), &cuts[c], compile,
                sbp_arena_printf(f->arena, "--data " BALANCE "/%s.jsonl %s", cases[i].name, cases[i].run),
                wanted(f, i));
        }
}

/* An adapter of linear layers, experts and routers, by PEFT: what it gets of the balancing loss,
 * beside the rest. */
static void test_adapted(void **state) {
    static const struct {
        const char *name, *compile, *run;
    } adapted[] = {{"adapted_sft", "--objective sft --seq-len 94", "--batch-tokens 94"},
                   {"adapted_dpo", "--objective dpo --beta 0.3 --seq-len 300", "--beta 0.3 --batch-size 4"}};
    io_fixture *f = *state;
    const sbp_json *expect;
    int count;
    assert_ok(f, sbp_json_read(f->arena, f->diag, BALANCE "/expect.json", 0, &expect));
    for (int i = 0; i < SBP_COUNT(adapted); i++) {
        const char *compile =
                       sbp_arena_printf(f->arena, "$C compile " BALANCE "/adapter %s", adapted[i].compile),
                   *run = sbp_arena_printf(f->arena, "--data " BALANCE "/%s.jsonl %s", adapted[i].name,
                                           adapted[i].run);
        for (int c = 0; c < SBP_COUNT(cuts); c++)
            cli_check_cut(f, sbp_arena_printf(f->arena, "%s, %s", adapted[i].name, cuts[c].compile), &cuts[c],
                          compile, run,
                          sbp_arena_printf(f->arena, BALANCE "/%s.safetensors", adapted[i].name));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "%s -o $D/p --dtype fp64 && $R $D/p %s --steps 1 --out $D/run --overwrite",
                                   compile, run));
        const sbp_json *of = sbp_json_member(expect, adapted[i].name),
                       *line = cli_lines(f, "run/metrics.jsonl", &count)[0];
        near("loss", cli_number(f, line, "loss"), cli_number(f, of, "loss"));
        near("aux_loss", cli_number(f, line, "aux_loss"), cli_number(f, of, "aux_loss"));
    }
}

/* Prompts that are shared count as often as sequences have them. */
static void test_shared_prompts(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile " MODEL
              " -o $D/p --objective dpo --beta 0.3 --dtype fp64 --seq-len 300 --chunk 7 && $R "
              "$D/p --data " BALANCE
              "/dpo.jsonl --beta 0.3 --share-prompt on --dump-gradients $D/got --out none");
    cli_compare(f, "shared prompts", io_path(f, "got"), BALANCE "/dpo.safetensors", SBP_TOLERANCE_F64);
}

/* The loss has it, and the metrics say what it is and how the experts are used; in evaluations, too. Where
 * its weight is 0 the rest stays. */
static void test_metrics(void **state) {
    io_fixture *f = *state;
    const sbp_json *expect;
    assert_ok(f, sbp_json_read(f->arena, f->diag, BALANCE "/expect.json", 0, &expect));
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_json *of = sbp_json_member(expect, cases[i].name);
        int count;
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile " MODEL " -o $D/p --dtype fp64 --seq-len %d --chunk 9 %s && $R $D/p "
                      "--data " BALANCE "/%s.jsonl --eval " BALANCE
                      "/%s.jsonl %s --steps 1 --out $D/run --overwrite",
                      cases[i].rows, cases[i].compile, cases[i].name, cases[i].name, cases[i].run));
        const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
        assert_int_equal(count, 3); /* evaluations before and after */
        double loss = cli_number(f, of, "loss"), aux = cli_number(f, of, "aux_loss");
        near("loss", cli_number(f, lines[1], "loss"), loss);
        near("aux_loss", cli_number(f, lines[1], "aux_loss"), aux);
        near("eval_loss", cli_number(f, lines[0], "eval_loss"), loss);
        near("eval_aux_loss", cli_number(f, lines[0], "eval_aux_loss"), aux);
        double most = cli_number(f, lines[1], "expert_load/max"),
               least = cli_number(f, lines[1], "expert_load/min");
        assert_true(most > 0.2 && most < 0.5 && least > 0 && least < 0.2); /* 5 experts, 2 to a row */
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile " MODEL " -o $D/p --dtype fp64 --seq-len %d --chunk 9 %s "
                                   "--router-aux-loss-coef 0 && $R $D/p --data " BALANCE
                                   "/%s.jsonl %s --steps 1 --out $D/run --overwrite",
                                   cases[i].rows, cases[i].compile, cases[i].name, cases[i].run));
        lines = cli_lines(f, "run/metrics.jsonl", &count);
        near("loss", cli_number(f, lines[0], "loss"), loss - 0.3 * aux);
        near("load", cli_number(f, lines[0], "expert_load/max"), most);
        assert_null(sbp_json_member(lines[0], "aux_loss"));
    }
}

/* How experts are used, by transformers' routers, of models whose routers have no such loss. */
static void test_loads(void **state) {
    io_fixture *f = *state;
    const sbp_json *expect;
    int count;
    assert_ok(f, sbp_json_read(f->arena, f->diag, BALANCE "/expect.json", 0, &expect));
    const sbp_json *of = sbp_json_member(expect, "load");
    assert_true(of && of->count > 0);
    for (int64_t i = 0; i < of->count; i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile $G/%s/model -o $D/p --dtype fp64 --seq-len 106 --chunk 7 && $R "
                                "$D/p --data $G/%s/train.jsonl --batch-tokens 106 --steps 1 --out $D/run "
                                "--overwrite",
                                of->items[i].key, of->items[i].key));
        const sbp_json *line = cli_lines(f, "run/metrics.jsonl", &count)[0];
        near("expert_load/max", cli_number(f, line, "expert_load/max"), cli_number(f, &of->items[i], "max"));
        near("expert_load/min", cli_number(f, line, "expert_load/min"), cli_number(f, &of->items[i], "min"));
    }
}

/* The weight may be given; by a run, too. Models without the loss refuse one that is not 0. */
static void test_options(void **state) {
    io_fixture *f = *state;
    int count;
    const sbp_json *expect, *of;
    assert_ok(f, sbp_json_read(f->arena, f->diag, BALANCE "/expect.json", 0, &expect));
    of = sbp_json_member(expect, "parts");
    double aux = cli_number(f, of, "aux_loss"), rest = cli_number(f, of, "loss") - 0.3 * aux;
    cli_ok(f, "$C compile " MODEL
              " -o $D/p --dtype fp64 --seq-len 19 --router_aux_loss_coef 2 && $R $D/p --data " BALANCE
              "/parts.jsonl --batch-size 4 --steps 1 --out $D/run && $R $D/p --data " BALANCE
              "/parts.jsonl --batch-size 4 --steps 1 --out $D/other --router-aux-loss-coef 0.5");
    near("loss", cli_number(f, cli_lines(f, "run/metrics.jsonl", &count)[0], "loss"), rest + 2 * aux);
    near("loss", cli_number(f, cli_lines(f, "other/metrics.jsonl", &count)[0], "loss"), rest + 0.5 * aux);
    cli_ok(f, "$C compile $G/llama_plain/model -o $D/p --seq-len 19 --router-aux-loss-coef 0");
    cli_fails(f, 2, "models of type llama have no loss that balances experts; leave it out",
              "$C compile $G/llama_plain/model -o $D/p --seq-len 19 --router-aux-loss-coef 0.1");
    cli_fails(f, 2, "models of type deepseek_v3 have no loss that balances experts",
              "$C compile $G/deepseek_v3_groups/model -o $D/p --seq-len 19 --router-aux-loss-coef 0.1");
}

/* Ranks with micro-batches of their own: the mean over all; ranks that have documents together: sums over the
 * rows of all of them. */
static void test_ranks(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "experts that are balanced over ranks"))
        skip();
    cli_ok(f, "$C compile " MODEL
              " -o $D/p --dtype fp64 --seq-len 19 --threads 1 --ranks 2 --zero 2 && $M -n 2 $R $D/p "
              "--data " BALANCE "/parts.jsonl --batch-size 4 --dump-gradients $D/got");
    cli_compare(f, "2 ranks", io_path(f, "got"), BALANCE "/parts.safetensors", SBP_TOLERANCE_F64);
    cli_ok(
        f,
        "$C compile " MODEL
        " -o $D/p --dtype fp64 --seq-len 94 --threads 1 --chunk 7 --checkpoint-every 2 --ranks 2 "
        "--context-parallel 2 && $M -n 2 $R $D/p --data $G/qwen3_moe_balanced/train.jsonl --batch-tokens 94 "
        "--dump-gradients $D/got");
    cli_compare(f, "a context of 2 ranks", io_path(f, "got"),
                "tests/golden/qwen3_moe_balanced/grads.safetensors", SBP_TOLERANCE_F64);
}

/* Over the rows of the whole step it is one loss, however these are cut into micro-batches: gradients are
 * those of transformers over all of them. The same cuts with a loss for each micro-batch are not. */
static const struct {
    const char *name, *compile, *run, *data, *wanted;
} steps[] = {
    {"sft", "--objective sft", "--batch-size 6", "$G/qwen3_moe_balanced/train.jsonl",
     "tests/golden/qwen3_moe_balanced/grads.safetensors"},
    {"dpo", "--objective dpo --beta 0.3", "--beta 0.3 --batch-size 4", BALANCE "/dpo.jsonl",
     BALANCE "/dpo.safetensors"},
    {"grpo", "--objective grpo --beta 0.05 --epsilon 0.2 --epsilon-high 0.28",
     "--beta 0.05 --epsilon 0.2 --epsilon-high 0.28 --batch-size 4", BALANCE "/grpo.jsonl",
     BALANCE "/grpo.safetensors"},
};
static const int step_rows[] = {36, 77, 67}; /* of a micro-batch, of which each step takes two or more */

static const char *of_step(io_fixture *f, int i, const char *settings) {
    return sbp_arena_printf(f->arena, "$C compile " MODEL " %s --seq-len %d --router-aux-scope step %s",
                            steps[i].compile, step_rows[i], settings);
}

static void test_of_step(void **state) {
    static const cli_cut more[] = {
        {"--dtype fp64 --chunk 7 --head-chunk 5 --offload host", SBP_TOLERANCE_F64},
        {"--dtype fp64 --chunk 5 --segment 2 --checkpoint-every 3 --head-rows counted", SBP_TOLERANCE_F64},
        {"--dtype fp64 --backward standard --freeze '*norm*'", SBP_TOLERANCE_F64},
        {"--dtype fp32 --chunk 9 --checkpoint-every 2", SBP_TOLERANCE_F32},
    };
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(steps); i++)
        for (int c = 0; c < SBP_COUNT(more); c++) {
            const char *run = sbp_arena_printf(f->arena, "--data %s %s", steps[i].data, steps[i].run);
            cli_ok(f, sbp_arena_printf(f->arena,
                                       "%s -o $D/p %s && $R $D/p %s --dump-gradients $D/got --out none",
                                       of_step(f, i, more[c].compile), more[c].compile, run));
            double worst = cli_compare_some(
                f, sbp_arena_printf(f->arena, "%s of the step, %s", steps[i].name, more[c].compile),
                sbp_arena_strdup(f->arena, io_path(f, "got")), steps[i].wanted, more[c].tolerance);
            printf("%s of the step, %s: off by %.2g\n", steps[i].name, more[c].compile, worst);
        }
    for (int i = 0; i < SBP_COUNT(steps); i++) { /* the cuts do tell */
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile " MODEL " %s --seq-len %d --dtype fp64 -o $D/p && $R $D/p --data "
                                "%s %s --dump-gradients $D/got --out none",
                                steps[i].compile, step_rows[i], steps[i].data, steps[i].run));
        assert_non_null(strstr(cli_unfolded(f, "err"), "--loss router_aux_scope=step"));
        sbp_weights *got, *want;
        assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "got"), &got));
        assert_ok(f, sbp_weights_open(f->arena, f->diag, steps[i].wanted, &want));
        const sbp_weight *g = sbp_weights_find(got, "model.layers.0.mlp.gate.weight"),
                         *w = sbp_weights_find(want, "model.layers.0.mlp.gate.weight");
        double *x = cli_read_tensor(f, got, g), *y = cli_read_tensor(f, want, w), most = 0;
        for (int64_t k = 0; k < g->elems; k++)
            most = fmax(most, fabs(x[k] - y[k]));
        assert_true(most > SBP_TOLERANCE_F32);
        free(x);
        free(y);
        sbp_weights_close(got);
        sbp_weights_close(want);
    }
}

/* Loss and metrics, of evaluations, too; and what one more forward costs is planned. */
static void test_metrics_of_step(void **state) {
    io_fixture *f = *state;
    const sbp_json *expect;
    int count;
    assert_ok(f, sbp_json_read(f->arena, f->diag, BALANCE "/expect.json", 0, &expect));
    for (int i = 1; i < SBP_COUNT(steps); i++) {
        const sbp_json *of = sbp_json_member(expect, steps[i].name);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "%s -o $D/p && $R $D/p --data %s --eval %s %s --steps 1 --out $D/run "
                                   "--overwrite",
                                   of_step(f, i, "--dtype fp64 --chunk 9"), steps[i].data, steps[i].data,
                                   steps[i].run));
        assert_null(strstr(cli_text(f, "err"), "each micro-batch"));
        const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
        double loss = cli_number(f, of, "loss"), aux = cli_number(f, of, "aux_loss");
        near("loss", cli_number(f, lines[1], "loss"), loss);
        near("aux_loss", cli_number(f, lines[1], "aux_loss"), aux);
        near("eval_loss", cli_number(f, lines[0], "eval_loss"), loss);
        near("eval_aux_loss", cli_number(f, lines[0], "eval_aux_loss"), aux);
        double most = cli_number(f, lines[1], "expert_load/max"),
               least = cli_number(f, lines[1], "expert_load/min");
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile " MODEL
                                   " %s --seq-len 300 --dtype fp64 -o $D/p && $R $D/p --data "
                                   "%s %s --steps 1 --out $D/run --overwrite",
                                   steps[i].compile, steps[i].data, steps[i].run));
        lines = cli_lines(f, "run/metrics.jsonl", &count); /* of one micro-batch */
        near("expert_load/max", most, cli_number(f, lines[0], "expert_load/max"));
        near("expert_load/min", least, cli_number(f, lines[0], "expert_load/min"));
    }
    double seconds[2];
    for (int k = 0; k < 2; k++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile " MODEL
                                   " --seq-len 300 --chunk 60 --checkpoint-every 1 --segment 1 "
                                   "--save none -o $D/p --json %s",
                                   k ? "--router-aux-scope step" : ""));
        seconds[k] = cli_number(f, cli_json(f, "out"), "seconds");
    }
    assert_true(seconds[1] > 1.1 * seconds[0] && seconds[1] < 1.6 * seconds[0]);
    cli_fails(f, 2, "there is no loss that balances experts",
              "$C compile $G/llama_plain/model -o $D/p --seq-len 19 --router-aux-scope step");
}

/* Ranks with micro-batches of their own, and some that have theirs together. */
static void test_ranks_of_step(void **state) {
    static const struct {
        const char *settings;
        int ranks;
    } worlds[] = {
        {"--ranks 2", 2}, {"--ranks 3 --zero 3", 3}, {"--ranks 4 --context-parallel 2 --zero 2", 4}};
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "experts that are balanced over a step of ranks"))
        skip();
    for (int i = 0; i < SBP_COUNT(steps); i++)
        for (int w = 0; w < (i == 0 || testing_all() ? SBP_COUNT(worlds) : 1); w++) {
            cli_ok(f, sbp_arena_printf(
                          f->arena,
                          "%s -o $D/p --threads 1 --chunk 7 && $M -n %d $R $D/p --data %s %s "
                          "--dump-gradients $D/got",
                          of_step(f, i, sbp_arena_printf(f->arena, "--dtype fp64 %s", worlds[w].settings)),
                          worlds[w].ranks, steps[i].data, steps[i].run));
            cli_compare(f, sbp_arena_printf(f->arena, "%s, %s", steps[i].name, worlds[w].settings),
                        sbp_arena_strdup(f->arena, io_path(f, "got")), steps[i].wanted, SBP_TOLERANCE_F64);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_of_step, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_metrics_of_step, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ranks_of_step, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_shared_prompts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_metrics, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_adapted, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_loads, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_options, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ranks, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
