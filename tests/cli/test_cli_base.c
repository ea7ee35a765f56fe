/* test_cli_base.c: frozen weights kept in blocks. Gradients are those of the numbers that the blocks stand
 * for, which another way makes: parameters that train are read from the same file as plain numbers. Settings
 * and placement change nothing; checkpoints leave the base where it is. */
#include "tests/cli/drawing.h"
#include "tests/cli/golden_lists.h"
#include "tests/common/sweep.h"

/* ---- a GGUF file ----------------------------------------------------------------------------------------
 */

typedef struct gguf_writer {
    FILE *file;
    sbp_rng rng;
} gguf_writer;

/* ggml's types, and where in a block the halves are that scale it, with what they may be at most. */
typedef struct block_type {
    uint32_t type;
    int elems, bytes;
    int at[2];
    double most[2];
} block_type;

enum { F32, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K };
static const block_type types[] = {
    [F32] = {0, 1, 4, {-1, -1}, {0, 0}},           [Q8_0] = {8, 32, 34, {0, -1}, {1e-3, 0}},
    [Q4_0] = {2, 32, 18, {0, -1}, {1e-2, 0}},      [Q4_1] = {3, 32, 20, {0, 2}, {1e-2, -8e-2}},
    [Q4_K] = {12, 256, 144, {0, 2}, {2e-4, 2e-3}}, [Q6_K] = {14, 256, 210, {208, -1}, {3e-5, 0}},
};

static void put(gguf_writer *w, const void *data, size_t bytes) {
    assert_int_equal(fwrite(data, 1, bytes, w->file), bytes);
}

static void put_number(gguf_writer *w, uint64_t value, size_t bytes) {
    put(w, &value, bytes); /* the machine is little-endian, as is GGUF */
}

static void put_text(gguf_writer *w, const char *text) {
    put_number(w, strlen(text), 8);
    put(w, text, strlen(text));
}

static void put_block(gguf_writer *w, const block_type *t) {
    unsigned char block[256];
    for (int i = 0; i < t->bytes; i++)
        block[i] = (unsigned char)sbp_rng_below(&w->rng, 256);
    if (t->type == 0) {
        float x = 1 + (float)sbp_rng_unit(&w->rng) / 4;
        memcpy(block, &x, 4);
    }
    for (int k = 0; k < 2; k++)
        if (t->at[k] >= 0) {
            uint16_t half = sbp_f16_from_f32((float)(t->most[k] * (1.5 + sbp_rng_unit(&w->rng)) / 2));
            memcpy(block + t->at[k], &half, 2);
        }
    put(w, block, (size_t)t->bytes);
}

typedef struct gguf_tensor {
    char name[64];
    int64_t rows, cols; /* rows 0: a vector */
    int type;
} gguf_tensor;

static int64_t bytes_of(const gguf_tensor *t) {
    return (t->rows ? t->rows : 1) * t->cols / types[t->type].elems * types[t->type].bytes;
}

/* A llama of two layers, its matrices in every format in turn. */
static void write_gguf(const char *path) {
    static const struct {
        const char *name;
        int64_t rows;
        int type[2];
    } layer[] = {
        {"attn_q", 256, {Q4_K, Q8_0}},      {"attn_k", 128, {Q6_K, Q4_0}},   {"attn_v", 128, {Q8_0, Q6_K}},
        {"attn_output", 256, {Q4_0, Q4_1}}, {"ffn_gate", 256, {Q4_1, Q4_K}}, {"ffn_up", 256, {Q4_K, Q6_K}},
        {"ffn_down", 256, {Q6_K, Q8_0}},    {"attn_norm", 0, {F32, F32}},    {"ffn_norm", 0, {F32, F32}}};
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"llama.embedding_length", 256},
                {"llama.feed_forward_length", 256},
                {"llama.block_count", 2},
                {"llama.attention.head_count", 4},
                {"llama.attention.head_count_kv", 2},
                {"llama.context_length", 64}};
    gguf_tensor tensors[32] = {{"token_embd.weight", 96, 256, Q4_1},
                               {"output.weight", 96, 256, Q6_K},
                               {"output_norm.weight", 0, 256, F32}};
    int count = 3;
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < SBP_COUNT(layer); i++, count++) {
            tensors[count] = (gguf_tensor){.rows = layer[i].rows, .cols = 256, .type = layer[i].type[l]};
            snprintf(tensors[count].name, sizeof tensors[count].name, "blk.%d.%s.weight", l, layer[i].name);
        }
    gguf_writer w = {.file = fopen(path, "wb"), .rng = {5}};
    float eps = 1e-5f;
    int64_t offset = 0;
    assert_non_null(w.file);
    put(&w, "GGUF", 4);
    put_number(&w, 3, 4);
    put_number(&w, (uint64_t)count, 8);
    put_number(&w, SBP_COUNT(keys) + 2, 8);
    put_text(&w, "general.architecture");
    put_number(&w, 8, 4);
    put_text(&w, "llama");
    put_text(&w, "llama.attention.layer_norm_rms_epsilon");
    put_number(&w, 6, 4);
    put(&w, &eps, 4);
    for (int i = 0; i < SBP_COUNT(keys); i++) {
        put_text(&w, keys[i].key);
        put_number(&w, 4, 4);
        put_number(&w, keys[i].value, 4);
    }
    for (int i = 0; i < count; i++) {
        const gguf_tensor *t = &tensors[i];
        put_text(&w, t->name);
        put_number(&w, t->rows ? 2 : 1, 4);
        put_number(&w, (uint64_t)t->cols, 8);
        if (t->rows)
            put_number(&w, (uint64_t)t->rows, 8);
        put_number(&w, types[t->type].type, 4);
        put_number(&w, (uint64_t)offset, 8);
        offset = sbp_round_up(offset + bytes_of(t), 32);
    }
    for (int i = 0; i < count; i++) {
        while (ftell(w.file) % 32 != 0)
            put_number(&w, 0, 1);
        for (int64_t b = 0; b < bytes_of(&tensors[i]) / types[tensors[i].type].bytes; b++)
            put_block(&w, &types[tensors[i].type]);
    }
    assert_int_equal(fclose(w.file), 0);
}

static void put_rows(io_fixture *f) {
    sbp_rng rng = {3};
    sbp_text text;
    sbp_text_init(&text, f->arena);
    static const int lengths[] = {5, 17, 1, 2, 30, 9};
    for (int d = 0; d < SBP_COUNT(lengths); d++) {
        sbp_text_add(&text, "{\"input_ids\": [");
        for (int i = 0; i < lengths[d]; i++)
            sbp_text_add(&text, "%s%d", i ? "," : "", (int)sbp_rng_below(&rng, 96));
        sbp_text_add(&text, "]}\n");
    }
    cli_put(f, "d.jsonl", text.data);
}

/* ---- gradients ------------------------------------------------------------------------------------------
 */

static void dump(io_fixture *f, const char *model, const char *settings, const char *name) {
    cli_ok(f,
           sbp_arena_printf(f->arena,
                            "$C compile %s -o $D/p --seq-len 96 %s && $R $D/p --data $D/d.jsonl --batch-size "
                            "8 --dump-gradients $D/%s --offload-dir $D",
                            model, settings, name));
}

/* Every format of GGUF: matrices frozen, and what is read by gather and by the head as well. */
static void test_gguf_base(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *name;
        double tolerance;
    } dtypes[] = {{"fp64", SBP_TOLERANCE_F64}, {"fp32", SBP_TOLERANCE_F32}, {"bf16", SBP_TOLERANCE_BF16_ANY}};
    static const char *const frozen[] = {
        "--freeze '*proj.weight'",
        "--freeze '*proj.weight' --freeze model.embed_tokens.weight --freeze lm_head.weight --segment 2"};
    static const int left[] = {7, 5}; /* tensors that train */
    write_gguf(io_path(f, "m.gguf"));
    put_rows(f);
    for (int d = 0; d < SBP_COUNT(dtypes); d++)
        for (int i = 0; i < SBP_COUNT(frozen); i++) {
            const char *settings = sbp_arena_printf(f->arena, "--dtype %s --chunk 7", dtypes[d].name);
            dump(f, "$D/m.gguf",
                 sbp_arena_printf(f->arena, "%s --param-dtype %s", settings, d ? "fp32" : "fp64"),
                 "want.safetensors");
            dump(f, "$D/m.gguf", sbp_arena_printf(f->arena, "%s %s", settings, frozen[i]), "got.safetensors");
            assert_int_equal(cli_count_tensors(f, io_path(f, "got.safetensors")), left[i]);
            cli_compare_some(f, dtypes[d].name, io_path(f, "got.safetensors"), io_path(f, "want.safetensors"),
                             dtypes[d].tolerance);
        }
    /* the comparison can fail: another scale of another block */
    cli_ok(f, "cp $D/m.gguf $D/n.gguf && printf '\\001' | dd of=$D/n.gguf bs=1 seek=200000 conv=notrunc");
    dump(f, "$D/n.gguf", "--dtype fp64 --chunk 7 --freeze '*proj.weight'", "got.safetensors");
    dump(f, "$D/m.gguf", "--dtype fp64 --chunk 7 --freeze '*proj.weight'", "want.safetensors");
    assert_int_not_equal(cli(f, "cmp $D/got.safetensors $D/want.safetensors"), 0);
    /* as stored: 4.5 to 8.5 bits a weight, and not one more for them in the plan */
    cli_ok(f, "$C compile $D/m.gguf -o $D/p --seq-len 64 --print-after memory --freeze '*proj.weight'");
    const char *text = cli_text(f, "out");
    assert_non_null(
        strstr(text, "buffer model.layers.0.self_attn.q_proj.weight.codes param device i8[256, 128]"));
    assert_non_null(
        strstr(text, "buffer model.layers.0.self_attn.q_proj.weight.steps param device i8[256, 12]"));
    assert_non_null(
        strstr(text, "buffer model.layers.0.self_attn.q_proj.weight.scales param device f16[256, 2]"));
    assert_null(strstr(text, "buffer model.layers.0.self_attn.q_proj.weight param"));
    /* weights that are not in these blocks cannot become so */
    cli_ok(f, "$C compile $D/m.gguf -o $D/p --seq-len 64 --freeze '*proj.weight'");
    cli_fails(f, 1, "the plan keeps it as q4_k",
              "$R $D/p --data $D/d.jsonl --weights random:1 --out $D/o --steps 1");
}

/* The kernels and copies of another backend. */
static void test_gguf_base_on(void **state, const char *backend) {
    io_fixture *f = *state;
    if (!cli_has_device(f, backend, "frozen bases"))
        skip();
    write_gguf(io_path(f, "m.gguf"));
    put_rows(f);
    dump(f, "$D/m.gguf", "--backend cpu --dtype fp64 --param-dtype fp64", "want.safetensors");
    static const char *const placement[] = {"none", "params"};
    for (int i = 0; i < (strcmp(backend, "cuda") == 0 ? 1 : SBP_COUNT(placement));
         i++) { /* without a GPU slow */
        dump(f, "$D/m.gguf",
             sbp_arena_printf(
                 f->arena,
                 "--backend %s --dtype fp32 --chunk 7 --freeze '*proj.weight' --freeze lm_head.weight "
                 "--offload %s",
                 backend, placement[i]),
             "got.safetensors");
        cli_compare_some(f, backend, io_path(f, "got.safetensors"), io_path(f, "want.safetensors"),
                         SBP_TOLERANCE_F32);
    }
}

/* An adapter of a base in NF4: gradients of the same plan on the CPU, in fp64. */
static void test_adapted_base_on(void **state, const char *backend) {
    io_fixture *f = *state;
    if (!cli_has_device(f, backend, "adapters of frozen bases"))
        skip();
    cli_put(f, "d.jsonl", "{\"text\":\"Lily saw a ball.\"}\n{\"text\":\"The sun was hot.\"}\n");
    cli_ok(f, "$C compile $S -o $D/p --seq-len 96 --base-dtype nf4 --lora r=2,targets=q_proj+down_proj && $R "
              "$D/p --data $D/d.jsonl --lr 0.01 --steps 1 --save-every never --out $D/adapter");
    const char *based = "--base $S --base-dtype nf4 --lora-dropout 0.2 --chunk 7";
    dump(f, "$D/adapter", sbp_arena_printf(f->arena, "--backend cpu --dtype fp64 %s", based),
         "want.safetensors");
    dump(f, "$D/adapter", sbp_arena_printf(f->arena, "--backend %s --dtype fp32 %s", backend, based),
         "got.safetensors");
    cli_compare(f, backend, sbp_arena_strdup(f->arena, io_path(f, "got.safetensors")),
                io_path(f, "want.safetensors"), SBP_TOLERANCE_F32);
}

static void test_vulkan(void **state) {
    test_gguf_base_on(state, "vulkan");
}

static void test_adapted_vulkan(void **state) {
    test_adapted_base_on(state, "vulkan");
}

static void test_cuda(void **state) {
    test_gguf_base_on(state, "cuda");
}

static void test_adapted_cuda(void **state) {
    test_adapted_base_on(state, "cuda");
}

/* ---- brought into blocks --------------------------------------------------------------------------------
 */

#define MATRICES "--freeze '*self_attn*proj.weight' --freeze '*gate_proj.weight' --freeze '*up_proj.weight'"

/* The numbers that the blocks stand for, as a model of its own. */
static void write_numbers(io_fixture *f, const char *format) {
    cli_ok(
        f,
        sbp_arena_printf(
            f->arena,
            "$C compile $S -o $D/p --seq-len 96 --optimizer sgd " MATRICES
            " --base-dtype %s && $R $D/p --data $D/t.jsonl --lr 0 --steps 1 --save-every never --out $D/%s",
            format, format));
}

static void train(io_fixture *f, const char *settings, const char *out) {
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "rm -rf $D/%s; $C compile $S -o $D/p --seq-len 96 %s && $R $D/p --data $D/t.jsonl "
                  "--out $D/%s --steps 2 --batch-size 2 --lr 1e-3 --save-every 2",
                  out, settings, out));
}

static void put_texts(io_fixture *f) {
    cli_put(f, "t.jsonl",
            "{\"text\":\"Once upon a time there was a little dog who liked to run.\"}\n"
            "{\"text\":\"Lily and Tom saw a big red ball.\"}\n"
            "{\"text\":\"The sun was hot. Sam drank water.\"}\n"
            "{\"text\":\"One day a bird sang in the tree.\"}\n");
}

/* Gradients to the bit those of a model that has these numbers, compiled alike; weights after two steps those
 * of the same settings with everything on the device; what is frozen is written as the numbers it is. */
static void test_drawn_settings(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {31};
    int draws = testing_all() ? 150 : 8, compared = 0;
    put_texts(f);
    write_numbers(f, "nf4");
    write_numbers(f, "q8_0");
    cli_ok(f, "cp $D/t.jsonl $D/d.jsonl");
    for (int i = 0; i < draws; i++) {
        const char *format = PICK(&rng, GOLDEN_BASES);
        bool down = strcmp(format, "nf4") == 0 && sbp_rng_below(&rng, 3) == 0; /* rows of 172: nf4 only */
        const char *settings = sbp_arena_printf(
            f->arena,
            "--dtype %s --chunk %s --segment %s --checkpoint-every %s --save %s %s %s " MATRICES
            " --freeze '%s'",
            PICK(&rng, "fp64", "fp32", "bf16"), PICK(&rng, "16", "96", "7"), PICK(&rng, "1", "2", "3"),
            PICK(&rng, "1", "2", "3"), PICK(&rng, "none", "gate+up", "attn_out+lse"),
            PICK(&rng, "", "--clip none --accumulate 1"),
            PICK(&rng, "", "--optimizer sgd", "--optimizer lion"),
            down ? "*down_proj*" : PICK(&rng, "*norm*", "model.embed_tokens.weight"));
        const char *based = sbp_arena_printf(f->arena, "%s --base-dtype %s", settings, format),
                   *placement = draw_placement(f, &rng);
        printf("  %s %s\n", based, placement);
        if (!down) { /* as it was written */
            dump(f, "$S", sbp_arena_printf(f->arena, "%s %s", based, placement), "got.safetensors");
            dump(f, sbp_arena_printf(f->arena, "$D/%s", format), settings, "want.safetensors");
            cli_same(f, "got.safetensors", "want.safetensors");
            compared++;
        }
        train(f, sbp_arena_printf(f->arena, "%s --offload none", based), "here");
        train(f, sbp_arena_printf(f->arena, "%s %s", based, placement), "away");
        cli_same(f, "here/model.safetensors", "away/model.safetensors");
    }
    assert_true(compared > draws / 3);
}

/* A checkpoint has no base; a run goes on from it to the same bits. */
static void test_resume(void **state) {
    io_fixture *f = *state;
    static const char *const bases[] = {"--base-dtype nf4 " MATRICES,
                                        "--base-dtype q8_0 --offload host " MATRICES};
    put_texts(f);
    cli_ok(f, "cp -r $S $D/s");
    for (int i = 0; i < SBP_COUNT(bases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/a $D/b; $C compile $D/s -o $D/p --seq-len 96 %s",
                                   bases[i]));
        assert_non_null(strstr(cli_text(f, "err"), i == 0 ? "weights in nf4 (4.5 bits each)\n"
                                                          : "weights in q8_0 (8.5 bits each)\n"));
        cli_ok(f, "$R $D/p --data $D/t.jsonl --batch-size 2 --lr 1e-3 --steps 4 --save-every 2 --out $D/a");
        cli_ok(f, "$R $D/p --data $D/t.jsonl --batch-size 2 --lr 1e-3 --steps 4 --save-every 2 --out $D/b && "
                  "rm -rf $D/b/checkpoint-4 $D/b/model.safetensors && $R $D/p --out $D/b --resume");
        cli_same(f, "a/model.safetensors", "b/model.safetensors");
        cli_same(f, "a/checkpoint-4/model.safetensors", "b/checkpoint-4/model.safetensors");
        cli_same(f, "a/checkpoint-4/optimizer.safetensors", "b/checkpoint-4/optimizer.safetensors");
        /* on another base it does not go on */
        cli_ok(f, "rm -rf $D/b/checkpoint-4 $D/b/model.safetensors && cp $D/s/model.safetensors $D/kept && "
                  "dd if=$D/kept of=$D/s/model.safetensors bs=4096 skip=60 seek=100 count=40 conv=notrunc");
        cli_fails(f, 1, "had other frozen weights", "$R $D/p --out $D/b --resume");
        cli_ok(f, "cp $D/kept $D/s/model.safetensors && $R $D/p --out $D/b --resume");
        sbp_weights *w;
        assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "a/checkpoint-4/model.safetensors"), &w));
        assert_null(sbp_weights_find(w, "model.layers.0.self_attn.q_proj.weight"));
        assert_non_null(sbp_weights_find(w, "model.layers.0.mlp.down_proj.weight"));
        sbp_weights_close(w);
        assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "a/model.safetensors"), &w));
        assert_non_null(sbp_weights_find(w, "model.layers.0.self_attn.q_proj.weight"));
        sbp_weights_close(w);
    }
}

/* ---- experts ---------------------------------------------------------------------------------------------
 */

/* Files with a tensor for each expert, and with one for all, [experts, in, out]. */
static const struct {
    const char *model, *settings, *tensor;
} experts[] = {
    {"qwen3_moe_norm_v",
     "--set hidden_size=64 --set moe_intermediate_size=32 --set num_local_experts=3 --set "
     "num_experts_per_tok=2",
     "model.layers.0.mlp.experts.1.gate_proj.weight"},
    {"gpt_oss_v", "--set hidden_size=64 --set intermediate_size=32",
     "model.layers.1.mlp.experts.gate_up_proj"},
};
#define FROZEN_EXPERTS "--freeze '*experts*proj*' --freeze '*o_proj.weight'"

/* Random weights of such a model: $D/m. */
static void write_experts(io_fixture *f, int k) {
    cli_ok(f,
           sbp_arena_printf(f->arena,
                            "rm -rf $D/c $D/m && mkdir $D/c && cp $G/%s/model/config.json $D/c && $C compile "
                            "$D/c -o $D/p --seq-len 96 %s && $R $D/p --weights random:3 --data $D/d.jsonl "
                            "--batch-size 8 --lr 0 --steps 1 --save-every never --out $D/m",
                            experts[k].model, experts[k].settings));
}

static void write_expert_rows(io_fixture *f) {
    cli_put(f, "d.jsonl",
            "{\"input_ids\":[1,5,9,13,17,21,25,29,2,6,10,14]}\n{\"input_ids\":[3,4]}\n"
            "{\"input_ids\":[7,8,30,28,26,24,22,20,18]}\n");
}

static float *read_floats(io_fixture *f, const char *directory, const char *name, int64_t *elems) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, directory), &w));
    const sbp_weight *t = sbp_weights_find(w, name);
    assert_true(t && t->dtype == SBP_F32);
    float *x = sbp_arena_alloc(f->arena, (size_t)t->elems * sizeof *x);
    assert_ok(f, sbp_weights_read(w, t, 0, t->elems, SBP_F32, x, f->diag));
    *elems = t->elems;
    sbp_weights_close(w);
    return x;
}

/* What is written of an expert are the numbers of the blocks that its matrix alone has. */
static void check_numbers(io_fixture *f, const char *format_name, const char *tensor) {
    sbp_format format = SBP_FORMAT_NONE;
    int64_t count, same;
    assert_true(sbp_format_from_name(format_name, &format));
    const float *was = read_floats(f, "m", tensor, &count), *is = read_floats(f, format_name, tensor, &same);
    void *parts[SBP_MAX_FORMAT_PARTS];
    float *want = sbp_arena_alloc(f->arena, (size_t)count * sizeof *want);
    for (int i = 0; i < SBP_MAX_FORMAT_PARTS; i++)
        parts[i] = sbp_arena_alloc(f->arena, (size_t)count * sizeof(float));
    int64_t blocks = count / sbp_format_of(format)->block;
    sbp_format_encode(format, was, blocks, parts);
    sbp_format_decode(sbp_format_decoder_create(f->arena, f->diag, format), (const void *const *)parts,
                      blocks, want);
    assert_int_equal(count, same);
    assert_memory_equal(want, is, (size_t)count * sizeof *want);
    assert_memory_not_equal(want, was, (size_t)count * sizeof *want);
}

/* Frozen experts are brought into blocks as other weights are: gradients to the bit those of a model that has
 * these numbers, on every backend and wherever the blocks are kept. */
static void test_experts_on(io_fixture *f, const char *backend, const char *const *settings, int count) {
    static const char *const formats[] = {"nf4", "q8_0"};
    write_expert_rows(f);
    for (int k = 0; k < SBP_COUNT(experts); k++) {
        write_experts(f, k);
        for (int i = 0; i < SBP_COUNT(formats); i++) {
            if (strcmp(backend, "cpu") != 0 && !testing_all() && i != k) /* without a GPU slow */
                continue;
            cli_ok(f, sbp_arena_printf(
                          f->arena,
                          "rm -rf $D/%s; $C compile $D/m -o $D/p --seq-len 96 --optimizer sgd " FROZEN_EXPERTS
                          " --base-dtype %s && $R $D/p --data "
                          "$D/d.jsonl --lr 0 --steps 1 --save-every never --out $D/%s",
                          formats[i], formats[i], formats[i]));
            check_numbers(f, formats[i], experts[k].tensor);
            for (int s = 0; s < count; s++) {
                const char *compile =
                    sbp_arena_printf(f->arena, "--backend %s " FROZEN_EXPERTS " %s", backend, settings[s]);
                dump(f, "$D/m", sbp_arena_printf(f->arena, "%s --base-dtype %s", compile, formats[i]),
                     "got.safetensors");
                dump(f, sbp_arena_printf(f->arena, "$D/%s", formats[i]), compile, "want.safetensors");
                cli_same(f, "got.safetensors", "want.safetensors");
            }
        }
    }
}

/* The plan has the blocks of all experts' matrices, and none of a router; matrices without whole blocks of
 * their own stay as they are, where those of all experts together had some. */
static void test_experts(void **state) {
    static const char *const settings[] = {"--dtype fp64 --chunk 5 --offload params",
                                           "--dtype fp32 --segment 2 --checkpoint-every 2",
                                           "--dtype bf16 --chunk 7 --offload params:disk+checkpoints:host"};
    io_fixture *f = *state;
    test_experts_on(f, "cpu", settings, SBP_COUNT(settings));
    write_experts(f, 0);
    cli_ok(
        f,
        "$C compile $D/m -o $D/p --seq-len 96 --lora r=2,targets=all-linear --base-dtype nf4 --print-after "
        "memory");
    const char *text = cli_text(f, "out");
    assert_non_null(strstr(text, "layers.0.mlp.experts.down_proj.weight.codes param device i8[96, 32]"));
    assert_non_null(strstr(text, "layers.0.mlp.experts.down_proj.weight.scales param device f32[96, 1]"));
    assert_non_null(strstr(text, "layers.0.self_attn.q_proj.weight.codes param"));
    assert_non_null(strstr(text, "layers.0.mlp.gate.weight param device f32[3, 64]"));
    cli_ok(f, "$C compile $D/c -o $D/p --seq-len 96 --lora r=2,targets=all-linear --base-dtype nf4 --set "
              "hidden_size=48 --set moe_intermediate_size=10 --set num_local_experts=4 --print-after memory");
    assert_non_null(
        strstr(cli_text(f, "err"), "stay as they are: 'model.layers.0.mlp.experts.*.gate_proj.weight'"));
    assert_null(strstr(cli_text(f, "out"), "experts.gate_proj.weight.codes"));
}

static void test_experts_vulkan(void **state) {
    static const char *const settings[] = {"--dtype fp32 --chunk 7"};
    io_fixture *f = *state;
    if (!cli_has_device(f, "vulkan", "experts in blocks"))
        skip();
    test_experts_on(f, "vulkan", settings, 1);
}

static void test_experts_cuda(void **state) {
    static const char *const settings[] = {"--dtype fp32 --chunk 7"};
    io_fixture *f = *state;
    if (!cli_has_device(f, "cuda", "experts in blocks"))
        skip();
    test_experts_on(f, "cuda", settings, 1);
}

/* ---- merged ----------------------------------------------------------------------------------------------
 */

static double *read_named(io_fixture *f, const char *file, const char *name, sbp_dtype *dtype,
                          int64_t dim[2]) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, file), &w));
    const sbp_weight *t = sbp_weights_find(w, name);
    if (!t)
        fail_msg("%s has no '%s'", file, name);
    *dtype = t->dtype;
    dim[0] = t->dim[0];
    dim[1] = t->rank > 1 ? t->dim[1] : 1;
    double *x = cli_read_tensor(f, w, t);
    sbp_weights_close(w);
    return x;
}

static void check_merged(io_fixture *f, const char *module, const char *numbers, double scale) {
    sbp_dtype type, of_numbers;
    int64_t dim[2], size_a[2], size_b[2];
    const char *name = sbp_arena_printf(f->arena, "%s.weight", module);
    double *m = read_named(f, "merged/model.safetensors", name, &type, dim),
           *w = read_named(f, numbers, name, &of_numbers, dim), *a = NULL, *b = NULL;
    assert_int_equal(type, SBP_BF16);
    if (scale > 0) {
        const char *file = "adapter/adapter_model.safetensors";
        a = read_named(f, file, sbp_arena_printf(f->arena, "base_model.model.%s.lora_A.weight", module),
                       &type, size_a);
        b = read_named(f, file, sbp_arena_printf(f->arena, "base_model.model.%s.lora_B.weight", module),
                       &type, size_b);
    }
    bool added = false;
    for (int64_t i = 0; i < dim[0] * dim[1]; i++) {
        double sum = 0;
        for (int64_t k = 0; scale > 0 && k < size_a[0]; k++)
            sum += scale * b[i / dim[1] * size_a[0] + k] * a[k * dim[1] + i % dim[1]];
        added |= sum != 0;
        if (m[i] != sbp_round_to(SBP_BF16, (double)(float)(w[i] + sum)))
            fail_msg("%s: element %lld is %.9g, of %.9g and %.9g", name, (long long)i, m[i], w[i], sum);
    }
    assert_true(added == (scale > 0));
    free(m);
    free(w);
    free(a);
    free(b);
}

/* A merged model has bf16 for all: the numbers of the blocks and what the adapter adds, rounded once. */
static void test_merged(void **state) {
    static const struct {
        const char *model, *base, *numbers; /* numbers: options that write the base as it is */
    } bases[] = {{"$S", "--base-dtype nf4", "--optimizer sgd --base-dtype nf4 --freeze '*proj.weight'"},
                 {"$D/m.gguf", "", "--optimizer sgd"}};
    io_fixture *f = *state;
    put_texts(f);
    write_gguf(io_path(f, "m.gguf"));
    put_rows(f);
    for (int i = 0; i < SBP_COUNT(bases); i++) {
        const char *data = i == 0 ? "$D/t.jsonl" : "$D/d.jsonl";
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "rm -rf $D/numbers $D/adapter $D/merged; $C compile %s -o $D/p --seq-len 96 "
                      "%s && $R $D/p --data %s --lr 0 --steps 1 --save-every never --out $D/numbers",
                      bases[i].model, bases[i].numbers, data));
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile %s -o $D/p --seq-len 96 --lora r=4,alpha=6,targets=o_proj+up_proj %s && $R "
                      "$D/p --data %s --lr 0.05 --steps 3 --save-every never --out $D/adapter",
                      bases[i].model, bases[i].base, data));
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile $D/adapter --base %s -o $D/p --seq-len 96 %s && $R $D/p --merge "
                                "--out $D/merged",
                                bases[i].model, bases[i].base));
        check_merged(f, "model.layers.1.self_attn.o_proj", "numbers/model.safetensors", 1.5);
        check_merged(f, "model.layers.0.mlp.up_proj", "numbers/model.safetensors", 1.5);
        check_merged(f, "model.layers.1.self_attn.q_proj", "numbers/model.safetensors", 0);
        check_merged(f, "model.embed_tokens", "numbers/model.safetensors", 0);
        check_merged(f, "model.norm", "numbers/model.safetensors", 0);
        cli_ok(f, "grep -q '\"dtype\": \"bfloat16\"' $D/merged/config.json");
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile $D/merged -o $D/p --seq-len 96 && $R $D/p --data %s --score $D/on", data));
    }
}

/* A matrix twice as large has the same codes: what tells it from the other are its scales. */
static void test_scales_count(void **state) {
    io_fixture *f = *state;
    const char *hashes[2][2];
    put_texts(f);
    cli_put(f, "pairs.jsonl",
            "{\"prompt\":\"Once\",\"chosen\":\" upon a time\",\"rejected\":\" there was\"}\n");
    cli_ok(f, "cp -r $S $D/s");
    for (int i = 0; i < 2; i++) {
        cli_ok(f,
               "rm -rf $D/o; $C compile $D/s -o $D/p --seq-len 96 --objective dpo --base-dtype nf4 " MATRICES
               " && $R $D/p --data $D/pairs.jsonl --steps 1 --save-every 1 --out $D/o");
        const sbp_json *root = cli_json(f, "o/checkpoint-1/trainer_state.json");
        assert_ok(f, sbp_json_get_string(f->diag, root, "reference", SBP_JSON_REQUIRED, &hashes[i][0]));
        assert_ok(f, sbp_json_get_string(f->diag, root, "base", SBP_JSON_REQUIRED, &hashes[i][1]));
        sbp_weights *w;
        assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "s/model.safetensors"), &w));
        const sbp_weight *t = sbp_weights_find(w, "model.layers.0.self_attn.q_proj.weight");
        assert_true(t && t->dtype == SBP_F32 && t->elems == 64 * 64);
        static float values[64 * 64];
        assert_ok(f, sbp_weights_read(w, t, 0, t->elems, SBP_F32, values, f->diag));
        for (int64_t k = 0; k < t->elems; k++)
            values[k] *= 2;
        FILE *file = fopen(io_path(f, "s/model.safetensors"), "r+b");
        assert_true(file && fseek(file, (long)t->offset, SEEK_SET) == 0);
        assert_int_equal(fwrite(values, 4, 64 * 64, file), 64 * 64);
        assert_int_equal(fclose(file), 0);
        sbp_weights_close(w);
    }
    assert_string_not_equal(hashes[0][0], hashes[1][0]);
    assert_string_not_equal(hashes[0][1], hashes[1][1]);
}

static void test_refusals(void **state) {
    io_fixture *f = *state;
    put_texts(f);
    cli_fails(f, 2, "no weight of a linear layer is frozen", "$C compile $S -o $D/p --base-dtype nf4");
    cli_fails(f, 2, "no weight of a linear layer is frozen",
              "$C compile $S -o $D/p --base-dtype nf4 --freeze lm_head.weight --freeze '*norm*' || "
              "$C compile $S -o $D/p --base-dtype nf4 --freeze '*norm*'");
    /* Rows of 172 numbers are no whole blocks of 32: those weights stay as they are. */
    cli_ok(f, "$C compile $S -o $D/p --load_in_4bit false --base-dtype q8_0 --freeze '*proj.weight' "
              "--print-after fence");
    assert_non_null(
        strstr(cli_text(f, "err"),
               "--base-dtype q8_0: 5 weights of 55040 numbers stay as they are: "
               "'model.layers.0.mlp.down_proj.weight' is f32[64,172]; whole blocks of 32 elements"));
    assert_non_null(strstr(cli_text(f, "out"), "model.layers.4.mlp.up_proj.weight.codes param"));
    assert_null(strstr(cli_text(f, "out"), "mlp.down_proj.weight.codes"));
    cli_ok(f, "$R $D/p --data $D/t.jsonl --steps 1 --out none");
    cli_fails(f, 2, "no weight can be kept so: 'model.layers.0.mlp.down_proj.weight' is f32[64,172]",
              "$C compile $S -o $D/p --base-dtype q8_0 --freeze '*down_proj.weight'");
    cli_fails(f, 2, "load_in_8bit", "$C compile $S -o $D/p --load_in_8bit true");
    cli_ok(f,
           "$C compile $S -o $D/p --load_in_4bit true --bnb_4bit_quant_type nf4 --use_bnb_nested_quant false "
           "--freeze '*proj.weight' --print-after fence");
    assert_non_null(
        strstr(cli_text(f, "out"), "model.layers.4.mlp.down_proj.weight.codes param device i8[172, 32]"));
    cli_fails(f, 1, "quantization_config",
              "$C compile $S -o $D/p --set 'quantization_config={\"quant_method\":\"bitsandbytes\"}'");
}

int main(int argc, char **argv) {
    const struct CMUnitTest vulkan[] = {
        cmocka_unit_test_setup_teardown(test_vulkan, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_adapted_vulkan, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_experts_vulkan, cli_setup, io_teardown)};
    const struct CMUnitTest cuda[] = {
        cmocka_unit_test_setup_teardown(test_cuda, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_adapted_cuda, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_experts_cuda, cli_setup, io_teardown)};
    if (argc > 1 && strcmp(argv[1], "vulkan") == 0)
        return cmocka_run_group_tests(vulkan, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "cuda") == 0)
        return cmocka_run_group_tests(cuda, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gguf_base, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_drawn_settings, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resume, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_experts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_merged, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scales_count, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, cli_setup, io_teardown)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
