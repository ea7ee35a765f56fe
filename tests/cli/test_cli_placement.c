/* test_cli_placement.c: where things live changes no bit. Settings are drawn, with a placement for every
 * class (device, host, disk); weights after two steps, and optimizer states, are those of the same settings
 * with everything on the device. */
#include "tests/cli/drawing.h"
#include "tests/common/sweep.h"

static void train(io_fixture *f, const char *settings, const char *placement, const char *out) {
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "rm -rf $D/%s; $C compile $S -o $D/p --seq-len 96 %s %s && $R $D/p --data $D/d.jsonl "
                  "--out $D/%s --steps 2 --batch-size 2 --lr 1e-3 --save-every 2",
                  out, settings, placement, out));
}

static void test_placement_changes_no_bit(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {19};
    int draws = testing_all() ? 200 : 12, disk = 0, host = 0, states = 0;
    cli_put(f, "d.jsonl",
            "{\"text\":\"Once upon a time there was a little dog who liked to run.\"}\n"
            "{\"text\":\"Lily and Tom saw a big red ball.\"}\n"
            "{\"text\":\"The sun was hot. Sam drank water.\"}\n"
            "{\"text\":\"One day a bird sang in the tree.\"}\n");
    for (int i = 0; i < draws; i++) {
        const char *types = sbp_arena_printf(f->arena, "%s %s",
                                             PICK(&rng, "", "--grad-dtype bf16", "--dtype bf16",
                                                  "--dtype bf16 --param-dtype fp32", "--param-dtype bf16",
                                                  "--dtype bf16 --master none",
                                                  "--dtype bf16 --master none --rounding nearest"),
                                             PICK(&rng, "", "--state-dtype bf16", "--state-dtype int8"));
        const char *settings =
            sbp_arena_printf(f->arena, "--chunk %s --segment %s --checkpoint-every %s --save %s %s %s %s",
                             PICK(&rng, "16", "96", "7"), PICK(&rng, "1", "2", "3"),
                             PICK(&rng, "1", "2", "3"), PICK(&rng, "none", "gate+up", "attn_out+lse"), types,
                             PICK(&rng, "", "--clip none --accumulate 1"),
                             PICK(&rng, "", "--optimizer sgd", "--optimizer sgd-momentum", "--optimizer lion",
                                  "--freeze '*mlp*'"));
        const char *placement = draw_placement(f, &rng);
        printf("  %s %s\n", settings, placement); /* ctest shows it when the test fails */
        train(f, settings, "--offload none", "here");
        train(f, settings, placement, "away");
        cli_same(f, "here/model.safetensors", "away/model.safetensors");
        if (cli_exists(f, "here/checkpoint-2/optimizer.safetensors")) { /* SGD has none */
            cli_same(f, "here/checkpoint-2/optimizer.safetensors", "away/checkpoint-2/optimizer.safetensors");
            states++;
        }
        disk += strstr(placement, ":disk") != NULL;
        host += strstr(placement, ":disk") == NULL || strstr(placement, "+") != NULL;
    }
    assert_true(disk > 0 && host > 0 && states > 0);
}

/* For the longest sequence buckets are no larger than the largest tensor of a layer, so that a
 * layer has several. */
static void test_small_buckets_change_no_bit(void **state) {
    io_fixture *f = *state;
    static const char *const lengths[] = {"--seq-len 96 --offload none",
                                          "--seq-len max --memory 30MiB --offload states+gradients+params"};
    cli_put(f, "d.jsonl",
            "{\"text\":\"Once upon a time there was a little dog who liked to run.\"}\n"
            "{\"text\":\"Lily and Tom saw a big red ball.\"}\n");
    for (int k = 0; k < 2; k++)
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile $S -o $D/p %s --chunk 16 --head-chunk 16 --segment 1 --checkpoint-every 1 "
                      "--save none && $R $D/p --data $D/d.jsonl --out $D/%s --steps 2 --batch-size 2 --lr "
                      "1e-3 --save-every 2",
                      lengths[k], k ? "away" : "here"));
    cli_same(f, "here/model.safetensors", "away/model.safetensors");
    cli_same(f, "here/checkpoint-2/optimizer.safetensors", "away/checkpoint-2/optimizer.safetensors");
    /* of plans that are only tried the census hears nothing */
    cli_ok(f, "SBP_TEST_NAME=t SBP_TEST_PATHS=$D/lines $C compile $S -o $D/q --seq-len max --memory 60MiB "
              "--offload states");
    cli_ok(f, "grep -q plan_chunk_shorter $D/lines && ! grep -q plan_bucket $D/lines");
}

/* ---- gradients and weights of real architectures, everything away ------------------------------------- */

#define ALL_ON(where)                                                                                        \
    "--offload checkpoints:" where "+saved:" where "+states:" where "+gradients:" where "+params:" where

/* Gradients of the first step, and weights after two, in $D/NAME.safetensors and $D/NAME. */
static void train_model(io_fixture *f, const char *model, const char *compile, const char *run,
                        const char *name) {
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile '%s' -o $D/p %s", model, compile));
    cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p %s --dump-gradients $D/%s.safetensors --offload-dir $D",
                               run, name));
    cli_ok(f, sbp_arena_printf(f->arena,
                               "rm -rf $D/%s; $R $D/p %s --steps 2 --lr 1e-3 --save-every never --out $D/%s",
                               name, run, name));
}

static void compare_placements(io_fixture *f, const char *model, const char *compile, const char *run,
                               const char *const *placement, int count) {
    train_model(f, model, compile, run, "here");
    for (int i = 0; i < count; i++) {
        train_model(f, model, sbp_arena_printf(f->arena, "%s %s", compile, placement[i]), run, "away");
        cli_same(f, "here.safetensors", "away.safetensors");
        cli_ok(f, "cd $D/here && for file in *.safetensors; do cmp $file ../away/$file || exit 1; done");
    }
}

/* Every golden model, everything on the host or everything on disk in turn; with SBP_TEST_ALL both, for
 * each. */
static void test_every_golden_with_everything_away(void **state) {
    static const char *const placement[] = {ALL_ON("host"), ALL_ON("disk")};
    io_fixture *f = *state;
    bool both = testing_all();
    int cases = 0;
    cli_ok(f, "ls -d $G/*/grads.safetensors");
    for (char *line = strtok(sbp_arena_strdup(f->arena, cli_text(f, "out")), "\n"); line;
         line = strtok(NULL, "\n")) {
        const char *path = sbp_arena_strndup(f->arena, line, strlen(line) - strlen("/grads.safetensors"));
        if (strstr(path, "/gpt2")) /* only an example of how an architecture is added */
            continue;
        printf("  %s\n", path);
        compare_placements(
            f, sbp_arena_printf(f->arena, "%s/model", path),
            sbp_arena_printf(f->arena, "--chunk 7 %s", cases % 3 == 0 ? "--clip none --accumulate 1" : ""),
            sbp_arena_printf(f->arena, "--data %s/train.jsonl --batch-size 1", path),
            both ? placement : &placement[cases % 2], both ? 2 : 1);
        cases++;
    }
    assert_true(cases > 40);
}

/* Likewise a real one; with SBP_TEST_ALL, and where there is one. */
static void test_a_real_model_with_everything_away(void **state) {
    static const char *const placement[] = {ALL_ON("host"), ALL_ON("disk")};
    io_fixture *f = *state;
    const char *model = cli_real_model("placement of a real model");
    sbp_text row;
    if (!model)
        skip();
    sbp_text_init(&row, f->arena);
    for (int r = 0; r < 2; r++) {
        sbp_text_add(&row, "{\"input_ids\": [1");
        for (int i = 1; i < 128; i++)
            sbp_text_add(&row, ", %d", (i * 30011 + r) % 49152);
        sbp_text_add(&row, "]}\n");
    }
    cli_put(f, "row.jsonl", row.data);
    compare_placements(f, model, "--seq-len 128", "--data $D/row.jsonl --batch-size 1", placement, 2);
    compare_placements(f, model, "--seq-len 128 --clip none --accumulate 1",
                       "--data $D/row.jsonl --batch-size 1", placement, 2);
}

/* ---- what it takes on the device -------------------------------------------------------------------- */

/* The text from `from` on has `first`, and behind it `then`. */
static void in_order(const char *text, const char *from, const char *first, const char *then) {
    const char *begin = strstr(text, from), *one = begin ? strstr(begin, first) : NULL;
    if (!one || !strstr(one, then))
        fail_msg("no '%s', '%s', '%s' in this order", from, first, then);
}

static int count_of(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

/* The tables of a model whose head has one of its own, 97 x 24. Rows are gathered from the embedding as it is
 * kept: no converted copy, and none of it when its gradient is scattered. It and the head are far apart: one
 * slot serves both, where layers, which follow each other, have two of each. What the head computes with is
 * converted before its accumulator is cleared, so that the two tables need not be there at once. */
static void test_tables_take_little(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $G/llama_plain/model -o $D/p --seq-len 64 --chunk 7 --param-dtype bf16 --clip none "
              "--accumulate 1 --offload states+params --print-after fence");
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "out"));
    assert_non_null(strstr(text, "function @embed.forward(out y f32[T, 24], in p0 bf16[97, 24])"));
    assert_non_null(strstr(text, "function @embed.backward(inout G f32[T, 24], inout A0 f32[97, 24])"));
    assert_non_null(strstr(text, "buffer staging.param.bf16.97x24 staging device bf16[97, 24]"));
    assert_non_null(strstr(text, "buffer staging.param.f32.97x24.computed staging device f32[97, 24]"));
    assert_non_null(strstr(text, "buffer staging.param.bf16.24x256[2] staging device bf16[24, 256]"));
    in_order(text, "entry step", "(out0 := staging.param.f32.97x24.computed", "fill(dst := A.head.p1)");
    assert_int_equal(count_of(text, "out0 := staging.param.f32.97x24.computed"),
                     2); /* the heads of step, score */
    /* each is fetched once in a step, though there is one staging buffer; once more in score */
    assert_int_equal(count_of(text, "src = model.embed_tokens.weight) {queue = in}"), 2);
    assert_int_equal(count_of(text, "src = lm_head.weight) {queue = in}"), 2);
    /* a layer's matrices in one piece: for forward and backward of the step, and in score */
    assert_int_equal(count_of(text, "src = params.bf16.1) {queue = in}"), 3);
    /* kept wider than it is computed with and read by the head too, it is converted once, for both */
    cli_ok(f, "$C compile $G/llama_tied_pad/model -o $D/p --seq-len 64 --dtype bf16 --param-dtype fp32 "
              "--offload params --print-after fence");
    assert_non_null(strstr(cli_text(f, "out"), "function @embed.forward(out y bf16[T, 18], in p0 bf16["));
    cli_ok(f, "$C compile $G/llama_plain/model -o $D/p --seq-len 64 --dtype bf16 --param-dtype fp32 "
              "--offload none --print-after fence");
    assert_non_null(
        strstr(cli_text(f, "out"), "function @embed.forward(out y bf16[T, 24], in p0 f32[97, 24])"));
}

/* Norms are many and small: nothing of them leaves the device, so that a step moves matrices only. */
static void test_what_is_small_stays(void **state) {
    io_fixture *f = *state;
    static const char *const steps[] = {"", "--clip none --accumulate 1"};
    for (int s = 0; s < SBP_COUNT(steps); s++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile $S -o $D/p --seq-len 96 --offload "
                                   "states:disk+gradients+params --print-after fence %s",
                                   steps[s]));
        const char *text = cli_text(f, "out");
        assert_non_null(strstr(text, "buffer model.layers.0.input_layernorm.weight param device f32[1, 64]"));
        assert_non_null(
            strstr(text, "buffer model.layers.0.input_layernorm.weight.exp_avg state device f32[1, 64]"));
        assert_non_null(strstr(text,
                               "buffer model.layers.0.self_attn.o_proj.weight param host f32[64, 64] in "
                               "params.f32.1 at "));
        assert_non_null(strstr(text, "buffer model.layers.0.self_attn.o_proj.weight.exp_avg state disk "
                                     "f32[64, 64] "));
        assert_true(count_of(text, "src = params.f32.1)") > 0);
        assert_int_equal(count_of(text, "src = model.layers.0.self_attn.o_proj.weight)"), 0);
        assert_int_equal(count_of(text, "src = model.layers.0.input_layernorm.weight)"), 0);
        assert_null(strstr(text, "staging.param.f32.1x64"));
        assert_null(strstr(text, "staging.state.f32.1x64"));
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_placement_changes_no_bit, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_small_buckets_change_no_bit, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_tables_take_little, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_small_stays, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_every_golden_with_everything_away, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_real_model_with_everything_away, cli_setup, io_teardown)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
