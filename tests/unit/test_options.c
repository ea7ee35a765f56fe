/* The options of both programs: command lines, config files, aliases, and the texts made from the table. */
#include "tests/unit/options_testing.h"

#include <math.h>

#include "ir/base/json_write.h"
#include "ir/base/pattern.h"

static void test_the_table_is_sound(void **state) {
    io_fixture *f = *state;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *o = sbp_option_at(i);
        assert_true(o->phases != 0 && (o->phases & ~(unsigned)SBP_PHASE_ALL) == 0);
        assert_null(strchr(o->name, '_'));
        assert_true(*o->values && *o->help);
        for (int32_t j = 0; j < i; j++)
            assert_string_not_equal(o->name, sbp_option_at(j)->name);
        bool switches = o->kind == SBP_OPTION_SWITCH;
        if (switches && strcmp(o->fallback, "off") != 0)
            fail_msg("switch %s must default to off", o->name);
    }
    sbp_options *o; /* every default converts */
    assert_ok(f, parse(f, SBP_PHASE_ALL, "", &o));
    assert_int_equal(sbp_options_int(o, SBP_OPT_SEQ_LEN), 4096);
    assert_int_equal(sbp_options_int(o, SBP_OPT_BATCH_SIZE), 8);
    assert_true(sbp_options_is(o, SBP_OPT_CHUNK, "auto"));
    assert_int_equal(sbp_options_int(o, SBP_OPT_CHUNK), -1);
    assert_true(isnan(sbp_options_double(o, SBP_OPT_MIN_LR)));
    assert_true(sbp_options_double(o, SBP_OPT_LR) == 2e-5);
    assert_true(sbp_options_double(o, SBP_OPT_CLIP) == 1.0);
    assert_null(sbp_options_text(o, SBP_OPT_OUT));
    assert_false(sbp_options_given(o, SBP_OPT_LR));
    double betas[2];
    sbp_options_pair(o, SBP_OPT_BETAS, betas);
    assert_true(betas[0] == 0.9 && betas[1] == 0.999);
}

static void test_command_lines(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    assert_ok(f, parse(f, SBP_PHASE_RUN,
                       "plan.bin --data a.jsonl --data=b.jsonl --lr 1e-3 --batch_size=4 --dry-run --lr 2e-3 "
                       "--shuffle off --seed 7 -- --odd",
                       &o));
    assert_int_equal(sbp_options_arg_count(o), 2);
    assert_string_equal(sbp_options_arg(o, 0), "plan.bin");
    assert_string_equal(sbp_options_arg(o, 1), "--odd");
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_DATA), 2);
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 1), "b.jsonl");
    assert_true(sbp_options_double(o, SBP_OPT_LR) == 2e-3); /* the last one wins */
    assert_int_equal(sbp_options_int(o, SBP_OPT_BATCH_SIZE), 4);
    assert_true(sbp_options_on(o, SBP_OPT_DRY_RUN));
    assert_false(sbp_options_on(o, SBP_OPT_SHUFFLE));
    assert_true(sbp_options_given(o, SBP_OPT_SEED));
    assert_false(sbp_options_given(o, SBP_OPT_OUT));
    assert_ok(
        f, parse(f, SBP_PHASE_COMPILE, "m -o p.bin --memory 2GiB --clip none --seq-len max --chunk 64", &o));
    assert_string_equal(sbp_options_text(o, SBP_OPT_OUTPUT), "p.bin");
    assert_int_equal(sbp_options_int(o, SBP_OPT_MEMORY), (int64_t)2 << 30);
    assert_true(sbp_options_is(o, SBP_OPT_CLIP, "none"));
    assert_true(isnan(sbp_options_double(o, SBP_OPT_CLIP)));
    assert_true(sbp_options_is(o, SBP_OPT_SEQ_LEN, "max"));
    assert_int_equal(sbp_options_int(o, SBP_OPT_CHUNK), 64);
    assert_ok(f, parse(f, SBP_PHASE_RUN, "--data - --json=off --warmup 0.1", &o));
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 0), "-");
    assert_false(sbp_options_on(o, SBP_OPT_JSON));
    assert_true(sbp_options_double(o, SBP_OPT_WARMUP) == 0.1);
}

static void test_what_is_wrong_with_command_lines(void **state) {
    io_fixture *f = *state;
    static const struct {
        unsigned phases;
        const char *line, *message;
    } cases[] = {
        {4, "--lerning_rate 1", "unknown option '--lerning_rate'; the nearest is '--learning_rate'"},
        {4, "--bach-size 1", "the nearest is '--batch-size'"},
        {4, "--completely-different 1", "unknown option '--completely-different'; --help lists all"},
        {4, "-x", "unknown option '-x'"},
        {4, "--use_flash_attention_2 true", "unknown option '--use_flash_attention_2'; --help lists all"},
        {4, "--no_shuffle=on", "--no_shuffle takes no value"},
        {4, "--no_lr", "unknown option '--no_lr'; --help lists all"}, /* no boolean */
        {4, "--config-unknown maybe", "found 'maybe', expected note or error"},
        {1, "--optim adafactor", "found 'adafactor', expected adamw, sgd"},
        {4, "--lr", "--lr needs a value"},
        {4, "--lr --steps 3", "--lr needs a value"},
        {4, "--lr fast", "--lr: found 'fast', expected a number"},
        {4, "--lr 1e999", "--lr: found '1e999', expected a number"},
        {4, "--lr nan", "expected a number"},
        {4, "--lr=", "--lr: found '', expected a number"},
        {4, "--steps 1.5", "--steps: found '1.5', expected a whole number"},
        {4, "--steps -2", "--steps: -2 is below 0"},
        {4, "--batch-size 0", "--batch-size: 0 is below 1"},
        {4, "--shuffle maybe", "--shuffle: found 'maybe', expected on or off"},
        {4, "--schedule warm", "--schedule: found 'warm', expected linear, constant"},
        {4, "--betas 0.9", "--betas: found '0.9', expected two numbers A,B"},
        {4, "--betas 0.9,1.5", "--betas: 0.9,1.5 is not below 1"},
        {4, "--betas 1,1", "--betas: 1,1 is not below 1"},
        {4, "--adam_beta2 1", "--adam_beta2: 0.9,1 is not below 1"},
        {1, "--clip 0", "--clip: 0 is not above 0"},
        {1, "--memory lots", "--memory: found 'lots', expected a size"},
        {1, "--chunk 0", "--chunk: 0 is below 1"},
        {1, "--objective sftt", "expected sft"},
        {16, "--type q4_0", "--type: found 'q4_0', expected f32, f16, bf16 or q8_0"},
        {1, "--zero 4", "--zero: 4 is above 3"},
        {1, "--lr 1", "--lr is an option of sbprun"},
        {8, "--lr 1", "--lr is an option of sbprun"},
        {4, "--chunk 8", "--chunk is an option of sbpc compile"},
        {5, "--fp16", "--fp16: use --dtype bf16"},
        {5, "--average_tokens_across_devices false", "all counted tokens of a step count alike"},
        {5, "--load_in_8bit true", "use --base-dtype q8_0"},
        {5, "--packing_strategy wrapped", "found 'wrapped', expected bfd, bfd_split"},
        {5, "--dtype float16", "--dtype float16: fp16 is not built: use bf16"},
        {4, "--one 1 --two --three=3", "unknown option '--one'"},
        {4, "--one 1 --two --three=3", "unknown option '--two'"}, /* all of them are said */
        {4, "--one 1 --two --three=3", "unknown option '--three'"},
        {4, "m --model_name_or_path n", "give one of them"},
        {4, "--packing wrapped", "--packing: found 'wrapped', expected none or bfd"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_options *o;
        assert_fails(f, SBP_USAGE, cases[i].message, parse(f, cases[i].phases, cases[i].line, &o));
    }
}

/* Every number of the table at the ends of what integers and doubles hold: taken where it is in its range,
 * else refused by its name. */
static void test_numbers_at_their_ends(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *text;
        double value;
        bool whole;
    } ends[] = {{"0", 0, true},
                {"-1", -1, true},
                {"2147483647", 2147483647.0, true},
                {"2147483648", 2147483648.0, true},
                {"999999999999999999", 1e18, true},
                {"9223372036854775807", 0x1p63, false}, /* more digits than any number here */
                {"9223372036854775808", 0x1p63, false},
                {"-9223372036854775808", -0x1p63, false},
                {"1e300", 1e300, false}};
    int taken = 0, refused = 0;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        bool real = option->kind == SBP_OPTION_NUMBER;
        if ((!real && option->kind != SBP_OPTION_INT) || option->state == SBP_OPTION_LATER)
            continue;
        for (int k = 0; k < SBP_COUNT(ends); k++) {
            sbp_options *o;
            const char *line = sbp_arena_printf(f->arena, "--%s=%s", option->name, ends[k].text);
            bool good =
                (real || ends[k].whole) && ends[k].value >= option->least && ends[k].value <= option->most;
            taken += good;
            refused += !good;
            if (!good) {
                assert_fails(f, SBP_USAGE, option->name, parse(f, option->phases, line, &o));
                continue;
            }
            assert_ok(f, parse(f, option->phases, line, &o));
            assert_true((real ? sbp_options_double(o, option->id) : (double)sbp_options_int(o, option->id)) ==
                        ends[k].value);
        }
    }
    assert_true(taken > 60 && refused > 400);
}

/* What is on or off, or more, is on when nothing follows. */
static void test_options_alone(void **state) {
    io_fixture *f = *state;
    static const char *const lines[] = {"--lora --seq-len 9 --shuffle", "--shuffle --lora",
                                        "--use_peft --seq-len 9 --shuffle on",
                                        "--lora on --shuffle --use_rslora"};
    for (int i = 0; i < SBP_COUNT(lines); i++) {
        sbp_options *o;
        assert_ok(f, parse(f, SBP_PHASE_RUN | SBP_PHASE_COMPILE, lines[i], &o));
        assert_string_equal(sbp_options_text(o, SBP_OPT_LORA), "on");
        assert_true(sbp_options_on(o, SBP_OPT_SHUFFLE));
        assert_true(sbp_options_on(o, SBP_OPT_LORA_RSLORA) == (i == 3));
    }
}

static void check_config(io_fixture *f, const char *text) {
    sbp_options *o;
    assert_ok(f, parse_config(f, SBP_PHASE_RUN, text, "--seed 5 --data z.jsonl", &o));
    assert_true(sbp_options_double(o, SBP_OPT_LR) == 1e-4);
    assert_int_equal(sbp_options_int(o, SBP_OPT_STEPS), 20);
    assert_string_equal(sbp_options_text(o, SBP_OPT_OUT), "a b # c");
    assert_int_equal(sbp_options_int(o, SBP_OPT_SEED), 5);
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_DATA), 1);
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_DATA, 0), "z.jsonl");
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_EVAL), 2);
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_EVAL, 1), "y.jsonl");
    assert_false(sbp_options_on(o, SBP_OPT_SHUFFLE));
    assert_true(sbp_options_on(o, SBP_OPT_JSON));
    assert_false(sbp_options_given(o, SBP_OPT_KEEP));
    assert_true(sbp_options_given(o, SBP_OPT_OUT));
    assert_non_null(sbp_options_from_config(o, SBP_OPT_OUT));
    assert_null(sbp_options_from_config(o, SBP_OPT_SEED));
    double betas[2];
    sbp_options_pair(o, SBP_OPT_BETAS, betas);
    assert_true(betas[0] == 0.8 && betas[1] == 0.99);
}

static void test_config_files(void **state) {
    io_fixture *f = *state;
    check_config(f, "{\"learning_rate\": 1e-4, \"steps\": 20, \"out\": \"a b # c\", \"seed\": 1, "
                    "\"data\": \"x.jsonl\", \"eval\": [\"x.jsonl\", \"y.jsonl\"], \"shuffle\": false, "
                    "\"json\": true, \"keep\": null, \"betas\": [0.8, 0.99], \"chunk\": 64}");
    check_config(
        f,
        "\xef\xbb\xbf# settings\n---\nlearning_rate: 1e-4   # fast\n\nsteps: 20\nout: \"a b # c\"\nseed: 1\n"
        "data: x.jsonl\neval: x.jsonl\neval: 'y.jsonl'\nshuffle: false\njson: on\nkeep: null\n"
        "adam_beta1: 0.8\nadam_beta2: 0.99\nchunk: 64");
    sbp_options *o;
    assert_fails(f, SBP_USAGE,
                 "config:2: unknown key 'lr_schedular_type'; the nearest is 'lr_scheduler_type'",
                 parse_config(f, 4, "lr: 1\nlr_schedular_type: x\n", "", &o));
    assert_fails(f, SBP_USAGE, "config: unknown key 'stepz'; the nearest is 'steps'",
                 parse_config(f, 4, "{\"stepz\": null}", "", &o));
    assert_fails(f, SBP_USAGE, "config:2: 'learning_rate' is given twice (as 'lr')",
                 parse_config(f, 4, "lr: 1\nlearning_rate: 2\n", "", &o));
    assert_fails(f, SBP_USAGE, "config:1: steps: found 'many', expected a whole number",
                 parse_config(f, 4, "steps: many\n", "", &o));
    assert_fails(f, SBP_INPUT, "steps: expected a number, a string or true or false, found an object",
                 parse_config(f, 4, "{\"steps\": {}}", "", &o));
    assert_fails(f, SBP_INPUT, "steps: expected one value, found an array",
                 parse_config(f, 4, "{\"steps\": [1]}", "", &o));
    assert_fails(f, SBP_USAGE, "unknown key 'a'",
                 parse_config(f, 4, "{\"lr_scheduler_kwargs\": {\"a\": 1}}", "", &o));
    assert_ok(f, parse_config(f, 4, "{\"lr_scheduler_kwargs\": {\"num_cycles\": 3}}", "", &o));
    assert_true(sbp_options_double(o, SBP_OPT_NUM_CYCLES) == 3);
    assert_fails(f, SBP_USAGE, "config:1: expected 'key: value'", parse_config(f, 4, "steps 20\n", "", &o));
    assert_fails(f, SBP_USAGE, "config:2: not valid YAML: found unexpected end of stream",
                 parse_config(f, 4, "out: \"x\n", "", &o));
    assert_fails(f, SBP_USAGE, "cannot name another", parse_config(f, 4, "config: x\n", "", &o));
    assert_fails(f, SBP_INPUT, "config:1", parse_config(f, 4, "{\"steps\": 1,}", "", &o));
    assert_fails(f, SBP_IO, "nowhere", parse(f, 4, "--config /nowhere/config", &o));
}

/* Lists, and what nests. */
static void test_lists_in_config_files(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    static const char *const lists[] = {
        "lora_target_modules:\n  - q_proj\n  # and\n\n  - 'v: proj'\nlr: 1\n",
        "lora_target_modules:\n- q_proj\n- \"v: proj\" # two\nlr: 1\n",
        "lora_target_modules: [q_proj, 'v: proj']\nlr: 1\n",
        "lora_target_modules: q_proj\nlora_target_modules: 'v: proj'\nlr: 1\n"};
    for (int i = 0; i < SBP_COUNT(lists); i++) {
        assert_ok(f, parse_config(f, 5, lists[i], "", &o));
        assert_int_equal(sbp_options_list_count(o, SBP_OPT_LORA_TARGETS), 2);
        assert_string_equal(sbp_options_list_at(o, SBP_OPT_LORA_TARGETS, 0), "q_proj");
        assert_string_equal(sbp_options_list_at(o, SBP_OPT_LORA_TARGETS, 1), "v: proj");
        assert_true(sbp_options_double(o, SBP_OPT_LR) == 1);
    }
    assert_ok(f,
              parse_config(
                  f, 5,
                  "loss_type: [sigmoid, sft]\nbetas:\n  - 0.5\n  - 0.6\nfsdp: []\nlabel_names:\n  - wandb\n"
                  "gradient_checkpointing_kwargs:\n  use_reentrant: false\n"
                  "dataset_kwargs: {skip_prepare_dataset: true}\nlr: 2",
                  "", &o));
    assert_string_equal(sbp_options_text(o, SBP_OPT_LOSS_TYPE), "sigmoid+sft");
    double betas[2];
    sbp_options_pair(o, SBP_OPT_BETAS, betas);
    assert_true(betas[0] == 0.5 && betas[1] == 0.6 && sbp_options_double(o, SBP_OPT_LR) == 2);
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE),
                           "note: these settings have no effect here: label_names, "
                           "gradient_checkpointing_kwargs, dataset_kwargs\n"));
    assert_ok(f, parse_config(f, 5, "loss_type:\n  - -1\n  - 2\n", "", &o)); /* no list in a list */
    assert_string_equal(sbp_options_text(o, SBP_OPT_LOSS_TYPE), "-1+2");
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"lr: 1\nlora_target_modules:\n  q_proj: 1\n",
         "config:2: 'lora_target_modules': expected a value or a list of them, found a map"},
        {"data:\n  - path: x\n    split: train\n",
         "config:2: 'data': expected single values in the list, found a map"},
        {"data: {a: b}\n", "config:1: 'data': expected a value or a list of them, found a map"},
        {"data: [[a]]\n", "config:1: 'data': expected single values in the list, found a list"},
        {"- lr\n", "config:1: expected 'key: value'"},
        {"? [a]\n: b\n", "config:1: expected 'key: value'"},
        {"lr: 1\n\tsteps: 2\n", "not valid YAML"},
        {"lr: &a [*a]\n", "config:1: "},
        {"steps:\n  - 1\n", "config:1: 'steps': expected one value, found a list"},
        {"lr_scheduler_kwargs:\n  num_cycle: 2\n", "config:2: unknown key 'num_cycle'"},
        {"datasets:\n  - split: test\n    path: tests\n    name:\n",
         "config:2: 'datasets': split of 'tests', which is a path here"},
        {"datasets:\n  - path: tests/README.md\n    name: x\n", "config:2: 'datasets': name of 'tests"},
        {"datasets:\n  - path: x\n    data_dir: [a]\n",
         "config:3: 'datasets': data_dir: of a part, path (or id), name (or config), split, and weight"},
        {"datasets:\n  - name: x\n", "expected a list of maps with a path each"},
        {"datasets:\n  - x\n", "expected a list of maps with a path each"},
        {"env:\n  LD_PRELOAD: x.so\n", "config:2: 'env': LD_PRELOAD is not set from a file"},
        {"env:\n  PYTHONPATH: x\n", "PYTHONPATH is not set"},
        {"env:\n  PATH: x\n", "PATH is not set"}};
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        assert_fails(f, SBP_USAGE, wrong[i].message, parse_config(f, 5, wrong[i].text, "", &o));
}

/* All keys that are wrong are said, in lines and in JSON. */
static void test_all_that_is_wrong_with_a_config(void **state) {
    io_fixture *f = *state;
    static const char *const texts[] = {
        "fp16: true\nlearning_rat: 1\nsteps: many\nout: x\ndata:\n  a: b\n",
        "{\"fp16\": true, \"learning_rat\": 1, \"steps\": \"many\", \"out\": \"x\", \"data\": {\"a\": 1}}"};
    static const char *const said[] = {"fp16: use --dtype bf16", "the nearest is 'learning_rate'",
                                       "steps: found 'many'", "data"};
    for (int i = 0; i < SBP_COUNT(texts); i++) {
        sbp_options *o;
        sbp_diag_clear(f->diag);
        assert_int_equal(parse_config(f, 5, texts[i], "", &o), SBP_USAGE);
        assert_int_equal(sbp_diag_count(f->diag, SBP_ERROR), 4);
        for (int k = 0; k < SBP_COUNT(said); k++)
            assert_non_null(strstr(sbp_diag_text(f->diag, SBP_ERROR), said[k]));
    }
    sbp_diag_clear(f->diag);
}

static void test_defaults_can_come_from_elsewhere(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    assert_ok(f, parse(f, SBP_PHASE_RUN, "--lr 1", &o));
    assert_ok(f, sbp_options_set_default(o, f->diag, SBP_OPT_LR, "1e-6"));
    assert_ok(f, sbp_options_set_default(o, f->diag, SBP_OPT_WARMUP, "0.5"));
    assert_true(sbp_options_double(o, SBP_OPT_LR) == 1);
    assert_true(sbp_options_double(o, SBP_OPT_WARMUP) == 0.5);
    assert_false(sbp_options_given(o, SBP_OPT_WARMUP));
    assert_fails(f, SBP_USAGE, "expected", sbp_options_set_default(o, f->diag, SBP_OPT_EPS, "small"));
}

static void test_given_options_travel(void **state) {
    io_fixture *f = *state;
    sbp_options *o, *again;
    assert_ok(f, parse(f, SBP_PHASE_RUN | SBP_PHASE_COMPILE,
                       "m --max_grad_norm 0 --set a=1 --set b=2 --lr 1 --chunk 7 --json", &o));
    const char **args;
    int32_t count;
    sbp_options_to_args(o, SBP_PHASE_COMPILE, SBP_PHASE_RUN, f->arena, &args, &count);
    assert_int_equal(count, 4);
    assert_ok(f, sbp_options_parse(f->arena, f->diag, "sbpc", SBP_PHASE_COMPILE, count, (char *const *)args,
                                   &again));
    assert_true(sbp_options_is(again, SBP_OPT_CLIP, "none"));
    assert_int_equal(sbp_options_list_count(again, SBP_OPT_SET), 2);
    assert_int_equal(sbp_options_int(again, SBP_OPT_CHUNK), 7);
    int32_t at = 0, seen = 0;
    while (sbp_options_next_given(o, SBP_PHASE_RUN, 0, &at))
        seen++;
    assert_int_equal(seen, 2); /* lr, json */
}

static void test_values_as_json(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    assert_ok(f,
              parse(f, SBP_PHASE_RUN | SBP_PHASE_COMPILE, "--data a --lr 1e-3 --memory 1GB --chunk 64", &o));
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    sbp_json_write_object(&w, NULL);
    sbp_options_write_json(&w, o, SBP_PHASE_RUN | SBP_PHASE_COMPILE);
    sbp_json_write_end(&w);
    const sbp_json *root;
    assert_ok(f, sbp_json_parse(f->arena, f->diag, "json", text.data, text.length, 0, &root));
    assert_true(sbp_json_member(root, "lr")->real == 1e-3);
    assert_int_equal(sbp_json_member(root, "memory")->integer, 1000000000);
    assert_int_equal(sbp_json_member(root, "chunk")->integer, 64);
    assert_string_equal(sbp_json_member(root, "head-chunk")->string, "auto");
    assert_int_equal(sbp_json_member(root, "data")->count, 1);
    assert_int_equal(sbp_json_member(root, "shuffle")->kind, SBP_JSON_BOOL);
    assert_int_equal(sbp_json_member(root, "out")->kind, SBP_JSON_NULL);
    assert_int_equal(sbp_json_member(root, "betas")->kind, SBP_JSON_ARRAY);
}

static void test_help(void **state) {
    io_fixture *f = *state;
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_options_print_help(&text, SBP_PHASE_COMPILE);
    assert_non_null(strstr(text.data, "  -o, --output FILE"));
    assert_non_null(strstr(text.data, "\nStreaming:\n"));
    assert_non_null(strstr(text.data, "(4096)"));
    sbp_text export;
    sbp_text_init(&export, f->arena);
    sbp_options_print_help(&export, SBP_PHASE_EXPORT);
    assert_non_null(strstr(export.data, "--type "));
    assert_null(strstr(text.data, "vulkan!"));
    assert_null(strstr(text.data, "--lr "));
    assert_null(strstr(text.data, "help-markdown"));
    for (const char *line = text.data; *line;) {
        size_t n = strcspn(line, "\n");
        if (n > 98 || (n > 0 && line[n - 1] == ' '))
            fail_msg("bad line in --help: '%.*s'", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* The first page: options of the command, with values that they take; and pages by topic. */
static void test_first_page_of_help(void **state) {
    io_fixture *f = *state;
    sbp_phase command;
    const char *name, *example;
    int counts[SBP_PHASE_FIT + 1] = {0};
    for (int32_t i = 0; sbp_option_first_at(i, &command, &name, &example); i++, counts[command]++) {
        sbp_options *o;
        unsigned phases = command == SBP_PHASE_RUN   ? 5
                          : command == SBP_PHASE_FIT ? SBP_PHASE_FIT | SBP_PHASE_COMPILE
                                                     : command;
        if (strcmp(name, "config") != 0)
            assert_ok(f, parse(f, phases, sbp_arena_printf(f->arena, "--%s %s", name, example), &o));
        sbp_text text;
        sbp_text_init(&text, f->arena);
        sbp_options_print_topic(&text, command, phases, NULL);
        assert_non_null(strstr(
            text.data, sbp_arena_printf(f->arena, "\n  --%s%s%s ", name, *example ? " " : "", example)));
        for (const char *line = text.data; *line; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 98)
                fail_msg("a long line in --help: '%.*s'", (int)strcspn(line, "\n"), line);
    }
    assert_true(counts[SBP_PHASE_COMPILE] >= 8 && counts[SBP_PHASE_RUN] >= 12);
    sbp_text lora;
    sbp_text_init(&lora, f->arena);
    sbp_options_print_topic(&lora, SBP_PHASE_RUN, 5, "lora");
    assert_true(strstr(lora.data, "\n  targets=") && !strstr(lora.data, "--lr "));
}

/* options.md carries the table between these marks; SBP_UPDATE_GOLDENS=1 rewrites it. */
static void test_the_table_of_options(void **state) {
    static const char path[] = "runtime/options/options.md",
                      begin[] = "<!-- options: written by test_options, do not edit -->\n",
                      end[] = "<!-- end of options -->\n";
    io_fixture *f = *state;
    const char *readme;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &readme, &length));
    const char *from = strstr(readme, begin), *to = from ? strstr(from, end) : NULL;
    if (!to)
        fail_msg("%s has no marks for the table of options", path);
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_options_print_markdown(&text);
    from += strlen(begin);
    if ((size_t)(to - from) == text.length && memcmp(from, text.data, text.length) == 0)
        return;
    const char *refresh = getenv("SBP_UPDATE_GOLDENS");
    if (!refresh || strcmp(refresh, "1") != 0)
        fail_msg("the table of options in %s is out of date: run with SBP_UPDATE_GOLDENS=1", path);
    sbp_text all;
    sbp_text_init(&all, f->arena);
    sbp_text_add_n(&all, readme, (size_t)(from - readme));
    sbp_text_add_n(&all, text.data, text.length);
    sbp_text_add_n(&all, to, length - (size_t)(to - readme));
    assert_ok(f, sbp_file_write(f->diag, path, all.data, all.length));
}

static sbp_status attempt(io_fixture *f, void *user) {
    sbp_options *o;
    char *const argv[] = {"plan", "--data", "a", "--learning_rate", "1e-3", "--config", user};
    return sbp_options_parse(f->arena, f->diag, "prog", SBP_PHASE_RUN, SBP_COUNT(argv), argv, &o);
}

static void test_memory_failures(void **state) {
    io_fixture *f = *state;
    char path[200];
    put_config(f, "{\"seed\": 3, \"betas\": [0.5, 0.6]}");
    snprintf(path, sizeof path, "%s", io_path(f, "config"));
    assert_true(io_fail_allocations(f, attempt, path) > 0);
}

/* ---- regular expressions ------------------------------------------------------------------------------ */

static const char *const modules[] = {
#define NAME(text) text,
#include "tests/unit/patterns.def"
#undef NAME
};

static const struct {
    const char *text;
    unsigned whole, end;
    int64_t layers[16];
} patterns[] = {
#define PATTERN(text, whole, end, ...) {text, whole, end, {__VA_ARGS__}},
#include "tests/unit/patterns.def"
#undef PATTERN
};

static bool matches(io_fixture *f, const char *pattern, sbp_pattern_span span, const char *text) {
    bool out;
    assert_ok(f, sbp_pattern_match(f->arena, f->diag, "test", pattern, span, text, &out));
    return out;
}

/* Whole names, ends of names and numbers of layers, in the three ways in which PEFT uses Python's re. */
static void test_patterns_are_those_of_python(void **state) {
    io_fixture *f = *state;
    int compared = 0;
    assert_int_equal(SBP_COUNT(modules), SBP_COUNT(patterns[0].layers));
    for (int p = 0; p < SBP_COUNT(patterns); p++)
        for (int i = 0; i < SBP_COUNT(modules); i++, compared++) {
            const char *text = patterns[p].text, *module = modules[i];
            bool whole = patterns[p].whole >> i & 1, end = patterns[p].end >> i & 1, any;
            int64_t want = patterns[p].layers[i], layer;
            if (matches(f, text, SBP_PATTERN_WHOLE, module) != whole)
                fail_msg("'%s' and '%s': re.fullmatch says %d", text, module, whole);
            if (matches(f, sbp_arena_printf(f->arena, "(.*\\.)?(%s)$", text), SBP_PATTERN_BEGIN, module) !=
                end)
                fail_msg("'%s' at the end of '%s': re.match says %d", text, module, end);
            const char *of_layer = sbp_arena_printf(f->arena, "(?:^|.*?\\.)%s\\.(?P<idx>[0-9]+)\\.", text);
            assert_ok(f, sbp_pattern_number(f->arena, f->diag, "test", of_layer, SBP_PATTERN_BEGIN, module,
                                            "idx", &any, &layer));
            if ((any ? layer : -2) != want)
                fail_msg("'%s' as layers_pattern of '%s': %lld, expected %lld", text, module,
                         (long long)(any ? layer : -2), (long long)want);
        }
    assert_true(compared > 2500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_table_is_sound, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_command_lines, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_wrong_with_command_lines, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_numbers_at_their_ends, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_options_alone, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_config_files, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_lists_in_config_files, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_all_that_is_wrong_with_a_config, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_defaults_can_come_from_elsewhere, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_given_options_travel, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_values_as_json, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_help, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_first_page_of_help, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_table_of_options, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_patterns_are_those_of_python, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_failures, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
