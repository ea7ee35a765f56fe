/* The options of sbpc and sbprun as a user meets them: help, documentation, names of TRL, what is not built.
 */
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"

#include "runtime/options/options.h"

#define DATA "$G/stories260k_trl/train.jsonl"

static const struct command {
    const char *help, *use; /* use: completed by an option */
    unsigned phase;
} commands[] = {
    {"$C compile --help all", "$C compile $S -o $D/q", SBP_PHASE_COMPILE},
    {"$C inspect --help", "$C inspect $D/p", SBP_PHASE_INSPECT},
    {"$R --help all", "$R $D/p --data " DATA, SBP_PHASE_RUN | SBP_PHASE_COMPILE},
    {"$R tokenize --help", "$R tokenize $S", SBP_PHASE_TOKENIZE},
};

/* Whether "--name" stands in the text as a word. */
static bool mentions(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name))
        if (at - text >= 2 && memcmp(at - 2, "--", 2) == 0 && strchr(" ,\n", at[length]) &&
            (at - text == 2 || at[-3] == ' '))
            return true;
    return false;
}

/* The lines of options in a help text, not its prose: they begin with blanks and a dash. */
static const char *option_lines(io_fixture *f, const char *text) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (char *line = strtok(sbp_arena_strdup(f->arena, text), "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, "  -", 3) == 0)
            sbp_text_add(&out, "%s\n", line);
    return out.data;
}

/* --help has every option that works, and nothing that does not. */
static void test_help_is_complete(void **state) {
    io_fixture *f = *state;
    for (int c = 0; c < SBP_COUNT(commands); c++) {
        cli_ok(f, commands[c].help);
        const char *help = option_lines(f, cli_text(f, "out"));
        int shown = 0;
        for (int32_t i = 0; i < sbp_option_count(); i++) {
            const sbp_option *o = sbp_option_at(i);
            bool expected = (o->phases & commands[c].phase) && o->state == SBP_OPTION_BUILT;
            if (mentions(help, o->name) != expected)
                fail_msg("%s: --%s is %s", commands[c].help, o->name, expected ? "missing" : "there");
            shown += expected;
        }
        assert_true(shown >= 4);
    }
}

/* What people look for first stands there, with an example; the rest by topic. */
static void test_help_begins_with_what_is_looked_for(void **state) {
    io_fixture *f = *state;
    static const char *const pages[] = {"$R --help", "$C compile --help", "$C --help", "$R $S --help"};
    static const char *const looked_for[] = {"--lora ",    "--objective ", "--memory ",
                                             "--seq-len ", "For example:", "--help all"};
    for (int i = 0; i < SBP_COUNT(pages); i++) {
        cli_ok(f, pages[i]);
        for (int k = 0; k < SBP_COUNT(looked_for); k++)
            if (!strstr(cli_text(f, "out"), looked_for[k]))
                fail_msg("%s: no '%s'", pages[i], looked_for[k]);
        cli_ok(f, sbp_arena_printf(f->arena, "test $(%s | wc -l) -le 45 && ! %s | grep -q '.\\{101\\}'",
                                   pages[i], pages[i]));
    }
    cli_ok(f, "$R --help rows && grep -q logprobs $D/out && ! grep -q '.\\{101\\}' $D/out");
    cli_ok(f, "$R --help lora && grep -q -e '^  targets=' $D/out && ! grep -q -e '--lr ' $D/out");
    cli_ok(f, "$C --help lora && grep -q -e '^  targets=' $D/out && $R --help loss && grep -q -e '^  "
              "epsilon=X' $D/out");
}

/* What is not built says so, with status 2. */
static void test_what_is_not_built(void **state) {
    io_fixture *f = *state;
    int options = 0;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300");
    for (int c = 0; c < SBP_COUNT(commands); c++)
        for (int32_t i = 0; i < sbp_option_count(); i++) {
            const sbp_option *o = sbp_option_at(i);
            if (!(o->phases & commands[c].phase))
                continue;
            if (o->state == SBP_OPTION_LATER) {
                cli_fails(f, 2, "is not supported yet",
                          sbp_arena_printf(f->arena, "%s --%s %s", commands[c].use, o->name,
                                           o->kind == SBP_OPTION_SWITCH ? "" : "1"));
                options++;
            }
        }
    print_message("%d options\n", options);
    assert_false(cli_exists(f, "q"));
}

/* Every name of TRL that is an alias, in one command. */
#define TRL_NAMES                                                                                            \
    "--logging_steps 1 "                                                                                     \
    "--output_dir $D/o --max_steps 2 --num_train_epochs 2 --learning_rate 1e-3 --lr_scheduler_type cosine "  \
    "--warmup_steps 1 --weight_decay 0.1 --adam_beta1 0.8 --adam_beta2 0.95 --adam_epsilon 1e-6 "            \
    "--max_grad_norm 0.5 --optim adamw_torch_fused --max_length 200 --max_seq_length 200 --save_steps 3 "    \
    "--save_total_limit 1 --seed 3 --dataset_text_field text --completion_only_loss false "                  \
    "--assistant_only_loss false --train_sampling_strategy sequential --eval_steps 1 "                       \
    "--eval_strategy false --evaluation_strategy steps --resume_from_checkpoint false "                      \
    "--overwrite_output_dir true "                                                                           \
    "--packing true --chat_template_path tests/golden/chat/chatml.jinja --eos_token '</s>' "                 \
    "--accelerate_config multi_gpu --num_processes 1 --nproc_per_node 1 "                                    \
    "--importance_sampling_level token --warmup_ratio 0 --use_cpu true --torch_dtype float32 --optimizer "   \
    "adamw_hf --save_strategy steps --load_best_model_at_end true --metric_for_best_model loss "             \
    "--greater_is_better false --early_stopping_patience 2 --early_stopping_threshold 0.1 "

#define TRL_SOURCES                                                                                          \
    "--model_name_or_path $S --dataset_name " DATA " --eval_dataset_name " DATA " --dtype auto "

/* Names of TRL about adapters, and about objectives that take a batch several times. */
#define TRL_LORA_NAMES "--use_peft true --use_rslora true --lora_target_modules q_proj --load_in_4bit true "
#define TRL_OBJECTIVE_NAMES "--scale_rewards false "
#define TRL_EPOCHS "--num_iterations --num_ppo_epochs --ppo_epochs "
#define TRL_EXPERTS "--lora_target_parameters "        /* of models with experts: test_cli_lora */
#define TRL_LOOP "--num_generations --reward_weights " /* of runs that sample: test_cli_rl */
#define LLAMA_CPP_NAMES "--outtype "                   /* of its converter: test_cli_export */

static void test_names_of_trl(void **state) {
    io_fixture *f = *state;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *o = sbp_option_at(i);
        if (o->state != SBP_OPTION_BUILT)
            continue;
        const char *name;
        for (int32_t k = 0; (name = sbp_options_trl_name_at(o, k)); k++)
            if (!mentions(" " TRL_SOURCES TRL_NAMES TRL_LORA_NAMES TRL_OBJECTIVE_NAMES TRL_EPOCHS TRL_EXPERTS
                              TRL_LOOP LLAMA_CPP_NAMES,
                          name))
                fail_msg("this test does not try '%s', an alias of --%s", name, o->name);
    }
    cli_ok(
        f,
        "$R " TRL_SOURCES TRL_NAMES "--report_to none --gradient_accumulation_steps 1 "
        "--padding_free false --logging_first_step true --push_to_hub false --per_device_train_batch_size 5");
    const sbp_json *run = cli_json(f, "o/run.json"), *options = sbp_json_member(run, "options");
    const sbp_json *compiled = sbp_json_member(sbp_json_member(run, "compiled"), "options");
    assert_true(cli_number(f, options, "lr") == 1e-3);
    assert_int_equal(cli_number(f, options, "steps"), 2);
    assert_true(cli_number(f, options, "weight-decay") == 0.1);
    assert_true(sbp_json_member(options, "betas")->items[0].real == 0.8);
    assert_true(sbp_json_member(options, "betas")->items[1].real == 0.95);
    assert_true(cli_number(f, options, "eps") == 1e-6);
    assert_string_equal(sbp_json_member(sbp_json_member(options, "schedule"), "type")->string, "cosine");
    assert_string_equal(sbp_json_member(options, "overlong")->string, "truncate"); /* by max_length */
    assert_string_equal(sbp_json_member(options, "loss-on")->string, "all");
    assert_int_equal(cli_number(f, options, "save-every"), 3);
    assert_int_equal(cli_number(f, options, "batch-size"), 5);
    assert_int_equal(cli_number(f, options, "keep"), 1);
    assert_int_equal(cli_number(f, options, "eval-every"), 1);
    assert_int_equal(cli_number(f, options, "log-every"), 1);
    assert_int_equal(cli_number(f, options, "seed"), 3);
    assert_true(cli_number(f, compiled, "clip") == 0.5);
    assert_int_equal(cli_number(f, compiled, "seq-len"), 200);
    assert_string_equal(sbp_json_member(compiled, "optimizer")->string, "adamw");
    cli_ok(f, "$R $S --data " DATA " --steps 1 --out $D/lora " TRL_LORA_NAMES);
    run = cli_json(f, "lora/run.json");
    compiled = sbp_json_member(sbp_json_member(run, "compiled"), "options");
    assert_string_equal(sbp_json_member(compiled, "base-dtype")->string, "nf4");
    cli_ok(f, "grep -q '\"use_rslora\": true' $D/lora/adapter_config.json");
    cli_ok(
        f,
        "grep -q '\"q_proj\"' $D/lora/adapter_config.json && ! grep -q v_proj $D/lora/adapter_config.json");
    cli_put(f, "rollouts",
            "{\"prompt_ids\": [1, 5], \"completion_ids\": [7, 8, 9], \"reward\": 1, \"group\": 0}\n"
            "{\"prompt_ids\": [1, 5], \"completion_ids\": [9, 8], \"reward\": 0, \"group\": 0}\n");
    char *epochs = sbp_arena_strdup(f->arena, TRL_EPOCHS);
    for (char *name = strtok(epochs, " "); name; name = strtok(NULL, " ")) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $S --objective grpo --data $D/rollouts --steps 2 --batch-size 2 "
                                   "--seq-len 64 --out $D/grpo --overwrite %s 2",
                                   name));
        assert_int_equal(
            cli_number(f, sbp_json_member(cli_json(f, "grpo/run.json"), "options"), "inner-epochs"), 2);
    }
}

/* Names of objectives are TRL's, and what it has beside them is refused by name. */
static void test_objectives_of_trl(void **state) {
    io_fixture *f = *state;
    static const char *const runs[] = {
        "grpo --loss_type dr_grpo --epsilon 0.1 --epsilon_high 0.3 --delta 1.5 --importance_sampling_level "
        "sequence "
        "--mask_truncated_completions true --entropy_coef 0.01 --temperature 0.9 --use_bias_correction_kl "
        "false "
        "--vllm_importance_sampling_mode token_mask --vllm_importance_sampling_clip_max 2 "
        "--vllm_importance_sampling_clip_min 0.5 --max_completion_length 64 --beta 0.04 --num_iterations 2 "
        "--steps_per_generation 1 " TRL_OBJECTIVE_NAMES,
        "grpo --scale_rewards true --disable_dropout false --top_entropy_quantile 1.0 --use_adaptive_entropy "
        "false",
        "ppo --kl_coef 0.1 --kl_estimator k3 --gamma 0.9 --lam 0.9 --cliprange 0.1 --cliprange_value 0.1 "
        "--vf_coef "
        "0.2 --whiten_rewards true --missing_eos_penalty 1.0 --num_ppo_epochs 2 --num_mini_batches 1",
        "kto --loss_type kto --beta 0.2 --desirable_weight 2 --undesirable_weight 0.5 "
        "--precompute_ref_log_probs "
        "true --train_sampling_strategy sequential --disable_dropout true",
        "sft --use_peft true --lora_r 4 --lora_alpha 8 --lora_dropout 0 --lora_target_modules all-linear "
        "--lora_modules_to_save model.norm",
    };
    static const char *const refused[] = {"top_entropy_quantile 0.2",
                                          "off_policy_mask_threshold 0.5",
                                          "use_adaptive_entropy true",
                                          "sync_ref_model true",
                                          "ld_alpha 0.5",
                                          "f_divergence_type js_divergence",
                                          "use_weighting true",
                                          "loss_weights 1",
                                          "steps_per_generation 4"};
    static const char *const types[] = {"exo_pair", "nca_pair",     "bco_pair",
                                        "aot",      "aot_unpaired", "discopop"};
    cli_put(f, "rollouts",
            "{\"prompt_ids\": [1, 5], \"completion_ids\": [7, 8, 9], \"reward\": 1, \"label\": true}\n"
            "{\"prompt_ids\": [1, 5], \"completion_ids\": [9, 8], \"reward\": 0, \"label\": false}\n");
    for (int i = 0; i < SBP_COUNT(runs); i++)
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$R $S --data $D/rollouts --steps 1 --batch-size 2 --seq-len 64 --out none "
                                "--objective %s",
                                runs[i]));
    for (int i = 0; i < SBP_COUNT(refused); i++) {
        const char *name = sbp_arena_strndup(f->arena, refused[i], strcspn(refused[i], " "));
        cli_fails(f, 2, sbp_arena_printf(f->arena, "--%s: ", name),
                  sbp_arena_printf(f->arena, "$R $S --data $D/rollouts --objective grpo --dry-run --%s",
                                   refused[i]));
    }
    for (int i = 0; i < SBP_COUNT(types); i++)
        cli_fails(
            f, 2, sbp_arena_printf(f->arena, "no loss type '%s'", types[i]),
            sbp_arena_printf(f->arena, "$C compile $S --objective dpo --loss_type %s -o $D/p", types[i]));
}

/* The largest values that options may have are taken, or refused by their names: nothing behind them is too
 * small for these. */
static void check_end(io_fixture *f, const char *what, const char *command) {
    int status = cli(f, command);
    const char *err = cli_text(f, "err");
    if (status > 3 || strstr(err, "program_") || (status && !strstr(err, what)))
        fail_msg("%s: exit status %d, %s", command, status, err);
}

static void test_numbers_at_their_ends(void **state) {
    io_fixture *f = *state;
    static const char model[] = "$C compile $G/llama_plain/model -o $D/q";
    const bool each = testing_all();
    sbp_text together;
    int count = 0;
    sbp_text_init(&together, f->arena);
    cli_put(f, "rows", "{\"prompt_ids\": [1, 5], \"completion_ids\": [7, 8]}\n");
    cli_ok(f, "$C compile $G/llama_plain/model -o $D/p --seq-len 64");
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *o = sbp_option_at(i);
        if ((o->kind != SBP_OPTION_INT && o->kind != SBP_OPTION_SIZE) || o->most <= 16)
            continue;
        const char *one = sbp_arena_printf(f->arena, "--%s=%.0f", o->name, o->most);
        const char *lora = strncmp(o->name, "lora-", 5) == 0 ? "--lora r=2" : "";
        count++;
        if (o->phases == SBP_PHASE_RUN)
            check_end(f, o->name, sbp_arena_printf(f->arena, "$R $D/p --dry-run --data $D/rows %s", one));
        else if (each)
            check_end(f, o->name, sbp_arena_printf(f->arena, "%s %s %s", model, lora, one));
        else if (strstr(
                     " accumulate seq-len chunk head-chunk segment checkpoint-every node memory host-memory ",
                     sbp_arena_printf(f->arena, " %s ", o->name)))
            sbp_text_add(&together, " %s", one);
    }
    assert_true(count > 25);
    cli_ok(f, sbp_arena_printf(f->arena, "%s %s", model, together.data));
    cli_ok(f, sbp_arena_printf(f->arena, "%s --seq-len max --memory 9e18", model));
    assert_non_null(strstr(cli_text(f, "err"), "up to 2147483647 in a micro-batch"));
    cli_fails(f, 2, "--seq-len: 2147483648 is above 2147483647",
              sbp_arena_printf(f->arena, "%s --seq-len 2147483648", model));
    cli_fails(f, 2, "--seq-len 2147483647: at most 2147483646 rows are possible, divided among 2 ranks",
              sbp_arena_printf(f->arena, "%s --ranks 2 --context-parallel 2 --seq-len 2147483647", model));
    cli_ok(f, sbp_arena_printf(f->arena, "%s --ranks 2 --context-parallel 2 --seq-len max --memory 9e18",
                               model));
    assert_non_null(strstr(cli_text(f, "err"), "up to 2147483646 in a micro-batch"));
}

/* A config file for both programs: what it says of the plan may be said again, where it is what became of
 * "auto". */
static void test_config_files_that_say_what_the_plan_is(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300");
    cli_put(f, "same", "dtype: fp32\nbackend: cpu\nseq-len: 300\n");
    cli_ok(f, "$R $D/p --data " DATA " --dry-run --config $D/same");
    cli_put(f, "other", "dtype: bf16\n");
    cli_fails(f, 2, "--dtype was decided when", "$R $D/p --data " DATA " --dry-run --config $D/other");
}

/* A YAML file with every setting of TRL's command line at its default, and the two names that it needs, is a
 * run: that of the same options. */
static void test_a_config_of_trl(void **state) {
    io_fixture *f = *state;
    static const char *const classes[] = {"SFTConfig", "ModelConfig", "ScriptArguments"};
    static const char *const own[] = {"model_name_or_path", "dataset_name", "output_dir", "max_steps"};
    const sbp_json *root;
    sbp_text yaml;
    sbp_text_init(&yaml, f->arena);
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/trl/fields.json", 0, &root));
    for (int c = 0; c < SBP_COUNT(classes); c++) {
        const sbp_json *fields = sbp_json_member(root, classes[c]);
        for (int64_t i = 0; i < fields->count; i++) {
            bool is_own = false;
            for (int k = 0; k < SBP_COUNT(own); k++)
                is_own |= strcmp(fields->items[i].key, own[k]) == 0;
            sbp_text_add(&yaml, "%s%s: ", is_own ? "# " : "", fields->items[i].key);
            sbp_json_add_value(&yaml, &fields->items[i]);
            sbp_text_add(&yaml, "\n");
        }
    }
    sbp_text_add(
        &yaml,
        "model_name_or_path: tests/data/stories260K\ndataset_name: tests/golden/stories260k_trl/train.jsonl\n"
        "output_dir: %s\nmax_steps: 2\n",
        io_path(f, "trl"));
    cli_put(f, "all.yaml", yaml.data);
    cli_ok(f, "$R --config $D/all.yaml");
    assert_null(strstr(cli_text(f, "err"), "no effect"));
    assert_null(strstr(cli_text(f, "err"), "warning"));
    cli_ok(f, "$R $S --data " DATA " --steps 2 --max_length 1024 --out $D/own");
    cli_same(f, "trl/model.safetensors", "own/model.safetensors");
    cli_put(
        f, "more.yaml",
        "dataset_name: tests/golden/stories260k_trl/train.jsonl\nreport_to: wandb\nfp16: true\nbeta: 0.5\n"
        "model_name_or_path: tests/data/stories260K\nload_in_8bit: true\nlearning_rat: 3\n");
    cli_fails(f, 2, "fp16: use --dtype bf16", "$R --config $D/more.yaml");
    assert_non_null(strstr(cli_text(f, "err"), "load_in_8bit: use --base-dtype q8_0"));
    assert_non_null(strstr(cli_text(f, "err"), "the nearest is 'learning_rate'"));
    cli_put(f, "beta.yaml",
            "dataset_name: tests/golden/stories260k_trl/train.jsonl\nreport_to: wandb\nbeta: 0.5\n"
            "eval_steps: 5\nmodel_name_or_path: tests/data/stories260K\nbf16: true\n");
    cli_ok(f, "$R --config $D/beta.yaml --dry-run --verbose");
    assert_non_null(strstr(cli_text(f, "err"), "--report-to wandb is not built: --report-to jsonl"));
    assert_non_null(strstr(cli_text(f, "err"), "these settings have no effect with this objective: beta\n"));
    assert_non_null(strstr(cli_unfolded(f, "err"),
                           "eval_steps (--eval-every) without --eval FILE: nothing is evaluated"));
    assert_non_null(strstr(cli_text(f, "err"), "--dtype=bf16"));
}

/* sbprun MODEL hands the options of sbpc on, the limit of memory too. */
static void test_one_command_hands_options_on(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R $S --data " DATA " --steps 1 --out $D/o --memory 1GiB --backward checkpoint --dtype fp64 "
              "--head-chunk 50 --verbose");
    const char *err = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    static const char *const passed[] = {"--memory=1GiB", "--backward=checkpoint", "--dtype=fp64",
                                         "--head-chunk=50"};
    for (int i = 0; i < SBP_COUNT(passed); i++)
        assert_non_null(strstr(err, passed[i]));
    cli_put(f, "said", err);
    cli_ok(f, "! grep 'memory=.*memory=' $D/said"); /* not its own as well */
    cli_ok(f, "$C inspect $D/o/plan.bin --json");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "head_chunk"), 50);
    cli_fails(f, 3, "--memory is 5.00 MiB", "$R $S --data " DATA " --steps 1 --out $D/o2 --memory 5MiB");
    assert_false(cli_exists(f, "o2/model.safetensors"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_help_is_complete, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_help_begins_with_what_is_looked_for, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_not_built, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_names_of_trl, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_objectives_of_trl, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_numbers_at_their_ends, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_config_files_that_say_what_the_plan_is, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_config_of_trl, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_one_command_hands_options_on, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
