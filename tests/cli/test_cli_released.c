/* Released checkpoints whose weights are codes and scales in two tensors: what stays frozen keeps its blocks,
 * also in what is written; what is trained is numbers, and is written as transformers has those. Gradients
 * are those of the golden case, however the numbers came there. */
#include "tests/cli/cli_testing.h"
#include "tests/cli/golden_lists.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)
#define MXFP4 "tests/golden/" GOLDEN_MXFP4
#define FP8 "tests/golden/" GOLDEN_FP8
#define EXPERTS "model.layers.1.mlp.experts.gate_up_proj"

static const char *backend = "cpu";

static void dump(io_fixture *f, const char *model, const char *options, const char *to) {
    cli_ok(f, TEXT("$C compile %s -o $D/p --seq-len 106 --backend %s %s", model,
                   strcmp(backend, "cuda") == 0 ? "cuda --arch sm_90a" : backend, options));
    cli_ok(f, TEXT("$R $D/p --data " MXFP4 "/train.jsonl --batch-tokens 106 --dump-gradients $D/%s", to));
}

static void check(io_fixture *f, const char *what, const char *file) {
    cli_compare(f, what, sbp_arena_strdup(f->arena, io_path(f, file)), MXFP4 "/grads.safetensors",
                sbp_tolerance(SBP_F64));
}

static sbp_weights *open_weights(io_fixture *f, const char *path) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
    return w;
}

static void check_same_tensor(io_fixture *f, const sbp_weights *a, const sbp_weights *b, const char *name) {
    const sbp_weight *x = sbp_weights_find(a, name), *y = sbp_weights_find(b, name);
    if (!x || !y || x->elems != y->elems || strcmp(x->encoding, y->encoding) != 0)
        fail_msg("%s is not in both", name);
    void *p = sbp_arena_alloc(f->arena, (size_t)x->bytes), *q = sbp_arena_alloc(f->arena, (size_t)x->bytes);
    assert_ok(f, sbp_weights_read(a, x, 0, x->elems, x->dtype, p, f->diag));
    assert_ok(f, sbp_weights_read(b, y, 0, y->elems, y->dtype, q, f->diag));
    assert_memory_equal(p, q, (size_t)x->bytes);
}

/* Blocks on the host, and dequantized to stages there and back. */
static void test_placements(void **state) {
    static const char *const settings[] = {"--offload params --chunk 13", "--offload params:disk --segment 2",
                                           "--checkpoint-every 2 --chunk 40"};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        dump(f, MXFP4 "/model", TEXT("--dtype fp64 %s", settings[i]), "g.safetensors");
        check(f, settings[i], "g.safetensors");
    }
}

/* Without adapters all but the experts is trained; what is written has their blocks, and is such a model. */
static void test_blocks_are_written(void **state) {
    io_fixture *f = *state;
    cli_ok(f,
           "$R " MXFP4 "/model --data " MXFP4 "/train.jsonl --seq-len 106 --steps 2 --lr 1e-2 --out $D/new");
    sbp_weights *was = open_weights(f, MXFP4 "/model"), *is = open_weights(f, io_path(f, "new"));
    assert_int_equal(sbp_weights_count(was), sbp_weights_count(is));
    check_same_tensor(f, was, is, EXPERTS "_blocks");
    check_same_tensor(f, was, is, EXPERTS "_scales");
    sbp_weights_close(was);
    sbp_weights_close(is);
    assert_non_null(strstr(cli_text(f, "new/config.json"), "\"mxfp4\""));
    cli_ok(f, "$R $D/new --data " MXFP4 "/train.jsonl --seq-len 106 --steps 1 --out $D/again");
    cli_ok(f, "$R " MXFP4 "/model --data " MXFP4
              "/train.jsonl --seq-len 106 --steps 2 --save-steps 1 --out $D/kept");
    cli_ok(f, "ls $D/kept/checkpoint-1");
    assert_null(strstr(cli_text(f, "out"), "blocks"));
    was = open_weights(f, io_path(f, "kept/checkpoint-1"));
    assert_null(sbp_weights_find(was, EXPERTS "_blocks"));
    sbp_weights_close(was);
}

/* Read as numbers, experts train, and are written [in, out] as other files of this family have them. */
static void test_numbers_are_written(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R " MXFP4 "/model --set quantization_config=null --data " MXFP4
              "/train.jsonl --seq-len 106 --steps 1 --lr 0 --out $D/numbers");
    assert_null(strstr(cli_text(f, "numbers/config.json"), "quantization_config"));
    sbp_weights *is = open_weights(f, io_path(f, "numbers"));
    const sbp_weight *w = sbp_weights_find(is, EXPERTS);
    assert_true(w && w->rank == 3 && w->dim[1] == 32 && w->dim[2] == 64);
    assert_null(sbp_weights_find(is, EXPERTS "_blocks"));
    sbp_weights_close(is);
    static const char experts[] = "--dtype fp64 --freeze '*gate_up_proj' --freeze '*down_proj'";
    dump(f, "$D/numbers", experts, "g.safetensors");
    check(f, "written as numbers", "g.safetensors");
    dump(f, MXFP4 "/model", TEXT("--set quantization_config=null %s", experts), "g.safetensors");
    check(f, "read as numbers and frozen", "g.safetensors");
    dump(f, MXFP4 "/model", "--dtype fp64 --set quantization_config=null", "blocks.safetensors");
    dump(f, "$D/numbers", "--dtype fp64", "numbers.safetensors");
    cli_compare(f, "gradients of experts", sbp_arena_strdup(f->arena, io_path(f, "blocks.safetensors")),
                sbp_arena_strdup(f->arena, io_path(f, "numbers.safetensors")), sbp_tolerance(SBP_F64));
    /* adapters over blocks, and over numbers */
    dump(f, MXFP4 "/model", "--dtype fp64 --lora r=4,targets=all-linear", "blocks.safetensors");
    dump(f, "$D/numbers", "--dtype fp64 --lora r=4,targets=all-linear", "numbers.safetensors");
    cli_compare(f, "adapters", sbp_arena_strdup(f->arena, io_path(f, "blocks.safetensors")),
                sbp_arena_strdup(f->arena, io_path(f, "numbers.safetensors")), sbp_tolerance(SBP_F64));
}

/* What adapters of experts are merged into is numbers then, all of it, as of a plan that had numbers. */
static void test_merged_into_experts(void **state) {
    static const char lora[] = "--lora r=2,target_parameters=0.mlp.experts.down_proj --data " MXFP4
                               "/train.jsonl --seq-len 106 --steps 3 --lr 1e-2";
    io_fixture *f = *state;
    cli_ok(f, TEXT("$R " MXFP4 "/model %s --out $D/adapter --dtype fp64", lora));
    cli_ok(f, "$R $D/adapter --merge --merge-dtype fp32 --dtype fp64 --out $D/merged");
    assert_null(strstr(cli_text(f, "merged/config.json"), "quantization_config"));
    sbp_weights *is = open_weights(f, io_path(f, "merged"));
    assert_null(sbp_weights_find(is, EXPERTS "_blocks"));
    assert_non_null(sbp_weights_find(is, EXPERTS));
    sbp_weights_close(is);
    cli_ok(f, "$C compile $D/adapter -o $D/p --dtype fp64 --seq-len 106 && $R $D/p --data " MXFP4
              "/train.jsonl --score $D/a.jsonl");
    cli_ok(f, "$C compile $D/merged -o $D/p --dtype fp64 --seq-len 106 && $R $D/p --data " MXFP4
              "/train.jsonl --score $D/b.jsonl");
    int count, others;
    const sbp_json **a = cli_lines(f, "a.jsonl", &count), **b = cli_lines(f, "b.jsonl", &others);
    assert_int_equal(count, others);
    for (int i = 0; i < count; i++) {
        const sbp_json *x = sbp_json_member(a[i], "logps"), *y = sbp_json_member(b[i], "logps");
        for (int64_t k = 0; k < x->count; k++)
            if (x->items[k].kind == SBP_JSON_REAL &&
                !(fabs(x->items[k].real - y->items[k].real) <= sbp_tolerance(SBP_F32)))
                fail_msg("row %d, token %d: %.17g, merged %.17g", i, (int)k, x->items[k].real,
                         y->items[k].real);
    }
}

/* FP8: what is frozen keeps its blocks where these are of 128 inputs, to the same gradients; what is written
 * is numbers. */
static void check_fp8(io_fixture *f, const char *golden) {
    static const char frozen[] = "--dtype fp64 --freeze '*_proj*'";
    static const char *const settings[] = {"", "--offload params --chunk 13",
                                           "--checkpoint-every 2 --segment 1"};
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        cli_ok(f, TEXT("$C compile %s/model -o $D/p --seq-len 55 --backend %s %s %s 2>$D/notes", golden,
                       strcmp(backend, "cuda") == 0 ? "cuda --arch sm_90a" : backend, frozen, settings[i]));
        assert_non_null(strstr(cli_text(f, "notes"), "written as such"));
        cli_ok(f, TEXT("$R $D/p --data %s/train.jsonl --batch-tokens 55 --dump-gradients $D/g.safetensors",
                       golden));
        const char *got = sbp_arena_strdup(f->arena, io_path(f, "g.safetensors"));
        cli_compare_some(f, settings[i], got, TEXT("%s/grads.safetensors", golden), sbp_tolerance(SBP_F64));
        assert_int_equal(cli_count_tensors(f, got), 12);
    }
    cli_ok(f, "$C inspect $D/p --json >$D/inspected; grep -q dequantize.fp8 $D/p");
    cli_ok(
        f,
        TEXT("$R %s/model --data %s/train.jsonl --seq-len 55 --steps 1 --lr 0 --out $D/numbers --overwrite",
             golden, golden));
    assert_null(strstr(cli_text(f, "numbers/config.json"), "quantization_config"));
    const char *const models[] = {TEXT("%s/model", golden), "$D/numbers"}, *const files[] = {"a", "b"};
    for (int i = 0; i < 2; i++) {
        cli_ok(f, TEXT("$C compile %s -o $D/p --seq-len 55 --dtype fp64 --lora "
                       "r=4,targets=all-linear,target_parameters=experts.gate_up_proj",
                       models[i]));
        cli_ok(f, TEXT("$R $D/p --data %s/train.jsonl --batch-tokens 55 --dump-gradients $D/%s", golden,
                       files[i]));
    }
    cli_compare(f, "adapters", sbp_arena_strdup(f->arena, io_path(f, "a")),
                sbp_arena_strdup(f->arena, io_path(f, "b")), sbp_tolerance(SBP_F64));
}

static void test_fp8(void **state) {
    check_fp8(*state, FP8);
}

/* Experts in one tensor for a layer; and the plan has their blocks, of halves of it. */
static void test_fused_fp8(void **state) {
    io_fixture *f = *state;
    check_fp8(f, FP8 "_fused");
    cli_ok(f, "$C compile " FP8 "_fused/model -o $D/p --seq-len 55 --freeze '*_proj*' --print-after memory");
    const char *text = cli_text(f, "out");
    assert_non_null(strstr(text, "experts.gate_up_proj.gate_proj.codes param device i8[48, 128]"));
    assert_non_null(strstr(text, "experts.gate_up_proj.up_proj.codes param device i8[48, 128]"));
    assert_non_null(strstr(text, "experts.down_proj param device f32[3, 2048]")); /* no whole blocks */
}

/* A plan that keeps blocks takes no numbers for them. */
static void test_refused(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile " MXFP4 "/model -o $D/p --seq-len 106 --dtype fp64");
    cli_ok(f, "$R " MXFP4 "/model --set quantization_config=null --data " MXFP4
              "/train.jsonl --seq-len 106 --steps 1 --lr 0 --out $D/numbers");
    cli_fails(f, 1, "the plan keeps it as mxfp4",
              "$R $D/p --weights $D/numbers --data " MXFP4 "/train.jsonl --batch-tokens 106 --steps 1");
    cli_fails(f, 1, "have no model.layers.0.mlp.experts.gate_up_proj_blocks",
              "$C compile $D/numbers -o $D/p --set 'quantization_config={\"quant_method\":\"mxfp4\"}'");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_placements, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_blocks_are_written, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_numbers_are_written, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_merged_into_experts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_fp8, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_fused_fp8, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown),
    };
    if (argc > 1)
        backend = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
