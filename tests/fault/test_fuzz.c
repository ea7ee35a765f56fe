/* test_fuzz.c: damaged files given to whole commands. Whatever the file: no crash, a status of the contract,
 * a message with every failure.
 *
 * The damage leaves a file that still parses (a JSON value changed, a section of a plan with a right
 * checksum), so that it reaches what is behind the parser; bytes changed at random are tried by the tests of
 * each format. The seed is fixed. SBP_FUZZ_ROUNDS in the environment: how many files of each kind. */
#include "tests/common/in_process.h"
#include "tests/fault/json_mutate.h"

#include "ir/program/plan_file.h"

#define MODEL "tests/data/stories260K"
#define COMPILE "sbpc compile " MODEL " -o $D/p --seq-len 64 --chunk 16"

static const char rows[] = "{\"text\": \"Once upon a time, there was\"}\n{\"text\": \"a dog\"}\n";

/* ---- what every command must do ---------------------------------------------------------------------- */

typedef struct tally {
    int tried, status[6];
} tally;

static void run(io_fixture *f, tally *t, const char *command, const char *input) {
    outcome o = in_process(f, command, input, 0, NULL);
    if (o.status > SBP_NOT_FINITE)
        fail_msg("%s: status %d: %s (round %d)", command, o.status, o.message, t->tried);
    char out[200];
    if (o.status != SBP_OK && o.errors == 0 && !*in_process_output(f, "out", out, sizeof out))
        fail_msg("%s: status %d without a message (round %d)", command, o.status, t->tried);
    if (strstr(in_process_files(f), ".tmp"))
        fail_msg("%s: status %d left %s (round %d)", command, o.status, in_process_files(f), t->tried);
    t->tried++;
    t->status[o.status]++;
}

/* Some must be refused; when none got through either, the damage is too great to reach anything. */
static void report(const char *what, const tally *t) {
    printf("%s: %d tried, status 0 to 5:", what, t->tried);
    for (int i = 0; i < SBP_COUNT(t->status); i++)
        printf(" %d", t->status[i]);
    printf("\n");
    assert_true(t->tried > t->status[0] && t->status[0] > 0);
}

static void prepare(io_fixture *f, const char *command) {
    in_process_clean(f, "");
    io_put(io_path(f, "rows"), rows, strlen(rows));
    outcome o = in_process(f, command, NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s: status %d: %s", command, o.status, o.message);
}

static const char *read_text(io_fixture *f, const char *path, size_t *length) {
    const char *text = NULL;
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &text, length));
    return text;
}

/* A changed copy of a JSON text, in the arena of the fixture. */
static sbp_text changed_json(io_fixture *f, const char *text, size_t length) {
    const sbp_json *root;
    assert_ok(f, sbp_json_parse(f->arena, f->diag, "original", text, length, 0, &root));
    sbp_text out;
    sbp_text_init(&out, f->arena);
    json_mutate(&out, root);
    return out;
}

/* ---- models ------------------------------------------------------------------------------------------ */

static void test_config(void **state) {
    static const char *const models[] = {"llama_rope_yarn", "llama_rope_llama3", "llama_rope_longrope_long",
                                         "gemma3_softcap",  "gemma3_legacy",     "mistral_window",
                                         "qwen2_sliding",   "qwen3_bias",        "packed/experts"};
    io_fixture *f = *state;
    tally t = {0};
    prepare(f, COMPILE);
    for (int round = mutate_rounds(160); round > 0; round--) {
        char path[200];
        size_t length;
        io_renew(f);
        snprintf(path, sizeof path, "tests/golden/%s/model/config.json", models[round % SBP_COUNT(models)]);
        const char *text = read_text(f, path, &length);
        sbp_text config = changed_json(f, text, length);
        io_put(io_path(f, "config.json"), config.data, config.length);
        run(f, &t, "sbpc compile $D/config.json -o $D/q --seq-len 32 --chunk 8", NULL);
    }
    report("config.json", &t);
}

/* Makes a model directory with the file `name` changed, the others as they are. */
static void change_file(io_fixture *f, const char *name, const char *other) {
    size_t length;
    char path[200];
    snprintf(path, sizeof path, MODEL "/%s", other);
    const char *text = read_text(f, path, &length);
    io_put(io_path(f, other), text, length);
    snprintf(path, sizeof path, MODEL "/%s", name);
    text = read_text(f, path, &length);
    sbp_text changed = changed_json(f, text, length);
    io_put(io_path(f, name), changed.data, changed.length);
}

static void test_tokenizer(void **state) {
    io_fixture *f = *state;
    tally t = {0};
    prepare(f, COMPILE);
    for (int round = mutate_rounds(120); round > 0; round--) {
        io_renew(f);
        change_file(f, "tokenizer.json", "config.json");
        run(f, &t, round % 4 ? "sbprun tokenize $D" : "sbpc compile $D -o $D/q --seq-len 32",
            "\"Once upon a time, \\u00e9\\ud83d\\ude00 <s>there</s>\"\n{\"prompt\": \"a\", \"completion\": "
            "\" b\"}\n");
    }
    report("tokenizer.json", &t);
}

static void test_safetensors(void **state) {
    io_fixture *f = *state;
    tally t = {0};
    prepare(f, COMPILE);
    for (int round = mutate_rounds(100); round > 0; round--) {
        size_t length;
        uint64_t header;
        io_renew(f);
        const char *file = read_text(f, MODEL "/model.safetensors", &length);
        memcpy(&header, file, sizeof header);
        sbp_text changed = changed_json(f, file + 8, (size_t)header), whole;
        uint64_t bytes = changed.length;
        sbp_text_init(&whole, f->arena);
        sbp_text_add_n(&whole, (const char *)&bytes, sizeof bytes);
        sbp_text_add_n(&whole, changed.data, changed.length);
        sbp_text_add_n(&whole, file + 8 + header, length - 8 - (size_t)header);
        io_put(io_path(f, "model.safetensors"), whole.data, whole.length);
        run(f, &t, "sbprun $D/p --weights $D/model.safetensors --data $D/rows --score $D/s", NULL);
    }
    report("safetensors header", &t);
}

/* ---- plans ------------------------------------------------------------------------------------------- */

/* Writes $D/q: the plan with one section changed. */
static void change_section(io_fixture *f, const char *name) {
    const sbp_plan_file *plan;
    assert_ok(f, sbp_plan_file_read(f->arena, f->diag, io_path(f, "p"), &plan));
    for (int32_t i = 0; i < plan->count; i++) {
        sbp_plan_section *s = &plan->sections[i];
        if (strcmp(s->name, name) != 0)
            continue;
        size_t length = (size_t)s->length, capacity = length + 100;
        if (strcmp(name, SBP_PLAN_PROGRAM) == 0) {
            char *text = sbp_arena_alloc(f->arena, capacity);
            memcpy(text, s->data, length);
            length = mutate(text, length, capacity);
            s->data = text;
        } else {
            sbp_text text = changed_json(f, s->data, length);
            s->data = text.data;
            length = text.length;
        }
        s->length = (int64_t)length;
    }
    assert_ok(f, sbp_plan_file_write(f->diag, io_path(f, "q"), plan->sections, plan->count));
}

static void fuzz_plan(void **state, const char *section, int usual) {
    static const char *const commands[] = {"sbprun $D/q --data $D/rows --steps 1 --batch-size 1 --out none",
                                           "sbprun $D/q --data $D/rows --dry-run",
                                           "sbpc inspect $D/q --svg $D/s",
                                           "sbprun $D/q --data $D/rows --dump-gradients $D/g.safetensors"};
    io_fixture *f = *state;
    tally t = {0};
    prepare(f, COMPILE);
    for (int round = mutate_rounds(usual); round > 0; round--) {
        io_renew(f);
        change_section(f, section);
        run(f, &t, commands[round % SBP_COUNT(commands)], NULL);
    }
    report(section, &t);
}

static void test_plan_meta(void **state) {
    fuzz_plan(state, SBP_PLAN_META, 100);
}

static void test_plan_tensors(void **state) {
    fuzz_plan(state, SBP_PLAN_TENSORS, 100);
}

static void test_plan_tokenizer(void **state) {
    fuzz_plan(state, SBP_PLAN_TOKENIZER, 40);
}

static void test_plan_program(void **state) {
    fuzz_plan(state, SBP_PLAN_PROGRAM, 100);
}

/* ---- rows and settings ------------------------------------------------------------------------------- */

static void test_rows(void **state) {
    static const char *const originals[] = {
        "{\"text\": \"Once upon a time\"}", "{\"prompt\": \"Once\", \"completion\": \" upon a time\"}",
        "{\"input_ids\": [1, 5, 300, 2], \"labels\": [-100, 5, 300, 2]}",
        "{\"prompt_ids\": [1, 5, 7], \"completion_ids\": [300, 2]}",
        "{\"input_ids\": [1, 5, 300, 2], \"labels\": [-100, 5, 300, 2], \"position_ids\": [0, 1, 2, 3], "
        "\"attention_mask\": [1, 1, 1, 1], \"seq_lengths\": [2, 2]}"};
    io_fixture *f = *state;
    tally t = {0};
    prepare(f, COMPILE);
    for (int round = mutate_rounds(200); round > 0; round--) {
        const char *row = originals[round % SBP_COUNT(originals)];
        io_renew(f);
        sbp_text text = changed_json(f, row, strlen(row));
        sbp_text_add(&text, "\n%s\n", round % 2 ? row : "");
        io_put(io_path(f, "data"), text.data, text.length);
        run(f, &t,
            round % 8 ? "sbprun $D/p --data $D/data --dry-run" : "sbprun $D/p --data $D/data --score $D/s",
            NULL);
    }
    report("rows", &t);
}

static void test_settings(void **state) {
    static const char original[] =
        "{\"learning_rate\": 1e-4, \"max_steps\": 3, \"batch_size\": 2, "
        "\"lr_scheduler_type\": \"cosine\", \"warmup_steps\": 1, \"weight_decay\": 0.1, \"seed\": 3, "
        "\"betas\": \"0.9,0.95\", \"shuffle\": false, \"overlong\": \"truncate\", \"loss_on\": \"all\", "
        "\"save_steps\": 2, \"keep\": 1, \"eps\": 1e-9}";
    io_fixture *f = *state;
    tally t = {0};
    prepare(f, COMPILE);
    for (int round = mutate_rounds(120); round > 0; round--) {
        io_renew(f);
        sbp_text text = changed_json(f, original, strlen(original));
        io_put(io_path(f, "settings.json"), text.data, text.length);
        run(f, &t, "sbprun $D/p --config $D/settings.json --data $D/rows --dry-run", NULL);
    }
    report("settings", &t);
}

static int setup(void **state) {
    in_process_limit_memory(INT64_C(4) << 30);
    return io_setup(state);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),       cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_safetensors),  cmocka_unit_test(test_plan_meta),
        cmocka_unit_test(test_plan_tensors), cmocka_unit_test(test_plan_tokenizer),
        cmocka_unit_test(test_plan_program), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_settings),
    };
    in_process_choose(argc, argv);
    return cmocka_run_group_tests(tests, setup, in_process_teardown);
}
