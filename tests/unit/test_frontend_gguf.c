/* test_frontend_gguf.c: GGUF files. Golden cases of Hugging Face models are rewritten as GGUF the way
 * llama.cpp's converter does it, loaded again, and must give the same log-probabilities and gradients under
 * Hugging Face's names; stories260K, a file made by others, must give llama2.c's numbers. */
#include "frontend_testing.h"
#include "mutate.h"

#include <stdlib.h>

/* ---- a writer of GGUF ------------------------------------------------------------------------------- */

typedef struct gguf_writer {
    sbp_text keys, tensors, data;
    int64_t key_count, tensor_count;
} gguf_writer;

static void put(sbp_text *t, const void *bytes, size_t n) {
    sbp_text_add_n(t, bytes, n);
}

static void put_u32(sbp_text *t, uint32_t v) {
    put(t, &v, sizeof v);
}

static void put_u64(sbp_text *t, uint64_t v) {
    put(t, &v, sizeof v);
}

static void put_string(sbp_text *t, const char *s) {
    put_u64(t, strlen(s));
    put(t, s, strlen(s));
}

static void key_u32(gguf_writer *w, const char *key, int64_t value) {
    put_string(&w->keys, key);
    put_u32(&w->keys, 4);
    put_u32(&w->keys, (uint32_t)value);
    w->key_count++;
}

static void key_f32(gguf_writer *w, const char *key, double value) {
    float f = (float)value;
    put_string(&w->keys, key);
    put_u32(&w->keys, 6);
    put(&w->keys, &f, sizeof f);
    w->key_count++;
}

static void key_string(gguf_writer *w, const char *key, const char *value) {
    put_string(&w->keys, key);
    put_u32(&w->keys, 8);
    put_string(&w->keys, value);
    w->key_count++;
}

static void add_tensor(gguf_writer *w, const char *name, int32_t rank, const int64_t *dim,
                       const float *data) {
    size_t elems = 1;
    put_string(&w->tensors, name);
    put_u32(&w->tensors, (uint32_t)rank);
    for (int32_t d = rank - 1; d >= 0; d--) {
        put_u64(&w->tensors, (uint64_t)dim[d]);
        elems *= (size_t)dim[d];
    }
    put_u32(&w->tensors, 0);
    put_u64(&w->tensors, w->data.length);
    put(&w->data, data, elems * sizeof *data);
    while (w->data.length % 32 != 0)
        put(&w->data, "", 1);
    w->tensor_count++;
}

static void write_file(fixture *f, gguf_writer *w, const char *path) {
    sbp_text file;
    sbp_text_init(&file, f->arena);
    put(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, (uint64_t)w->tensor_count);
    put_u64(&file, (uint64_t)w->key_count);
    put(&file, w->keys.data, w->keys.length);
    put(&file, w->tensors.data, w->tensors.length);
    while (file.length % 32 != 0)
        put(&file, "", 1);
    put(&file, w->data.data, w->data.length);
    check(f, sbp_file_write(f->diag, path, file.data, file.length));
}

/* ---- from Hugging Face ------------------------------------------------------------------------------ */

typedef struct conversion {
    fixture *f;
    const sbp_json *config;
    const sbp_weights *weights;
    gguf_writer w;
    int64_t heads, kv_heads;
} conversion;

static int64_t number(const conversion *c, const char *key, int64_t fallback) {
    const sbp_json *field = sbp_json_member(c->config, key);
    return field && field->kind == SBP_JSON_INT ? field->integer : fallback;
}

/* Row (head, i, half) of the result is row (head, half, i) of the tensor. */
static void interleave(const float *in, float *out, int64_t rows, int64_t columns, int64_t heads) {
    int64_t d = rows / heads;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t half = 0; half < 2; half++)
            for (int64_t i = 0; i < d / 2; i++)
                memcpy(out + (h * d + 2 * i + half) * columns, in + (h * d + half * (d / 2) + i) * columns,
                       (size_t)columns * sizeof *in);
}

static const char *gguf_name(const conversion *c, const char *name, int64_t *heads) {
    static const char *const pairs[][2] = {
        {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"}, {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"}};
    *heads = strstr(name, "q_proj") ? c->heads : strstr(name, "k_proj") ? c->kv_heads : 0;
    if (strcmp(name, "model.embed_tokens.weight") == 0)
        return "token_embd.weight";
    if (strcmp(name, "model.norm.weight") == 0)
        return "output_norm.weight";
    if (strcmp(name, "lm_head.weight") == 0)
        return "output.weight";
    int layer = 0, used = 0;
    assert_int_equal(sscanf(name, "model.layers.%d.%n", &layer, &used), 1);
    for (int i = 0; i < SBP_COUNT(pairs); i++)
        if (strncmp(name + used, pairs[i][0], strlen(pairs[i][0])) == 0)
            return sbp_arena_printf(c->f->arena, "blk.%d.%s%s", layer, pairs[i][1],
                                    name + used + strlen(pairs[i][0]));
    fail_msg("%s", name);
    return NULL;
}

static void convert_tensors(conversion *c) {
    for (int32_t i = 0; i < sbp_weights_count(c->weights); i++) {
        const sbp_weight *t = sbp_weights_at(c->weights, i);
        float *data = SBP_NEW_ARRAY(c->f->arena, float, t->elems), *turned = data;
        check(c->f, sbp_weights_read(c->weights, t, 0, t->elems, SBP_F32, data, c->f->diag));
        int64_t heads;
        const char *name = gguf_name(c, t->name, &heads);
        if (heads > 0) {
            turned = SBP_NEW_ARRAY(c->f->arena, float, t->elems);
            interleave(data, turned, t->dim[0], t->elems / t->dim[0], heads);
        }
        add_tensor(&c->w, name, t->rank, t->dim, turned);
    }
}

static void convert_keys(conversion *c) {
    const sbp_json *theta = sbp_json_member(c->config, "rope_theta"),
                   *rope = sbp_json_member(c->config, "rope_parameters");
    const sbp_json *scaling = sbp_json_member(c->config, "rope_scaling"),
                   *head_dim = sbp_json_member(c->config, "head_dim");
    if (!theta)
        theta = sbp_json_member(rope, "rope_theta");
    key_string(&c->w, "general.architecture", "llama");
    key_u32(&c->w, "llama.embedding_length", number(c, "hidden_size", 0));
    key_u32(&c->w, "llama.feed_forward_length", number(c, "intermediate_size", 0));
    key_u32(&c->w, "llama.block_count", number(c, "num_hidden_layers", 0));
    key_u32(&c->w, "llama.attention.head_count", c->heads);
    key_u32(&c->w, "llama.attention.head_count_kv", c->kv_heads);
    key_u32(&c->w, "llama.context_length", 128);
    if (head_dim) {
        key_u32(&c->w, "llama.attention.key_length", head_dim->integer);
        key_u32(&c->w, "llama.attention.value_length", head_dim->integer);
    }
    key_f32(&c->w, "llama.attention.layer_norm_rms_epsilon",
            sbp_json_member(c->config, "rms_norm_eps")->real);
    if (theta)
        key_f32(&c->w, "llama.rope.freq_base", theta->real);
    if (sbp_json_member(scaling, "type")) {
        key_string(&c->w, "llama.rope.scaling.type", "linear");
        key_f32(&c->w, "llama.rope.scaling.factor", sbp_json_member(scaling, "factor")->real);
    }
    key_u32(&c->w, "tokenizer.ggml.eos_token_id", 2);
    key_u32(&c->w, "tokenizer.ggml.padding_token_id", 4294967295);
}

/* The factors of Llama 3's scaling, as llama.cpp's converter computes them. */
static void add_rope_factors(conversion *c, int64_t head_dim, double spoil) {
    const sbp_json *rope = sbp_json_member(c->config, "rope_parameters");
    double theta = sbp_json_member(rope, "rope_theta")->real, factor = sbp_json_member(rope, "factor")->real;
    double low = sbp_json_member(rope, "low_freq_factor")->real,
           high = sbp_json_member(rope, "high_freq_factor")->real;
    int64_t length = sbp_json_member(rope, "original_max_position_embeddings")->integer, n = head_dim / 2;
    float factors[64];
    for (int64_t i = 0; i < n; i++) {
        double wavelength = 2 * 3.141592653589793 * pow(theta, 2.0 * (double)i / (double)head_dim);
        double t = ((double)length / wavelength - low) / (high - low);
        t = t < 0 ? 0 : t > 1 ? 1 : t;
        factors[i] = (float)(1 / ((1 - t) / factor + t));
    }
    factors[n / 2] += (float)spoil;
    add_tensor(&c->w, "rope_freqs.weight", 1, &n, factors);
    key_u32(&c->w, "llama.rope.scaling.original_context_length", length);
}

static void convert(conversion *c, const char *directory) {
    fixture *f = c->f;
    sbp_weights *weights;
    sbp_text_init(&c->w.keys, f->arena);
    sbp_text_init(&c->w.tensors, f->arena);
    sbp_text_init(&c->w.data, f->arena);
    c->config = read_json(f, sbp_file_join(f->arena, directory, "model/config.json"));
    check(f, sbp_weights_open(f->arena, f->diag, sbp_file_join(f->arena, directory, "model"), &weights));
    c->weights = weights;
    c->heads = number(c, "num_attention_heads", 0);
    c->kv_heads = number(c, "num_key_value_heads", c->heads);
    convert_keys(c);
    convert_tensors(c);
    sbp_weights_close(weights);
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static char directory[] = "/tmp/sbp_gguf_XXXXXX", file[sizeof directory + 20];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(file, sizeof file, "%s/model.gguf", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    unlink(file);
    return rmdir(directory);
}

static sbp_status load_file(fixture *f, sbp_model *model) {
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    return sbp_model_load(f->arena, f->diag, file, &options, model);
}

static sbp_status run_goldens(void *user) {
    fixture *f = user;
    static const char *const cases[] = {
        "llama_plain", "llama_bias",        "llama_tied_pad",        "llama_mqa",
        "llama_mha",   "llama_rope_llama3", "llama_rope_linear_type"};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const char *golden = sbp_file_join(f->arena, "tests/golden", cases[i]);
        conversion c = {.f = f};
        convert(&c, golden);
        if (strcmp(cases[i], "llama_rope_llama3") == 0)
            add_rope_factors(&c, 16, 0);
        write_file(f, &c.w, file);
        sbp_model model;
        check(f, load_file(f, &model));
        assert_string_equal(model.weights, file);
        assert_string_equal(model.tokenizer, file);
        assert_string_equal(model.model_type, "llama");
        assert_int_equal(model.pad_id, -1);
        assert_int_equal(model.eos_ids[0], 2);
        compare_case(f, golden, &model);
    }
    return SBP_OK;
}

static void test_goldens(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_goldens, &f), SBP_OK);
    fixture_destroy(&f);
}

/* A file of the given case, changed by `change`, must be refused with this message. */
static void expect_error(const char *golden, void (*change)(conversion *c), sbp_status status,
                         const char *message) {
    fixture f = fixture_create();
    conversion c = {.f = &f};
    convert(&c, golden);
    change(&c);
    write_file(&f, &c.w, file);
    sbp_model model;
    check_fails(&f, load_file(&f, &model), status, message);
    fixture_destroy(&f);
}

static void add_key(conversion *c) {
    key_f32(&c->w, "llama.logit_scale", 2);
}

static void add_experts(conversion *c) {
    key_u32(&c->w, "llama.expert_count", 8);
}

static void add_partial_rope(conversion *c) {
    key_u32(&c->w, "llama.rope.dimension_count", 4);
}

static void add_yarn(conversion *c) {
    key_string(&c->w, "llama.rope.scaling.type", "yarn");
}

static void add_wrong_factors(conversion *c) {
    add_rope_factors(c, 16, 0.5);
}

static void add_extra_tensor(conversion *c) {
    int64_t n = 6;
    add_tensor(&c->w, "blk.0.attn_q_norm.weight", 1, &n, (float[6]){0});
}

static void add_far_layer(conversion *c) {
    int64_t n = 24;
    add_tensor(&c->w, "blk.3.attn_norm.weight", 1, &n, (float[24]){0});
}

static void add_some_bias(conversion *c) {
    int64_t n = 24;
    add_tensor(&c->w, "blk.0.attn_q.bias", 1, &n, (float[24]){0});
}

static void wrong_type(conversion *c) {
    key_string(&c->w, "llama.vocab_size", "many");
    key_f32(&c->w, "llama.expert_count", 2.5);
}

static void test_template(void **state) {
    (void)state;
    fixture f = fixture_create();
    conversion c = {.f = &f};
    sbp_model model;
    convert(&c, "tests/golden/llama_plain");
    key_string(&c.w, "tokenizer.chat_template", "{{ messages }}");
    write_file(&f, &c.w, file);
    check(&f, load_file(&f, &model));
    assert_string_equal(model.chat_template, "{{ messages }}");
    fixture_destroy(&f);
}

/* What an adapter's configuration calls the model: as the file says what was converted, or --base-name; else
 * its own path, which transformers cannot open, with a warning that has what the file was tuned from. */
static void test_base_name(void **state) {
    static const char parent[] = "general.base_model.0.repo_url", url[] = "general.source.url",
                      repo_url[] = "general.source.repo_url",
                      repository[] = "general.source.huggingface.repository";
    static const struct {
        const char *keys[4], *given, *name; /* pairs of key and text; name NULL: the path */
    } cases[] = {{{repository, "some/model"}, NULL, "some/model"},
                 {{repo_url, "https://huggingface.co/some/model"}, NULL, "some/model"},
                 {{url, "https://huggingface.co/some/model/tree/main?x"}, NULL, "some/model"},
                 {{url, "https://huggingface.co/a/b", repository, "some/model"}, NULL, "some/model"},
                 {{repository, "no-owner", url, "https://huggingface.co/some/model"}, NULL, "some/model"},
                 {{repository, "some/model"}, "given/name", "given/name"},
                 {{repo_url, "https://github.com/some/model"}, NULL, NULL},
                 {{repo_url, "https://huggingface.co/some"}, NULL, NULL},
                 {{parent, "https://huggingface.co/its/parent"}, NULL, NULL},
                 {{NULL}, NULL, NULL}};
    const sbp_lora_options lora = {.rank = 2, .alpha = 4};
    (void)state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        fixture f = fixture_create();
        conversion c = {.f = &f};
        sbp_model model;
        sbp_model_options options = sbp_model_options_for(SBP_F64);
        const sbp_json *config;
        const char *name;
        options.lora = &lora;
        options.base_name = cases[i].given;
        convert(&c, "tests/golden/llama_plain");
        for (int k = 0; k < 4 && cases[i].keys[k]; k += 2)
            key_string(&c.w, cases[i].keys[k], cases[i].keys[k + 1]);
        write_file(&f, &c.w, file);
        check(&f, sbp_model_load(f.arena, f.diag, file, &options, &model));
        check(&f,
              sbp_json_parse(f.arena, f.diag, "adapter", model.adapter, strlen(model.adapter), 0, &config));
        check(&f, sbp_json_get_string(f.diag, config, "base_model_name_or_path", SBP_JSON_REQUIRED, &name));
        assert_string_equal(name, cases[i].name ? cases[i].name : file);
        assert_int_equal(sbp_diag_count(f.diag, SBP_WARNING), cases[i].name == NULL);
        const char *warning = cases[i].name ? "" : sbp_diag_text(f.diag, SBP_WARNING);
        assert_true((strstr(warning, "its/parent") != NULL) == (cases[i].keys[0] == parent));
        fixture_destroy(&f);
    }
}

static void test_errors(void **state) {
    (void)state;
    static const char plain[] = "tests/golden/llama_plain";
    expect_error(plain, add_key, SBP_INPUT,
                 "key 'llama.logit_scale': what is supported of architecture llama does not have this");
    expect_error(plain, add_experts, SBP_INPUT, "the key 'llama.expert_used_count' is missing");
    expect_error(plain, add_partial_rope, SBP_INPUT,
                 "key 'llama.rope.dimension_count' is 4; only 6 is supported");
    expect_error(plain, add_yarn, SBP_INPUT, "yarn with yarn_ext_factor 1 and original_context_length 0");
    expect_error("tests/golden/llama_rope_llama3", add_wrong_factors, SBP_INPUT,
                 "tensor 'rope_freqs.weight', element");
    expect_error(plain, add_extra_tensor, SBP_INPUT, "tensor 'blk.0.attn_q_norm.weight' has no place");
    expect_error(plain, add_far_layer, SBP_INPUT,
                 "tensor 'blk.3.attn_norm.weight' has no place in a model of type llama of 3 layers");
    expect_error(plain, add_some_bias, SBP_INPUT,
                 "nothing that 'model.layers.0.self_attn.k_proj.bias' of a model of type llama");
    expect_error(plain, wrong_type, SBP_INPUT, "key 'llama.expert_count': expected an integer");
}

/* ---- stories260K ------------------------------------------------------------------------------------- */

static int64_t skipped;

static void compare_with_oracle(fixture *f, const char *path, const char *oracle_path) {
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    check(f, sbp_model_load(f->arena, f->diag, path, &options, &model));
    const sbp_json *oracle = read_json(f, oracle_path), *tokens = sbp_json_member(oracle, "tokens"),
                   *nll = sbp_json_member(oracle, "nll");
    batch *b = test_calloc(1, sizeof *b);
    int64_t ids[MAX_ROWS];
    for (int64_t i = 0; i < tokens->count; i++)
        ids[i] = tokens->items[i].integer;
    batch_add(b, ids, NULL, tokens->count);
    batch_add(b, ids, NULL, tokens->count); /* twice: documents do not see each other */
    sbp_weights *weights;
    check(f, sbp_weights_open(f->arena, f->diag, model.weights, &weights));
    const sbp_func *func = sbp_module_find_func(model.module, "model");
    sbp_tensor **values = run(f, model.module, func, b, weights, NULL);
    const sbp_tensor *logp = result_of(func, values, "logp");
    double worst = 0;
    assert_int_equal(nll->count, tokens->count - 1);
    for (int64_t i = 0; i < nll->count; i++) {
        double difference = fabs(logp->data[i] + nll->items[i].real);
        worst = difference > worst ? difference : worst;
        assert_true(logp->data[i] == logp->data[b->begin[1] + i]);
    }
    printf("  %-46s nll %.1e of %s\n", path, worst, oracle_path);
    assert_true(worst <= SBP_TOLERANCE_STORIES);
    sbp_weights_close(weights);
    test_free(b);
}

static sbp_status run_stories(void *user) {
    fixture *f = user;
    static const char *const models[] = {"tests/data/stories260K", "../shared/models/stories260K",
                                         "../shared/models/stories260K/stories260Ktok512.gguf"};
    static const char *const oracles[] = {"../shared/models/stories260K/oracle1.json",
                                          "../shared/models/stories260K/oracle2.json"};
    for (int m = 0; m < SBP_COUNT(models); m++)
        for (int o = 0; o < SBP_COUNT(oracles); o++) {
            if (access(oracles[o], R_OK) == 0 && access(models[m], R_OK) == 0) {
                compare_with_oracle(f, models[m], oracles[o]);
                continue;
            }
            printf("  skipped: no %s or no %s\n", models[m], oracles[o]);
            skipped++;
        }
    return SBP_OK;
}

static void test_stories(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_stories, &f), SBP_OK);
    fixture_destroy(&f);
}

/* ---- damage ------------------------------------------------------------------------------------------ */

/* Bytes of the header changed, 1 to 3 at a time: never a crash, a message with every failure. */
static void test_mutations(void **state) {
    (void)state;
    fixture f = fixture_create();
    conversion c = {.f = &f};
    convert(&c, "tests/golden/llama_rope_llama3");
    add_rope_factors(&c, 16, 0);
    write_file(&f, &c.w, file);
    const char *whole;
    size_t length, header = 24 + c.w.keys.length + c.w.tensors.length;
    check(&f, sbp_file_read(f.arena, f.diag, file, &whole, &length));
    char *copy = SBP_NEW_ARRAY(f.arena, char, length);
    int loaded = 0, refused = 0;
    for (int round = mutate_rounds(1500); round > 0; round--) {
        memcpy(copy, whole, length);
        for (uint32_t k = 1 + mutate_pick(3); k > 0; k--)
            copy[mutate_pick((uint32_t)header)] =
                mutate_pick(2) ? (char)(unsigned char)mutate_pick(256) : (char)mutate_pick(4);
        fixture g = fixture_create();
        check(&g, sbp_file_write(g.diag, file, copy, length));
        sbp_model model;
        sbp_status status = load_file(&g, &model);
        if (status != SBP_OK && status != SBP_INPUT && status != SBP_USAGE)
            fail_msg("round %d: status %d: %s", round, (int)status, sbp_diag_text(g.diag, SBP_NOTE));
        assert_true(status == SBP_OK || sbp_diag_count(g.diag, SBP_ERROR) > 0);
        loaded += status == SBP_OK;
        refused += status != SBP_OK;
        fixture_destroy(&g);
    }
    printf("  %d changed files refused, %d loaded\n", refused, loaded);
    assert_true(refused > 0 && loaded > 0);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens), cmocka_unit_test(test_template), cmocka_unit_test(test_base_name),
        cmocka_unit_test(test_errors),  cmocka_unit_test(test_stories),  cmocka_unit_test(test_mutations),
    };
    int failures = cmocka_run_group_tests(tests, make_directory, remove_directory);
    printf("%lld comparisons skipped\n", (long long)skipped);
    return failures;
}
