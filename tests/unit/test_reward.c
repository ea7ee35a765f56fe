/* Rewards by processes: Python functions and other programs, what they get and give, and what is said of
 * wrong answers. test_reward_processes.c: of processes that die, hang or are left over. */
#include "runtime/reward/spec.h"
#include "tests/unit/reward_testing.h"

#include <sys/stat.h>

static void check_fails(io_fixture *f, const char *spec, const char *const *texts) {
    double rewards[MOST];
    sbp_rewarder *r = open_one(f, spec, 0, 3);
    sbp_diag_clear(f->diag);
    sbp_status status = sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL);
    const char *message = sbp_diag_text(f->diag, SBP_ERROR);
    assert_int_equal(status, SBP_INPUT);
    for (; *texts; texts++)
        if (!strstr(message, *texts))
            fail_msg("'%s' is not in '%s'", *texts, message);
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 0); /* none of these is tried again */
    assert_int_equal(sbp_rewarder_run(r, NULL, &plain_batch(f)->b, rewards, NULL), SBP_INTERNAL);
    sbp_rewarder_close(r);
}

#define CHECK_FAILS(f, spec, ...) check_fails((f), (spec), (const char *const[]){__VA_ARGS__, NULL})

/* ---- specs ------------------------------------------------------------------------------------------- */

static void specs_are_told_apart(void **state) {
    (void)state;
    static const char *const python[] = {"reward.py:f",   "dir/reward.py:f", "/a b/reward.py:f.g", "module:f",
                                         "trl.rewards:f", "_m1.n_2:f3",      "m\xc3\xa9:f"};
    static const char *const programs[] = {"./program",  "program a b",
                                           "reward.py",  "python3 reward.py",
                                           "reward.py:", "reward.py:f g",
                                           "./module:f", ":f",
                                           "module:f()", "a..b:f",
                                           "1module:f",  ".py:f",
                                           "module.:f",  "",
                                           "module:.f",  "http://host/module:f"};
    for (int i = 0; i < SBP_COUNT(python); i++)
        if (!sbp_reward_is_python(python[i]))
            fail_msg("'%s' is Python", python[i]);
    for (int i = 0; i < SBP_COUNT(programs); i++)
        if (sbp_reward_is_python(programs[i]))
            fail_msg("'%s' is no Python", programs[i]);
}

static sbp_status cut(io_fixture *f, void *user) {
    sbp_args *words = user;
    return sbp_reward_words(f->arena, f->diag, words->items[0], words);
}

typedef struct cutting {
    io_fixture *f;
    sbp_args words;
} cutting;

static sbp_status cut_guarded(void *user) {
    cutting *c = user;
    return cut(c->f, &c->words);
}

static sbp_status words_of(io_fixture *f, const char *spec, sbp_args *out) {
    cutting c = {.f = f, .words = {.items = &spec}};
    sbp_status status = sbp_guard(f->arena, f->diag, cut_guarded, &c);
    *out = c.words;
    return status;
}

/* Against what the shell of this machine makes of the same text. */
static void words_are_those_of_a_shell(void **state) {
    io_fixture *f = *state;
    static const char *const specs[] = {"a",
                                        "  a\tb  c ",
                                        "a 'b c' d",
                                        "a \"b c\" d",
                                        "a b\\ c",
                                        "a 'b'\"c\"d",
                                        "a '' \"\" b",
                                        "a \"b\\\"c\" 'd\\e'",
                                        "a \"b\\qc\\\\d\" e\\\\f",
                                        "a '$b' \\$c \"\\$d\" \"\\`e\"",
                                        "a '|' \\| \"|;&<>()\" x=1 --y=\"1 2\" #",
                                        "a \"'\" '\"' \\' \\\"",
                                        "a b\\\nc \"d\\\ne\" 'f\\\ng'"};
    for (int i = 0; i < SBP_COUNT(specs); i++) {
        sbp_args words;
        char found[400] = "", expected[400] = "", *script = NULL;
        assert_ok(f, words_of(f, specs[i], &words));
        for (int32_t k = 0; k < words.count; k++)
            snprintf(found + strlen(found), sizeof found - strlen(found), "<%s>", words.items[k]);
        /* '#' would begin a comment there */
        script = sbp_arena_printf(f->arena, "printf '<%%s>' %.*s", (int)strcspn(specs[i], "#"), specs[i]);
        io_put(io_path(f, "script"), script, strlen(script));
        FILE *pipe = popen(sbp_arena_printf(f->arena, "sh %s", io_path(f, "script")), "r");
        assert_non_null(pipe);
        size_t length = fread(expected, 1, sizeof expected - 4, pipe);
        pclose(pipe);
        snprintf(expected + length, 4, "%s", strchr(specs[i], '#') ? "<#>" : "");
        assert_string_equal(found, expected);
    }
    sbp_args words;
    assert_fails(f, SBP_USAGE, "names no program", words_of(f, "  ", &words));
    assert_fails(f, SBP_USAGE, "names no program", words_of(f, "''", &words));
    assert_fails(f, SBP_USAGE, "a ' without its end", words_of(f, "a 'b", &words));
    assert_fails(f, SBP_USAGE, "a \" without its end", words_of(f, "a \"b\\\"", &words));
    static const char *const shell[] = {"a | b", "a;b",  "a &",   "a < b",    "a>b",
                                        "(a)",   "a $b", "a `b`", "a \"$b\"", "a \"`b`\""};
    for (int i = 0; i < SBP_COUNT(shell); i++)
        assert_fails(f, SBP_USAGE, "no shell runs it", words_of(f, shell[i], &words));
}

typedef struct weighing {
    io_fixture *f;
    const char *const *texts;
    int32_t text_count, count;
    const double *out;
} weighing;

static sbp_status weigh_guarded(void *user) {
    weighing *w = user;
    return sbp_reward_weights(w->f->arena, w->f->diag, w->texts, w->text_count, w->count, &w->out);
}

static void weights_are_read(void **state) {
    io_fixture *f = *state;
    static const char *const right[] = {"1,-0.5", " 2e3 , 0"}, *const wrong[] = {"1,x", "", "1,", "nan",
                                                                                 "1e999"};
    weighing w = {f, right, 2, 4, NULL};
    assert_ok(f, sbp_guard(f->arena, f->diag, weigh_guarded, &w));
    EXPECT(w.out, 1, -0.5, 2000, 0);
    w.count = 1;
    assert_fails(f, SBP_USAGE, "--reward-weights has 4 weights, --reward is given 1 time",
                 sbp_guard(f->arena, f->diag, weigh_guarded, &w));
    for (int i = 0; i < SBP_COUNT(wrong); i++) {
        w = (weighing){f, wrong + i, 1, 1, NULL};
        assert_fails(f, SBP_USAGE, "expected a finite number",
                     sbp_guard(f->arena, f->diag, weigh_guarded, &w));
    }
}

static void assert_open_fails(io_fixture *f, const char *spec, sbp_status expected, const char *text) {
    const sbp_reward_options options = {.log = log_end};
    sbp_rewarder *r;
    assert_fails(f, expected, text, sbp_rewarder_open(f->arena, f->diag, &spec, NULL, 1, &options, &r));
    assert_null(r);
}

static void what_cannot_start_is_named(void **state) {
    io_fixture *f = *state;
    io_put(io_path(f, "wrong.py"), "def f(:\n", 8);
    io_put(io_path(f, "plain"), "#!/nowhere/interpreter\n", 23);
    assert_open_fails(f, "./none --x", SBP_MACHINE,
                      "--reward './none --x': cannot run './none': No such file");
    assert_open_fails(f, io_path(f, "plain"), SBP_MACHINE, "Permission denied");
    assert_int_equal(system(sbp_arena_printf(f->arena, "chmod +x %s", io_path(f, "plain"))), 0);
    assert_open_fails(f, io_path(f, "plain"), SBP_MACHINE, "cannot start '");
    assert_open_fails(f, "no-such-program-anywhere", SBP_MACHINE, "is in no folder of PATH");
    assert_open_fails(f, "/tmp", SBP_MACHINE, "it is a directory");
    assert_open_fails(f, "nowhere/none.py:f", SBP_INPUT, "--reward 'nowhere/none.py:f': FileNotFoundError");
    assert_open_fails(f, "no_such_module:f", SBP_INPUT,
                      "ModuleNotFoundError: No module named 'no_such_module'");
    assert_open_fails(f, FUNCTIONS "absent", SBP_INPUT, "has no attribute 'absent'");
    assert_open_fails(f, FUNCTIONS "not_callable", SBP_INPUT, "not_callable is no function but int");
    assert_open_fails(f, sbp_arena_printf(f->arena, "%s:f", io_path(f, "wrong.py")), SBP_INPUT,
                      "SyntaxError");
    const char *spec = FUNCTIONS "length";
    const double weight = NAN;
    sbp_reward_options options = {.log = log_end};
    sbp_rewarder *r;
    assert_fails(f, SBP_USAGE, "--reward-weights",
                 sbp_rewarder_open(f->arena, f->diag, &spec, &weight, 1, &options, &r));
    options.python = "/nowhere/python";
    assert_fails(f, SBP_MACHINE, "--reward-python: cannot run '/nowhere/python'",
                 sbp_rewarder_open(f->arena, f->diag, &spec, NULL, 1, &options, &r));
    options.python = "false"; /* a program that is no Python */
    options.restarts = 1;
    assert_fails(f, SBP_INPUT, "the Python process ended with status 1, and was started again 1 times",
                 sbp_rewarder_open(f->arena, f->diag, &spec, NULL, 1, &options, &r));
}

/* ---- values ------------------------------------------------------------------------------------------ */

static void functions_get_and_give_values(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *spec;
        double rewards[MOST];
    } cases[] = {
        {FUNCTIONS "length", {6, 6, 5, 0}},
        {FUNCTIONS "eighths", {0.75, 1.875, 3, 0}},
        {FUNCTIONS "matches", {1, 0, NAN, NAN}},
        {FUNCTIONS "by_step", {3.5, 3.5, 3.5, 3.5}},
        {FUNCTIONS "later", {0.5, 0.5, NAN, NAN}},
        {FUNCTIONS "called", {0, -0.25, -0.5, -0.75}},
        {FUNCTIONS "numbers", {1, 1.5, 2, NAN}},
        {FUNCTIONS "prints", {0, 0, 0, 0}},
        {FUNCTIONS "kwargs_are", {1, 1, 1, 1}},
        {FUNCTIONS "floods", {1, 1, 1, 1}},
        {SED("\"rewards\":[1,-2.5,null,1e-3]"), {1, -2.5, NAN, 1e-3}},
    };
    enum { CASES = SBP_COUNT(cases) };
    const char *specs[CASES];
    double rewards[MOST], each[CASES][MOST];
    for (int i = 0; i < CASES; i++)
        specs[i] = cases[i].spec;
    sbp_rewarder *r = open_all(f, specs, NULL, CASES, 0, 0);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, each[0]));
    for (int i = 0; i < CASES; i++)
        assert_rewards(each[i], cases[i].rewards, MOST);
    sbp_rewarder_close(r);
}

static void several_are_weighted(void **state) {
    io_fixture *f = *state;
    static const char *const specs[] = {
        FUNCTIONS "length",  SED("\"rewards\":[8,null,16,null],\"metrics\":{\"m\":5}"),
        FUNCTIONS "later",   FUNCTIONS "nothing",
        FUNCTIONS "matches", FUNCTIONS "called_later"};
    static const double weights[] = {0, 0.5, 2, 1, 1, -1};
    double rewards[MOST], each[6][MOST];
    sbp_rewarder *r = open_all(f, specs, weights, 6, 0, 0);
    static const char *const names[] = {"length", "sed", "later", "nothing", "matches", "AsyncCallable"};
    for (int i = 0; i < 6; i++)
        assert_string_equal(sbp_rewarder_name(r, i), names[i]);
    for (int round = 0; round < 3; round++) { /* the same processes */
        assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, each[0]));
        EXPECT(rewards, 4 + 1 + 1 - 4, 1 + 0 - 4, 8 - 4, -4);
        EXPECT(each[0], 6, 6, 5, 0);
        EXPECT(each[1], 8, NAN, 16, NAN);
        EXPECT(each[2], 0.5, 0.5, NAN, NAN);
        EXPECT(each[3], NAN, NAN, NAN, NAN);
        EXPECT(each[4], 1, 0, NAN, NAN);
        EXPECT(each[5], 4, 4, 4, 4);
    }
    const char *name;
    double value;
    assert_true(sbp_rewarder_metric(r, 0, &name, &value));
    assert_string_equal(name, "m");
    assert_true(value == 5);
    assert_false(sbp_rewarder_metric(r, 1, &name, &value));
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 0);
    sbp_rewarder_close(r);
}

static void no_reward_at_all_is_warned_of(void **state) {
    io_fixture *f = *state;
    static const char *const specs[] = {FUNCTIONS "nothing", FUNCTIONS "matches"};
    double rewards[MOST];
    sbp_rewarder *r = open_all(f, specs, NULL, 2, 0, 0);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL));
    EXPECT(rewards, 1, 0, NAN, NAN);
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_WARNING), "step 3: prompt 2, sample 1: no reward function gave"));
    sbp_rewarder_close(r);
}

static void conversations_get_messages(void **state) {
    io_fixture *f = *state;
    double rewards[MOST];
    const char *log = file_in(f, "log");
    log_end = open(log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    assert_true(log_end >= 0);
    sbp_rewarder *r = open_one(f, FUNCTIONS "kwargs_are", 0, 0);
    batch *b = make_batch(
        f, "[[{\"role\": \"user\", \"content\": \"caf\\u00e9 \\u2028 \\ud83d\\ude00\"}], []]",
        "[{\"answer\": [1, {\"x\": null}], \"group\": 1.0}, {\"completion_ids\": 1, \"group\": true}]");
    assert_ok(f, sbp_rewarder_run(r, f->diag, &b->b, rewards, NULL));
    EXPECT(rewards, 1, 1, 1, 1);
    sbp_rewarder_close(r);
    close(log_end);
    log_end = -1;
    char text[2000];
    FILE *file = fopen(log, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_string_equal(
        text, "kwargs ['answer', 'group', 'log_extra', 'log_metric', 'trainer_state'] "
              "[[1, {'x': None}], [1, {'x': None}], None, None] [1.0, 1.0, True, True] "
              "[[{'role': 'user', 'content': 'caf\xc3\xa9 \\u2028 \xf0\x9f\x98\x80'}], "
              "[{'role': 'user', 'content': 'caf\xc3\xa9 \\u2028 \xf0\x9f\x98\x80'}], [], []] "
              "[[{'role': 'assistant', 'content': 'eleven'}], [{'role': 'assistant', 'content': 'twelve'}], "
              "[{'role': 'assistant', 'content': 'seven'}], [{'role': 'assistant', 'content': ''}]] "
              "[[1, 2, 3], [4, 5, 6], [7, 8, 9], []]\n");
}

static void metrics_and_extras_are_handed_on(void **state) {
    io_fixture *f = *state;
    static const char *const specs[] = {FUNCTIONS "logs", FUNCTIONS "length"};
    double rewards[MOST], value;
    const char *name;
    sbp_rewarder *r = open_all(f, specs, NULL, 2, 0, 0);
    assert_false(sbp_rewarder_metric(r, 0, &name, &value)); /* nothing was asked yet */
    assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL));
    assert_true(sbp_rewarder_metric(r, 0, &name, &value));
    assert_string_equal(name, "accuracy");
    assert_true(value == 0.5);
    assert_true(sbp_rewarder_metric(r, 1, &name, &value));
    assert_string_equal(name, "other");
    assert_true(value == 3);
    assert_false(sbp_rewarder_metric(r, 2, &name, &value));
    const sbp_json *extra = sbp_rewarder_extra(r, 0);
    assert_non_null(extra);
    assert_string_equal(extra->key, "text");
    assert_int_equal(extra->count, MOST);
    assert_string_equal(extra->items[2].string, "seven");
    assert_null(sbp_rewarder_extra(r, 1));
    sbp_rewarder_close(r);
}

/* More both ways than pipes hold, and a column of it as well. */
static void large_requests_and_answers(void **state) {
    io_fixture *f = *state;
    enum { BYTES = 1 << 20 };
    static const char *const specs[] = {FUNCTIONS "whole", FUNCTIONS "echoes",
                                        "python3 tests/data/reward/program.py"};
    double rewards[MOST], each[3][MOST];
    char *text = sbp_arena_alloc(f->arena, BYTES + 1);
    memset(text, 'a', BYTES);
    text[0] = 'b';
    batch *b = plain_batch(f);
    for (int i = 0; i < MOST; i++) {
        b->samples[i].completion = text;
        b->samples[i].completion_bytes = (size_t)(BYTES - i);
    }
    sbp_rewarder *r = open_all(f, specs, NULL, 3, 0, 0);
    for (int round = 0; round < 2; round++) {
        assert_ok(f, sbp_rewarder_run(r, f->diag, &b->b, rewards, each[0]));
        for (int i = 0; i < MOST; i++)
            assert_true(each[0][i] == 97.0 * (BYTES - i) + 1);
        EXPECT(each[2], 3, 3, 3, 0);
        const sbp_json *extra = sbp_rewarder_extra(r, 0), *line = sbp_rewarder_extra(r, 1);
        assert_true(extra && line && !sbp_rewarder_extra(r, 2));
        if (strcmp(extra->key, "line") == 0) {
            const sbp_json *other = extra;
            extra = line;
            line = other;
        }
        assert_int_equal(extra->items[0].count, BYTES);
        assert_int_equal(extra->items[0].string[BYTES - 1], 'b');
        assert_true(line->items[0].count > (int64_t)MOST * BYTES);
    }
    sbp_rewarder_close(r);
}

/* ---- wrong answers ----------------------------------------------------------------------------------- */

static void wrong_answers_end_the_run(void **state) {
    io_fixture *f = *state;
    CHECK_FAILS(f, FUNCTIONS "raises",
                "--reward '" FUNCTIONS "raises': step 3: ZeroDivisionError: division by zero",
                "functions.py\", line ", "in raises", "return [1 / (len(");
    CHECK_FAILS(f, FUNCTIONS "raises_later", "KeyError: 'missing'", "in raises_later");
    CHECK_FAILS(f, FUNCTIONS "exits", "SystemExit: as a script does");
    CHECK_FAILS(f, FUNCTIONS "short", "step 3: returned 3 rewards, expected 4, one for each sample");
    CHECK_FAILS(f, FUNCTIONS "nan", "step 3: prompt 2, sample 1: nan returned NaN");
    CHECK_FAILS(f, FUNCTIONS "infinite", "step 3: prompt 2, sample 2: infinite returned -infinity");
    CHECK_FAILS(f, FUNCTIONS "text",
                "step 3: prompt 1, sample 2: expected a number or None, found '2.0' (str)");
    CHECK_FAILS(f, FUNCTIONS "listed", "prompt 2, sample 2: expected a number or None, found [4.0] (list)");
    CHECK_FAILS(f, FUNCTIONS "none_at_all", "returned None (NoneType), expected a list of 4 rewards");
    CHECK_FAILS(f, FUNCTIONS "huge", "prompt 1, sample 1: ", "is no number: int too large");
    CHECK_FAILS(f, SED("\"rewards\":[1,2,3]"), "sed returned 3 rewards, expected 4");
    CHECK_FAILS(f, SED("\"rewards\":[1,2,3,\"4\"]"), "prompt 2, sample 2: expected a number or null",
                "a string");
    CHECK_FAILS(f, SED("\"rewards\":[1,Infinity,3,4]"), "prompt 1, sample 2: sed returned infinity");
    CHECK_FAILS(f, SED("\"reward\":[1,2,3,4]"), "expected \"rewards\" as a list of 4 numbers, found none");
    CHECK_FAILS(f, SED("\"error\":\"no judge is there\""), "step 3: no judge is there");
    CHECK_FAILS(f, SED("\"error\":\"bad answer\",\"row\":3"), "step 3: prompt 2, sample 2: bad answer");
    static const char *const specs[] = {SED("\"rewards\":[1e308,1,1,1]"), SED("\"rewards\":[1e308,1,1,1]")};
    double rewards[MOST];
    sbp_rewarder *r = open_all(f, specs, NULL, 2, 0, 0);
    assert_fails(f, SBP_INPUT, "the sum of weighted rewards is not finite",
                 sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, NULL));
    sbp_rewarder_close(r);
}

/* ---- modules ----------------------------------------------------------------------------------------- */

static void put_text(io_fixture *f, const char *name, const char *text) {
    io_put(io_path(f, name), text, strlen(text));
}

/* A module of the current directory is found, and stands in for none of the library; what lies beside a file
 * is found by it. */
static void modules_are_searched_for(void **state) {
    io_fixture *f = *state;
    static const char *const specs[] = {"mine:f", "mine:g", "folder/file.py:f", "folder/file.py:C.f"};
    double rewards[MOST], each[4][MOST];
    char old[4096];
    put_text(f, "json.py", "raise ValueError('not the library')\n");
    put_text(f, "mine.py",
             "import json\nloads = []\ndef f(prompts, **kwargs):\n    return [1] * len(prompts)\n"
             "def g(prompts, **kwargs):\n    f.seen = getattr(f, 'seen', 0) + 1\n"
             "    return [f.seen] * len(prompts)\n");
    assert_int_equal(mkdir(io_path(f, "folder"), 0700), 0);
    put_text(f, "folder/beside.py", "value = 5\n");
    put_text(f, "folder/file.py",
             "import beside\nbeside.value += 1\ndef f(prompts, **kwargs):\n    return [beside.value] * "
             "len(prompts)\n"
             "class C:\n    f = staticmethod(f)\n");
    assert_non_null(getcwd(old, sizeof old));
    assert_int_equal(chdir(f->directory), 0);
    sbp_rewarder *r = open_all(f, specs, NULL, 4, 0, 0);
    assert_int_equal(chdir(old), 0);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &plain_batch(f)->b, rewards, each[0]));
    EXPECT(each[0], 1, 1, 1, 1);
    EXPECT(each[1], 1, 1, 1, 1);
    EXPECT(each[2], 6, 6, 6, 6); /* loaded once for both */
    EXPECT(each[3], 6, 6, 6, 6);
    sbp_rewarder_close(r);
}

/* ---- lack of memory ---------------------------------------------------------------------------------- */

static sbp_status whole_life(io_fixture *f, void *user) {
    const char *spec = user;
    const sbp_reward_options options = {.log = -1};
    double rewards[MOST];
    sbp_rewarder *r;
    sbp_status status = sbp_rewarder_open(f->arena, f->diag, &spec, NULL, 1, &options, &r);
    if (status != SBP_OK)
        return status;
    int64_t left = sbp_test_fail_allocation(0);
    batch *b = plain_batch(f); /* the test's own */
    sbp_test_fail_allocation(left);
    status = sbp_rewarder_run(r, f->diag, &b->b, rewards, NULL);
    sbp_rewarder_close(r);
    return status;
}

static void lack_of_memory_is_said(void **state) {
    io_fixture *f = *state;
    assert_true(io_fail_allocations(f, whole_life, (void *)(uintptr_t)SED("\"rewards\":[1,2,3,4]")) >= 5);
}

/* ---- TRL --------------------------------------------------------------------------------------------- */

enum { MOST_FUNCTIONS = 8 };

static const sbp_json *member(const sbp_json *object, const char *key) {
    const sbp_json *out = sbp_json_member(object, key);
    assert_non_null(out);
    return out;
}

static double number(const sbp_json *node) {
    return node->kind == SBP_JSON_NULL  ? NAN
           : node->kind == SBP_JSON_INT ? (double)node->integer
                                        : node->real;
}

static sbp_reward_batch batch_of(io_fixture *f, const sbp_json *one) {
    const sbp_json *rows = member(one, "rows"), *texts = member(one, "completions"),
                   *all = member(one, "ids");
    const int64_t per = texts->count / rows->count;
    sbp_reward_sample *samples = sbp_arena_alloc(f->arena, (size_t)texts->count * sizeof *samples);
    for (int64_t i = 0; i < texts->count; i++) {
        const sbp_json *list = &all->items[i], *row = &rows->items[i / per];
        int32_t *tokens = sbp_arena_alloc(f->arena, (size_t)list->count * sizeof *tokens);
        for (int64_t k = 0; k < list->count; k++)
            tokens[k] = (int32_t)list->items[k].integer;
        samples[i] = (sbp_reward_sample){.prompt = member(row, "prompt"),
                                         .row = row,
                                         .completion = texts->items[i].string,
                                         .completion_bytes = (size_t)texts->items[i].count,
                                         .ids = tokens,
                                         .id_count = list->count};
    }
    return (sbp_reward_batch){.samples = samples,
                              .count = texts->count,
                              .per_prompt = per,
                              .step = member(one, "step")->integer,
                              .steps = member(one, "steps")->integer};
}

/* Rewards, names, metrics and extra columns of one case, as TRL has them. False: Python has no trl. */
static bool check_case(io_fixture *f, const sbp_json *one) {
    const sbp_json *wanted = member(one, "specs"), *metrics = member(one, "metrics"),
                   *extra = member(one, "extra");
    const int32_t count = (int32_t)wanted->count;
    const char *specs[MOST_FUNCTIONS], *name;
    double weights[MOST_FUNCTIONS], rewards[MOST], each[MOST_FUNCTIONS][MOST], value;
    const sbp_reward_options options = {.log = -1};
    sbp_rewarder *r;
    assert_true(count <= MOST_FUNCTIONS);
    for (int32_t k = 0; k < count; k++) {
        specs[k] = wanted->items[k].string;
        weights[k] = number(&member(one, "weights")->items[k]);
    }
    if (sbp_rewarder_open(f->arena, f->diag, specs, weights, count, &options, &r) != SBP_OK) {
        if (strstr(sbp_diag_text(f->diag, SBP_ERROR), "No module named 'trl'"))
            return false;
        fail_msg("%s", sbp_diag_text(f->diag, SBP_ERROR));
    }
    const sbp_reward_batch b = batch_of(f, one);
    assert_int_equal(b.count, MOST);
    assert_ok(f, sbp_rewarder_run(r, f->diag, &b, rewards, each[0]));
    for (int i = 0; i < MOST; i++) {
        const double expected = number(&member(one, "rewards")->items[i]);
        assert_rewards(&rewards[i], &expected, 1);
    }
    for (int32_t k = 0; k < count; k++) {
        assert_string_equal(sbp_rewarder_name(r, k), member(one, "names")->items[k].string);
        for (int i = 0; i < MOST; i++) {
            const double expected = number(&member(one, "each")->items[k].items[i]);
            assert_rewards(&each[k][i], &expected, 1);
        }
    }
    for (int32_t i = 0; i < metrics->count; i++) {
        assert_true(sbp_rewarder_metric(r, i, &name, &value));
        assert_string_equal(name, metrics->items[i].key);
        assert_true(value == number(&metrics->items[i]));
    }
    assert_false(sbp_rewarder_metric(r, (int32_t)metrics->count, &name, &value));
    for (int32_t i = 0; i < extra->count; i++) {
        const sbp_json *column = sbp_rewarder_extra(r, i);
        assert_non_null(column);
        assert_string_equal(column->key, extra->items[i].key);
        for (int k = 0; k < MOST; k++)
            assert_string_equal(column->items[k].string, extra->items[i].items[k].string);
    }
    sbp_rewarder_close(r);
    return true;
}

/* Whether the case has functions of TRL's own. */
static bool is_of_trl(const sbp_json *one) {
    return strcmp(member(one, "name")->string, "of trl") == 0;
}

/* Against what tests/data/reward/make.py had TRL's trainer make of the same functions. */
static void rewards_are_those_of_trl(void **state) {
    io_fixture *f = *state;
    const sbp_json *file;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/reward/trl.json", 0, &file));
    const sbp_json *cases = member(file, "cases");
    for (int64_t i = 0; i < cases->count; i++)
        if (!is_of_trl(&cases->items[i]))
            assert_true(check_case(f, &cases->items[i]));
    assert_true(cases->count >= 8);
}

static void functions_of_trl_run_unchanged(void **state) {
    io_fixture *f = *state;
    const sbp_json *file;
    int found = 0;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/reward/trl.json", 0, &file));
    const sbp_json *cases = member(file, "cases");
    for (int64_t i = 0; i < cases->count; i++) {
        if (!is_of_trl(&cases->items[i]))
            continue;
        found++;
        if (!check_case(f, &cases->items[i])) {
            print_message("python3, or that of $VIRTUAL_ENV, has no trl\n");
            skip();
        }
    }
    assert_int_equal(found, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(specs_are_told_apart),
        TEST(words_are_those_of_a_shell),
        TEST(weights_are_read),
        TEST(what_cannot_start_is_named),
        TEST(functions_get_and_give_values),
        TEST(several_are_weighted),
        TEST(no_reward_at_all_is_warned_of),
        TEST(conversations_get_messages),
        TEST(metrics_and_extras_are_handed_on),
        TEST(large_requests_and_answers),
        TEST(wrong_answers_end_the_run),
        TEST(modules_are_searched_for),
        TEST(lack_of_memory_is_said),
        TEST(rewards_are_those_of_trl),
        TEST(functions_of_trl_run_unchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
