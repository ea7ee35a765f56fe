/* Side values in drawn combinations of all that a schedule, adapters and ranks can be: gradients of a model
 * whose layers read keys and values of others, and their own embeddings of the tokens, are those of
 * transformers, and of an adapter those of PEFT. SBP_TEST_ALL=1: many more; SBP_DRAW=SEED: one. */
#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)
#define ROWS "tests/golden/gemma4_shared/train.jsonl"

/* What is trained, and its gradients. */
static const struct {
    const char *model, *options, *gradients;
} trained[] = {
    {"$G/gemma4_shared/model", "", "tests/golden/gemma4_shared/grads.safetensors"},
    {"$G/lora/shared/adapter", "", "tests/golden/lora/shared/grads.safetensors"},
    {"$G/gemma4_shared/model", "--train '*layers.[135].*'", "tests/golden/gemma4_shared/grads.safetensors"},
    {"$G/gemma4_shared/model", "--freeze '*layers.0.*' --freeze '*embed*'",
     "tests/golden/gemma4_shared/grads.safetensors"},
    {"$G/gemma4_shared/model", "--train '*layers.1.self_attn.[kv]_proj*'",
     "tests/golden/gemma4_shared/grads.safetensors"},
    {"$G/gemma4_shared/model", "--train '*per_layer_model_projection*'",
     "tests/golden/gemma4_shared/grads.safetensors"},
};

typedef struct ranks {
    int count, together;
} ranks;

/* whole: what --save names is read by the backward, since all is trained. */
static const char *draw_schedule(io_fixture *f, sbp_rng *rng, bool whole) {
    const char *mode = PICK(rng, "stream", "stream", "stream", "checkpoint", "standard");
    bool stream = strcmp(mode, "stream") == 0;
    const char *saved =
        PICK(rng, "", "", "--save attn_out+lse", "--save q+own_gate", "--save gate+up+own_act");
    return TEXT(
        "--backward %s %s--head-chunk %d --segment %d --checkpoint-every %d %s %s %s", mode,
        stream ? TEXT("--chunk %d ", 1 + (int)sbp_rng_below(rng, 30)) : "", 1 + (int)sbp_rng_below(rng, 30),
        1 + (int)sbp_rng_below(rng, 3), 1 + (int)sbp_rng_below(rng, 5), stream && whole ? saved : "",
        sbp_rng_below(rng, 2) ? draw_placement(f, rng) : "", PICK(rng, "", "", "--clip none --accumulate 1"));
}

static ranks draw_ranks(sbp_rng *rng, bool may) {
    static const ranks list[] = {{1, 1}, {1, 1}, {2, 1}, {2, 2}, {3, 3}, {3, 1}, {4, 2}};
    return list[may ? sbp_rng_below(rng, SBP_COUNT(list)) : 0];
}

/* step: gradients are consumed at once, and shares of them would not be there to be dumped. */
static const char *draw_context(io_fixture *f, sbp_rng *rng, ranks r, bool step) {
    if (r.count == 1)
        return "";
    const char *exchange = PICK(rng, "auto", "all-to-all", "all-gather");
    return TEXT("--ranks %d --context-parallel %d --zero %d %s%s", r.count, r.together,
                step ? 0 : (int)sbp_rng_below(rng, 4), r.together > 1 ? "--context-exchange " : "",
                r.together > 1 ? exchange : "");
}

static double draw(io_fixture *f, uint64_t seed, bool may) {
    sbp_rng rng = {.state = seed};
    int what = (int)sbp_rng_below(&rng, 2 * SBP_COUNT(trained));
    what = what < SBP_COUNT(trained) ? what : what % 2; /* the model, and the adapter, more often */
    ranks r = draw_ranks(&rng, may);
    const char *schedule = draw_schedule(f, &rng, what < 2);
    const char *settings = TEXT("%s %s %s", trained[what].options, schedule,
                                draw_context(f, &rng, r, strstr(schedule, "--accumulate 1") != NULL));
    printf("  %lld: %s %s\n", (long long)seed, trained[what].model, settings);
    (void)fflush(stdout);
    cli_ok(f, TEXT("rm -f $D/g; $C compile %s -o $D/p --dtype fp64 --seq-len 79 --threads 1 %s 2>$D/said && "
                   "%s$R $D/p "
                   "--data " ROWS " --batch-size 100 --offload-dir $D --out none --dump-gradients $D/g",
                   trained[what].model, settings, r.count > 1 ? TEXT("$M -n %d ", r.count) : ""));
    const char *got = sbp_arena_strdup(f->arena, io_path(f, "g"));
    assert_true(cli_count_tensors(f, got) > 0);
    return cli_compare_some(f, settings, got, trained[what].gradients, SBP_TOLERANCE_F64);
}

static void test_drawn_combinations(void **state) {
    io_fixture *f = *state;
    bool may = cli_has_ranks(f, "side values among ranks");
    const char *one = getenv("SBP_DRAW");
    int count = testing_all() ? 400 : 10;
    double worst = 0;
    for (int seed = one ? atoi(one) : 1; seed <= (one ? atoi(one) : count); seed++) {
        double off = draw(f, (uint64_t)seed, may);
        worst = off > worst ? off : worst;
    }
    print_message("%d draws; worst tensor off by %.2g\n", one ? 1 : count, worst);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_drawn_combinations, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
