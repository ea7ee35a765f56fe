/* Names, values, commands and files of TRL and transformers, as options take them. */
#include "tests/unit/options_testing.h"

static void test_names_of_trl(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    assert_ok(f, parse(f, SBP_PHASE_RUN | SBP_PHASE_COMPILE,
                       "--learning_rate 3e-4 --output_dir out --max_steps 12 --num_train_epochs 2 "
                       "--max_grad_norm 0.0 --lr_scheduler_type cosine --warmup_steps 10 --adam_beta2 0.95",
                       &o));
    assert_true(sbp_options_double(o, SBP_OPT_LR) == 3e-4);
    assert_string_equal(sbp_options_text(o, SBP_OPT_OUT), "out");
    assert_int_equal(sbp_options_int(o, SBP_OPT_STEPS), 12);
    assert_true(sbp_options_double(o, SBP_OPT_EPOCHS) == 2);
    assert_true(sbp_options_is(o, SBP_OPT_CLIP, "none"));
    assert_true(sbp_options_is(o, SBP_OPT_SCHEDULE, "cosine"));
    assert_true(sbp_options_double(o, SBP_OPT_WARMUP) == 10);
    double betas[2];
    sbp_options_pair(o, SBP_OPT_BETAS, betas);
    assert_true(betas[0] == 0.9 && betas[1] == 0.95);
    assert_ok(f,
              parse(f, SBP_PHASE_RUN | SBP_PHASE_COMPILE,
                    "--max_length 1024 --adam_epsilon 1e-6 --completion_only_loss True --optim adamw_torch "
                    "--packing False --gradient_accumulation_steps 1 --max_steps -1",
                    &o));
    assert_int_equal(sbp_options_int(o, SBP_OPT_SEQ_LEN), 1024);
    assert_true(sbp_options_is(o, SBP_OPT_OVERLONG, "truncate"));
    assert_true(sbp_options_double(o, SBP_OPT_EPS) == 1e-6);
    assert_true(sbp_options_is(o, SBP_OPT_LOSS_ON, "completion"));
    assert_true(sbp_options_is(o, SBP_OPT_OPTIMIZER, "adamw"));
    assert_false(sbp_options_given(o, SBP_OPT_STEPS));
    assert_ok(
        f, parse(f, SBP_PHASE_RUN, "--train_sampling_strategy sequential --assistant_only_loss false", &o));
    assert_false(sbp_options_on(o, SBP_OPT_SHUFFLE));
    assert_false(sbp_options_given(o, SBP_OPT_LOSS_ON));
    assert_ok(f, parse(f, SBP_PHASE_RUN, "--assistant_only_loss true", &o));
    assert_true(sbp_options_is(o, SBP_OPT_LOSS_ON, "assistant"));
    assert_ok(f, parse(f, SBP_PHASE_RUN, "--seed 3", &o));
    assert_ok(f, parse(f, SBP_PHASE_RUN | SBP_PHASE_COMPILE, "--overlong split --max_length 64", &o));
    assert_true(sbp_options_is(o, SBP_OPT_OVERLONG, "split"));
}

static const char *list_of(const io_fixture *f, const sbp_options *o, sbp_option_id id) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int32_t i = 0; i < sbp_options_list_count(o, id); i++)
        sbp_text_add(&out, "%s%s", i > 0 ? " " : "", sbp_options_list_at(o, id, i));
    return out.length ? out.data : "";
}

/* What TRL says by options of its own and is a part of a value here. */
static void test_parts_of_values(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *args, *data, *eval, *columns, *reports;
    } cases[] = {
        {"--dataset_name a/b", "a/b", "", NULL, ""},
        {"--dataset_name a/b --dataset_config c", "a/b:c", "", NULL, ""},
        {"--dataset_train_split t --data a/b --data c/d:e --data f/g:h:i --data ./x",
         "a/b::t c/d:e:t f/g:h:i ./x", "", NULL, ""},
        {"--dataset_train_split train --dataset_test_split test --data a/b", "a/b", "", NULL,
         ""}, /* as they are */
        {"--dataset_test_split dev --data a/b:c --eval_strategy steps", "a/b:c", "a/b:c:dev", NULL, ""},
        {"--dataset_test_split dev --data a/b:c:d --eval_strategy steps", "a/b:c:d", "a/b:c:dev", NULL, ""},
        {"--dataset_test_split dev --data a/b", "a/b", "", NULL, ""}, /* nothing is evaluated */
        {"--dataset_config c --dataset_test_split dev --data a/b --eval e/f --eval h.jsonl", "a/b:c",
         "e/f:c:dev h.jsonl", NULL, ""},
        {"--dataset_config c --data tests/data", "tests/data", "", NULL, ""}, /* a directory here */
        {"--dataset_text_field body --data a/b", "a/b", "", "text=body?", ""},
        {"--text-field body --columns prompt=q --data a/b", "a/b", "", "prompt=q,text=body?", ""},
        {"--dataset_text_field body --columns text=q --data a/b", "a/b", "", "text=q", ""},
        {"--dataset_text_field text --data a/b", "a/b", "", NULL, ""},
        {"--logging_dir d/e --data a/b", "a/b", "", NULL, ""},
        {"--logging_dir d/e --report_to tensorboard --report_to jsonl --data a/b", "a/b", "", NULL,
         "tensorboard:d/e jsonl"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_options *o;
        assert_ok(f, parse(f, SBP_PHASE_RUN, cases[i].args, &o));
        assert_string_equal(list_of(f, o, SBP_OPT_DATA), cases[i].data);
        assert_string_equal(list_of(f, o, SBP_OPT_EVAL), cases[i].eval);
        assert_string_equal(list_of(f, o, SBP_OPT_REPORT_TO), cases[i].reports);
        const char *columns = sbp_options_text(o, SBP_OPT_COLUMNS);
        assert_string_equal(columns ? columns : "none", cases[i].columns ? cases[i].columns : "none");
    }
}

/* When evaluations are, and which of them is the best. */
static void test_evaluations(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *args, *every, *best, *metric, *greater, *patience;
    } cases[] = {
        {"--eval_strategy steps", "500", "off", "loss", NULL, NULL},
        {"--trl sft --eval_strategy steps", "10", "off", "loss", NULL, NULL},
        {"--eval_strategy steps --logging_steps 0.5", "0.5", "off", "loss", NULL, NULL},
        {"--eval_strategy steps --logging_steps 5 --eval_steps 7", "7", "off", "loss", NULL, NULL},
        {"--eval_strategy epoch --logging_steps 5", NULL, "off", "loss", NULL, NULL},
        {"--eval_strategy no --eval_steps 7", NULL, "off", "loss", NULL, NULL},
        {"--load_best_model_at_end", NULL, "on", "loss", NULL, NULL},
        {"--load_best_model_at_end false --metric_for_best_model eval_x --greater_is_better true", NULL,
         "off", "eval_x", "on", NULL},
        {"--early_stopping_patience 3", NULL, "off", "loss", NULL, "3"}, /* the last model is written */
        {"--best patience=2", NULL, "on", "loss", NULL, "2"},
        {"--best off,patience=2,greater=off", NULL, "off", "loss", "off", "2"},
        {"--best type=off,patience=2", NULL, "off", "loss", NULL, "2"},
    };
    static const sbp_option_id ids[] = {SBP_OPT_EVAL_EVERY, SBP_OPT_BEST, SBP_OPT_BEST_METRIC,
                                        SBP_OPT_BEST_GREATER, SBP_OPT_BEST_PATIENCE};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_options *o;
        const char *const expected[] = {cases[i].every, cases[i].best, cases[i].metric, cases[i].greater,
                                        cases[i].patience};
        assert_ok(f, parse(f, SBP_PHASE_RUN | SBP_PHASE_COMPILE, cases[i].args, &o));
        for (int k = 0; k < SBP_COUNT(ids); k++) {
            const char *text = sbp_options_text(o, ids[k]), *want = expected[k];
            if (strcmp(text ? text : "none", want ? want : "none") != 0)
                fail_msg("%s: --%s is %s, expected %s", cases[i].args, sbp_option_name(ids[k]),
                         text ? text : "none", want ? want : "none");
        }
    }
}

/* Every boolean is turned off by no_NAME, as by HfArgumentParser: TRL's names and ours, those without effect
 * and those that are refused where they are on. */
static void test_booleans_are_turned_off_by_name(void **state) {
    io_fixture *f = *state;
    const sbp_json *root;
    sbp_options *o;
    int booleans = 0;
    assert_ok(f, parse(f, 5, "--no_shuffle --no-use_peft --no_push_to_hub --no_packing --no_fp16 m", &o));
    assert_false(sbp_options_on(o, SBP_OPT_SHUFFLE));
    assert_true(sbp_options_is(o, SBP_OPT_LORA, "off") && sbp_options_is(o, SBP_OPT_PACKING, "none"));
    assert_int_equal(sbp_options_arg_count(o), 1); /* it takes no value */
    assert_ok(f, parse(f, 5, "--no_completion_only_loss --no_use_bias_correction_kl --no_scale_rewards", &o));
    assert_true(sbp_options_is(o, SBP_OPT_LOSS_ON, "all") &&
                sbp_options_is(o, SBP_OPT_SCALE_REWARDS, "none"));
    assert_false(sbp_options_on(o, SBP_OPT_USE_BIAS_CORRECTION_KL));
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/trl/fields.json", 0, &root));
    for (int64_t c = 1; c < root->count; c++)
        for (int64_t i = 0; i < root->items[c].count; i++) {
            const sbp_json *field = &root->items[c].items[i];
            if (field->kind != SBP_JSON_BOOL || strcmp(field->key, "average_tokens_across_devices") == 0)
                continue;
            booleans++;
            assert_ok(f, parse(f, 5, sbp_arena_printf(f->arena, "--no_%s", field->key), &o));
        }
    assert_true(booleans > 150);
}

/* Words of transformers for several options here: taken, with a note; what is given otherwise stays. */
static void test_optimizers_of_transformers(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *line, *optimizer, *states, *offload;
    } cases[] = {
        {"--optim adamw_8bit", "adamw", "int8", "auto"},
        {"--optim adamw_bnb_8bit", "adamw", "int8", "auto"},
        {"--optimizer paged_adamw_8bit", "adamw", "int8", "states"},
        {"--optim paged_adamw_32bit", "adamw", NULL, "states"},
        {"--optim paged_lion_8bit", "lion", "int8", "states"},
        {"--optim lion_32bit", "lion", NULL, "auto"},
        {"--optim adamw_hf", "adamw", NULL, "auto"},
        {"--optimizer adamw_torch_fused", "adamw", NULL, "auto"},
        {"--state-dtype bf16 --optim paged_adamw_8bit", "adamw", "bf16", "states"},
        {"--optim paged_adamw_8bit --offload none", "adamw", "int8", "none"},
    };
    sbp_options *o;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_diag_clear(f->diag);
        assert_ok(f, parse(f, 5, cases[i].line, &o));
        const char *states = sbp_options_text(o, SBP_OPT_STATE_DTYPE);
        assert_string_equal(sbp_options_text(o, SBP_OPT_OPTIMIZER), cases[i].optimizer);
        assert_string_equal(states ? states : "none", cases[i].states ? cases[i].states : "none");
        assert_string_equal(sbp_options_text(o, SBP_OPT_OFFLOAD), cases[i].offload);
        bool several = strstr(cases[i].line, "8bit") || strstr(cases[i].line, "paged");
        assert_true(several == (strstr(sbp_diag_text(f->diag, SBP_NOTE), ": taken as --optimizer") != NULL));
    }
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_NOTE),
               "--optim paged_adamw_8bit: taken as --optimizer adamw --state-dtype int8 --offload "
               "states"));
    sbp_diag_clear(f->diag);
}

/* Keys of scripts around TRL are named in one line, and skipped; a slip of a known name is none of them. */
static void test_keys_that_nobody_reads(void **state) {
    io_fixture *f = *state;
    static const char text[] = "lr: 0.5\nuse_flash_attention_2: true\ncallbacks:\n- push\nbenchmarks: [a, "
                               "b]\ncode_language: {a: {b: 1}}\n";
    static const char *const slips[] = {"learning_rat: 1\n", "{\"reward_weigths\": [1]}", "fp61: true\n",
                                        "lr_scheduler_kwargs:\n  swing: 2\n",
                                        "gradient_acumulation_step: 1\n"};
    sbp_options *o;
    sbp_diag_clear(f->diag);
    assert_ok(f, parse_config(f, 5, text, "", &o));
    assert_true(sbp_options_double(o, SBP_OPT_LR) == 0.5);
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_NOTE),
               "nobody here reads these keys: use_flash_attention_2, callbacks, benchmarks, code_language "
               "(--config-unknown error"));
    assert_fails(f, SBP_USAGE, "config:2: unknown key 'use_flash_attention_2'; --help lists all",
                 parse_config(f, 5, text, "--config-unknown error", &o));
    for (int i = 0; i < SBP_COUNT(slips); i++)
        assert_fails(f, SBP_USAGE, "unknown key '", parse_config(f, 5, slips[i], "", &o));
    sbp_diag_clear(f->diag);
}

/* The weights of a mixture, separated by blanks. */
static const char *weights_of(const io_fixture *f, const sbp_options *o) {
    return list_of(f, o, SBP_OPT_MIXTURE_WEIGHTS);
}

/* Mixtures of alignment-handbook, whose parts have weight 1 where they say nothing, of its older form, and
 * of TRL. */
static void test_mixtures_of_others(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    assert_ok(f, parse_config(
                     f, 5,
                     "dataset_mixture:\n  datasets:\n  - id: a/b\n    config: c\n    split: train_sft\n    "
                     "columns: [messages]\n    weight: 0.25\n  - id: d/e\n  - id: g/h\n    weight: null\n  "
                     "seed: 7\n  test_split_size: 0.1\n",
                     "", &o));
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_DATA), 3);
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 0), "a/b:c:train_sft");
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 1), "d/e");
    assert_string_equal(weights_of(f, o), "0.25 1 none");
    assert_string_equal(sbp_options_text(o, SBP_OPT_MIXTURE_ROWS), "random");
    assert_int_equal(sbp_options_int(o, SBP_OPT_MIXTURE_SEED), 7);
    assert_true(sbp_options_double(o, SBP_OPT_TEST_SPLIT_SIZE) == 0.1);
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "columns of a part\n"));
    assert_ok(
        f, parse_config(f, 5,
                        "dataset_mixer:\n  a/b: 0.5\n  c/d: 1.0\ndataset_splits: [train_prefs, test_prefs]\n",
                        "", &o));
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 0), "a/b::train_prefs");
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_EVAL), 0); /* eval_strategy: no */
    assert_string_equal(weights_of(f, o), "0.5 1.0");
    assert_string_equal(sbp_options_text(o, SBP_OPT_MIXTURE_ROWS), "first");
    assert_ok(f,
              parse_config(
                  f, 5,
                  "datasets:\n- path: a/b\n  fraction: 3\n- path: c/d\n  fraction: 1\ntest_split_size: 20\n",
                  "", &o));
    assert_string_equal(weights_of(f, o), "3 1");
    assert_string_equal(sbp_options_text(o, SBP_OPT_MIXTURE_ROWS), "shares");
    assert_true(sbp_options_double(o, SBP_OPT_TEST_SPLIT_SIZE) == 20);
    sbp_diag_clear(f->diag);
}

/* What a mixture without weights leaves alone, what the command line takes the place of, and what is
 * wrong. */
static void test_weights_of_mixtures(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    static const char *const whole[] = {
        "datasets:\n- path: a/b\n- path: c/d\n  fraction: null\ntest_split_size: null\n",
        "datasets:\n- path: a/b\n  weight: null\n"};
    static const char *const mixtures[] = {
        "dataset_mixture:\n  datasets:\n  - id: a/b\n    weight: 0.5\n  seed: 3\n  test_split_size: 9\n",
        "dataset_mixer:\n  a/b: 0.5\n", "datasets:\n- path: a/b\n  fraction: 0.5\n"};
    for (int i = 0; i < SBP_COUNT(whole); i++) {
        assert_ok(f, parse_config(f, 5, whole[i], "", &o));
        assert_false(sbp_options_given(o, SBP_OPT_MIXTURE_WEIGHTS));
        assert_false(sbp_options_given(o, SBP_OPT_TEST_SPLIT_SIZE));
    }
    for (int i = 0; i < SBP_COUNT(mixtures); i++) {
        assert_ok(f, parse_config(f, 5, mixtures[i], "--data mine.jsonl", &o));
        assert_int_equal(sbp_options_list_count(o, SBP_OPT_DATA), 1);
        assert_string_equal(weights_of(f, o), "");
        assert_false(sbp_options_given(o, SBP_OPT_MIXTURE_SEED));
        assert_false(sbp_options_given(o, SBP_OPT_TEST_SPLIT_SIZE));
        assert_ok(f, parse_config(f, 5, mixtures[i], "--mixture-weights 0.75", &o));
        assert_string_equal(weights_of(f, o), "0.75");
    }
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"datasets:\n- path: a/b\n  weight: 1\n- path: c/d\n  fraction: 1\n", "give one of them"},
        {"datasets:\n- path: a/b\n  weight: 1\n  fraction: 1\n", "config:4: 'datasets': weight is a part"},
        {"datasets:\n- path: a/b\n  weight: [1]\n", "of a part, path (or id)"},
        {"dataset_mixer:\n  a/b: [1]\n", "config:2: 'dataset_mixer': a/b: expected the part of its rows"},
        {"test_split_size: 0\n", "0 is not above 0"}};
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        assert_fails(f, SBP_USAGE, wrong[i].message, parse_config(f, 5, wrong[i].text, "", &o));
    sbp_diag_clear(f->diag);
}

/* What TRL's commands stand for, and their defaults; what a config's env: sets. */
static void test_commands_of_trl(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *line, *objective, *loss;
        double lr;
        int64_t length;
    } cases[] = {{"sft", "sft", NULL, 2e-5, 1024},
                 {"dpo m", "dpo", NULL, 1e-6, 1024},
                 {"kto m --max_length 77", "kto", NULL, 1e-6, 77},
                 {"grpo m --learning_rate 1e-5", "grpo", NULL, 1e-5, 4096},
                 {"rloo m", "grpo", "rloo", 1e-6, 4096},
                 {"dpo --config $ m", "dpo", NULL, 5e-5, 4096}};
    const char *path = sbp_arena_strdup(
        f->arena, strchr(put_config(f, "learning_rate: 5.0e-5\nmax_length: null\n"), ' ') + 1);
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char *argv[8];
        int argc = 0;
        char *line = sbp_arena_strdup(f->arena, cases[i].line);
        for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
            argv[argc++] = *word == '$' ? sbp_arena_strndup(f->arena, path, strlen(path) - 1) : word;
        char *const *args = argv;
        sbp_options *o;
        assert_ok(f, sbp_options_begin_command(f->arena, f->diag, &argc, &args));
        assert_ok(f, sbp_options_parse(f->arena, f->diag, "prog", 5, argc, args, &o));
        assert_string_equal(sbp_options_text(o, SBP_OPT_OBJECTIVE), cases[i].objective);
        assert_true(sbp_options_double(o, SBP_OPT_LR) == cases[i].lr);
        assert_int_equal(sbp_options_int(o, SBP_OPT_SEQ_LEN), cases[i].length);
        const char *loss = sbp_options_text(o, SBP_OPT_LOSS_TYPE);
        assert_true(cases[i].loss ? loss && strcmp(loss, cases[i].loss) == 0 : !loss || !*loss);
    }
    char *word[] = {(char *)(uintptr_t) "reward"};
    char *const *args = word;
    int one = 1;
    assert_fails(f, SBP_USAGE, "reward models are not trained here yet",
                 sbp_options_begin_command(f->arena, f->diag, &one, &args));
    word[0] = (char *)(uintptr_t) "distillation";
    assert_fails(f, SBP_USAGE, "there is no teacher",
                 sbp_options_begin_command(f->arena, f->diag, &one, &args));
    sbp_options *o;
    assert_ok(f,
              parse_config(
                  f, 5,
                  "env:\n  HF_HUB_OFFLINE: 'yes'\n  WANDB_PROJECT: x\ndatasets:\n  - path: a/b\n    split: "
                  "train\n  - path: c/d\nmodel_name_or_path: o/n\nmodel_revision: v1\naccelerate_config: "
                  "zero2\nnum_processes: 4\nlr_scheduler_kwargs: '{\"num_cycles\": 4}'\n",
                  "", &o));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "no effect here: env: WANDB_PROJECT"));
    unsetenv("HF_HUB_OFFLINE");
    sbp_options_set_environment(o);
    assert_string_equal(getenv("HF_HUB_OFFLINE"), "yes");
    assert_null(getenv("WANDB_PROJECT"));
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_DATA), 2);
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 0), "a/b"); /* as where nothing is said */
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 1), "c/d");
    assert_string_equal(sbp_options_arg(o, 0), "o/n@v1");
    assert_int_equal(sbp_options_int(o, SBP_OPT_ZERO), 2);
    assert_int_equal(sbp_options_int(o, SBP_OPT_RANKS), 4);
    assert_true(sbp_options_double(o, SBP_OPT_NUM_CYCLES) == 4);
    assert_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "HF_ENDPOINT"));
    assert_ok(f, parse_config(f, 5, "env:\n  HF_ENDPOINT: http://elsewhere\n", "--quiet m", &o));
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_WARNING), ":2: this file sets HF_ENDPOINT to 'http://elsewhere'"));
    assert_ok(f, parse_config(f, 5, "learning_rate: 1e-5\nnum_processes: 4\n", "--lr 3 --ranks 1", &o));
    assert_true(sbp_options_double(o, SBP_OPT_LR) == 3 && sbp_options_int(o, SBP_OPT_RANKS) == 1);
}

/* A YAML file with all settings of one of TRL's classes, and whether each is `key: value` here. */
static void yaml_of(sbp_text *out, const sbp_json *fields) {
    for (int64_t i = 0; i < fields->count; i++) {
        sbp_text_add(out, "%s: ", fields->items[i].key);
        sbp_json_add_value(out, &fields->items[i]);
        sbp_text_add(out, "\n");
    }
}

/* Every setting that TRL has, at its default, is taken without an error or a word, in lines, in JSON and on
 * the command line; with None, false or nothing as well. */
static void test_all_settings_of_trl(void **state) {
    io_fixture *f = *state;
    const sbp_json *root;
    int settings = 0;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/trl/fields.json", 0, &root));
    for (int64_t c = 1; c < root->count; c++) {
        const sbp_json *fields = &root->items[c];
        sbp_text yaml, json;
        sbp_options *o;
        sbp_text_init(&yaml, f->arena);
        sbp_text_init(&json, f->arena);
        yaml_of(&yaml, fields);
        sbp_json_add_value(&json, fields);
        assert_ok(f, parse_config(f, 5, yaml.data, "", &o));
        if (strcmp(fields->key, "SFTConfig") == 0) {
            assert_int_equal(sbp_options_int(o, SBP_OPT_SEQ_LEN), 1024);
            assert_string_equal(sbp_options_text(o, SBP_OPT_OVERLONG), "truncate");
            assert_true(sbp_options_double(o, SBP_OPT_LR) == 2e-5 && !sbp_options_given(o, SBP_OPT_DTYPE));
            assert_ok(f, sbp_options_settle_batch(o, f->diag, 1));
            assert_int_equal(sbp_options_int(o, SBP_OPT_BATCH_SIZE), 8);
            sbp_diag_clear(f->diag);
        }
        assert_ok(f, parse_config(f, 5, json.data, "", &o));
        for (int64_t i = 0; i < fields->count; i++, settings++) {
            sbp_text value;
            sbp_text_init(&value, f->arena);
            sbp_json_add_value(&value, &fields->items[i]);
            static const char *const off[] = {"null", "None", ""};
            for (int k = 0; k < SBP_COUNT(off); k++)
                assert_ok(f, parse_config(
                                 f, 5, sbp_arena_printf(f->arena, "%s: %s\n", fields->items[i].key, off[k]),
                                 "", &o));
            const char *text =
                fields->items[i].kind == SBP_JSON_STRING ? fields->items[i].string : value.data;
            if (*text && fields->items[i].kind != SBP_JSON_ARRAY && fields->items[i].kind != SBP_JSON_NULL)
                assert_ok(f,
                          parse(f, 5, sbp_arena_printf(f->arena, "--%s %s", fields->items[i].key, text), &o));
        }
        char *notes = sbp_arena_strdup(f->arena, sbp_diag_text(f->diag, SBP_NOTE));
        for (char *line = strtok(notes, "\n"); line; line = strtok(NULL, "\n"))
            if (strncmp(line, "note: --", 8) != 0 ||
                !strstr(line, ": write --l")) /* as typed: --loss, --lora */
                fail_msg("%s: %s", fields->key, line);
        sbp_diag_clear(f->diag);
    }
    assert_true(settings > 700);
}

/* Those without effect are named once; those that are put together are. */
static void test_settings_of_trl_that_are_not_options(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    assert_ok(
        f,
        parse(f, 5,
              "--gradient_checkpointing m --project wandb --push_to_hub false --logging_steps 5 --fp16 false "
              "--bf16 --run_name x --seed 3",
              &o));
    assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE),
                        "note: these settings have no effect here: --project, --run_name\n");
    assert_int_equal(sbp_options_arg_count(o), 1);
    assert_string_equal(sbp_options_text(o, SBP_OPT_DTYPE), "bf16");
    assert_ok(
        f,
        parse_config(
            f, 5,
            "model_name_or_path: m\ndtype: float32\nbf16: true\nwarmup_ratio: 0.1\nwarmup_steps: 0\n"
            "per_device_train_batch_size: 2\ngradient_accumulation_steps: 3\nuse_peft: false\nlora_r: 16\n",
            "", &o));
    assert_string_equal(sbp_options_arg(o, 0), "m");
    assert_string_equal(sbp_options_text(o, SBP_OPT_DTYPE), "bf16"); /* autocast of weights in fp32 */
    assert_true(sbp_options_double(o, SBP_OPT_WARMUP) == 0.1);
    assert_ok(f, sbp_options_settle_batch(o, f->diag, 4));
    assert_int_equal(sbp_options_int(o, SBP_OPT_BATCH_SIZE), 24);
    const char **args;
    int32_t count;
    sbp_options_to_args(o, 5, 0, f->arena, &args, &count);
    for (int32_t i = 0; i < count; i++)
        assert_null(strstr(args[i], "per-device"));
    assert_ok(f, parse(f, 5, "--per_device_train_batch_size 2 --context-parallel 2", &o));
    assert_ok(f, sbp_options_settle_batch(o, f->diag, 4)); /* two ranks have the same rows */
    assert_int_equal(sbp_options_int(o, SBP_OPT_BATCH_SIZE), 4);
    assert_ok(f, parse(f, 5, "--lr 1", &o));
    assert_ok(f, sbp_options_settle_batch(o, f->diag, 4));
    assert_false(sbp_options_given(o, SBP_OPT_BATCH_SIZE));
    assert_ok(f, parse_config(f, 5, "bf16: true\nper_device_train_batch_size: 2\nmodel_name_or_path: m\n",
                              "n --dtype fp32 --batch-size 5", &o)); /* the command line wins */
    assert_ok(f, sbp_options_settle_batch(o, f->diag, 4));
    assert_int_equal(sbp_options_int(o, SBP_OPT_BATCH_SIZE), 5);
    assert_string_equal(sbp_options_text(o, SBP_OPT_DTYPE), "fp32");
    assert_string_equal(sbp_options_arg(o, 0), "n");
    assert_ok(f, parse(f, 5, "--batch-size 3 --gradient_accumulation_steps 2", &o));
    assert_fails(f, SBP_USAGE, "give one or the others", sbp_options_settle_batch(o, f->diag, 1));
    assert_ok(f, parse(f, 5, "--context-parallel auto --gradient_accumulation_steps 2", &o));
    assert_fails(f, SBP_USAGE, "give --batch-size", sbp_options_settle_batch(o, f->diag, 1));
}

/* A name stands in one place only. */
static void test_names_without_effect_are_no_options(void **state) {
    io_fixture *f = *state;
    for (int32_t i = 0; sbp_options_ignored_at(i); i++) {
        const char *name = sbp_options_ignored_at(i);
        sbp_options *o;
        assert_ok(f, parse(f, 31, sbp_arena_printf(f->arena, "--%s=unusual", name), &o));
        if (!strstr(sbp_diag_text(f->diag, SBP_NOTE), sbp_arena_printf(f->arena, "here: --%s\n", name)))
            fail_msg("'%s' is an option or refused, too", name);
        for (int32_t k = 0; k < i; k++)
            assert_string_not_equal(name, sbp_options_ignored_at(k));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names_of_trl, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_evaluations, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_parts_of_values, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_booleans_are_turned_off_by_name, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_optimizers_of_transformers, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_keys_that_nobody_reads, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_mixtures_of_others, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_weights_of_mixtures, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_commands_of_trl, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_all_settings_of_trl, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_settings_of_trl_that_are_not_options, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_names_without_effect_are_no_options, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
