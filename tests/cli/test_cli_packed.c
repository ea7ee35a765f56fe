/* Checkpoints of compressed-tensors in INT4 and INT8 (tests/golden/packed, made by the package): gradients
 * and log-probabilities of adapters are those of the model whose weights the package has made numbers again.
 * What no adapter is merged into is written byte for byte; else all is numbers. What is not read is refused.
 */
#include "tests/cli/cli_testing.h"
#include "tests/cli/golden_lists.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)
#define EXPERTS "tests/golden/packed/experts"
#define EXPERT "model.layers.1.mlp.experts.4.up_proj."

static void dump(io_fixture *f, const char *name, const char *model, const char *options, const char *to) {
    cli_ok(f, TEXT("$C compile %s -o $D/p --seq-len 41 %s", model, options));
    cli_ok(f, TEXT("$R $D/p --data $G/packed/%s/train.jsonl --batch-tokens 41 --dump-gradients $D/%s", name,
                   to));
}

static void compare(io_fixture *f, const char *what, const char *got, const char *want, sbp_dtype dtype) {
    cli_compare(f, what, sbp_arena_strdup(f->arena, io_path(f, got)), want, sbp_tolerance(dtype));
}

static void test_gradients(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(golden_packed); i++) {
        const char *name = golden_packed[i], *adapter = TEXT("$G/packed/%s/adapter", name);
        dump(f, name, adapter, "--dtype fp32 --chunk 13", "g.safetensors");
        compare(f, name, "g.safetensors", TEXT("tests/golden/packed/%s/grads.safetensors", name), SBP_F32);
        cli_ok(f, "grep -q dequantize.int4 $D/p");
    }
}

static void check_scores(io_fixture *f, const char *name) {
    const sbp_json *expect, *want = NULL;
    int count, rows = 0, compared = 0;
    cli_ok(f, TEXT("$R $D/p --data $G/packed/%s/train.jsonl --score $D/s.jsonl", name));
    const sbp_json **lines = cli_lines(f, "s.jsonl", &count);
    assert_ok(f,
              sbp_json_read(f->arena, f->diag, TEXT("tests/golden/packed/%s/expect.json", name), 0, &expect));
    assert_ok(f, sbp_json_get_array(f->diag, expect, "logprobs", SBP_JSON_REQUIRED, &want));
    for (int i = 0; i < count; i++) {
        const sbp_json *logps = sbp_json_member(lines[i], "logps"), *row = sbp_json_member(lines[i], "row");
        const sbp_json *all = &want->items[row->integer];
        rows += logps->count == all->count; /* every token of the document is trained */
        for (int64_t k = 0; logps->count == all->count && k < all->count; k++, compared++)
            if (!(fabs(logps->items[k].real - all->items[k].real) <= sbp_tolerance(SBP_F64) * 100))
                fail_msg("%s: row %lld, token %lld: %.17g, expected %.17g", name, (long long)row->integer,
                         (long long)k, logps->items[k].real, all->items[k].real);
    }
    assert_true(rows >= 2 && compared >= 8);
}

static void test_settings(void **state) {
    static const char *const settings[] = {"", "--offload params --chunk 13",
                                           "--offload params:disk --segment 2 --checkpoint-every 2"};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(golden_packed) * SBP_COUNT(settings); i++) {
        const char *name = golden_packed[i / SBP_COUNT(settings)],
                   *adapter = TEXT("$G/packed/%s/adapter", name);
        dump(f, name, adapter, TEXT("--dtype fp64 %s", settings[i % SBP_COUNT(settings)]), "g.safetensors");
        compare(f, settings[i % SBP_COUNT(settings)], "g.safetensors",
                TEXT("tests/golden/packed/%s/grads.safetensors", name), SBP_F64);
        if (i % SBP_COUNT(settings) == 0)
            check_scores(f, name);
    }
    cli_ok(f, "$C compile " EXPERTS "/model -o $D/p --seq-len 41 --lora r=2,targets=o_proj");
    assert_non_null(strstr(cli_unfolded(f, "err"), "30.7K weights in int4 (4.5 bits each)"));
    /* as much where only config.json is there, which names modules */
    cli_ok(f,
           "mkdir $D/c; cp " EXPERTS "/model/config.json $D/c; $C compile $D/c -o $D/p --seq-len 41 --lora "
           "r=2,targets=o_proj");
    assert_non_null(strstr(cli_unfolded(f, "err"), "30.7K weights in int4 (4.5 bits each)"));
    cli_ok(f,
           "cp tests/golden/packed/dense/model/config.json $D/c; $C compile $D/c -o $D/p --seq-len 41 --lora "
           "r=2,targets=o_proj");
    assert_non_null(strstr(cli_unfolded(f, "err"),
                           "24.6K weights in int4 (4.5 bits each), 24.6K in int4_zero "
                           "(4.75), 12.3K in int8_zero (8.75)"));
    /* under the name that Kimi's have */
    cli_ok(f, "cp -r " EXPERTS "/model $D/kimi; sed -i s/deepseek_v3/kimi_k2/ $D/kimi/config.json");
    dump(f, "experts", EXPERTS "/adapter --base $D/kimi", "--dtype fp64", "g.safetensors");
    compare(f, "kimi_k2", "g.safetensors", EXPERTS "/grads.safetensors", SBP_F64);
}

static sbp_weights *open_weights(io_fixture *f, const char *path) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
    return w;
}

/* Adapters of what is in bf16, merged: every tensor of the others is the file's. */
static void test_untouched(void **state) {
    io_fixture *f = *state;
    int packed = 0;
    cli_ok(f, "$R " EXPERTS "/model --data " EXPERTS "/train.jsonl --seq-len 41 --steps 2 --lr 1e-2 --lora "
              "r=2,targets=o_proj --merge --out $D/new");
    sbp_weights *was = open_weights(f, EXPERTS "/model"), *is = open_weights(f, io_path(f, "new"));
    assert_int_equal(sbp_weights_count(was), sbp_weights_count(is));
    for (int32_t i = 0; i < sbp_weights_count(was); i++) {
        const sbp_weight *a = sbp_weights_at(was, i), *b = sbp_weights_find(is, a->name);
        bool same = b && strcmp(a->encoding, b->encoding) == 0 && a->bytes == b->bytes &&
                    memcmp(cli_bytes_of(f, a), cli_bytes_of(f, b), (size_t)a->bytes) == 0;
        packed += strstr(a->name, "weight_packed") != NULL;
        if (!b || (strstr(a->name, "experts.") && strstr(a->name, "weight_") && !same))
            fail_msg("%s is not as it was", a->name);
    }
    assert_int_equal(packed, 15);
    sbp_weights_close(was);
    sbp_weights_close(is);
    assert_non_null(strstr(cli_text(f, "new/config.json"), "\"pack-quantized\""));
    cli_ok(f, "$R $D/new --data " EXPERTS
              "/train.jsonl --seq-len 41 --steps 1 --lora r=2,targets=o_proj --out $D/again");
}

/* Numbers, in a directory that says nothing of codes: where adapters are merged into them, and where all is
 * trained. They are those of the codes. */
static void test_numbers(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R " EXPERTS "/model --data " EXPERTS
              "/train.jsonl --seq-len 41 --steps 1 --lr 0 --out $D/numbers");
    assert_non_null(
        strstr(cli_unfolded(f, "err"), "INT4 and INT8 are read as numbers, trained and written as such"));
    cli_ok(f, "$R " EXPERTS "/adapter --merge --merge-dtype fp32 --dtype fp64 --out $D/merged");
    cli_ok(f, "$R " EXPERTS "/model --freeze '*experts*up_proj*' --data " EXPERTS
              "/train.jsonl --seq-len 41 --steps 1 --out $D/partly"); /* some frozen, in blocks */
    static const char *const made[] = {"numbers", "merged", "partly"};
    for (int i = 0; i < SBP_COUNT(made); i++) {
        assert_null(strstr(cli_text(f, TEXT("%s/config.json", made[i])), "quantization_config"));
        sbp_weights *is = open_weights(f, sbp_arena_strdup(f->arena, io_path(f, made[i])));
        assert_null(sbp_weights_find(is, EXPERT "weight_packed"));
        assert_null(sbp_weights_find(is, EXPERT "weight_scale"));
        assert_non_null(sbp_weights_find(is, EXPERT "weight"));
        sbp_weights_close(is);
    }
    dump(f, "experts", EXPERTS "/adapter --base $D/numbers", "--dtype fp64", "g.safetensors");
    compare(f, "written as numbers", "g.safetensors", EXPERTS "/grads.safetensors", SBP_F64);
}

static void test_refused(void **state) {
    static const char compile[] = "$C compile $D/m -o $D/p --seq-len 41 --lora r=2,targets=o_proj";
    static const struct {
        const char *change, *message; /* of the file's header, in as many bytes */
    } changes[] = {
        {"s/4.up_proj.weight_shape/4.up_proj.weight_g_idx/", "experts.*.up_proj.weight' has weight_g_idx"},
        {"s/up_proj.weight_shape/up_proj.weight_g_idx/g",
         "has weight_g_idx (actorder 'group'), which is not read"},
        {"s/up_proj.weight_scale/up_proj.weight_scala/g", "has weight_packed without weight_scale"},
        {"s/up_proj.weight_shape/up_proj.weight_shaqe/g", "has weight_packed without weight_shape"},
        {"s/I32/F32/g", "has weight_packed F32 [32, 8], expected I32 of two axes"},
        {"s/\\[32,2\\]/[16,4]/g", "has weight_scale BF16 [16, 4] for [32, 64] codes: of each row one, or"},
        {"s/\\[32,8\\]/[8,32]/g",
         "has weight_packed I32 [8, 32], in which [32, 64] codes (weight_shape) of 4 or 8"},
    };
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(changes); i++) {
        cli_ok(f,
               TEXT("rm -rf $D/m; cp -r " EXPERTS "/model $D/m; LC_ALL=C sed -i '%s' $D/m/model.safetensors",
                    changes[i].change));
        cli_fails(f, 1, changes[i].message, compile);
    }
    cli_fails(f, 1,
              "no group of config_groups is of weights in INT4 with groups of 32 and without zero points, as "
              "'model.layers.1.mlp.experts.0.down_proj.weight' of ",
              "$C compile " EXPERTS
              "/model -o $D/p --set quantization_config.config_groups.group_0.weights.group_size=64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_settings, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_untouched, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_numbers, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
