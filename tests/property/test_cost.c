/* test_cost.c: the cost model against counts that somebody could make by hand: every multiplication of every
 * product in every iteration of every loop, every pair of rows that see each other; and the rows that gather
 * and scatter touch. */
#include "passes/planner/cost.h"

#include "backends/target.h"
#include "tests/common/compile_model.h"
#include "tests/common/testing.h"
#include "tests/tolerance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GOLDEN "tests/golden/"

/* ---- by hand ------------------------------------------------------------------------------------------ */

typedef struct count {
    double flops;
    int64_t pairs, attentions, commands;
} count;

static int64_t rows_of(const sbp_program *p, const sbp_function *f, const sbp_view *view,
                       const sbp_position *at) {
    sbp_range range;
    assert_true(sbp_view_resolve(p, f, view, at, &range));
    return range.rows;
}

/* A document of T rows: row r sees its own and the window - 1 before it. */
static int64_t visible_pairs(int64_t row0, int64_t rows, int64_t window) {
    int64_t pairs = 0;
    for (int64_t r = row0; r < row0 + rows; r++)
        for (int64_t key = 0; key <= r; key++)
            pairs += window == 0 || r - key < window;
    return pairs;
}

static void count_command(const sbp_program *p, const sbp_function *f, const sbp_command *c,
                          const sbp_position *at, count *out) {
    if (c->kind ==
        SBP_CMD_GEMM) { /* d = a b + ..: one multiplication and addition per element of d and of depth */
        const sbp_view *a = &c->views[1];
        int64_t depth = c->u.gemm.ta ? rows_of(p, f, a, at) : a->cols;
        out->flops +=
            2.0 * (double)rows_of(p, f, &c->views[0], at) * (double)c->views[0].cols * (double)depth;
    } else if (c->kind == SBP_CMD_ATTN_FWD || c->kind == SBP_CMD_ATTN_BWD) {
        const sbp_attention_attrs *a = &c->u.attention;
        bool backward = c->kind == SBP_CMD_ATTN_BWD;
        int64_t row0 = at->table >= 0 ? at->columns[SBP_COLUMN_ROW0] : 0;
        int64_t pairs = visible_pairs(row0, rows_of(p, f, &c->views[backward ? 3 : 2], at), a->window);
        /* q k and p v; backward: these once more, then dp = do v, dv = p do, dq = ds k, dk = ds q */
        int64_t qk = 2 * a->heads * a->d_qk, v = 2 * a->heads * a->d_v;
        out->flops += (double)(pairs * (backward ? 3 * qk + 2 * v : qk + v));
        out->pairs += pairs;
        out->attentions++;
    }
    out->commands += c->kind != SBP_CMD_FENCE;
}

static void count_body(const sbp_program *p, const sbp_function *f, const sbp_body *body, sbp_position *at,
                       count *out) {
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        sbp_position outer = *at;
        if (node->kind == SBP_NODE_COMMAND)
            count_command(p, f, node->u.command, at, out);
        else if (node->kind == SBP_NODE_CALL)
            count_body(p, &p->functions[node->u.call->function], &p->functions[node->u.call->function].body,
                       at, out);
        for (int64_t k = 0;
             node->kind == SBP_NODE_LOOP && k < sbp_table_rows(p, node->u.loop->table, &at->sizes); k++) {
            sbp_position_set(at, p, node->u.loop->table, k);
            count_body(p, f, &node->u.loop->body, at, out);
            *at = outer;
        }
    }
}

static count count_entry(const sbp_program *p, const char *entry, int64_t t) {
    count out = {0};
    sbp_position at = {.sizes = sbp_program_sizes(p, t, 1), .table = -1};
    count_body(p, NULL, &sbp_program_find_entry(p, entry)->body, &at, &out);
    return out;
}

static count count_function(const sbp_program *p, int32_t function, int64_t t) {
    count out = {0};
    sbp_position at = {.sizes = sbp_program_sizes(p, t, 1), .table = -1};
    count_body(p, &p->functions[function], &p->functions[function].body, &at, &out);
    return out;
}

/* ---- tests -------------------------------------------------------------------------------------------- */

/* Throughput that make seconds of one kind of work visible. */
static const sbp_target_info throughput = {.name = "cpu",
                                           .throughput = {.matmul = {[SBP_F32] = 1e9},
                                                          .attention = {[SBP_F32] = 1e9},
                                                          .half_rows = 0,
                                                          .memory = 1e9,
                                                          .row_ops = 1e9,
                                                          .in = 1e9,
                                                          .out = 1e9,
                                                          .host = 1e9,
                                                          .host_ops = 1e9,
                                                          .disk_read = 1e9,
                                                          .disk_write = 1e9}};

static sbp_program *program_of(testing *t, const char *model, int64_t rows, int64_t chunk, int64_t k) {
    compile_request request = compile_request_for(model, rows, chunk, chunk);
    request.options.schedule.checkpoint_every = k;
    sbp_program *p;
    testing_check(t, compile_model(t->arena, t->diag, &request, &p));
    return p;
}

static void flops_are_counted(void **state) {
    (void)state;
    static const char *const models[] = {GOLDEN "llama_bias/model", GOLDEN "mistral_window/model",
                                         GOLDEN "gemma3_layer_types/model", GOLDEN "qwen2_sliding/model",
                                         GOLDEN "lfm2_v/model"};
    static const struct { int64_t rows, chunk; } sizes[] = {{1, 1}, {50, 50}, {50, 7}, {48, 8}, {64, 3}};
    int compared = 0;
    int64_t attentions = 0;
    for (int m = 0; m < SBP_COUNT(models); m++)
        for (int s = 0; s < SBP_COUNT(sizes); s++) {
            testing t = testing_open(1);
            sbp_program *p = program_of(&t, models[m], sizes[s].rows, sizes[s].chunk, 1);
            for (int64_t rows = sizes[s].rows; rows > 0; rows -= 13) { /* shorter micro-batches, too */
                for (int32_t f = 0; f < p->function_count; f++, compared++) {
                    count want = count_function(p, f, rows);
                    sbp_cost got;
                    sbp_cost_function(p, f, rows, &throughput, &got);
                    attentions += want.attentions;
                    if (fabs(got.flops - want.flops) > SBP_TOLERANCE_F64 * want.flops ||
                        got.commands != want.commands)
                        fail_msg("%s, @%s, %lld rows in chunks of %lld: %.17g flops and %lld commands, by "
                                 "hand %.17g "
                                 "and %lld (%lld pairs)",
                                 models[m], p->functions[f].name, (long long)rows, (long long)sizes[s].chunk,
                                 got.flops, (long long)got.commands, want.flops, (long long)want.commands,
                                 (long long)want.pairs);
                }
            }
            testing_close(&t);
        }
    assert_true(attentions > 0);
    printf("  %d functions\n", compared);
}

/* Twice the rows: all but attention doubles, and attention grows with their square. Chunks are such that the
 * last is full. */
static void attention_grows_with_the_square(void **state) {
    (void)state;
    testing t = testing_open(1);
    enum { N = 256 };
    sbp_program *p = program_of(&t, GOLDEN "llama_bias/model", 2 * N, 16, 1);
    sbp_cost once, twice;
    sbp_cost_step(t.arena, p, N, &throughput, &once);
    sbp_cost_step(t.arena, p, 2 * N, &throughput, &twice);
    count a = count_entry(p, "accumulate", N), b = count_entry(p, "accumulate", 2 * N);
    double more = b.flops - 2 * a.flops; /* of attention */
    assert_true(more > 0.1 * a.flops);
    assert_true(fabs(twice.flops - 2 * once.flops - more) <= SBP_TOLERANCE_F64 * twice.flops);
    double seconds = twice.seconds - 2 * once.seconds, want = more / throughput.throughput.attention[SBP_F32];
    double fixed = once.seconds; /* what does not grow: fills and the update of parameters */
    assert_true(seconds < want && seconds > want - fixed);
    testing_close(&t);
}

/* With everything else at once, a function takes as long as its operations at the throughput of the type. */
static void work_is_timed_at_the_rate_of_its_type(void **state) {
    (void)state;
    static const sbp_dtype types[] = {SBP_F32, SBP_BF16, SBP_F64};
    for (int d = 0; d < SBP_COUNT(types); d++) {
        testing t = testing_open(1);
        compile_request request = compile_request_for(GOLDEN "llama_bias/model", 64, 16, 16);
        request.compute = types[d];
        sbp_program *p;
        testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
        sbp_target_info target = {.name = "cpu"};
        sbp_throughput *r = &target.throughput;
        for (int i = 0; i < SBP_DTYPE_COUNT; i++)
            r->matmul[i] = r->attention[i] = i == (int)types[d] ? 1e9 : 1e30;
        r->memory = r->row_ops = r->in = r->out = r->host = r->host_ops = r->disk_read = r->disk_write = 1e30;
        int compared = 0;
        for (int32_t f = 0; f < p->function_count; f++) {
            sbp_cost cost;
            sbp_cost_function(p, f, 64, &target, &cost);
            if (fabs(cost.seconds - cost.flops / 1e9) > SBP_TOLERANCE_F64 * cost.seconds + 1e-20)
                fail_msg("%s, @%s: %.17g s for %g flops", sbp_dtype_name(types[d]), p->functions[f].name,
                         cost.seconds, cost.flops);
            compared += cost.flops > 0;
        }
        assert_true(compared >= 3);
        testing_close(&t);
    }
}

/* Seconds of all functions of a program, with everything but products at once. */
static double products_seconds(const sbp_program *p, double matmul, double attention, bool own) {
    sbp_target_info target = {.name = "cpu", .own_expert_products = own};
    sbp_throughput *r = &target.throughput;
    double seconds = 0;
    for (int i = 0; i < SBP_DTYPE_COUNT; i++) {
        r->matmul[i] = matmul;
        r->attention[i] = attention;
    }
    r->memory = r->row_ops = r->in = r->out = r->host = r->host_ops = r->disk_read = r->disk_write = 1e30;
    for (int32_t f = 0; f < p->function_count; f++) {
        sbp_cost cost;
        sbp_cost_function(p, f, 64, &target, &cost);
        seconds += cost.seconds;
    }
    return seconds;
}

/* Products of experts, and no others, at the rate of attention where the backend has kernels of its
 * own for them. */
static void experts_are_timed_at_the_rate_of_their_kernels(void **state) {
    (void)state;
    for (int experts = 0; experts < 2; experts++) {
        testing t = testing_open(1);
        sbp_program *p =
            program_of(&t, experts ? GOLDEN "qwen3_moe_norm_v/model" : GOLDEN "llama_bias/model", 64, 8, 1);
        double of_experts = products_seconds(p, 1e9, 1e30, false) - products_seconds(p, 1e9, 1e30, true);
        double saved = products_seconds(p, 1e9, 2e9, false) - products_seconds(p, 1e9, 2e9, true);
        assert_int_equal(of_experts > 0, experts);
        assert_true(fabs(of_experts - 2 * saved) <= SBP_TOLERANCE_F64 * products_seconds(p, 1e9, 1e9, true));
        testing_close(&t);
    }
}

static bool has_command(const sbp_body *body, sbp_command_kind a, sbp_command_kind b) {
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_COMMAND && (node->u.command->kind == a || node->u.command->kind == b))
            return true;
        if (node->kind == SBP_NODE_LOOP && has_command(&node->u.loop->body, a, b))
            return true;
    }
    return false;
}

/* Attention alone at the rate of scalars, where heads have more columns than tensor cores serve; and a third
 * of it where they are in parts. */
static void long_heads_are_timed_at_the_rate_of_scalars(void **state) {
    (void)state;
    testing t = testing_open(1);
    compile_request request = compile_request_for(GOLDEN "llama_bias/model", 64, 16, 16); /* heads of 12 */
    request.compute = SBP_BF16;
    sbp_program *p;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    static const struct {
        int64_t columns, part_columns;
        double times, times_bwd, rate; /* rate 0: of both directions together */
    } cases[] = {{0, 0, 3, 3, 1e12},       {12, 12, 3, 3, 1e12},    {11, 0, 3, 3, 1e9}, {11, 11, 3, 3, 1e9},
                 {12, 11, 3, 3, 1e12 / 3}, {0, 11, 3, 3, 1e12 / 3}, {12, 11, 3, 1, 0},  {12, 11, 1, 3, 0}};
    double first = 0, mixed[SBP_COUNT(cases)];
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_target_info target = {.name = "cuda",
                                  .attention_columns = cases[i].columns,
                                  .attention_part_columns = cases[i].part_columns,
                                  .attention_part_times = cases[i].times,
                                  .attention_part_times_bwd = cases[i].times_bwd};
        sbp_throughput *r = &target.throughput;
        double seconds = 0;
        for (int d = 0; d < SBP_DTYPE_COUNT; d++) {
            r->matmul[d] = 1e30;
            r->attention[d] = d == SBP_BF16 ? 1e12 : 1e9;
        }
        r->memory = r->row_ops = r->in = r->out = r->host = r->host_ops = r->disk_read = r->disk_write = 1e30;
        for (int32_t f = 0; f < p->function_count; f++)
            if (has_command(&p->functions[f].body, SBP_CMD_ATTN_FWD, SBP_CMD_ATTN_BWD)) {
                sbp_cost cost, at_once;
                sbp_cost_function(p, f, 64, &target, &cost);
                sbp_target_info other = target;
                other.attention_columns = other.attention_part_columns = 0;
                other.throughput.attention[SBP_BF16] = other.throughput.attention[SBP_F32] = 1e30;
                sbp_cost_function(p, f, 64, &other, &at_once);
                seconds += cost.seconds - at_once.seconds;
            }
        first = i == 0 ? seconds : first;
        assert_true(first > 0);
        mixed[i] = seconds;
        assert_true(cases[i].rate == 0 ||
                    fabs(seconds * cases[i].rate - first * 1e12) <= SBP_TOLERANCE_F32 * first * 1e12);
    }
    assert_true(fabs(mixed[6] + mixed[7] - 4 * first) <= SBP_TOLERANCE_F32 * first);
    assert_true(mixed[7] > mixed[6]); /* backward has more matmuls */
    testing_close(&t);
}

/* Rows of a table that nobody looks up cost nothing: seconds do not change with the number of tokens there
 * are. */
static void gathers_cost_what_they_touch(void **state) {
    (void)state;
    double seconds[2] = {0};
    for (int large = 0; large < 2; large++) {
        testing t = testing_open(1);
        sbp_program *p = program_of(&t, GOLDEN "llama_bias/model", 64, 8, 1);
        sbp_target_info target = throughput;
        target.throughput.memory = 1; /* a byte a second */
        int32_t tables = 0;
        for (int32_t f = 0; f < p->function_count; f++) { /* as many more words */
            const sbp_body *body = &p->functions[f].body;
            for (int32_t i = 0; i < body->count; i++)
                for (int32_t k = 0;
                     body->nodes[i].kind == SBP_NODE_LOOP && k < body->nodes[i].u.loop->body.count; k++) {
                    const sbp_command *c = body->nodes[i].u.loop->body.nodes[k].u.command;
                    bool gather = c->kind == SBP_CMD_GATHER;
                    if (!gather && c->kind != SBP_CMD_SCATTER_ADD)
                        continue;
                    const sbp_view *table = &c->views[gather ? 1 : 0];
                    assert_true(table->ref < 0); /* a formal */
                    if (large) {
                        p->functions[f].formals[~table->ref].rows.c[SBP_ONE] *= 1000;
                        ((sbp_command *)c)->views[gather ? 1 : 0].length.base.c[SBP_ONE] *= 1000;
                    }
                    tables++;
                }
        }
        assert_true(tables >= 2);
        for (int32_t f = 0; f < p->function_count; f++) {
            sbp_cost cost;
            sbp_cost_function(p, f, 64, &target, &cost);
            if (strncmp(p->functions[f].name, "embed.", 6) == 0)
                seconds[large] += cost.seconds;
        }
        testing_close(&t);
    }
    assert_true(seconds[0] > 0 && seconds[0] == seconds[1]);
}

static double no_time(const sbp_target_info *info, const sbp_delta_attrs *attrs, sbp_dtype dtype,
                      bool backward) {
    (void)info, (void)attrs, (void)dtype, (void)backward;
    return 1e30;
}

/* With everything else at once, layers with the delta rule take as long as its operations at the rate of the
 * kernel that a target has for it: scalars, where attention in bf16 goes by tensor cores. */
static void delta_rules_are_timed_at_the_rate_of_their_kernel(void **state) {
    (void)state;
    static const struct {
        const char *target;
        double rate;
    } cases[] = {{"cpu", 1e12}, {"cuda", 1e9}, {"vulkan", 1e9}};
    testing t = testing_open(1);
    compile_request request = compile_request_for(GOLDEN "qwen3_5_dense_v/model", 128, 64, 64);
    request.compute = SBP_BF16;
    sbp_program *p;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_target_info target;
        testing_check(&t, sbp_target_find(cases[i].target)->describe(NULL, t.diag, &target));
        sbp_throughput *r = &target.throughput;
        for (int d = 0; d < SBP_DTYPE_COUNT; d++) {
            r->matmul[d] = 1e30;
            r->attention[d] = d == SBP_BF16 ? 1e12 : 1e9;
        }
        r->memory = r->row_ops = r->in = r->out = r->host = r->host_ops = r->disk_read = r->disk_write = 1e30;
        r->command_seconds = r->half_rows = 0;
        int compared = 0;
        for (int32_t f = 0; f < p->function_count; f++) {
            const sbp_body *body = &p->functions[f].body;
            if (!has_command(body, SBP_CMD_DELTA_RULE, SBP_CMD_DELTA_RULE_BWD) ||
                has_command(body, SBP_CMD_ATTN_FWD, SBP_CMD_ATTN_BWD))
                continue;
            sbp_cost cost, at_once;
            sbp_cost_function(p, f, 128, &target, &cost);
            sbp_target_info other = target;
            other.delta_rate = no_time;
            sbp_cost_function(p, f, 128, &other, &at_once);
            assert_true(at_once.flops == cost.flops);
            double products = count_function(p, f, 128).flops; /* which knows no delta rule */
            assert_true(products > 0 && products < cost.flops);
            if (fabs(cost.seconds - at_once.seconds - (cost.flops - products) / cases[i].rate) >
                SBP_TOLERANCE_F64 * cost.seconds)
                fail_msg("%s, @%s: %.17g s for %g flops, of which %g are of matmuls", cases[i].target,
                         p->functions[f].name, cost.seconds, cost.flops, products);
            compared++;
        }
        assert_true(compared >= 2);
    }
    testing_close(&t);
}

/* The same without corrections: on a CPU by products, on a GPU by scalars. */
static void uncorrected_rules_are_timed_at_the_rate_of_their_kernel(void **state) {
    (void)state;
    static const struct {
        const char *target;
        double rate;
    } cases[] = {{"cpu", 1e12}, {"cuda", 1e9}, {"vulkan", 1e9}};
    testing t = testing_open(1);
    compile_request request = compile_request_for(GOLDEN "granite_hybrid_groups/model", 128, 64, 64);
    request.compute = SBP_BF16;
    sbp_program *p;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    int compared = 0;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_target_info target;
        testing_check(&t, sbp_target_find(cases[i].target)->describe(NULL, t.diag, &target));
        sbp_throughput *r = &target.throughput;
        for (int d = 0; d < SBP_DTYPE_COUNT; d++) {
            r->matmul[d] = 1e30;
            r->attention[d] = d == SBP_BF16 ? 1e12 : 1e9;
        }
        r->memory = r->row_ops = r->in = r->out = r->host = r->host_ops = r->disk_read = r->disk_write = 1e30;
        r->command_seconds = r->half_rows = 0;
        for (int32_t f = 0; f < p->function_count; f++) {
            const sbp_body *body = &p->functions[f].body;
            if (!has_command(body, SBP_CMD_DELTA_RULE, SBP_CMD_DELTA_RULE_BWD) ||
                has_command(body, SBP_CMD_ATTN_FWD, SBP_CMD_ATTN_BWD))
                continue;
            sbp_cost cost;
            sbp_cost_function(p, f, 128, &target, &cost);
            double flops = cost.flops - count_function(p, f, 128).flops; /* which knows no delta rule */
            assert_true(flops > 0);
            if (fabs(cost.seconds - flops / cases[i].rate) > SBP_TOLERANCE_F64 * cost.seconds)
                fail_msg("%s, @%s: %.17g s for %g flops", cases[i].target, p->functions[f].name, cost.seconds,
                         flops);
            compared++;
        }
    }
    assert_true(compared >= 6);
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_are_counted),
        cmocka_unit_test(work_is_timed_at_the_rate_of_its_type),
        cmocka_unit_test(attention_grows_with_the_square),
        cmocka_unit_test(long_heads_are_timed_at_the_rate_of_scalars),
        cmocka_unit_test(gathers_cost_what_they_touch),
        cmocka_unit_test(delta_rules_are_timed_at_the_rate_of_their_kernel),
        cmocka_unit_test(uncorrected_rules_are_timed_at_the_rate_of_their_kernel),
        cmocka_unit_test(experts_are_timed_at_the_rate_of_their_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
