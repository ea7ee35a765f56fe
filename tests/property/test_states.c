/* test_states.c: layers that carry a state from row to row. Drawn models, documents (of one row, shorter than
 * the convolution, over borders of chunks), chunks, saved sets with and without the states, segments,
 * checkpoints, homes. Gradients of the step are those of the documents each alone, evaluated in double
 * (whole_step.h). And the structure: what is kept, what is made again, and how many rows of it there are. And
 * what the verifier asks of the delta rule's commands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "passes/lower/passes.h"
#include "tests/common/compile_model.h"
#include "tests/common/model_folder.h"
#include "tests/common/whole_step.h"

/* Kinds of `layers` layers: some mix rows by a state, at least one. */
static void write_layer_types(testing *t, FILE *f, int64_t layers, const char *with_state) {
    int64_t one = sbp_rng_below(&t->rng, layers);
    fprintf(f, "\"layer_types\": [");
    for (int64_t i = 0; i < layers; i++)
        fprintf(f, "%s\"%s\"", i > 0 ? ", " : "",
                i == one || sbp_rng_below(&t->rng, 3) ? with_state : "full_attention");
    fprintf(f, "]}");
}

static const char *flag(testing *t) {
    return sbp_rng_below(&t->rng, 2) ? "true" : "false";
}

/* An LFM2 of drawn sizes without values; convolutions as long as most documents, and longer. */
static void write_lfm2(testing *t, FILE *f) {
    int64_t layers = 2 + sbp_rng_below(&t->rng, 3);
    fprintf(f,
            "{\"model_type\": \"lfm2\", \"vocab_size\": %d, \"hidden_size\": 8, \"intermediate_size\": 6, "
            "\"block_auto_adjust_ff_dim\": false, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
            "\"num_hidden_layers\": %d, \"conv_L_cache\": %d, \"conv_bias\": %s, \"norm_eps\": 0.01, "
            "\"rope_theta\": 100, \"tie_word_embeddings\": %s, ",
            WHOLE_STEP_VOCABULARY, (int)layers, (int)(2 + sbp_rng_below(&t->rng, 6)), flag(t), flag(t));
    write_layer_types(t, f, layers, "conv");
}

/* A Qwen3.5, or a Qwen3-Next without experts, where the columns of a value head lie beside those of another:
 * the delta rule behind a convolution. */
static void write_qwen(testing *t, FILE *f) {
    int64_t layers = 2 + sbp_rng_below(&t->rng, 2), key_heads = 1 + sbp_rng_below(&t->rng, 2);
    bool next = sbp_rng_below(&t->rng, 2);
    int64_t value_heads = key_heads * (1 + sbp_rng_below(&t->rng, 2));
    fprintf(f,
            "{\"model_type\": %s, \"vocab_size\": %d, \"hidden_size\": 8, \"intermediate_size\": 6, "
            "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "
            "\"num_hidden_layers\": %d, \"linear_conv_kernel_dim\": %d, \"linear_num_key_heads\": %d, "
            "\"linear_num_value_heads\": %d, \"linear_key_head_dim\": %d, \"linear_value_head_dim\": %d, "
            "\"rms_norm_eps\": 0.01, \"rope_theta\": 100, \"partial_rotary_factor\": 0.5, "
            "\"tie_word_embeddings\": %s, ",
            next ? "\"qwen3_next\", \"num_experts\": 0" : "\"qwen3_5_text\"", WHOLE_STEP_VOCABULARY,
            (int)layers, (int)(2 + sbp_rng_below(&t->rng, 3)), (int)key_heads, (int)value_heads,
            (int)(2 + sbp_rng_below(&t->rng, 4)), (int)(2 + sbp_rng_below(&t->rng, 4)), flag(t));
    write_layer_types(t, f, layers, "linear_attention");
}

/* A Granite 4 or a Nemotron-H without experts: matrices to which rows add, of one group of heads or two,
 * behind a convolution. */
static void write_mamba(testing *t, FILE *f) {
    int64_t layers = 2 + sbp_rng_below(&t->rng, 2), groups = 1 + sbp_rng_below(&t->rng, 2);
    int64_t heads = groups * (1 + sbp_rng_below(&t->rng, 2)), taps = 2 + sbp_rng_below(&t->rng, 3);
    int64_t size = 1 + sbp_rng_below(&t->rng, 5);
    bool nemotron = sbp_rng_below(&t->rng, 2);
    fprintf(f,
            "{\"vocab_size\": %d, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
            "\"num_hidden_layers\": %d, \"tie_word_embeddings\": %s, ",
            WHOLE_STEP_VOCABULARY, (int)layers, flag(t));
    if (nemotron)
        fprintf(
            f,
            "\"model_type\": \"nemotron_h\", \"hidden_size\": 8, \"intermediate_size\": 6, \"head_dim\": 4, "
            "\"mamba_num_heads\": %d, \"mamba_head_dim\": 3, \"n_groups\": %d, \"ssm_state_size\": %d, "
            "\"conv_kernel\": %d, \"layer_norm_epsilon\": 0.01, \"time_step_min\": %g, ",
            (int)heads, (int)groups, (int)size, (int)taps, sbp_rng_below(&t->rng, 2) ? 0.7 : 0.001);
    else
        fprintf(f,
                "\"model_type\": \"granitemoehybrid\", \"hidden_size\": 8, \"shared_intermediate_size\": 6, "
                "\"num_local_experts\": 0, \"mamba_n_heads\": %d, \"mamba_d_head\": \"auto\", "
                "\"mamba_expand\": %d, \"mamba_n_groups\": %d, \"mamba_d_state\": %d, \"mamba_d_conv\": %d, "
                "\"mamba_conv_bias\": %s, \"rms_norm_eps\": 0.01, \"position_embedding_type\": \"rope\", ",
                (int)heads, (int)heads, (int)groups, (int)size, (int)taps, flag(t));
    write_layer_types(t, f, layers, "linear_attention");
}

static void draw_model(testing *t) {
    FILE *f = fopen(model_config, "w");
    assert_non_null(f);
    int64_t kind = sbp_rng_below(&t->rng, 3);
    if (kind == 0)
        write_lfm2(t, f);
    else if (kind == 1)
        write_qwen(t, f);
    else
        write_mamba(t, f);
    fclose(f);
}

static void drawn_models(void **state) {
    (void)state;
    for (int seed = 1; seed <= testing_sweep(30, 450); seed++) {
        testing t = testing_open((uint64_t)seed);
        draw_model(&t);
        whole_step_draw_alone(model_folder, (uint64_t)seed, 8);
        testing_close(&t);
    }
}

static void a_model_with_values(void **state) {
    (void)state;
    whole_step_draw_alone("tests/golden/lfm2_v/model", 1, testing_sweep(30, 300));
}

/* ---- structure ---------------------------------------------------------------------------------------- */

static sbp_program *compile(testing *t, int64_t every, bool drop) {
    sbp_program *p;
    compile_request request = compile_request_for("tests/golden/lfm2_v/model", 60, 7, 7);
    request.options.schedule.checkpoint_every = every;
    request.options.schedule.drop_states = drop;
    testing_check(t, compile_model(t->arena, t->diag, &request, &p));
    testing_check(t, sbp_program_verify(p, t->diag));
    return p;
}

/* Commands of a function that make a state and nothing else; and those that make one at all. */
static void count_states(const sbp_program *p, const sbp_body *body, int *alone, int *all) {
    (void)p;
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_LOOP)
            count_states(p, &node->u.loop->body, alone, all);
        if (node->kind != SBP_NODE_COMMAND || node->u.command->kind != SBP_CMD_CONV_ROWS ||
            node->u.command->views[SBP_CONV_ROWS_NEXT].ref == SBP_NO_VIEW)
            continue;
        *all += 1;
        *alone += node->u.command->views[SBP_CONV_ROWS_Y].ref == SBP_NO_VIEW;
    }
}

static void states_are_kept_or_made_again(void **state) {
    (void)state;
    for (int drop = 0; drop < 2; drop++)
        for (int64_t every = 1; every <= 2; every++) {
            testing t = testing_open(1);
            sbp_program *p = compile(&t, every, drop != 0);
            int32_t kept = 0, rows = 0, running = 0;
            for (int32_t b = 0; b < p->buffer_count; b++) {
                const sbp_buffer *buffer = &p->buffers[b];
                bool one_each = buffer->rows.c[SBP_N] == 1 && buffer->rows.c[SBP_ONE] == 1;
                kept += one_each && buffer->role == SBP_ROLE_SAVED ? buffer->count : 0;
                rows += one_each && buffer->role == SBP_ROLE_STATES;
                running += sbp_extent_as_const(buffer->rows) == 1 && buffer->role == SBP_ROLE_STATES;
            }
            /* two layers convolve: one function. Rows: of its backward; running: the cotangent, and the state
             * of the forward and of running forward again */
            assert_int_equal(kept, drop ? 0 : 2);
            assert_int_equal(rows, drop ? 1 : 0);
            assert_int_equal(running, drop ? 1 + every : 1);
            int alone = 0, all = 0;
            for (int32_t f = 0; f < p->function_count; f++)
                count_states(p, &p->functions[f].body, &alone, &all);
            assert_int_equal(alone, drop ? 1 : 0);
            assert_int_equal(all, drop ? 1 + every : 1);
            testing_close(&t);
        }
}

/* ---- what the verifier says of the delta rule --------------------------------------------------------- */

typedef struct edit {
    const char *from, *to, *says; /* from, once in the text or more: all of them */
} edit;

static char *edited(testing *t, const char *text, const edit *e) {
    sbp_text out;
    int count = 0;
    sbp_text_init(&out, t->arena);
    for (const char *found; (found = strstr(text, e->from)); text = found + strlen(e->from), count++) {
        sbp_text_add_n(&out, text, (size_t)(found - text));
        sbp_text_add_n(&out, e->to, strlen(e->to));
    }
    sbp_text_add_n(&out, text, strlen(text));
    assert_true(count > 0);
    return out.data;
}

/* Its text reads back as it was printed; and what does not fit is refused. */
static void rules_of_the_delta_rule(void **state) {
    (void)state;
    static const edit edits[] = {
        {"{heads = 2, key_heads = 1, d_k = 10, d_v = 8, corrects}",
         "{heads = 2, key_heads = 0, d_k = 10, d_v = 8, corrects}", "program_c26"},
        {"{heads = 2, key_heads = 1, d_k = 10, d_v = 8, corrects}",
         "{heads = 1, key_heads = 1, d_k = 10, d_v = 16, corrects}", "decay has 2 columns"},
        {"{heads = 2, key_heads = 1, d_k = 10, d_v = 8, corrects}",
         "{heads = 2, key_heads = 1, d_k = 5, d_v = 8, corrects}", "k has 10 columns"},
        {"o := layer0.forward.delta_out, next", "next", "o and q are there together"},
        {", q = layer0.forward.delta_q, k = layer0.forward", ", k = layer0.forward",
         "o and q are there together"},
        {"work := layer0.backward.work)", "work := layer0.backward.work[*, 0 for 159])",
         "a state does not fit into a row of work"},
        {", d_v = 8, corrects}", ", d_v = 8}", "two states do not fit into a row of work"},
    };
    testing t = testing_open(1);
    sbp_program *p, *again;
    sbp_text text, second;
    compile_request request = compile_request_for("tests/golden/qwen3_5_dense_v/model", 260, 70, 70);
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    sbp_text_init(&text, t.arena);
    sbp_text_init(&second, t.arena);
    sbp_program_print(&text, p);
    testing_check(&t, sbp_program_parse(t.arena, t.diag, "text", text.data, text.length, &again));
    testing_check(&t, sbp_program_verify(again, t.diag));
    sbp_program_print(&second, again);
    assert_string_equal(text.data, second.data);
    for (int i = 0; i < SBP_COUNT(edits); i++) {
        const char *bad = edited(&t, text.data, &edits[i]);
        sbp_diag *diag = sbp_diag_create();
        testing_check(&t, sbp_program_parse(t.arena, diag, "edited", bad, strlen(bad), &again));
        if (sbp_program_verify(again, diag) == SBP_OK ||
            !strstr(sbp_diag_text(diag, SBP_ERROR), edits[i].says))
            fail_msg("edit %d: %s", i, sbp_diag_text(diag, SBP_ERROR));
        sbp_diag_destroy(diag);
    }
    testing_close(&t);
}

/* Buffers with other rows, or of another type, in a program whose memory is not laid out. */
static void buffers_of_the_delta_rule(void **state) {
    (void)state;
    static const struct {
        const char *suffix;
        int64_t cols, rows; /* 0: as they are */
        sbp_dtype dtype;
        const char *says;
    } changes[] = {{".work", 160, 1, SBP_F32, "must have a row for every 64 rows of k"},
                   {".d_state_delta_out", 160, 2, SBP_F32, "dstate"},
                   {".d_state_delta_out", 160, 0, SBP_BF16, "dstate is bf16 beside k of f32"}};
    for (int i = 0; i < SBP_COUNT(changes); i++) {
        testing t = testing_open(1);
        sbp_program *p;
        compile_request request = compile_request_for("tests/golden/qwen3_5_dense_v/model", 260, 70, 70);
        testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
        for (int32_t b = 0; b < p->buffer_count; b++) {
            sbp_buffer *buffer = &p->buffers[b];
            const char *end = strstr(buffer->name, changes[i].suffix);
            if (!end || strlen(end) != strlen(changes[i].suffix) || buffer->cols != changes[i].cols)
                continue;
            buffer->rows = changes[i].rows > 0 ? sbp_extent_const(changes[i].rows) : buffer->rows;
            buffer->dtype = changes[i].dtype;
        }
        sbp_diag *diag = sbp_diag_create();
        if (sbp_program_verify(p, diag) == SBP_OK || !strstr(sbp_diag_text(diag, SBP_ERROR), changes[i].says))
            fail_msg("change %d: %s", i, sbp_diag_text(diag, SBP_ERROR));
        sbp_diag_destroy(diag);
        testing_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drawn_models), cmocka_unit_test(a_model_with_values),
                                       cmocka_unit_test(states_are_kept_or_made_again),
                                       cmocka_unit_test(rules_of_the_delta_rule),
                                       cmocka_unit_test(buffers_of_the_delta_rule)};
    return cmocka_run_group_tests(tests, model_folder_make, model_folder_remove);
}
