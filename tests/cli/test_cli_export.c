/* sbprun export: GGUF files of a directory, an adapter, and both; read again, and refused. What llama.cpp
 * says of them: tests/gguf. */
#include "tests/cli/cli_testing.h"

#include "frontends/formats/weights/gguf.h"

#define DATA "tests/golden/stories260k_trl/train.jsonl"

static sbp_weights *open_file(io_fixture *f, const char *name) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, name), &w));
    return w;
}

static bool says(const sbp_weights *w, const char *key, int64_t value) {
    const sbp_gguf_value *v = sbp_gguf_find(sbp_weights_gguf(w), key);
    return v && sbp_gguf_i64_at(v, 0) == value;
}

static bool spells(const sbp_weights *w, const char *key, const char *text) {
    const sbp_gguf_value *v = sbp_gguf_find(sbp_weights_gguf(w), key);
    return v && v->type == SBP_GGUF_STRING && strcmp(v->strings[0].data, text) == 0;
}

/* The numbers of two tensors are the same bits. */
static void same_tensor(io_fixture *f, const sbp_weights *a, const sbp_weights *b, const char *name) {
    const sbp_weight *x = sbp_weights_find(a, name), *y = sbp_weights_find(b, name);
    assert_true(x && y && x->elems == y->elems);
    double *p = cli_read_tensor(f, a, x), *q = cli_read_tensor(f, b, y);
    if (memcmp(p, q, (size_t)x->elems * sizeof *p) != 0)
        fail_msg("%s differs", name);
}

static void same_tensors(io_fixture *f, const char *a, const char *b) {
    sbp_weights *x = open_file(f, a), *y = open_file(f, b);
    assert_int_equal(sbp_weights_count(x), sbp_weights_count(y));
    for (int32_t i = 0; i < sbp_weights_count(x); i++)
        same_tensor(f, x, y, sbp_weights_at(x, i)->name);
    sbp_weights_close(x);
    sbp_weights_close(y);
}

/* What is computed of the file is, to the bit, what is computed of the directory; so are the tokens. */
static void test_model_comes_back(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R export $S -o $D/m.gguf --type f32 --json");
    const sbp_json *report = cli_json(f, "out");
    assert_int_equal(cli_number(f, report, "tensors"), 47);
    sbp_weights *w = open_file(f, "m.gguf");
    assert_true(spells(w, "general.architecture", "llama") && spells(w, "general.type", "model"));
    assert_true(spells(w, "tokenizer.ggml.model", "llama") && spells(w, "general.name", "stories260K"));
    assert_true(says(w, "llama.block_count", 5) && says(w, "llama.attention.head_count", 8) &&
                says(w, "llama.attention.head_count_kv", 4) && says(w, "general.file_type", 0));
    assert_true(says(w, "tokenizer.ggml.add_bos_token", 1));
    sbp_weights_close(w);
    cli_ok(f, "$R $S --data " DATA " --score $D/a && $R $D/m.gguf --data " DATA " --score $D/b");
    cli_same(f, "a", "b");
}

/* Norms stay, matrices do not; what no block holds is F16. */
static void test_types(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *type, *matrix;
        int64_t file_type;
    } cases[] = {{"f16", "F16", 1}, {"bf16", "BF16", 32}, {"q8_0", "Q8_0", 7}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "$R export $S -o $D/m.gguf --overwrite --type %s 2>$D/note",
                                   cases[i].type));
        sbp_weights *w = open_file(f, "m.gguf");
        assert_string_equal(sbp_weights_find(w, "blk.0.attn_norm.weight")->encoding, "F32");
        assert_string_equal(sbp_weights_find(w, "output_norm.weight")->encoding, "F32");
        assert_string_equal(sbp_weights_find(w, "blk.0.attn_q.weight")->encoding, cases[i].matrix);
        assert_string_equal(sbp_weights_find(w, "blk.0.ffn_down.weight")->encoding,
                            strcmp(cases[i].matrix, "Q8_0") == 0 ? "F16" : cases[i].matrix);
        assert_true(says(w, "general.file_type", cases[i].file_type));
        sbp_weights_close(w);
    }
    cli_ok(f, "grep -q llama-quantize $D/note");
    cli_ok(f, "$R export $S -o $D/q.gguf -q && test ! -s $D/err");
}

/* Adapter: matrices of the file's tensors. Merged into the directory, into its GGUF file, or by the run
 * itself: the same numbers. */
static void test_adapters(void **state) {
    io_fixture *f = *state;
    static const char train[] =
        "$R $S --data " DATA " --steps 2 --lora r=4,targets=q_proj+k_proj+down_proj --save-every never ";
    cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/a && %s --merge --out $D/b", train, train));
    cli_ok(f, "$R export $D/a -o $D/a.gguf && grep -q 'an adapter of architecture llama' $D/out");
    sbp_weights *w = open_file(f, "a.gguf");
    assert_true(spells(w, "general.type", "adapter") && spells(w, "adapter.type", "lora"));
    assert_int_equal(sbp_weights_count(w), 2 * 3 * 5);
    const sbp_weight *a = sbp_weights_find(w, "blk.1.attn_k.weight.lora_a"),
                     *b = sbp_weights_find(w, "blk.1.attn_k.weight.lora_b");
    assert_true(a && b && a->dim[0] == 4 && a->dim[1] == 64 && b->dim[0] == 32 && b->dim[1] == 4);
    sbp_weights_close(w);
    cli_fails(f, 1, "has rank 4, but adapter_config.json says 2",
              "cp -r $D/a $D/other && sed -i 's/\"r\": 4/\"r\": 2/' $D/other/adapter_config.json && "
              "$R export $D/other -o $D/other.gguf");
    cli_ok(f, "$R export $D/a --merge -o $D/merged.gguf --type f32");
    cli_ok(f, "$R export $D/b -o $D/run.gguf --type f32");
    same_tensors(f, "merged.gguf", "run.gguf");
    cli_ok(f, "$R export $S -o $D/base.gguf --type f32 && "
              "$R export $D/a --merge --base $D/base.gguf -o $D/again.gguf --type f32");
    same_tensors(f, "merged.gguf", "again.gguf");
    cli_ok(f, "$R export $D/base.gguf -o $D/copy.gguf --type f32 && cmp $D/base.gguf $D/copy.gguf");
}

/* Fields of config.json that begin with '_' are transformers' own: read over, and not written. */
static void test_private_fields(void **state) {
    io_fixture *f = *state;
    cli_ok(
        f,
        "cp -r $S $D/m && chmod -R u+w $D/m && sed '0,/{/s|{|{\"_name_or_path\": \"/home/me/x\", "
        "\"_unheard_of\": [1],|' $S/config.json >$D/m/config.json && grep -q _unheard_of $D/m/config.json");
    cli_ok(f, "$R $D/m --data " DATA " --steps 1 --save-every never --out $D/o");
    cli_ok(f, "! grep -E '\"_|/home' $D/o/config.json && grep -q model_type $D/o/config.json");
}

/* config.json of Mamba-2 has an infinity, as Python's json writes it: the result has it too, and is read
 * again, also with a field set. */
static void test_infinity(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/m && ln -s $(realpath $G/falcon_h1_plain/model/model.safetensors) $D/m && "
              "sed '0,/{/s//{\"time_step_limit\": [0.0, Infinity],/' $G/falcon_h1_plain/model/config.json "
              ">$D/m/config.json");
    cli_ok(f, "$C compile $D/m -o $D/p --seq-len 99 --set rope_theta=300.0 && "
              "$R $D/p --data $G/falcon_h1_plain/train.jsonl --batch-tokens 99 --out $D/o --max-steps 1");
    cli_ok(f, "grep -q 'Infinity' $D/o/config.json && $C compile $D/o -o $D/p --seq-len 99");
}

static void test_refusals(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "cp -r $S $D/m && chmod -R u+w $D/m && $R export --help | grep -q '^usage: sbprun export'");
    cli_fails(f, 2, "-o FILE.gguf is missing", "$R export $D/m");
    cli_fails(f, 2, "is a directory; name a file in it", "$R export $D/m -o $D");
    cli_fails(f, 2, "--merge: '", "$R export $D/m --merge -o $D/x");
    cli_fails(f, 2, "x' is there already; --overwrite replaces it", "touch $D/x; $R export $D/m -o $D/x");
    cli_ok(f, "rm $D/x; sed 's/\"llama\"/\"unheard\"/' $S/config.json >$D/m/config.json");
    cli_fails(f, 1, "llama.cpp's architecture for model_type 'unheard' is not known here",
              "$R export $D/m -o $D/x");
    cli_ok(f, "sed 's/\"silu\"/\"gelu\"/' $S/config.json >$D/m/config.json");
    cli_fails(f, 1, "the field 'hidden_act' is gelu; llama.cpp's architecture llama has only silu",
              "$R export $D/m -o $D/x");
    cli_ok(f, "sed 's/{/{\"time_step_limit\": [0.0, Infinity],/' $S/config.json >$D/m/config.json && "
              "$R export $D/m -o $D/x && rm $D/x"); /* as Python's json writes it, in files of Mamba-2 */
    cli_ok(f, "mkdir $D/none && ln -s $(realpath $G/phi3_plain/model/model.safetensors) $D/none && "
              "sed 's/\"num_attention_heads\": [0-9]*/\"num_attention_heads\": 0/' "
              "$G/phi3_plain/model/config.json >$D/none/config.json");
    cli_fails(f, 1, "the field 'num_attention_heads' is 0; at least one is expected",
              "$R export $D/none -o $D/x");
    cli_fails(f, 1, "the field 'use_bias' is 1; llama.cpp's architecture ernie4_5 has only 0",
              "$R export $G/ernie4_5_bias/model -o $D/x");
    cli_fails(f, 1, "llama.cpp's architecture exaone4 has windows in models of 64 layers only",
              "$R export $G/exaone4_windows/model -o $D/x");
    cli_fails(f, 1, "GGUF files of models of type falcon_h1 (architecture falcon-h1) are read, not written",
              "$R export $G/falcon_h1_plain/model -o $D/x");
    cli_fails(f, 1,
              "the field 'layer_rope_theta' has 300 and 40; llama.cpp's architecture granite_swa has one",
              "$R export $G/granite_swa_thetas/model -o $D/x");
    cli_ok(f, "cp $S/config.json $D/m; mv $D/m/tokenizer.json $D/t");
    cli_fails(f, 1, "has no tokenizer.json and no tokenizer.model", "$R export $D/m -o $D/x");
    cli_ok(f, "sed 's/\"byte_fallback\":[ ]*true/\"byte_fallback\":false/' $D/t >$D/m/tokenizer.json");
    cli_fails(f, 1, "where one of its names fits, say --pre NAME", "$R export $D/m -o $D/x");
    cli_ok(f, "$R export $D/m -o $D/x --pre gpt-2 && rm $D/x");
    cli_ok(f, "cp $D/t $D/m/tokenizer.json");
    /* a disk that is full: nothing is left, and what was there stays */
    cli_fails(f, 4, "File too large", "ulimit -f 100; $R export $D/m -o $D/x --type f32");
    cli_ok(f, "ls -A $D >$D/names; ! grep -E 'x$|tmp' $D/names");
    cli_fails(f, 4, "No space left", "$R export $D/m --overwrite -o /dev/full");
    cli_ok(f, "$R export $D/m -o $D/x && cp $D/x $D/y");
    cli_fails(f, 4, "File too large", "ulimit -f 100; $R export $D/m -o $D/x --type f32 --overwrite");
    cli_same(f, "x", "y");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_model_comes_back, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_types, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_adapters, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_private_fields, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_infinity, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
