/* Options with keys (--loss grpo,epsilon=0.2): each is the option that it was before, in all spellings. */
#include "tests/rowkernel_random.h"
#include "tests/unit/options_testing.h"

#include "ir/base/json_write.h"

enum { PHASES = SBP_PHASE_RUN | SBP_PHASE_COMPILE };

/* A value that a key takes, of those that are odd where values are cut apart. */
static const char *value_of(io_fixture *f, const sbp_option *o, sbp_rng *rng) {
    static const char *const lists[] = {"q_proj", "q_proj+v_proj", "a,b", ".*(q|v){1,2}", "k\\,v", "x=1"};
    const double least = o->least > 0 ? o->least : 0, most = o->most < 900 ? o->most : 900;
    const char *word;
    int32_t words = 0;
    while (sbp_option_word(f->arena, o, words))
        words++;
    switch (o->kind) {
    case SBP_OPTION_INT:
        return sbp_arena_printf(
            f->arena, "%d",
            (int)o->least +
                (int)sbp_rng_below(rng, o->most - o->least < 90 ? (int64_t)(o->most - o->least) + 1 : 90));
    case SBP_OPTION_NUMBER:
        return sbp_arena_printf(f->arena, "%.6g",
                                least + (most - least) * (double)(1 + sbp_rng_next(rng) % 97) / 100);
    case SBP_OPTION_ENUM:
        do /* "KEY=X,..", of a bundle with a word of its own, is none */
            word = sbp_option_word(f->arena, o, (int32_t)(sbp_rng_next(rng) % (unsigned)words));
        while (strchr(word, '='));
        return word;
    case SBP_OPTION_ONOFF:
    case SBP_OPTION_SWITCH:
        return sbp_rng_next(rng) % 2 ? "on" : "off";
    case SBP_OPTION_SIZE:
        return "2GiB";
    case SBP_OPTION_PAIR:
        return "0.5,0.25";
    default:
        return lists[sbp_rng_next(rng) % SBP_COUNT(lists)];
    }
}

/* "\," for each comma. */
static const char *escaped(io_fixture *f, const char *text) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (; *text; text++)
        sbp_text_add(&out, *text == ',' ? "\\%c" : "%c", *text);
    return out.data;
}

/* All values that runs and plans keep. */
static const char *values_of(io_fixture *f, const sbp_options *o) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    w.lines = 1;
    sbp_json_write_object(&w, NULL);
    sbp_options_write_json(&w, o, PHASES);
    sbp_json_write_end(&w);
    return out.data;
}

static void same_values(io_fixture *f, const char *what, const char *line, const sbp_options *a,
                        const char *b) {
    const char *mine = values_of(f, a);
    int64_t at = 0;
    while (mine[at] && mine[at] == b[at])
        at++;
    if (mine[at] == b[at])
        return;
    while (at > 0 && mine[at - 1] != '\n')
        at--;
    fail_msg("%s: '%s' has other values: %.60s\n%.60s", what, line, mine + at, b + at);
}

static const sbp_option *key_at(int32_t index) {
    for (int32_t i = 0; i < sbp_option_count(); i++)
        if (sbp_option_at(i)->state == SBP_OPTION_KEY && index-- == 0)
            return sbp_option_at(i);
    return NULL;
}

static int32_t key_count(void) {
    int32_t count = 0;
    while (key_at(count))
        count++;
    return count;
}

/* Arguments as sbprun gives them on, typed again: the same values, without a note. */
static void check_spelling(io_fixture *f, const char *line, const sbp_options *o) {
    const char **args, *values = values_of(f, o);
    int32_t count;
    sbp_options *again;
    sbp_options_to_args(o, PHASES, 0, f->arena, &args, &count);
    sbp_options_spell(f->arena, args, &count);
    sbp_diag_clear(f->diag);
    assert_ok(f, sbp_options_parse(f->arena, f->diag, "prog", PHASES, count, (char *const *)args, &again));
    same_values(f, "given on", line, again, values);
    assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE), "");
}

/* Some keys with some values: as options, in bundles, in a map of YAML and of JSON. */
static void check_drawn(io_fixture *f, sbp_rng *rng) {
    sbp_text old, typed, yaml, json;
    const sbp_option *drawn[5];
    const char *values[5];
    sbp_options *o;
    int count = 1 + (int)(sbp_rng_next(rng) % SBP_COUNT(drawn));
    sbp_text_init(&old, f->arena);
    sbp_text_init(&typed, f->arena);
    sbp_text_init(&yaml, f->arena);
    sbp_text_init(&json, f->arena);
    sbp_text_add(&json, "{");
    for (int i = 0; i < count; i++) {
        bool new = false;
        while (!new) { /* one of each */
            drawn[i] = key_at((int32_t)(sbp_rng_next(rng) % (unsigned)key_count()));
            new = true;
            for (int k = 0; k < i; k++)
                new &= drawn[k] != drawn[i];
        }
        values[i] = value_of(f, drawn[i], rng);
        bool on = drawn[i]->bundle == SBP_OPT_LORA || drawn[i]->bundle == SBP_OPT_BEST; /* by any key */
        if (on)
            sbp_text_add(&old, "--%s=on ", sbp_option_name(drawn[i]->bundle));
        sbp_text_add(&old, "--%s=%s ", drawn[i]->name, values[i]);
    }
    for (int i = 0; i < count; i++) {
        const char *bundle = sbp_option_name(drawn[i]->bundle);
        bool first = true;
        for (int k = 0; k < i; k++)
            first &= drawn[k]->bundle != drawn[i]->bundle;
        if (!first)
            continue;
        sbp_text_add(&typed, "--%s=", bundle);
        sbp_text_add(&yaml, "%s:\n", bundle);
        sbp_text_add(&json, "%s\"%s\": {", json.length > 1 ? ", " : "", bundle);
        for (int k = i; k < count; k++)
            if (drawn[k]->bundle == drawn[i]->bundle) {
                sbp_text_add(&typed, "%s%s=%s", k > i ? "," : "", drawn[k]->key, escaped(f, values[k]));
                sbp_text_add(&yaml, "  %s: '%s'\n", drawn[k]->key, values[k]);
                sbp_text_add(&json, "%s\"%s\": ", k > i ? ", " : "", drawn[k]->key);
                sbp_json_writer w = sbp_json_writer_on(&json);
                sbp_json_write_string(&w, NULL, values[k]);
            }
        sbp_text_add(&typed, " ");
        sbp_text_add(&json, "}");
    }
    sbp_text_add(&json, "}");
    assert_ok(f, parse(f, PHASES, old.data, &o));
    const char *expected = values_of(f, o);
    check_spelling(f, old.data, o);
    assert_ok(f, parse(f, PHASES, typed.data, &o));
    same_values(f, old.data, typed.data, o, expected);
    assert_ok(f, parse_config(f, PHASES, "# nothing\n", old.data, &o));
    expected = values_of(f, o);
    sbp_diag_clear(f->diag);
    assert_ok(f, parse_config(f, PHASES, yaml.data, "", &o));
    same_values(f, old.data, yaml.data, o, expected);
    assert_ok(f, parse_config(f, PHASES, json.data, "", &o));
    same_values(f, old.data, json.data, o, expected);
    assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE), "");
}

static void test_keys_are_the_options_that_they_were(void **state) {
    io_fixture *f = *state;
    for (uint32_t seed = 0; seed < 150; seed++) {
        sbp_rng rng = {seed};
        check_drawn(f, &rng);
    }
}

/* Every key by its name of before: one note with what to write; none with --quiet, none by a command of TRL,
 * and none in a file for it. */
static void test_names_of_before_are_noted(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {7};
    assert_true(key_count() > 60);
    for (int32_t i = 0; i < key_count(); i++) {
        const sbp_option *key = key_at(i);
        const char *value = value_of(f, key, &rng), *bundle = sbp_option_name(key->bundle);
        const char *line = sbp_arena_printf(f->arena, "--%s=%s ", key->name, value);
        sbp_options *o;
        sbp_diag_clear(f->diag);
        assert_ok(f, parse(f, PHASES, sbp_arena_printf(f->arena, "%s%s", line, line), &o));
        assert_int_equal(sbp_diag_count(f->diag, SBP_NOTE), 1);
        const char *note = sbp_diag_text(f->diag, SBP_NOTE), *write = strstr(note, ": write --");
        assert_non_null(write);
        if (!strstr(write, key->key) || strncmp(write + 10, bundle, strlen(bundle)) != 0)
            fail_msg("--%s: %s", key->name, note);
        sbp_diag_clear(f->diag);
        assert_ok(f, parse(f, PHASES, sbp_arena_printf(f->arena, "%s--quiet", line), &o));
        assert_ok(f, parse(f, PHASES, sbp_arena_printf(f->arena, "%s--trl dpo --max_length none", line), &o));
        assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE), "");
        const char *yaml = sbp_arena_printf(f->arena, "%s: '%s'\n", key->name, value);
        assert_ok(f, parse_config(f, PHASES, yaml, "", &o));
        assert_non_null(
            strstr(sbp_diag_text(f->diag, SBP_NOTE),
                   sbp_arena_printf(f->arena, "config:1: %s: write %s: {%s: ", key->name, bundle, key->key)));
        sbp_diag_clear(f->diag);
        assert_ok(f,
                  parse_config(f, PHASES, sbp_arena_printf(f->arena, "%slearning_rate: 1\n", yaml), "", &o));
        assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE), "");
    }
    sbp_options *o;
    assert_ok(f, parse(f, PHASES, "--epsilon 0.2 --lora-targets a|b --loss epsilon_high=0.3", &o));
    assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE),
                        "note: --epsilon 0.2: write --loss epsilon=0.2\n"
                        "note: --lora-targets a|b: write --lora 'targets=a|b'\n");
    sbp_diag_clear(f->diag);
}

static void test_what_is_wrong_with_bundles(void **state) {
    io_fixture *f = *state;
    static const struct {
        unsigned phases;
        const char *line, *message;
    } cases[] = {
        {5, "--loss grpo,epsilo=1",
         "--loss: 'epsilo' is unknown; the nearest is 'epsilon' (--help loss has all)"},
        {5, "--schedule cosine,min-rl=1",
         "--schedule: 'min-rl' is unknown; the nearest is 'min_lr' (--help schedule has all)"},
        {5, "--schedule cosine,foo=1", "its keys are type, warmup, num_cycles, min_lr, min_lr_rate, lr_end"},
        {5, "--lora r=4,alfa=3", "its keys are r, alpha, dropout, rslora, targets"},
        {5, "--precision foo=bf16", "its keys are compute, base, state, tf32, residual, param, grad"},
        {5, "--backward stream,g=2",
         "--backward: 'g' is unknown; its keys are type, segment, checkpoint_every"},
        {5, "--loss grpoo,epsilon=1", "--loss: found 'grpoo', expected sft, "},
        {5, "--loss grpo,epsilon", "--loss: found 'epsilon', expected KEY=VALUE (a comma of a value is"},
        {5, "--loss epsilon=1,grpo", "--loss: found 'grpo', expected KEY=VALUE"},
        {5, "--precision bf16", "--precision: found 'bf16', expected KEY=VALUE"},
        {5, "--precision", "--precision needs a value"},
        {5, "--loss=", "--loss: found '', expected sft"},
        {5, "--loss grpo,epsilon=much", "--loss epsilon: found 'much', expected a number"},
        {5, "--loss grpo,epsilon=-1", "--loss epsilon: -1 is below 0"},
        {5, "--lora r=1.5", "--lora r: found '1.5', expected a whole number"},
        {5, "--lora perhaps", "--lora: found 'perhaps', expected on, off or KEY=X,.."},
        {1, "--loss grpo,missing_eos_penalty=1", "--loss missing_eos_penalty is an option of sbprun"},
        {1, "--schedule cosine,num_cycles=1", "--schedule is an option of sbprun"}};
    static const struct {
        const char *text, *message;
    } files[] = {
        {"loss:\n  epsilo: 1\n", "config:2: loss: 'epsilo' is unknown; the nearest is 'epsilon'"},
        {"loss: {epsilon: [1, 2]}\n", "config:1: 'loss epsilon': expected one value, found a list"},
        {"loss: {epsilon: {a: 1}}\n", "config:1: 'loss epsilon': expected a value or a list"},
        {"loss: {epsilon: 1}\nepsilon: 2\n", "config:2: 'epsilon' is given twice (as 'loss epsilon')"},
        {"{\"loss\": {\"epsilon\": [1, 2]}}", "'loss epsilon': expected one value, found a list"},
        {"loss: grpo,epsilon\n", "config:1: loss: found 'epsilon', expected KEY=VALUE"}};
    sbp_options *o;
    for (int i = 0; i < SBP_COUNT(cases); i++)
        assert_fails(f, SBP_USAGE, cases[i].message, parse(f, cases[i].phases, cases[i].line, &o));
    for (int i = 0; i < SBP_COUNT(files); i++)
        assert_fails(f, SBP_USAGE, files[i].message, parse_config(f, 5, files[i].text, "", &o));
    assert_ok(f,
              parse_config(f, 1, "loss: {missing_eos_penalty: 1}\nschedule: cosine,num_cycles=2\n", "", &o));
}

/* Each key counts for itself, and the later of two; a word may be there without keys, and keys without it. */
static void test_which_bundle_counts(void **state) {
    io_fixture *f = *state;
    sbp_options *o;
    assert_ok(f,
              parse(f, 5, "--loss grpo,type=dr_grpo,epsilon=0.1 --loss epsilon=0.2,delta=3 --beta 0.5", &o));
    assert_string_equal(sbp_options_text(o, SBP_OPT_OBJECTIVE), "grpo");
    assert_string_equal(sbp_options_text(o, SBP_OPT_LOSS_TYPE), "dr_grpo");
    assert_true(sbp_options_double(o, SBP_OPT_EPSILON) == 0.2 && sbp_options_double(o, SBP_OPT_DELTA) == 3);
    assert_ok(f, parse(f, 5, "--loss epsilon=0.1 --epsilon 0.2 --lora r=4,alpha=8 --lora on --lora r=5", &o));
    assert_true(sbp_options_double(o, SBP_OPT_EPSILON) == 0.2 && sbp_options_int(o, SBP_OPT_LORA_R) == 5);
    assert_true(sbp_options_double(o, SBP_OPT_LORA_ALPHA) == 8);
    assert_string_equal(sbp_options_bundle(o, SBP_OPT_LORA), "r=5,alpha=8");
    assert_ok(f, parse(f, 5, "--lora targets=a --lora targets=b,targets=c,r=2 --lora off", &o));
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_LORA_TARGETS), 2);
    assert_string_equal(sbp_options_list_at(o, SBP_OPT_LORA_TARGETS, 0), "b");
    assert_true(sbp_options_is(o, SBP_OPT_LORA, "off"));
    assert_ok(f,
              parse(f, 5, "--lora targets=a --lora-targets b", &o)); /* as one option does the other's work */
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_LORA_TARGETS), 1);
    assert_ok(f, parse(f, 5, "--schedule cosine_with_min_lr,min_lr=1e-6,warmup=5 --backward checkpoint", &o));
    assert_true(sbp_options_double(o, SBP_OPT_MIN_LR) == 1e-6 && sbp_options_double(o, SBP_OPT_WARMUP) == 5);
    assert_string_equal(sbp_options_text(o, SBP_OPT_SCHEDULE), "cosine_with_min_lr");
    assert_ok(f, parse(f, 5, "--precision param=bf16,state=int8,base=nf4,compute=bf16", &o));
    assert_string_equal(sbp_options_text(o, SBP_OPT_STATE_DTYPE), "int8");
    assert_string_equal(sbp_options_text(o, SBP_OPT_DTYPE), "bf16");
    assert_ok(f, parse_config(f, 5, "loss: {type: grpo, epsilon: 0.2, delta: 3}\nlora: {targets: [a, b]}\n",
                              "--loss delta=4", &o)); /* the command line wins */
    assert_string_equal(sbp_options_text(o, SBP_OPT_OBJECTIVE), "grpo");
    assert_false(sbp_options_given(o, SBP_OPT_LOSS_TYPE));
    assert_true(sbp_options_double(o, SBP_OPT_EPSILON) == 0.2 && sbp_options_double(o, SBP_OPT_DELTA) == 4);
    assert_true(sbp_options_is(o, SBP_OPT_LORA, "on"));
    assert_int_equal(sbp_options_list_count(o, SBP_OPT_LORA_TARGETS), 2);
    assert_ok(f, parse_config(f, 5, "loss: {type: grpo}\n", "--objective dpo", &o));
    assert_string_equal(sbp_options_text(o, SBP_OPT_LOSS_TYPE), "grpo");
    assert_ok(f, parse_config(f, 5, "loss: null\nlora: off\nschedule:\nprecision: param=fp32\n", "", &o));
    assert_true(sbp_options_is(o, SBP_OPT_LORA, "off") && !sbp_options_given(o, SBP_OPT_SCHEDULE));
    sbp_diag_clear(f->diag);
}

/* Every option takes a value of its kind, and it is what is given on, and what a file says. */
static void test_every_option_takes_a_value(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {11};
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (option->kind == SBP_OPTION_BUNDLE || option->id == SBP_OPT_CONFIG ||
            option->id == SBP_OPT_QUIET) /* that is on the line already */
            continue;
        const char *value = value_of(f, option, &rng), **args, *text;
        const char *line = sbp_arena_printf(f->arena, "--%s=%s --quiet", option->name, value);
        sbp_options *o, *again;
        int32_t count;
        assert_ok(f, parse(f, SBP_PHASE_ALL, line, &o));
        assert_true(sbp_options_given(o, option->id));
        text = sbp_options_text(o, option->id);
        sbp_options_to_args(o, SBP_PHASE_ALL, 0, f->arena, &args, &count);
        sbp_options_spell(f->arena, args, &count);
        assert_ok(f, sbp_options_parse(f->arena, f->diag, "prog", SBP_PHASE_ALL, count, (char *const *)args,
                                       &again));
        assert_string_equal(sbp_options_text(again, option->id), text);
        line = sbp_arena_printf(f->arena, "%s: '%s'\n", option->name, value);
        assert_ok(f, parse_config(f, SBP_PHASE_ALL, line, "", &o));
        if (option->id != SBP_OPT_EVAL_STRATEGY && strcmp(sbp_options_text(o, option->id), text) != 0)
            fail_msg("--%s %s: a file says '%s'", option->name, value, sbp_options_text(o, option->id));
    }
    sbp_diag_clear(f->diag);
}

/* What a run writes of its options, with keys in maps, is read back without a word. */
static void test_options_of_a_run(void **state) {
    io_fixture *f = *state;
    sbp_options *o, *again;
    sbp_text text;
    const sbp_json *root;
    assert_ok(f, parse(f, PHASES,
                       "--schedule cosine,num_cycles=2 --loss epsilon=0.3,kl_estimator=k3 --lr 0.5", &o));
    sbp_text_init(&text, f->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    sbp_json_write_object(&w, NULL);
    sbp_options_write_config(&w, o, SBP_PHASE_RUN);
    sbp_json_write_end(&w);
    assert_ok(f, parse_config(f, SBP_PHASE_RUN, text.data, "", &again));
    assert_string_equal(sbp_diag_text(f->diag, SBP_NOTE), "");
    assert_ok(f, sbp_json_parse(f->arena, f->diag, "run", text.data, text.length, 0, &root));
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (!(option->phases & SBP_PHASE_RUN) || !sbp_option_is_kept(option) || option->id == SBP_OPT_CONFIG)
            continue;
        const sbp_json *member = sbp_options_member(f->arena, root, option);
        assert_non_null(member);
        if (!sbp_options_same(o, option, member) || !sbp_options_same(again, option, member))
            fail_msg("--%s is another in '%s'", option->name, text.data);
    }
    assert_true(sbp_options_double(again, SBP_OPT_NUM_CYCLES) == 2);
    assert_string_equal(sbp_options_text(again, SBP_OPT_KL_ESTIMATOR), "k3");
}

/* The keys of each bundle are a topic of --help, a line or more each. */
static void test_help_of_bundles(void **state) {
    io_fixture *f = *state;
    for (int32_t i = 0; i < key_count(); i++) {
        const sbp_option *key = key_at(i);
        sbp_text text;
        sbp_text_init(&text, f->arena);
        assert_true(sbp_options_is_topic(PHASES, sbp_option_name(key->bundle)));
        sbp_options_print_topic(&text, SBP_PHASE_RUN, PHASES, sbp_option_name(key->bundle));
        if (!strstr(text.data, sbp_arena_printf(f->arena, "\n  %s=", key->key)))
            fail_msg("--help %s has no %s", sbp_option_name(key->bundle), key->key);
        for (const char *line = text.data; *line; line += strcspn(line, "\n") + 1)
            assert_true(strcspn(line, "\n") <= 98);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keys_are_the_options_that_they_were, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_names_of_before_are_noted, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_wrong_with_bundles, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_which_bundle_counts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_every_option_takes_a_value, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_options_of_a_run, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_help_of_bundles, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
