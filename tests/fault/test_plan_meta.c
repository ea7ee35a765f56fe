/* test_plan_meta.c: each member of a plan's meta in turn is something else, or missing, and every command
 * that reads plans is given the plan: it works or refuses with a message, and never crashes.
 *
 * What is drawn at random is in test_fuzz; here nothing is: every member, at any depth, times every
 * wrong value. A default run takes each member with a part of the values and of the commands;
 * SBP_TEST_ALL=1 all of them. */
#include "tests/common/in_process.h"
#include "tests/common/sweep.h"
#include "tests/fault/json_mutate.h"

#include "ir/program/plan_file.h"

#define MODEL "tests/data/stories260K"
#define TEXT "{\"text\": \"Once upon a time\"}\n"
#define SIZES " -o $D/p --seq-len 64 --chunk 16"

/* NULL: without the member. Some of each kind of JSON, numbers out of range, containers that hold what they
 * should not. */
static const char *const values[] = {"null",
                                     NULL,
                                     "true",
                                     "\"\"",
                                     "0",
                                     "-1",
                                     "1e300",
                                     "[]",
                                     "{}",
                                     "[null, {}, -1, \"x\"]",
                                     "{\"\": [], \"x\": {\"y\": null}}",
                                     "9223372036854775807",
                                     "\"none\""};

/* every: a default run gives one of this many cases to the command, by what it costs. */
static const struct {
    const char *text;
    int every;
} commands[] = {{"sbprun $D/q --data $D/rows --dry-run", 37},
                {"sbpc inspect $D/q --svg $D/s.svg", 43},
                {"sbpc inspect $D/q --json", 79},
                {"sbprun tokenize $D/q", 131},
                {"sbprun $D/q --data $D/rows --score $D/s", 149},
                {"sbprun $D/q --data $D/rows --dump-gradients $D/g.safetensors", 167},
                {"sbprun $D/q --data $D/rows --steps 1 --batch-size 1 --out $D/o", 499},
                {"sbprun $D/q --data $D/rows --steps 2 --batch-size 1 --out $D/k --resume", 503},
                {"sbpc inspect $D/q --ranks 2", 2411},
                {"sbprun check $D/q", 2579}};

typedef struct sweep {
    io_fixture *f;
    const sbp_plan_file *plan;
    const sbp_json *meta;
    int members, cases, tried, worked;
} sweep;

static sbp_plan_section *section_called(const sweep *s, const char *name) {
    for (int32_t i = 0; i < s->plan->count; i++)
        if (strcmp(s->plan->sections[i].name, name) == 0)
            return &s->plan->sections[i];
    fail_msg("the plan has no section %s", name);
    return NULL;
}

static sbp_plan_section *section_of(const sweep *s) {
    return section_called(s, SBP_PLAN_META);
}

/* "model.eos_ids.0" */
static void add_path(sbp_text *out, const sbp_json *member) {
    if (!member->parent)
        return;
    add_path(out, member->parent);
    if (out->length > 0)
        sbp_text_add(out, ".");
    if (member->key)
        sbp_text_add(out, "%s", member->key);
    else
        sbp_text_add(out, "%d", (int)(member - member->parent->items));
}

static void try_command(sweep *s, const sbp_json *member, const char *value, const char *command) {
    char said[200];
    outcome o = in_process(s->f, command, "\"Once\"\n", 0, NULL);
    bool silent = o.status != SBP_OK && o.errors == 0 && !*in_process_output(s->f, "out", said, sizeof said);
    if (o.status > SBP_NOT_FINITE || silent) {
        sbp_text path;
        sbp_text_init(&path, s->f->arena);
        add_path(&path, member);
        fail_msg("%s with %s = %s: status %d: '%s'", command, path.data, value ? value : "(missing)",
                 o.status, o.message);
    }
    s->tried++;
    s->worked += o.status == SBP_OK;
}

/* $D/q: the plan with another value for a member. */
static void write_changed(sweep *s, const sbp_json *member, const char *value) {
    sbp_text text;
    sbp_text_init(&text, s->f->arena);
    json_replace(&text, s->meta, member, value);
    sbp_plan_section *section = section_of(s), kept = *section;
    section->data = text.data;
    section->length = (int64_t)text.length;
    assert_ok(s->f, sbp_plan_file_write(s->f->diag, io_path(s->f, "q"), s->plan->sections, s->plan->count));
    *section = kept;
}

/* Whether the command takes case number n. Each command begins at another. */
static bool takes(int command, int n) {
    return testing_all() || (n + 7 * command) % commands[command].every == 0;
}

static void try_value(sweep *s, const sbp_json *member, const char *value) {
    int n = s->cases++;
    bool any = false;
    for (int c = 0; c < SBP_COUNT(commands); c++)
        any = any || takes(c, n);
    if (!any)
        return;
    write_changed(s, member, value);
    for (int c = 0; c < SBP_COUNT(commands); c++)
        if (takes(c, n))
            try_command(s, member, value, commands[c].text);
}

static void try_members(sweep *s, const sbp_json *member) {
    s->members++;
    for (int v = 0; v < SBP_COUNT(values); v++)
        try_value(s, member, values[v]);
    bool holds = member->kind == SBP_JSON_OBJECT || member->kind == SBP_JSON_ARRAY;
    for (int64_t i = 0; holds && i < member->count; i++)
        try_members(s, &member->items[i]);
}

static void open_plan(sweep *s, const char *compile, const char *rows) {
    io_fixture *f = s->f;
    io_renew(f);
    in_process_clean(f, "");
    io_put(io_path(f, "rows"), rows, strlen(rows));
    outcome o = in_process(f, compile, NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s: status %d: %s", compile, o.status, o.message);
    assert_ok(f, sbp_plan_file_read(f->arena, f->diag, io_path(f, "p"), &s->plan));
    const sbp_plan_section *section = section_of(s);
    assert_ok(f,
              sbp_json_parse(f->arena, f->diag, "meta", section->data, (size_t)section->length, 0, &s->meta));
}

static void sweep_plan(void **state, int first, const char *compile, const char *rows) {
    sweep s = {.f = *state, .cases = first};
    open_plan(&s, compile, rows);
    try_members(&s, s.meta);
    print_message("%s: %d members, %d commands, of which %d worked\n", compile, s.members, s.tried, s.worked);
    assert_true(s.members > 150 && s.worked > s.tried / 10 && s.worked < s.tried);
}

/* Both programs read by the one table: what it refuses, each refuses by name. */
static void test_refusals(void **state) {
    static const struct {
        const char *member, *value, *words;
    } cases[] = {
        {"runtime_bytes", "9223372036854775807", "runtime_bytes: expected 0 to "},
        {"memory_bytes", "-1", "memory_bytes: expected 0 to "},
        {"arguments", "{}", "arguments: expected an array, found an object"},
        {"special_tokens", "[]", "special_tokens: expected an object, found an array"},
        {"advice", "[]", "advice: expected a string"},
        {"estimate", "{\"useful_flops\": {\"attention\": \"none\"}}",
         "attention: expected an array, found a string"},
    };
    static const char *const readers[] = {"sbpc inspect $D/q", "sbprun $D/q --data $D/rows --dry-run"};
    sweep s = {.f = *state};
    open_plan(&s, "sbpc compile " MODEL SIZES, TEXT);
    for (int k = 0; k < SBP_COUNT(cases); k++)
        for (int r = 0; r < SBP_COUNT(readers); r++) {
            const sbp_json *member = sbp_json_member(s.meta, cases[k].member);
            member = member ? member : sbp_json_member(sbp_json_member(s.meta, "model"), cases[k].member);
            assert_non_null(member);
            write_changed(&s, member, cases[k].value);
            outcome o = in_process(s.f, readers[r], NULL, 0, NULL);
            if (o.status != SBP_INPUT || !strstr(o.message, cases[k].words))
                fail_msg("%s with %s = %s: status %d: '%s'", readers[r], cases[k].member, cases[k].value,
                         o.status, o.message);
        }
}

/* A number that no table here knows, as a plan of another sbpc may need one. */
static void test_unknown_scalar(void **state) {
    static const char known[] = "one_minus_beta2", other[] = "one_minus_gamma";
    sweep s = {.f = *state};
    open_plan(&s, "sbpc compile " MODEL SIZES, TEXT);
    sbp_plan_section *section = section_called(&s, SBP_PLAN_PROGRAM);
    char *text = sbp_arena_strndup(s.f->arena, section->data, (size_t)section->length);
    assert_int_equal(strlen(known), strlen(other));
    for (char *at = text; (at = strstr(at, known));)
        memcpy(at, other, strlen(other));
    section->data = text;
    assert_ok(s.f, sbp_plan_file_write(s.f->diag, io_path(s.f, "q"), s.plan->sections, s.plan->count));
    outcome o = in_process(s.f, "sbprun $D/q --data $D/rows --dry-run", NULL, 0, NULL);
    if (o.status != SBP_INPUT || !strstr(o.message, "the plan needs a number 'one_minus_gamma'"))
        fail_msg("status %d: '%s'", o.status, o.message);
}

static void test_sft(void **state) {
    sweep_plan(state, 0, "sbpc compile " MODEL SIZES, TEXT);
}

static void test_lora(void **state) {
    sweep_plan(state, 8,
               "sbpc compile " MODEL SIZES " --lora r=4,alpha=8,targets=q_proj --base-dtype nf4 --dtype bf16",
               TEXT);
}

static void test_pairs(void **state) {
    sweep_plan(state, 16, "sbpc compile " MODEL SIZES " --objective dpo --lora r=4 --memory 60MiB",
               "{\"prompt\": \"Once\", \"chosen\": \" upon a time\", \"rejected\": \" a dog\"}\n");
}

static void test_rollouts(void **state) {
    sweep_plan(state, 24, "sbpc compile " MODEL SIZES " --objective grpo --offload host --expert-pieces 2",
               "{\"prompt\": \"Once\", \"completion\": \" upon a time\", \"reward\": 1}\n"
               "{\"prompt\": \"Once\", \"completion\": \" a dog\", \"reward\": 0}\n");
}

static void test_ranks(void **state) {
    sweep_plan(state, 32, "sbpc compile " MODEL SIZES " --ranks 2 --zero 3", TEXT);
}

static int setup(void **state) {
    in_process_limit_memory(INT64_C(4) << 30);
    return io_setup(state);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sft),
        cmocka_unit_test(test_lora),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_rollouts),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unknown_scalar),
    };
    in_process_choose(argc, argv);
    return cmocka_run_group_tests(tests, setup, in_process_teardown);
}
