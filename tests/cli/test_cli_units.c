/* What belongs together stays together: gradients of objectives over documents and pairs of them do not
 * depend on micro-batches, and they would if a unit were split over two.
 *
 * The rows are drawn: pairs with the log-probabilities of a reference, and rollouts with those of an older
 * policy. Plans differ in rows per micro-batch, chunks, groups of layers, checkpoints and offload; gradients
 * are in double precision. */
#include "tests/cli/drawing.h"

#include "backends/devices.h"
#include "runtime/run/weights.h"
#include "runtime/train/trainer.h"

enum { ROWS = 7, VOCABULARY = 61 };

#define MODEL "$G/llama_mqa/model"

static void add_numbers(sbp_rng *rng, sbp_text *out, const char *key, int64_t count) {
    sbp_text_add(out, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        sbp_text_add(out, i % 5 == 4 && key[0] == 's' ? "%snull" : "%s%.4f", i ? ", " : "",
                     -1 - 0.001 * (double)sbp_rng_below(rng, 4000));
    sbp_text_add(out, "]");
}

/* Writes $D/data; returns the tokens of all rows, in *longest those of the longest unit. */
static int64_t write_rows(io_fixture *f, sbp_rng *rng, bool pairs, int64_t *longest) {
    sbp_text out;
    int64_t all = 0;
    *longest = 0;
    sbp_text_init(&out, f->arena);
    for (int r = 0; r < ROWS; r++) {
        int64_t prompt = sbp_rng_below(rng, 9), a = 1 + sbp_rng_below(rng, 12),
                b = 1 + sbp_rng_below(rng, 12);
        int64_t unit = pairs ? 2 * prompt + a + b : prompt + a;
        all += unit;
        *longest = unit > *longest ? unit : *longest;
        sbp_text_add(&out, "{");
        draw_ids(rng, &out, "prompt_ids", prompt, VOCABULARY);
        sbp_text_add(&out, ", ");
        draw_ids(rng, &out, pairs ? "chosen_ids" : "completion_ids", a, VOCABULARY);
        if (pairs) {
            sbp_text_add(&out, ", ");
            draw_ids(rng, &out, "rejected_ids", b, VOCABULARY);
            sbp_text_add(&out, ", \"ref_chosen_logps\": %.3f, \"ref_rejected_logps\": %.3f", -4.0 * (double)a,
                         -4.0 * (double)b);
        } else {
            sbp_text_add(&out, ", \"advantage\": %.3f", 0.001 * (double)sbp_rng_below(rng, 4000) - 2);
            sbp_text_add(&out, ", \"label\": %s, \"ref_logps\": %.3f, \"ref_KL_logps\": %.3f",
                         r % 3 ? "true" : "false", -4.0 * (double)a, -45 - 0.5 * r);
            add_numbers(rng, &out, "old_per_token_logps", a);
            add_numbers(rng, &out, "ref_per_token_logps", a);
            add_numbers(rng, &out, "sampling_per_token_logps", a);
        }
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, "data", out.data);
    return all;
}

static const struct {
    const char *objective;
    bool pairs;
} objectives[] = {
    {"--objective dpo", true},
    {"--objective dpo --loss-type ipo", true},
    {"--objective dpo --loss-type apo_down+sft:0.5", true},
    {"--objective orpo --beta 0.3", true},
    {"--objective simpo --cpo-alpha 0.5 --beta 2", true},
    {"--objective kto --beta 0.4 --desirable-weight 1.5", false},
    {"--objective kto --loss-type apo_zero_unpaired", false},
    {"--objective grpo --beta 0.1", false},
    {"--objective grpo --loss-type vespo --vespo-k-pos 0.5 --vespo-lambda-pos 0.3 --vespo-k-neg 0.4 "
     "--vespo-lambda-neg 0.2",
     false},
    {"--objective grpo --loss-type cispo --entropy-coef 0.1 --vllm-importance-sampling-mode token_truncate",
     false},
    {"--objective grpo --loss-type sapo --vllm-importance-sampling-mode sequence_truncate", false},
    {"--objective grpo --loss-type grpo --importance token", false},
    {"--objective grpo --importance sequence", false},
    {"--objective grpo --loss-type rloo --epsilon 0.5", false},
};

static const char *draw_schedule(io_fixture *f, sbp_rng *rng) {
    return sbp_arena_printf(
        f->arena, "--chunk %d --head-chunk %d --segment %d --checkpoint-every %d %s %s %s",
        1 + (int)sbp_rng_below(rng, 20), 1 + (int)sbp_rng_below(rng, 20), 1 + (int)sbp_rng_below(rng, 2),
        1 + (int)sbp_rng_below(rng, 2), PICK(rng, "", "--save attn_out", "--backward checkpoint"),
        PICK(rng, "", "--offload host", "--optimizer none --clip none"), PICK(rng, "", "--head-rows all"));
}

static void dump(io_fixture *f, const char *compile, int64_t rows, const char *run, const char *file) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile " MODEL " -o $D/p %s --seq-len %lld && $R $D/p --data "
                               "$D/data --batch-size %d --out none %s --dump-gradients $D/%s",
                               compile, (long long)rows, ROWS, run, file));
}

static void test_micro_batches_change_nothing(void **state) {
    io_fixture *f = *state;
    double worst = 0, narrow = 0;
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 100 + (uint64_t)i};
        int64_t longest, all = write_rows(f, &rng, objectives[i].pairs, &longest);
        const char *plain = sbp_arena_printf(f->arena, "--dtype fp64 %s", objectives[i].objective);
        dump(f, plain, all, "--shuffle off", "want.safetensors");
        for (int draw = 0; draw < 2; draw++) {
            int64_t rows = draw ? longest : longest + sbp_rng_below(&rng, all - longest);
            const char *compile = sbp_arena_printf(f->arena, "%s %s", plain, draw_schedule(f, &rng));
            dump(f, compile, rows, draw ? "--shuffle on" : "--shuffle off", "got.safetensors");
            double off =
                cli_compare(f, compile, io_path(f, "got.safetensors"),
                            sbp_arena_strdup(f->arena, io_path(f, "want.safetensors")), SBP_TOLERANCE_F64);
            worst = off > worst ? off : worst;
        }
        dump(f, sbp_arena_printf(f->arena, "--dtype fp32 %s", objectives[i].objective), longest,
             "--shuffle off", "got.safetensors");
        double off =
            cli_compare(f, objectives[i].objective, io_path(f, "got.safetensors"),
                        sbp_arena_strdup(f->arena, io_path(f, "want.safetensors")), SBP_TOLERANCE_F32);
        narrow = off > narrow ? off : narrow;
    }
    print_message("worst tensor off by %.2g, in fp32 by %.2g\n", worst, narrow);
}

/* ---- units split on purpose -----------------------------------------------------------------------------
 */

typedef struct split_job {
    io_fixture *f;
    const sbp_plan *plan;
    sbp_executor *executor;
    sbp_trainer trainer;
    sbp_dataset *data;
    double *gradient; /* of all parameters, one after the other */
    int64_t elems;
} split_job;

static void open_split(split_job *job, bool pairs) {
    io_fixture *f = job->f;
    sbp_weights *weights;
    const char *files[] = {sbp_arena_strdup(f->arena, io_path(f, "data"))};
    assert_ok(f, sbp_plan_open(f->arena, f->diag, sbp_arena_strdup(f->arena, io_path(f, "p")), &job->plan));
    const sbp_device_options options = {.threads = 1};
    assert_ok(f, sbp_executor_create(f->diag, sbp_device_find("cpu"), &options, job->plan->program,
                                     &job->executor));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/golden/llama_mqa/model", &weights));
    assert_ok(f, sbp_params_load(job->executor, job->plan, weights, 1, f->diag));
    sbp_weights_close(weights);
    assert_ok(f, sbp_trainer_init(&job->trainer, f->diag, job->executor));
    const sbp_dataset_options rows = {
        .files = files, .file_count = 1, .rows = sbp_pack_rows_wanted(job->plan->program)};
    assert_int_equal(rows.rows, pairs ? SBP_ROWS_PAIRS : SBP_ROWS_SCORED);
    assert_ok(f, sbp_dataset_load(f->diag, &rows, &job->data));
    static const struct {
        const char *name;
        double value;
    } settings[] = {{"beta", 0.1},
                    {"epsilon", 0.2},
                    {"epsilon_high", -1},
                    {"delta", -1},
                    {"temperature", 1},
                    {"label_smoothing", 0},
                    {"desirable_weight", 1.5},
                    {"undesirable_weight", 1},
                    {"simpo_gamma", 0.5},
                    {"cpo_alpha", 0.5},
                    {"entropy_coef", 0.1},
                    {"use_bias_correction_kl", 1},
                    {"vllm_importance_sampling_clip_max", 3},
                    {"vllm_importance_sampling_clip_min", -1},
                    {"vespo_k_pos", 0.5},
                    {"vespo_lambda_pos", 0.3},
                    {"vespo_k_neg", 0.4},
                    {"vespo_lambda_neg", 0.2},
                    {"sapo_temperature_pos", 1},
                    {"sapo_temperature_neg", 1.05}};
    for (int i = 0; i < SBP_COUNT(settings); i++)
        sbp_executor_set_scalar(job->executor, settings[i].name, settings[i].value);
}

static void close_split(split_job *job) {
    sbp_trainer_close(&job->trainer);
    sbp_dataset_destroy(job->data);
    sbp_executor_destroy(job->executor);
}

static void run_part(split_job *job, const sbp_micro_batch *part) {
    sbp_packer *p = &job->trainer.packer;
    sbp_diag *diag = job->f->diag;
    assert_ok(job->f, sbp_packer_columns(p, diag, job->data, part));
    assert_ok(job->f,
              sbp_executor_bind(job->executor, part->rows, part->groups, p->columns, p->column_count, diag));
    assert_ok(job->f, sbp_executor_run(job->executor, "accumulate", diag));
}

/* A micro-batch of each document alone, as if it were a unit. */
static void run_documents(split_job *job) {
    for (int64_t d = 0; d < job->data->doc_count; d++) {
        const sbp_micro_batch *whole = &job->trainer.packer.parts[0];
        sbp_micro_batch part = {.docs = &d, .count = 1, .units = 1, .by_unit = whole->by_unit};
        part.groups = whole->groups > 0;
        part.rows = job->data->docs[d].count;
        part.labels = job->data->docs[d].labels;
        run_part(job, &part);
    }
}

/* The gradients of one step of all rows; returns ||these - those before|| / ||those before||. */
static double take_step(split_job *job, bool split) {
    int64_t rows[ROWS], at = 0;
    double off = 0, norm = 0;
    for (int r = 0; r < ROWS; r++)
        rows[r] = r;
    assert_ok(job->f, sbp_trainer_pack(&job->trainer, job->f->diag, job->data, rows, ROWS));
    assert_ok(job->f, sbp_executor_fill_role(job->executor, SBP_ROLE_GRAD, 0, job->f->diag));
    assert_ok(job->f, sbp_executor_fill_role(job->executor, SBP_ROLE_RESULT, 0, job->f->diag));
    for (int32_t i = 0; i < job->trainer.packer.part_count && !split; i++)
        run_part(job, &job->trainer.packer.parts[i]);
    if (split)
        run_documents(job);
    bool first = !job->gradient;
    const sbp_program *program = job->plan->program;
    for (int32_t b = 0; b < program->buffer_count; b++) {
        if (program->buffers[b].role != SBP_ROLE_GRAD)
            continue;
        int64_t elems = sbp_executor_elems(job->executor, b);
        double *now = calloc((size_t)elems, sizeof *now);
        assert_ok(job->f, sbp_executor_read(job->executor, b, 0, 0, elems, SBP_F64, now, job->f->diag));
        if (first) {
            job->gradient = realloc(job->gradient, (size_t)(at + elems) * sizeof *now);
            memcpy(job->gradient + at, now, (size_t)elems * sizeof *now);
        }
        for (int64_t i = 0; i < elems; i++, at++) {
            off += (now[i] - job->gradient[at]) * (now[i] - job->gradient[at]);
            norm += job->gradient[at] * job->gradient[at];
        }
        free(now);
    }
    assert_true(norm > 0);
    return sqrt(off / norm);
}

/* In losses that sum over pairs, a micro-batch with half a pair gives other gradients; in those that sum over
 * documents, none with a document alone does. */
static void test_split_units_are_seen(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 300 + (uint64_t)i};
        int64_t longest, all = write_rows(f, &rng, objectives[i].pairs, &longest);
        split_job job = {.f = f};
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile " MODEL " -o $D/p --dtype fp64 %s --optimizer none --clip none "
                                "--chunk 5 --seq-len %lld",
                                objectives[i].objective, (long long)all));
        open_split(&job, objectives[i].pairs);
        take_step(&job, false);
        assert_true(take_step(&job, false) == 0); /* the same bits */
        double off = take_step(&job, true);
        print_message("%s: each document on its own: off by %.2g\n", objectives[i].objective, off);
        if (objectives[i].pairs)
            assert_true(off > 0.01);
        else
            assert_true(off < SBP_TOLERANCE_F64);
        free(job.gradient);
        close_split(&job);
    }
}

/* ---- micro-batches without documents ------------------------------------------------------------------ */

/* Gradients and results, as they are kept; NULL: only their bytes. */
static int64_t take_bytes(const split_job *job, unsigned char *out) {
    const sbp_program *program = job->plan->program;
    int64_t at = 0;
    for (int32_t b = 0; b < program->buffer_count; b++) {
        const sbp_buffer *buffer = &program->buffers[b];
        int64_t elems = sbp_executor_elems(job->executor, b);
        if (buffer->role != SBP_ROLE_GRAD && buffer->role != SBP_ROLE_RESULT)
            continue;
        for (int32_t slot = 0; slot < buffer->count; slot++, at += elems * 8)
            if (out)
                assert_ok(job->f, sbp_executor_read(job->executor, b, slot, 0, elems, SBP_F64, out + at,
                                                    job->f->diag));
    }
    return at;
}

static void run_nothing(split_job *job, int64_t groups) {
    static const sbp_role roles[] = {SBP_ROLE_VECTOR, SBP_ROLE_SCRATCH};
    for (int i = 0; i < SBP_COUNT(roles); i++) /* what is not written is anything */
        assert_ok(job->f, sbp_executor_fill_role(job->executor, roles[i], NAN, job->f->diag));
    run_part(job, &(sbp_micro_batch){.rows = 1, .groups = groups});
}

/* A rank without rows runs one: nothing changes, not a bit; and of zeros it leaves zeros. */
static void test_nothing_adds_nothing(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i <= SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 500 + (uint64_t)i};
        bool last = i == SBP_COUNT(objectives), pairs = !last && objectives[i].pairs;
        const char *objective = last ? "--objective grpo --loss-type bnpo" : objectives[i].objective;
        int64_t longest, all = write_rows(f, &rng, pairs, &longest);
        split_job job = {.f = f};
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile " MODEL " -o $D/p --dtype fp64 %s --seq-len %lld --optimizer "
                                   "none --clip none --chunk %d %s",
                                   objective, (long long)all, 1 + i % 5,
                                   i % 3 == 0 ? "--head-rows counted" : ""));
        open_split(&job, pairs);
        int64_t size = take_bytes(&job, NULL);
        unsigned char *before = calloc(1, (size_t)size), *after = calloc(1, (size_t)size);
        assert_ok(f, sbp_executor_fill_role(job.executor, SBP_ROLE_GRAD, 0, f->diag));
        assert_ok(f, sbp_executor_fill_role(job.executor, SBP_ROLE_RESULT, 0, f->diag));
        int64_t rows[ROWS];
        for (int r = 0; r < ROWS; r++)
            rows[r] = r;
        assert_ok(f, sbp_trainer_pack(&job.trainer, f->diag, job.data, rows, ROWS));
        sbp_executor_set_scalar(job.executor, "part.labels", 1);
        run_nothing(&job, 0);
        take_bytes(&job, after);
        for (int64_t k = 0; k < size / 8; k++)
            assert_true(((const double *)(const void *)after)[k] == 0);
        take_step(&job, false);
        take_bytes(&job, before);
        run_nothing(&job, 0);
        take_bytes(&job, after);
        assert_memory_equal(before, after, (size_t)size);
        if (pairs) { /* a pair of nothing is none: its loss is that of two equal answers */
            run_nothing(&job, 1);
            take_bytes(&job, after);
            assert_memory_not_equal(before, after, (size_t)size);
        }
        free(before);
        free(after);
        free(job.gradient);
        close_split(&job);
    }
}

/* The work by which ranks share documents: of a schedule that computes nothing twice, twice the weights of
 * products a pass, three of them, and attention as its formulas have it, in a window or not. */
static void test_work_is_counted(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *model;
        double products, q_elems; /* of a layer; heads x d */
        double vocabulary, window;
    } models[] = {{MODEL, 18 * 36 * 2 + 18 * 6 * 2 + 3 * 18 * 25, 36, 18 * 61, 0},
                  {"$G/mistral_window/model", 24 * 24 * 2 + 24 * 12 * 2 + 3 * 24 * 23, 24, 24 * 61, 7}};
    for (int i = 0; i < SBP_COUNT(models); i++)
        for (int chunk = 7; chunk <= 64; chunk += 57) {
            const sbp_plan *plan;
            cli_ok(f, sbp_arena_printf(f->arena,
                                       "$C compile %s -o $D/p --dtype fp64 --seq-len 64 --backward standard "
                                       "--head-chunk %d",
                                       models[i].model, chunk));
            assert_ok(f,
                      sbp_plan_open(f->arena, f->diag, sbp_arena_strdup(f->arena, io_path(f, "p")), &plan));
            sbp_pack_work w = sbp_pack_work_of(plan->program);
            double of_row = 3 * 2 * (2 * models[i].products + models[i].vocabulary);
            double of_pair = 2 * (2 * 2 + 6 + 4) * models[i].q_elems;
            assert_true(w.per_row == of_row);
            assert_int_equal(w.attention_count, 1);
            assert_true((double)w.attention[0].window == models[i].window);
            assert_true(w.attention[0].per_pair == of_pair);
        }
    assert_true(sbp_pack_work_of(NULL).per_row == 1);
}

/* ---- advantages of groups that lie in several micro-batches ----------------------------------------------
 */

/* Six rollouts of two prompts, with rewards or with the advantages that these make. */
static void write_rollouts(io_fixture *f, bool rewards, int scale) {
    static const double reward[] = {1, 0, 0.5, -2, 3, 3}, group_mean[] = {0.5, 4.0 / 3};
    static const int in_group[] = {0, 0, 0, 1, 1, 1};
    double of_group[2] = {0}, of_all = 0, mean = 0;
    for (int i = 0; i < 6; i++) {
        mean += reward[i] / 6;
        of_group[in_group[i]] += pow(reward[i] - group_mean[in_group[i]], 2) / 2;
    }
    for (int i = 0; i < 6; i++)
        of_all += pow(reward[i] - mean, 2) / 5;
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int i = 0; i < 6; i++) {
        double divisor = sqrt(scale == 0 ? of_group[in_group[i]] : of_all) + 1e-4;
        double advantage = (reward[i] - group_mean[in_group[i]]) / (scale == 2 ? 1 : divisor);
        sbp_text_add(
            &out, "{\"prompt_ids\": [5, %d], \"completion_ids\": [%d, 9, %d], \"group\": \"%c\", \"%s\": ",
            7 + in_group[i], 10 + i, 20 + 2 * i, 'a' + in_group[i], rewards ? "reward" : "advantage");
        sbp_text_add_double(&out, rewards ? reward[i] : advantage);
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, rewards ? "data" : "given", out.data);
}

static void test_advantages_of_rewards(void **state) {
    io_fixture *f = *state;
    static const char *const scales[] = {"group", "batch", "none"};
    cli_ok(f,
           "$C compile " MODEL " -o $D/p --dtype fp64 --objective grpo --seq-len 10 --scale-rewards batch");
    for (int scale = 0; scale < 3; scale++) {
        write_rollouts(f, true, scale);
        write_rollouts(f, false, scale);
        const char *option =
            scale == 1 ? "" : sbp_arena_printf(f->arena, "--scale-rewards %s", scales[scale]);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data $D/data --batch-size 6 --out none %s --dump-gradients "
                                   "$D/got.safetensors && $R $D/p --data $D/given --batch-size 6 --out none "
                                   "--dump-gradients $D/want.safetensors",
                                   option));
        cli_compare(f, scales[scale], io_path(f, "got.safetensors"),
                    sbp_arena_strdup(f->arena, io_path(f, "want.safetensors")), SBP_TOLERANCE_F64);
    }
    cli_ok(f, "$R $D/p --data $D/data --batch-size 6 --out $D/run --steps 1 --eval $D/data");
    const char *metrics = cli_text(f, "run/metrics.jsonl");
    assert_non_null(strstr(metrics, "\"reward\": 0.91666666666666"));
    assert_non_null(strstr(metrics, "\"completions/mean_length\": 3"));
    assert_non_null(strstr(metrics, "\"frac_reward_zero_std\": 0,"));
    assert_non_null(strstr(metrics, "\"eval_reward\": 0.91666666666666"));
    cli_put(f, "data", "{\"prompt_ids\": [5], \"completion_ids\": [9, 3]}\n");
    cli_fails(f, 1, "data row 1 (from 1): 'reward' or 'advantage' is missing, as in all rows",
              "$R $D/p --data $D/data --out none --steps 1");
    cli_ok(f, "$C compile " MODEL " -o $D/q --scale-rewards none");
    assert_non_null(strstr(cli_unfolded(f, "err"), "no effect with this objective: scale-rewards"));
}

/* ---- rows that do not fit, and are wrong ----------------------------------------------------------------
 */

static void test_pairs_without_room(void **state) {
    io_fixture *f = *state;
    static const char rows[] =
        "{\"prompt_ids\": [5, 6, 7], \"chosen_ids\": [8, 9, 10, 11], \"rejected_ids\": [12], "
        "\"ref_chosen_logps\": -9, \"ref_rejected_logps\": -3}\n"
        "{\"prompt_ids\": [5], \"chosen_ids\": [8], \"rejected_ids\": [12], "
        "\"ref_chosen_logps\": -2, \"ref_rejected_logps\": -3}\n";
    cli_put(f, "data", rows);
    cli_ok(f, "$C compile " MODEL " -o $D/p --objective dpo --seq-len 10");
    cli_fails(f, 1,
              "data:1: a pair of 7 + 4 tokens (chosen, rejected), the plan has room for 10; 1 such row, the "
              "longest "
              "of 11 tokens: compile with --seq-len 11, or give --overlong truncate or drop",
              "$R $D/p --data $D/data --out none --steps 1");
    cli_ok(f, "$R $D/p --data $D/data --out none --steps 1 --overlong drop");
    assert_non_null(strstr(cli_text(f, "err"), "1 of 2 rows left out: too long"));
    cli_ok(f, "$R $D/p --data $D/data --out none --steps 1 --overlong truncate");
    assert_non_null(strstr(cli_text(f, "err"), "1 of 2 rows cut to the greatest length"));
    cli_fails(f, 2, "--packing bfd is for single texts",
              "$R $D/p --data $D/data --out none --steps 1 --overlong drop --packing bfd");
    for (int start = 0; start < 2; start++) {
        cli_ok(f, "$R $D/p --data $D/data --out none --steps 1 --overlong drop --data-cache $D/cache");
        assert_true((strstr(cli_text(f, "err"), "tokens are kept in") != NULL) == (start == 0));
        assert_non_null(strstr(cli_text(f, "err"), "1 of 2 rows left out: too long"));
    }
    cli_ok(f, "$C compile " MODEL " -o $D/p --objective dpo --seq-len 6");
    cli_ok(f,
           "$R $D/p --data $D/data --out none --steps 1 --overlong truncate"); /* 3 tokens each: all prompt */
    assert_non_null(strstr(cli_text(f, "err"), "1 of 2 rows left out: no label within the greatest length"));
}

static void test_rows_that_are_wrong(void **state) {
    io_fixture *f = *state;
    static const char rows[] =
        "{\"prompt_ids\": [5], \"chosen_ids\": [8], \"rejected_ids\": [12], \"ref_chosen_logps\": -2, "
        "\"ref_rejected_logps\": -3}\n"
        "{\"prompt_ids\": [5], \"chosen_ids\": [], \"rejected_ids\": [12], \"ref_chosen_logps\": -2, "
        "\"ref_rejected_logps\": -3}\n"
        "{\"prompt_ids\": [5], \"chosen_ids\": [8], \"rejected_ids\": [12], \"ref_chosen_logps\": -2}\n";
    cli_put(f, "data", rows);
    cli_ok(f, "$C compile " MODEL " -o $D/p --objective dpo --seq-len 20");
    cli_fails(f, 1, "data:2: chosen_ids: expected an answer, found no token behind the prompt",
              "$R $D/p --data $D/data --out none --steps 1");
    cli_ok(f, "$R $D/p --data $D/data --out none --steps 1 --on-bad-row skip");
    const char *err = cli_text(f, "err");
    assert_non_null(strstr(err,
                           "data:2: chosen_ids: expected an answer, found no token behind the prompt (row "
                           "left out)"));
    assert_non_null(strstr(err, "data:3: found a row with"));
    assert_non_null(strstr(err, "2 of 3 rows left out: they are wrong"));
    cli_fails(f, 2,
              "data:1: rows with 'prompt_ids', 'chosen_ids', 'rejected_ids' are preference pairs, and sft",
              "$C compile " MODEL " -o $D/q --seq-len 20 && $R $D/q --data $D/data --out none --steps 1 "
              "--on-bad-row skip");
}

/* --mask-truncated-completions: what does not end with the end-of-sequence token counts as little as what the
 * model did not write, and is a sequence of the step all the same. */
static void test_truncated_completions(void **state) {
    io_fixture *f = *state;
    cli_put(f, "cut",
            "{\"prompt_ids\": [5, 6], \"completion_ids\": [10, 11, 2], \"advantage\": 1}\n"
            "{\"prompt_ids\": [5], \"completion_ids\": [10, 12], \"advantage\": 0.5}\n");
    cli_put(
        f, "masked",
        "{\"prompt_ids\": [5, 6], \"completion_ids\": [10, 11, 2], \"advantage\": 1, \"env_mask\": [1, 1, "
        "1]}\n"
        "{\"prompt_ids\": [5], \"completion_ids\": [10, 12], \"advantage\": 0.5, \"env_mask\": [0, 0]}\n");
    cli_ok(f, "$C compile $S -o $D/p --objective grpo --loss-type grpo --seq-len 20 --dtype fp64 && "
              "$R $D/p --data $D/masked --out none --dump-gradients $D/want.safetensors && "
              "$R $D/p --data $D/cut --out none --mask_truncated_completions true --dump-gradients "
              "$D/got.safetensors && $R $D/p --data $D/cut --out none --dump-gradients $D/all.safetensors");
    const char *want = sbp_arena_strdup(f->arena, io_path(f, "want.safetensors"));
    cli_compare(f, "masked", io_path(f, "got.safetensors"), want, 0);
    cli_ok(f, "! cmp -s $D/all.safetensors $D/want.safetensors");
}

/* Rollouts that teach nothing have no effect but to count; others are refused, by line and field. */
static void test_odd_rollouts(void **state) {
    io_fixture *f = *state;
#define PROMPT "{\"prompt_ids\": [3, 4], \"completion_ids\": "
    static const struct {
        int exit;
        const char *rows, *message;
    } cases[] = {
        {0, PROMPT "[5, 6], \"advantage\": 1}\n" PROMPT "[], \"advantage\": 1}", "loss -1.0000"},
        {0, PROMPT "[], \"advantage\": 1}",
         "no token of the data would be trained: the loss and all gradients are zero"},
        {0, PROMPT "[5], \"env_mask\": [0], \"advantage\": 1}", "no token of the data would be trained"},
        {0, PROMPT "[5, 6], \"reward\": 3, \"group\": 1}", "loss 0.0000"},
        {1, PROMPT "[5, 6]}", "'reward' or 'advantage' is missing"},
        {1, PROMPT "[5, 6], \"advantage\": 1}\n" PROMPT "[5]}",
         "data:2: found a row with 'prompt_ids', 'completion_ids'; the first row has"},
        {1, PROMPT "[5, 6], \"advantage\": \"x\"}",
         "data:1: advantage: expected a number, found the string 'x'"},
        {1, PROMPT "[5, 6], \"advantage\": 1, \"old_per_token_logps\": [-1]}",
         "data:1: old_per_token_logps: expected as many items as the completion has tokens (2), found 1"},
        {1, PROMPT "[5, 6], \"advantage\": 1, \"env_mask\": [1, 0, 1]}",
         "data:1: env_mask: expected as many items as the completion has tokens (2), found 3"},
        {1, PROMPT "[5, 6, 7, 8, 9, 10, 11], \"advantage\": 1}",
         "data:1: a document of 9 tokens, the plan has room for 8; 1 such row, the longest of 9 tokens: "
         "compile with "
         "--seq-len 9, or give --overlong truncate or drop"},
    };
    cli_ok(f, "$C compile " MODEL " -o $D/p --objective grpo --seq-len 8");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_put(f, "data", cases[i].rows);
        int status = cli(f, "$R $D/p --data $D/data --out none --steps 1");
        if (status != cases[i].exit || !strstr(cli_text(f, "err"), cases[i].message))
            fail_msg("%s: exit status %d, '%s'", cases[i].rows, status, cli_text(f, "err"));
    }
#undef PROMPT
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_micro_batches_change_nothing, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_adds_nothing, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_work_is_counted, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_split_units_are_seen, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_advantages_of_rewards, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_pairs_without_room, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_truncated_completions, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_rows_that_are_wrong, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_odd_rollouts, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
