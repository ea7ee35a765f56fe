/* test_experts.c: layers whose rows go to experts. Drawn models (slots, experts, MLPs between), documents,
 * chunks, saved sets, segments, checkpoints, homes: gradients of the step are those of the documents each
 * alone, evaluated in double (whole_step.h). And the structure: a choice is made once, in the first forward,
 * and read by all that computes again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "passes/lower/passes.h"
#include "tests/common/compile_model.h"
#include "tests/common/model_folder.h"
#include "tests/common/whole_step.h"

/* Every second one attends with sinks, has biases, a clamped gate and a softmax over the chosen, every second
 * of the others experts in one tensor and a shared one behind layers with a delta rule. */
static void draw_model(testing *t, int number) {
    static const char *const types[] = {"qwen3_moe", "gpt_oss", "qwen3_5_moe_text", "gpt_oss"};
    const char *type = types[number % SBP_COUNT(types)];
    FILE *f = fopen(model_config, "w");
    int64_t experts = 2 + sbp_rng_below(&t->rng, 6), chosen = 1 + sbp_rng_below(&t->rng, experts);
    chosen += chosen == 1 && strcmp(type, "qwen3_moe") != 0; /* the weight of one would be 1 */
    int64_t layers = 2 + sbp_rng_below(&t->rng, strcmp(type, "qwen3_moe") == 0 ? 3 : 2),
            inner = 3 + sbp_rng_below(&t->rng, 3);
    int balance = (int)sbp_rng_below(&t->rng, 3);
    assert_non_null(f);
    fprintf(
        f,
        "{\"model_type\": \"%s\", \"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, \"rms_norm_eps\": 0.01, "
        "\"rope_theta\": 100, \"rope_scaling\": {\"rope_type\": \"default\"}, \"router_aux_loss_coef\": %d, "
        "\"%s\": %d, \"num_experts_per_tok\": %d, \"num_hidden_layers\": %d",
        type, WHOLE_STEP_VOCABULARY, (int)(7 + sbp_rng_below(&t->rng, 3)), (int)inner, balance,
        strcmp(type, "gpt_oss") == 0 ? "num_local_experts" : "num_experts", (int)experts, (int)chosen,
        (int)layers);
    if (strcmp(type, "gpt_oss") == 0)
        fprintf(f, ", \"sliding_window\": %d, \"swiglu_limit\": 0.01", (int)(1 + sbp_rng_below(&t->rng, 5)));
    else
        fprintf(f, ", \"moe_intermediate_size\": %d", (int)inner);
    if (strcmp(type, "qwen3_moe") == 0)
        fprintf(f, ", \"norm_topk_prob\": %s, \"mlp_only_layers\": [%d]",
                chosen > 1 && sbp_rng_below(&t->rng, 2) ? "true" : "false",
                (int)sbp_rng_below(&t->rng, layers));
    if (strcmp(type, "qwen3_5_moe_text") == 0)
        fprintf(f, ", \"shared_expert_intermediate_size\": 3, \"full_attention_interval\": 2, "
                   "\"linear_num_key_heads\": 1, \"linear_num_value_heads\": 2, \"linear_key_head_dim\": 3, "
                   "\"linear_value_head_dim\": 4");
    fprintf(f, "}");
    fclose(f);
}

static void drawn_models(void **state) {
    (void)state;
    for (int seed = 1; seed <= testing_sweep(16, 300); seed++) {
        testing t = testing_open((uint64_t)seed);
        draw_model(&t, seed);
        whole_step_draw_alone(model_folder, (uint64_t)seed, 6);
        testing_close(&t);
    }
}

/* ---- structure ---------------------------------------------------------------------------------------- */

static int count_commands(const sbp_body *body, sbp_command_kind kind) {
    int count = 0;
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_LOOP)
            count += count_commands(&node->u.loop->body, kind);
        count += node->kind == SBP_NODE_COMMAND && node->u.command->kind == kind;
    }
    return count;
}

static bool ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* Each function that has products of experts orders its slots once; the forward alone chooses. */
static void choices_are_made_once(void **state) {
    (void)state;
    static const char *const ends[] = {".forward", ".recompute", ".backward"};
    static const char *const frozen[] = {NULL, "*block_sparse_moe*",
                                         "model.[el]*[smd].[0w]*" /* all of a layer, and what is below */};
    for (int k = 0; k < SBP_COUNT(frozen); k++)
        for (int64_t every = 1; every <= 3; every++) {
            testing t = testing_open(1);
            sbp_program *p;
            compile_request request = compile_request_for("tests/golden/mixtral_v/model", 60, 7, 7);
            request.options.schedule.checkpoint_every = every;
            request.freeze = frozen[k];
            testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
            testing_check(&t, sbp_program_verify(p, t.diag));
            int found[SBP_COUNT(ends)] = {0}, choices = 0;
            for (int32_t n = 0; n < p->function_count; n++) {
                const sbp_function *f = &p->functions[n];
                int products = count_commands(&f->body, SBP_CMD_EXPERT_GEMM);
                assert_int_equal(count_commands(&f->body, SBP_CMD_EXPERT_ORDER), products > 0);
                assert_int_equal(count_commands(&f->body, SBP_CMD_ROUTE),
                                 products > 0 && ends_with(f->name, ends[0]));
                if (!ends_with(f->name,
                               ends[2])) /* statistics: added up where it is chosen, and nowhere else */
                    assert_int_equal(count_commands(&f->body, SBP_CMD_COLSUM),
                                     count_commands(&f->body, SBP_CMD_ROUTE));
                if (count_commands(&f->body, SBP_CMD_ROUTE) > 0)
                    choices += whole_step_calls(p, "accumulate", f->name);
                for (int e = 0; e < SBP_COUNT(ends); e++)
                    found[e] += products > 0 && ends_with(f->name, ends[e]);
            }
            assert_true(found[0] > 0 && found[2] > 0);
            assert_int_equal(found[1] > 0, every > 1);
            assert_int_equal(choices, 3); /* of the layers */
            testing_close(&t);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drawn_models),
                                       cmocka_unit_test(choices_are_made_once)};
    return cmocka_run_group_tests(tests, model_folder_make, model_folder_remove);
}
