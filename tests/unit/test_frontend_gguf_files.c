/* test_frontend_gguf_files.c: GGUF files that llama.cpp's own converter made of goldens
 * (tests/golden/make_gguf.py): each builds the graph that the golden's directory does, to the letter, with
 * the same numbers. */
#include "frontend_testing.h"
#include "mutate.h"

#include <stdlib.h>

#include "frontends/formats/weights/gguf_traits.h"

#define FILES "tests/golden/gguf"

enum {
    KEY_ROWS = 0
#define KEY(traits, key, field, kind, required) +1
#include "frontends/formats/weights/gguf_table.def"
};

static const char *const classes[] = {
#define BY_CODE(model_type, field, value, said) model_type,
#define DEFAULTS(model_type, ...) model_type,
#include "frontends/formats/weights/gguf_table.def"
};

/* Every trait is some family's, every row for a key counts in one, and what goes by a class's name is that of
 * one that the table has. */
static void test_table(void **state) {
    const sbp_gguf_key *first = sbp_gguf_next_key(SBP_GGUF_LLAMA, NULL), *row;
    bool counts[KEY_ROWS] = {false};
    sbp_gguf_traits traits = 0;
    (void)state;
    for (int k = 0; k < SBP_GGUF_FAMILIES; k++) {
        sbp_gguf_family_id id = (sbp_gguf_family_id)k;
        traits |= sbp_gguf_family_of(id)->traits;
        for (row = NULL; (row = sbp_gguf_next_key(id, row));)
            counts[row - first] = true;
        if (sbp_gguf_has(id, WINDOWS))
            assert_true(sbp_gguf_default(id, "sliding_window_pattern") >= 1);
    }
    assert_true(traits == (ALL | (TRAIT(TRAITS) - 1)));
    for (int k = 0; k < KEY_ROWS; k++)
        if (!counts[k])
            fail_msg("row %d, %s, is behind others in all families", k, first[k].key);
    for (int i = 0; i < SBP_COUNT(classes) && classes[i]; i++) {
        int k = 0;
        while (k < SBP_GGUF_FAMILIES &&
               strcmp(sbp_gguf_family_of((sbp_gguf_family_id)k)->model_type, classes[i]) != 0)
            k++;
        if (k == SBP_GGUF_FAMILIES)
            fail_msg("no family is of model_type %s", classes[i]);
    }
}

static sbp_model load(fixture *f, const char *path, const sbp_json *set) {
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    const char **fields = SBP_NEW_ARRAY(f->arena, const char *, set ? set->count + 1 : 1);
    for (int64_t i = 0; set && i < set->count; i++)
        fields[i] = set->items[i].string;
    options.set = fields;
    options.set_count = set ? (int32_t)set->count : 0;
    check(f, sbp_model_load(f->arena, f->diag, path, &options, &model));
    return model;
}

/* As part of a multimodal model all names have this in them, inside or in front. */
static char *without_part(fixture *f, const char *text) {
    static const char inside[] = ".language_model", before[] = "language_model.";
    char *out = SBP_NEW_ARRAY(f->arena, char, strlen(text) + 1), *to = out;
    while (*text)
        if (strncmp(text, inside, strlen(inside)) == 0 || strncmp(text, before, strlen(before)) == 0)
            text += strlen(inside);
        else
            *to++ = *text++;
    *to = 0;
    return out;
}

static char *print(fixture *f, const sbp_model *model) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_module_print(&text, model->module);
    return without_part(f, strchr(text.data, '\n')); /* after its name, that of the file */
}

static void expect_same_text(const char *name, const char *got, const char *want) {
    size_t at = 0, line = 0;
    while (got[at] && got[at] == want[at])
        if (got[at++] == '\n')
            line = at;
    if (got[at] != want[at])
        fail_msg("%s: the graphs differ\n  %.*s\n  %.*s", name, (int)strcspn(got + line, "\n"), got + line,
                 (int)strcspn(want + line, "\n"), want + line);
}

/* Numbers that the file has otherwise (1 + w, -exp(A_log)) are rounded once more. */
static double compare_params(fixture *f, const char *name, const sbp_model *got, const sbp_model *want) {
    sbp_weights *file, *directory;
    double worst = 0;
    check(f, sbp_weights_open(f->arena, f->diag, got->weights, &file));
    check(f, sbp_weights_open(f->arena, f->diag, want->weights, &directory));
    assert_int_equal(got->module->param_count, want->module->param_count);
    for (int32_t p = 0; p < got->module->param_count; p++) {
        const sbp_param *a = &got->module->params[p], *b = &want->module->params[p];
        int64_t n = sbp_type_row_elems(&a->type);
        double *x = SBP_NEW_ARRAY(f->arena, double, n), *y = SBP_NEW_ARRAY(f->arena, double, n);
        const sbp_param *in_directory = b;
        sbp_param other = *b;
        if (!sbp_weights_find(directory, b->recipe ? b->recipe->source : b->name))
            for (int32_t k = 0; k < b->alias_count; k++)
                if (sbp_weights_find(directory, b->aliases[k])) {
                    other.name = b->aliases[k];
                    in_directory = &other;
                }
        read_param(f, file, a, x, n);
        read_param(f, directory, in_directory, y, n);
        for (int64_t i = 0; i < n; i++) {
            double distance = fabs(x[i] - y[i]);
            worst = distance > worst ? distance : worst;
            if (!(distance <= SBP_TOLERANCE_GGUF_RULE * fmax(1, fabs(y[i]))))
                fail_msg("%s: %s: element %lld is %.17g, expected %.17g", name, a->name, (long long)i, x[i],
                         y[i]);
        }
    }
    sbp_weights_close(file);
    sbp_weights_close(directory);
    return worst;
}

static bool is_exact(const char *name) {
    static const char *const rounded[] = {"qwen3next", "qwen35",     "gemma3", "granitehybrid",
                                          "falcon-h1", "nemotron_h", "step35"};
    for (int i = 0; i < SBP_COUNT(rounded); i++)
        if (strncmp(name, rounded[i], strlen(rounded[i])) == 0)
            return false;
    return true;
}

static void test_files(void **state) {
    (void)state;
    fixture f = fixture_create();
    const sbp_json *cases = read_json(&f, FILES "/cases.json");
    int found = 0;
    for (int64_t i = 0; i < cases->count; i++) {
        const char *name = cases->items[i].key;
        fixture g = fixture_create();
        const char *path = sbp_arena_printf(g.arena, FILES "/%s.gguf", name);
        const sbp_json *set = sbp_json_member(&cases->items[i], "set"),
                       *golden = sbp_json_member(&cases->items[i], "golden"),
                       *both = sbp_json_member(&cases->items[i], "file_set");
        sbp_model want = load(&g, sbp_arena_printf(g.arena, "tests/golden/%s/model", golden->string), set);
        sbp_model got = load(&g, path, both);
        expect_same_text(name, print(&g, &got), print(&g, &want));
        double worst = compare_params(&g, name, &got, &want);
        printf("  %-24s %4d parameters, largest difference %.1e\n", name, (int)got.module->param_count,
               worst);
        assert_true(worst == 0 || !is_exact(name));
        found++;
        fixture_destroy(&g);
    }
    assert_true(found >= 20);
    fixture_destroy(&f);
}

/* ---- views ------------------------------------------------------------------------------------------- */

static bool shape_in(void *user, const char *name, int32_t *rank, int64_t *dim) {
    const sbp_weight *w = sbp_weights_find(user, name);
    if (!w || w->source_count > 0)
        return false;
    *rank = w->rank;
    memcpy(dim, w->dim, (size_t)w->rank * sizeof *dim);
    return true;
}

/* Any part of it is what the whole has there; and blocks, if it has any, stand for its numbers. */
static void check_view(fixture *f, const sbp_weights *w, const sbp_weight *t, int *blocks) {
    float *whole = SBP_NEW_ARRAY(f->arena, float, t->elems), *part = SBP_NEW_ARRAY(f->arena, float, t->elems);
    check(f, sbp_weights_read(w, t, 0, t->elems, SBP_F32, whole, f->diag));
    for (int round = 0; round < 20; round++) {
        int64_t from = (int64_t)mutate_pick((uint32_t)t->elems),
                n = (int64_t)mutate_pick((uint32_t)(t->elems - from)) + 1;
        check(f, sbp_weights_read(w, t, from, n, SBP_F32, part, f->diag));
        assert_memory_equal(part, whole + from, (size_t)n * sizeof *part);
    }
    if (!t->format)
        return;
    const sbp_format_info *info = sbp_format_of(t->format);
    const sbp_format_decoder *decoder = sbp_format_decoder_create(f->arena, f->diag, t->format);
    int64_t count = t->elems / info->block;
    for (int round = 0; round < 10; round++) {
        int64_t from = round == 0 ? 0 : (int64_t)mutate_pick((uint32_t)count),
                n = round == 0 ? count : (int64_t)mutate_pick((uint32_t)(count - from)) + 1;
        void *parts[SBP_MAX_FORMAT_PARTS];
        for (int32_t k = 0; k < info->part_count; k++)
            parts[k] = sbp_arena_alloc(
                f->arena, (size_t)(n * info->parts[k].count * sbp_dtype_bytes(info->parts[k].dtype)));
        check(f, sbp_weights_read_blocks(w, t, from, n, parts, f->diag));
        sbp_format_decode(decoder, (const void *const *)parts, n, part);
        assert_memory_equal(part, whole + from * info->block, (size_t)(n * info->block) * sizeof *part);
    }
    ++*blocks;
}

static void test_views(void **state) {
    static const char *const names[] = {"deepseek2", "qwen35",        "qwen3next",     "gpt-oss_mxfp4",
                                        "gptneox",   "granitehybrid", "phi3_longrope", "llama_q8_0",
                                        "gemma3n",   "apertus"};
    int blocks = 0, views = 0;
    (void)state;
    for (int i = 0; i < SBP_COUNT(names); i++) {
        fixture f = fixture_create();
        sbp_weights *w;
        sbp_gguf_facts facts;
        sbp_gguf_piece *pieces;
        int32_t count;
        bool found;
        check(&f,
              sbp_weights_open(f.arena, f.diag, sbp_arena_printf(f.arena, FILES "/%s.gguf", names[i]), &w));
        check(&f, sbp_gguf_facts_of_keys(f.diag, sbp_weights_gguf(w), &facts, &found));
        assert_true(found);
        check(&f, sbp_gguf_pieces(f.arena, f.diag, names[i], &facts, SBP_GGUF_FILE, shape_in, w, &pieces,
                                  &count));
        for (int32_t k = 0; k < count; k++) {
            const sbp_weight *t = sbp_weights_find(w, pieces[k].hf);
            assert_true(t != NULL || pieces[k].other_spelling);
            if (t && !pieces[k].other_spelling)
                check_view(&f, w, t, &blocks);
            views += t != NULL;
        }
        sbp_weights_close(w);
        fixture_destroy(&f);
    }
    printf("  %d views, %d of them in blocks\n", views, blocks);
    assert_true(blocks >= 10); /* MXFP4 whose rows take turns, Q8_0 whose rows are permuted */
}

/* The directory's shapes give the file's pieces: what readers go by and what writers go by are the same. */
static void test_both_ways(void **state) {
    fixture f = fixture_create();
    const sbp_json *cases = read_json(&f, FILES "/cases.json");
    (void)state;
    for (int64_t i = 0; i < cases->count; i++) {
        const char *name = cases->items[i].key, *golden = sbp_json_member(&cases->items[i], "golden")->string;
        sbp_weights *file, *directory;
        sbp_gguf_facts facts, of_config;
        sbp_gguf_piece *pieces;
        int32_t count, seen = 0;
        bool found;
        fixture g = fixture_create();
        const sbp_json *config =
            read_json(&g, sbp_arena_printf(g.arena, "tests/golden/%s/model/config.json", golden));
        if (sbp_json_member(config, "text_config")) { /* names of a part of a multimodal model */
            fixture_destroy(&g);
            continue;
        }
        check(&g,
              sbp_weights_open(g.arena, g.diag, sbp_arena_printf(g.arena, FILES "/%s.gguf", name), &file));
        check(&g, sbp_weights_open(g.arena, g.diag,
                                   sbp_arena_printf(g.arena, "tests/golden/%s/model", golden), &directory));
        check(&g, sbp_gguf_facts_of_keys(g.diag, sbp_weights_gguf(file), &facts, &found));
        check(&g, sbp_gguf_facts_of_config(g.diag, name, config, &of_config, &found));
        assert_true(found);
        assert_int_equal(facts.heads, of_config.heads);
        assert_true(facts.kv_heads == of_config.kv_heads || facts.fixed > 0); /* latent: one for all heads */
        assert_true(facts.key_heads == of_config.key_heads && facts.value_heads == of_config.value_heads &&
                    facts.key_size == of_config.key_size && facts.value_size == of_config.value_size);
        assert_true(facts.fixed == of_config.fixed && facts.value == of_config.value);
        assert_int_equal(facts.groups, of_config.groups);
        check(&g, sbp_gguf_pieces(g.arena, g.diag, name, &of_config, SBP_GGUF_HF, shape_in, directory,
                                  &pieces, &count));
        for (int32_t k = 0; k < count; k++) {
            const sbp_weight *t = sbp_weights_find(file, pieces[k].file);
            if (!t) /* a layer that the file was made without, a head that is tied */
                continue;
            seen++;
            if (t->rank != pieces[k].file_rank ||
                memcmp(t->dim, pieces[k].file_dim, (size_t)t->rank * sizeof *t->dim) != 0)
                fail_msg("%s: %s", name, pieces[k].file);
        }
        assert_true(seen > 5);
        sbp_weights_close(file);
        sbp_weights_close(directory);
        fixture_destroy(&g);
    }
    fixture_destroy(&f);
}

static bool one_vector(void *user, const char *name, int32_t *rank, int64_t *dim) {
    (void)user;
    *rank = 1;
    dim[0] = 6;
    return strcmp(name, "model.layers.0.linear_attn.dt_bias") == 0;
}

/* Two key heads with three value heads each, in turn; no golden has numbers that tell them apart. */
static void test_value_heads(void **state) {
    fixture f = fixture_create();
    const sbp_gguf_facts facts = {.family = SBP_GGUF_QWEN3_5, .layers = 1, .key_heads = 2, .value_heads = 6};
    sbp_gguf_piece *pieces;
    int32_t count;
    int seen = 0;
    (void)state;
    check(&f, sbp_gguf_pieces(f.arena, f.diag, "x", &facts, SBP_GGUF_HF, one_vector, NULL, &pieces, &count));
    assert_int_equal(count, 1);
    const sbp_gguf_loop *l = pieces[0].loops;
    assert_int_equal(pieces[0].loop_count, 3);
    assert_string_equal(pieces[0].file, "blk.0.ssm_dt.bias");
    for (int64_t i = 0; i < l[0].extent; i++)
        for (int64_t k = 0; k < l[1].extent; k++, seen++) {
            int64_t hf = i * l[0].hf + k * l[1].hf, file = i * l[0].file + k * l[1].file;
            assert_int_equal(file, hf % 3 * 2 + hf / 3);
        }
    assert_int_equal(seen, 6);
    fixture_destroy(&f);
}

enum { EXPERTS_OF = 3, HIDDEN = 4, INNER = 2 };

/* Gates and ups are square matrices: which way they lie, the downs say. */
static bool experts_shape(void *user, const char *name, int32_t *rank, int64_t *dim) {
    bool straight = *(const bool *)user, down = strstr(name, "experts.down_proj") != NULL;
    *rank = 3;
    dim[0] = EXPERTS_OF;
    dim[1] = down && !straight ? INNER : HIDDEN;
    dim[2] = down && straight ? INNER : HIDDEN;
    return strncmp(name, "model.layers.0.mlp.experts.", 27) == 0 && (down || strstr(name, ".gate_up_proj"));
}

/* Where number (row, column) of an expert's matrix [out, in] is in the directory. */
static int64_t place_of(bool straight, int64_t out, int64_t in, int64_t row, int64_t column) {
    return straight ? row * in + column : column * out + row;
}

/* Experts of Qwen3-VL lie one way in published files, the other in those that transformers 5 saves. */
static void test_turned_experts(void **state) {
    fixture f = fixture_create();
    const sbp_gguf_facts facts = {
        .family = SBP_GGUF_QWEN3_VL_MOE, .layers = 1, .hidden = HIDDEN, .expert_inner = INNER};
    (void)state;
    for (int k = 0; k < 2; k++) {
        bool straight = k == 1;
        sbp_gguf_piece *pieces;
        int32_t count;
        int seen = 0;
        check(&f, sbp_gguf_pieces(f.arena, f.diag, "x", &facts, SBP_GGUF_HF, experts_shape, &straight,
                                  &pieces, &count));
        assert_int_equal(count, 3);
        for (int32_t p = 0; p < count; p++) {
            bool down = strstr(pieces[p].file, "down") != NULL, up = strstr(pieces[p].file, "up") != NULL;
            int64_t out = down ? HIDDEN : INNER, in = down ? INNER : HIDDEN, all = down ? out : 2 * out;
            const sbp_gguf_loop *l = pieces[p].loops;
            int64_t n[SBP_GGUF_LOOPS] = {1, 1, 1, 1, 1};
            for (int32_t d = 0; d < pieces[p].loop_count; d++)
                n[d] = l[d].extent;
            for (int64_t i = 0; i < n[0] * n[1] * n[2]; i++, seen++) {
                const int64_t at[] = {i / (n[1] * n[2]), i / n[2] % n[1], i % n[2]};
                int64_t hf = pieces[p].hf_base, file = pieces[p].file_base;
                for (int32_t d = 0; d < pieces[p].loop_count; d++) {
                    hf += at[d] * l[d].hf;
                    file += at[d] * l[d].file;
                }
                int64_t row = file / in % out + (up ? out : 0), expert = file / (in * out);
                assert_int_equal(hf, expert * all * in + place_of(straight, all, in, row, file % in));
            }
        }
        assert_int_equal(seen, EXPERTS_OF * 3 * HIDDEN * INNER);
    }
    fixture_destroy(&f);
}

/* What is no logarithm of anything. */
static void test_decay(void **state) {
    fixture f = fixture_create();
    char directory[] = "/tmp/sbp_gguf_decay_XXXXXX";
    const char *text;
    size_t length;
    sbp_weights *w;
    (void)state;
    assert_non_null(mkdtemp(directory));
    const char *path = sbp_file_join(f.arena, directory, "model.gguf");
    check(&f, sbp_weights_open(f.arena, f.diag, FILES "/granitehybrid.gguf", &w));
    int64_t at = sbp_weights_find(w, "blk.0.ssm_a")->offset;
    sbp_weights_close(w);
    check(&f, sbp_file_read(f.arena, f.diag, FILES "/granitehybrid.gguf", &text, &length));
    char *copy = SBP_NEW_ARRAY(f.arena, char, length);
    memcpy(copy, text, length);
    const float wrong = 0.5F;
    memcpy(copy + at + sizeof wrong, &wrong, sizeof wrong);
    check(&f, sbp_file_write(f.diag, path, copy, length));
    check(&f, sbp_weights_open(f.arena, f.diag, path, &w));
    double out[4];
    const sbp_weight *t = sbp_weights_find(w, "model.layers.0.mamba.A_log");
    check_fails(&f, sbp_weights_read(w, t, 0, 4, SBP_F64, out, f.diag), SBP_INPUT,
                "tensor 'blk.0.ssm_a': element 1 is 0.5; a number below 0 is expected");
    sbp_weights_close(w);
    unlink(path);
    assert_int_equal(rmdir(directory), 0);
    fixture_destroy(&f);
}

/* Bytes of the header changed, 1 to 3 at a time, of files of all kinds: never a crash, a message with
 * every failure. */
static void test_mutations(void **state) {
    static const char *const names[] = {"deepseek2",      "qwen35",  "qwen3next",     "gpt-oss_mxfp4",
                                        "gemma4_experts", "gptneox", "granitehybrid", "lfm2",
                                        "nemotron_h_moe", "gemma3n", "apertus",       "granite_swa",
                                        "mimo2",          "step35",  "laguna"};
    char directory[] = "/tmp/sbp_gguf_files_XXXXXX";
    int loaded = 0, refused = 0;
    (void)state;
    assert_non_null(mkdtemp(directory));
    for (int k = 0; k < SBP_COUNT(names); k++) {
        fixture f = fixture_create();
        const char *path = sbp_file_join(f.arena, directory, "model.gguf"), *whole;
        size_t length;
        check(&f, sbp_file_read(f.arena, f.diag, sbp_arena_printf(f.arena, FILES "/%s.gguf", names[k]),
                                &whole, &length));
        char *copy = SBP_NEW_ARRAY(f.arena, char, length);
        const sbp_gguf *gguf;
        check(&f,
              sbp_gguf_open(f.arena, f.diag, sbp_arena_printf(f.arena, FILES "/%s.gguf", names[k]), &gguf));
        for (int round = mutate_rounds(30); round > 0; round--) {
            memcpy(copy, whole, length);
            for (uint32_t n = 1 + mutate_pick(3); n > 0; n--)
                copy[mutate_pick(length < 9000 ? (uint32_t)length : 9000)] =
                    mutate_pick(2) ? (char)(unsigned char)mutate_pick(256) : (char)mutate_pick(4);
            fixture g = fixture_create();
            check(&g, sbp_file_write(g.diag, path, copy, length));
            sbp_model_options options = sbp_model_options_for(SBP_F64);
            sbp_model model;
            sbp_status status = sbp_model_load(g.arena, g.diag, path, &options, &model);
            if (status != SBP_OK && status != SBP_INPUT && status != SBP_USAGE)
                fail_msg("%s, round %d: status %d: %s", names[k], round, (int)status,
                         sbp_diag_text(g.diag, SBP_NOTE));
            assert_true(status == SBP_OK || sbp_diag_count(g.diag, SBP_ERROR) > 0);
            loaded += status == SBP_OK;
            refused += status != SBP_OK;
            fixture_destroy(&g);
        }
        unlink(path);
        fixture_destroy(&f);
    }
    printf("  %d changed files refused, %d loaded\n", refused, loaded);
    assert_true(refused > 0 && loaded > 0);
    assert_int_equal(rmdir(directory), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),       cmocka_unit_test(test_files),
        cmocka_unit_test(test_views),       cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_value_heads), cmocka_unit_test(test_turned_experts),
        cmocka_unit_test(test_decay),       cmocka_unit_test(test_mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
