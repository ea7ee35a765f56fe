/* FP8 weights with blocks of other sizes than 128 x 128, of linear layers and of experts in one tensor: the
 * gradients are those of a model whose file has the numbers, each code times the scale of its block, by a
 * loop written out here. And what is refused: scales that are not as many as config.json says, or that no
 * file says anything of. */
#include "tests/cli/cli_testing.h"

#include <inttypes.h>

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

enum { VOCAB = 23, HEADS = 2, HEAD_DIM = 6, EXPERTS = 3, MOST_TENSORS = 64 };

typedef struct shape {
    int64_t hidden, inner; /* of the MLP, or of each expert */
    int64_t rows, columns; /* that share a scale */
    bool experts;
} shape;

/* A file being made. */
typedef struct file {
    io_fixture *f;
    const char *heads[MOST_TENSORS];
    void *data[MOST_TENSORS];
    int64_t bytes[MOST_TENSORS];
    int count;
} file;

static void *add(file *to, const char *name, const char *dtype, int64_t size, int rank, const int64_t *dim) {
    io_fixture *f = to->f;
    int64_t elems = 1;
    const char *dims = "";
    for (int i = 0; i < rank; i++) {
        elems *= dim[i];
        dims = TEXT("%s%s%" PRId64, dims, i ? "," : "", dim[i]);
    }
    assert_true(to->count < MOST_TENSORS);
    to->heads[to->count] = TEXT("\"%s\":{\"dtype\":\"%s\",\"shape\":[%s]", name, dtype, dims);
    to->bytes[to->count] = elems * size;
    to->data[to->count] = sbp_arena_alloc(f->arena, (size_t)(elems * size));
    return to->data[to->count++];
}

static void finish(file *to, const char *directory, const char *config) {
    io_fixture *f = to->f;
    const char *header = "{", *place = io_path(f, directory);
    int64_t offset = 0;
    for (int i = 0; i < to->count; i++) {
        header = TEXT("%s%s%s,\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", header, i ? "," : "",
                      to->heads[i], offset, offset + to->bytes[i]);
        offset += to->bytes[i];
    }
    header = TEXT("%s}", header);
    place = sbp_arena_strdup(f->arena, place);
    cli_ok(f, TEXT("mkdir -p %s", place));
    FILE *out = fopen(TEXT("%s/model.safetensors", place), "wb");
    assert_non_null(out);
    uint64_t length = strlen(header);
    fwrite(&length, 1, 8, out);
    fputs(header, out);
    for (int i = 0; i < to->count; i++)
        fwrite(to->data[i], 1, (size_t)to->bytes[i], out);
    assert_int_equal(fclose(out), 0);
    io_put(TEXT("%s/config.json", place), config, strlen(config));
}

/* Values of a formula, of seven bits. */
static float value(uint64_t *state, double size) {
    return (float)(ldexp((double)(int)(io_random(state) % 129) - 64, -6) * size);
}

static double of_code(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double v = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 128 ? -v : v;
}

/* A weight of rank 2 or 3 in both files: codes and scales, and the numbers. */
static void add_both(file *codes, file *numbers, const shape *s, const char *name, int rank,
                     const int64_t *dim, uint64_t *state) {
    io_fixture *f = codes->f;
    int64_t matrices = rank == 3 ? dim[0] : 1, rows = dim[rank - 2], columns = dim[rank - 1];
    int64_t of[3] = {matrices, (rows + s->rows - 1) / s->rows, (columns + s->columns - 1) / s->columns};
    uint8_t *code = add(codes, name, "F8_E4M3", 1, rank, dim);
    float *scale = add(codes, TEXT("%s_scale_inv", name), "F32", 4, rank, of + 3 - rank);
    float *number = add(numbers, name, "F32", 4, rank, dim);
    for (int64_t i = 0; i < matrices * of[1] * of[2]; i++)
        scale[i] = (float)ldexp(1 + io_random(state) % 63, -14); /* a number and its scale have 10 bits */
    for (int64_t i = 0; i < matrices * rows * columns; i++) {
        int64_t matrix = i / columns / rows, row = i / columns % rows, column = i % columns;
        code[i] = (uint8_t)(io_random(state) % 104 + (io_random(state) & 1 ? 128 : 0));
        number[i] =
            (float)(of_code(code[i]) * scale[(matrix * of[1] + row / s->rows) * of[2] + column / s->columns]);
    }
}

static const char *config_of(io_fixture *f, const shape *s, const char *quantization) {
    const char *experts =
        TEXT("\"model_type\": \"qwen3_moe\", \"num_experts\": %d, \"num_experts_per_tok\": 2, "
             "\"moe_intermediate_size\": %" PRId64 ", \"mlp_only_layers\": [], "
             "\"norm_topk_prob\": true, \"router_aux_loss_coef\": 0.0",
             EXPERTS, s->inner);
    return TEXT("{%s, \"vocab_size\": %d, \"hidden_size\": %" PRId64 ", \"intermediate_size\": %" PRId64
                ", \"num_hidden_layers\": 1, \"num_attention_heads\": %d, \"num_key_value_heads\": 1, "
                "\"head_dim\": %d, \"hidden_act\": \"silu\", \"max_position_embeddings\": 64, "
                "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false%s}",
                s->experts ? experts : "\"model_type\": \"llama\"", VOCAB, s->hidden, s->inner, HEADS,
                HEAD_DIM, quantization);
}

/* $D/codes and $D/numbers. */
static void write_models(io_fixture *f, const shape *s, const char *quantization) {
    file codes = {.f = f}, numbers = {.f = f}, *both[] = {&codes, &numbers};
    uint64_t state = 5;
    const int64_t n = s->hidden, q = HEADS * HEAD_DIM, inner = s->inner;
#define LAYER "model.layers.0."
    const struct {
        const char *name;
        int rank;
        int64_t dim[2];
        double size, plus;
    } plain[] = {{"model.embed_tokens.weight", 2, {VOCAB, n}, 1, 0},
                 {"model.norm.weight", 1, {n}, 0.125, 1},
                 {"lm_head.weight", 2, {VOCAB, n}, 0.25, 0},
                 {LAYER "input_layernorm.weight", 1, {n}, 0.125, 1},
                 {LAYER "post_attention_layernorm.weight", 1, {n}, 0.125, 1},
                 {LAYER "mlp.gate.weight", 2, {EXPERTS, n}, 0.5, 0},
                 {LAYER "self_attn.q_norm.weight", 1, {HEAD_DIM}, 0.125, 1},
                 {LAYER "self_attn.k_norm.weight", 1, {HEAD_DIM}, 0.125, 1}};
    for (int i = 0; i < SBP_COUNT(plain) - (s->experts ? 0 : 3); i++) {
        float *to[2];
        for (int k = 0; k < 2; k++)
            to[k] = add(both[k], plain[i].name, "F32", 4, plain[i].rank, plain[i].dim);
        for (int64_t e = 0; e < plain[i].dim[0] * (plain[i].rank == 2 ? plain[i].dim[1] : 1); e++)
            to[0][e] = to[1][e] = value(&state, plain[i].size) + (float)plain[i].plus;
    }
    const struct {
        const char *name;
        int64_t dim[3];
        int kind; /* 0: attention, 1: MLP, 2: experts */
    } coded[] = {{LAYER "self_attn.q_proj.weight", {1, q, n}, 0},
                 {LAYER "self_attn.k_proj.weight", {1, HEAD_DIM, n}, 0},
                 {LAYER "self_attn.v_proj.weight", {1, HEAD_DIM, n}, 0},
                 {LAYER "self_attn.o_proj.weight", {1, n, q}, 0},
                 {LAYER "mlp.gate_proj.weight", {1, inner, n}, 1},
                 {LAYER "mlp.up_proj.weight", {1, inner, n}, 1},
                 {LAYER "mlp.down_proj.weight", {1, n, inner}, 1},
                 {LAYER "mlp.experts.gate_up_proj", {EXPERTS, 2 * inner, n}, 2},
                 {LAYER "mlp.experts.down_proj", {EXPERTS, n, inner}, 2}};
    for (int i = 0; i < SBP_COUNT(coded); i++)
        if (coded[i].kind == 0 || (coded[i].kind == 2) == s->experts)
            add_both(&codes, &numbers, s, coded[i].name, coded[i].kind == 2 ? 3 : 2,
                     coded[i].dim + (coded[i].kind != 2), &state);
    finish(&codes, "codes", config_of(f, s, quantization));
    finish(&numbers, "numbers", config_of(f, s, ""));
    cli_put(f, "rows.jsonl",
            "{\"input_ids\": [3, 9, 1, 20, 14, 7, 7, 2, 11, 22, 5]}\n"
            "{\"input_ids\": [8, 0, 19, 4, 6, 13, 1]}\n");
}

static const char *stated(io_fixture *f, const shape *s) {
    return TEXT(
        ", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"weight_block_size\": "
        "[%" PRId64 ", %" PRId64 "]}",
        s->rows, s->columns);
}

static void dump(io_fixture *f, const char *model, const char *options, const char *to) {
    cli_ok(f, TEXT("$C compile $D/%s -o $D/p --dtype fp64 --seq-len 16 --optimizer none %s && $R $D/p --data "
                   "$D/rows.jsonl --batch-size 2 --dump-gradients $D/%s",
                   model, options, to));
}

static void check(io_fixture *f, const shape *s, const char *options, bool kept) {
    const char *what = TEXT("blocks of %" PRId64 " x %" PRId64 "%s %s", s->rows, s->columns,
                            s->experts ? ", experts" : "", options);
    dump(f, "codes", options, "g");
    if (!!kept != (cli(f, "grep -q dequantize.fp8 $D/p") == 0))
        fail_msg("%s: kept in blocks: %d expected", what, kept);
    dump(f, "numbers", options, "want");
    cli_compare(f, what, sbp_arena_strdup(f->arena, io_path(f, "g")),
                sbp_arena_strdup(f->arena, io_path(f, "want")), sbp_tolerance(SBP_F64));
}

/* As many blocks as equal ones of another size; 4 scales of 20 are 6, 6, 6, 2 here and were 5 each. */
static const shape sizes[] = {{20, 30, 6, 6, false},    {20, 30, 6, 6, true},     {20, 33, 7, 9, false},
                              {200, 30, 64, 64, false}, {192, 21, 96, 96, false}, {200, 40, 64, 128, true}};

static void test_sizes(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(sizes); i++) {
        write_models(f, &sizes[i], stated(f, &sizes[i]));
        check(f, &sizes[i], "", false);
    }
}

/* What stays frozen keeps its blocks, where these are of whole ones of the format; a scale is of two of
 * them. */
static void test_kept(void **state) {
    static const shape wide[] = {{384, 21, 9, 256, false}, {384, 12, 10, 256, true}};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(wide); i++) {
        write_models(f, &wide[i], stated(f, &wide[i]));
        check(f, &wide[i], "", false);
        check(f, &wide[i], "--freeze '*_proj*'", true);
    }
}

/* Sizes that files contradict, or leave open. */
static void test_refused(void **state) {
    static const char compile[] = "$C compile $D/codes -o $D/p --seq-len 16";
    io_fixture *f = *state;
    const shape *s = &sizes[0];
    write_models(f, s, ", \"quantization_config\": {\"quant_method\": \"fp8\"}"); /* 128 x 128, then */
    cli_fails(f, 1, "is [128, 128], which makes 1 x 1", compile);
    write_models(f, s, ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": null}");
    cli_fails(f, 1, "is null: one scale for all", compile);
    write_models(f, s, ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [6]}");
    cli_fails(f, 1, "weight_block_size: expected two numbers", compile);
    write_models(f, s,
                 ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [6, 0]}");
    cli_fails(f, 1, "expected a number of rows and columns above 0", compile);
    write_models(f, s, "");
    cli_fails(f, 1, "blocks of several sizes can have", compile);
    write_models(f, s, stated(f, s));
    cli_fails(f, 1, "change it there",
              "$C compile $D/codes -o $D/p --seq-len 16 --set quantization_config.weight_block_size=[5,5]");
    /* a scale for each number is no question */
    write_models(f, &(shape){20, 30, 1, 1, false}, "");
    check(f, &(shape){20, 30, 1, 1, false}, "", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_kept, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
