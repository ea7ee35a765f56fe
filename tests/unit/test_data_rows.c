/* Rows of data: types, checks, tokenization and labels. The tokenizer is that of stories260K. */
#include "tests/unit/io_testing.h"

#include "runtime/data/jsonl.h"
#include "runtime/data/tokenize.h"

typedef struct row_job {
    io_fixture *f;
    const char *line;
    sbp_row_options options;
    sbp_row_form form;
    sbp_row row;
} row_job;

static sbp_status parse_body(void *user) {
    row_job *job = user;
    return sbp_row_parse(job->f->arena, job->f->diag, "data.jsonl:7", job->line, strlen(job->line),
                         &job->options, &job->form, &job->row);
}

/* Parses a line after others of this job. */
static sbp_status parse(row_job *job, const char *line) {
    job->line = line;
    return sbp_guard(job->f->arena, job->f->diag, parse_body, job);
}

static row_job start(io_fixture *f) {
    return (row_job){.f = f, .options = {"text", 100}};
}

static void test_types(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *line;
        sbp_row_type type;
    } cases[] = {
        {"{\"text\": \"a\"}", SBP_ROW_TEXT},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"c\", \"id\": 7}", SBP_ROW_PROMPT},
        {"{\"input_ids\": [1, 2]}", SBP_ROW_INPUT_IDS},
        {"{\"input_ids\": [1, 2], \"attention_mask\": [1, 1], \"labels\": [-100, 2]}", SBP_ROW_INPUT_IDS},
        {"{\"prompt_ids\": [], \"completion_ids\": [3]}", SBP_ROW_PROMPT_IDS},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        row_job job = start(f);
        assert_ok(f, parse(&job, cases[i].line));
        assert_int_equal(job.form.type, cases[i].type);
    }
    row_job job = start(f);
    job.options.text_field = "content";
    assert_ok(f, parse(&job, "{\"content\": \"a\\u0000b\"}"));
    assert_int_equal(job.row.text.length, 3);
}

static void test_bad_rows(void **state) {
    io_fixture *f = *state;
    static const struct {
        sbp_status status;
        const char *line, *message;
    } cases[] = {
        {SBP_INPUT, "{\"text\": 5}", "data.jsonl:7: text: expected a string, found"},
        {SBP_INPUT, "{\"text\": null}", "data.jsonl:7: found 'text' (null), expected 'text'"},
        {SBP_INPUT, "{\"input_ids\": [1.0]}", "input_ids[0]: expected an integer, found 1.0"},
        {SBP_INPUT, "{\"txt\": \"a\", \"x\": 1}", "data.jsonl:7: found 'txt', 'x', expected 'text'"},
        {SBP_INPUT, "{}", "found no keys"},
        {SBP_INPUT, "[1]", "data.jsonl:7: expected an object, found an array"},
        {SBP_INPUT, "{\"text\": \"a\"", "data.jsonl:7:1"},
        {SBP_INPUT, "{\"input_ids\": 3}", "input_ids: expected an array"},
        {SBP_INPUT, "{\"input_ids\": [1, 2.5]}", "input_ids[1]: expected an integer"},
        {SBP_INPUT, "{\"input_ids\": [1, -1]}", "input_ids[1]: expected an id, found -1"},
        {SBP_INPUT, "{\"input_ids\": [1, -100]}", "input_ids[1]: expected an id, found -100"},
        {SBP_INPUT, "{\"input_ids\": [1, 100]}",
         "data.jsonl:7: input_ids[1]: expected an id below the vocabulary's 100, found 100"},
        {SBP_INPUT, "{\"input_ids\": [1, 2], \"labels\": [1]}",
         "labels: expected as many items as 'input_ids' has (2), found 1"},
        {SBP_INPUT, "{\"input_ids\": [1], \"labels\": [-1]}", "labels[0]: expected an id or -100, found -1"},
        {SBP_INPUT, "{\"input_ids\": [1], \"labels\": [4294967296]}", "found 4294967296"},
        {SBP_INPUT, "{\"input_ids\": [1], \"completion_mask\": [2]}",
         "completion_mask[0]: expected 0 or 1, found 2"},
        {SBP_INPUT, "{\"input_ids\": [1], \"assistant_masks\": [1, 1]}", "assistant_masks: expected as many"},
        {SBP_INPUT, "{\"prompt\": \"a\", \"completion\": 1}", "completion: expected a string"},
        {SBP_INPUT, "{\"messages\": []}", "data.jsonl:7: messages: expected messages, found an empty list"},
        {SBP_INPUT, "{\"messages\": \"hi\"}", "messages: expected a list of messages, found a string"},
        {SBP_INPUT, "{\"messages\": [\"hi\"]}", "messages[0]: expected a message {\"role\", \"content\"}"},
        {SBP_INPUT, "{\"messages\": [{\"content\": \"hi\"}]}", "messages[0]: expected 'role' and 'content'"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}",
         "messages[0].content: expected a"},
        {SBP_INPUT, "{\"messages\": [{\"role\": 5}]}", "messages[0].role: expected a string"},
        {SBP_INPUT, "{\"conversations\": []}", "conversations: expected messages"},
        {SBP_INPUT, "{\"prompt\": [], \"completion\": []}", "completion: expected messages"},
        {SBP_INPUT, "{\"prompt\": [], \"completion\": \"a\"}", "completion: expected a list of messages"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"tools\": 5}",
         "tools: expected a list of tools"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"tools\": \"[\"}", "the text of tools"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"tools\": [1]}", "tools[0]: expected an object"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"chat_template_kwargs\": 1}",
         "expected an object"},
        {SBP_USAGE, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", "not built yet"},
        {SBP_USAGE, "{\"end_of_step\": true}", "not built yet"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        row_job job = start(f);
        assert_fails(f, cases[i].status, cases[i].message, parse(&job, cases[i].line));
    }
    row_job job = start(f);
    job.options.vocab_size = 0;
    assert_fails(f, SBP_INPUT, "found 2147483648", parse(&job, "{\"input_ids\": [2147483648]}"));
}

static void test_the_first_row_decides(void **state) {
    io_fixture *f = *state;
    row_job job = start(f);
    assert_ok(f, parse(&job, "{\"text\": \"a\"}"));
    assert_fails(
        f, SBP_INPUT,
        "data.jsonl:7: found a row with 'prompt', 'completion'; the first row has 'text', and so must all",
        parse(&job, "{\"prompt\": \"a\", \"completion\": \"b\"}"));
    assert_ok(f, parse(&job, "{\"text\": \"b\", \"more\": 1}"));
    job = start(f);
    assert_ok(f, parse(&job, "{\"input_ids\": [1], \"labels\": [1]}"));
    assert_fails(f, SBP_INPUT, "'input_ids'; the first row has 'input_ids', 'labels'",
                 parse(&job, "{\"input_ids\": [1]}"));
    static const char *const masks[] = {"completion_mask", "assistant_masks"};
    for (int i = 0; i < SBP_COUNT(masks); i++) {
        char line[80], message[80];
        snprintf(line, sizeof line, "{\"input_ids\": [1], \"%s\": [1]}", masks[i]);
        job = start(f);
        assert_ok(f, parse(&job, line));
        snprintf(message, sizeof message, "a row with 'input_ids'; the first row has 'input_ids', '%s'",
                 masks[i]);
        assert_fails(f, SBP_INPUT, message, parse(&job, "{\"input_ids\": [1]}"));
        job = start(f);
        assert_ok(f, parse(&job, "{\"input_ids\": [1]}"));
        snprintf(message, sizeof message, "a row with 'input_ids', '%s'; the first row has 'input_ids'",
                 masks[i]);
        assert_fails(f, SBP_INPUT, message, parse(&job, line));
    }
}

/* ---- lines ------------------------------------------------------------------------------------------ */

typedef struct seen_lines {
    int count;
    int64_t last;
    char text[100];
} seen_lines;

static sbp_status see(void *user, const char *path, int64_t line, const char *text, size_t length) {
    seen_lines *s = user;
    (void)path;
    s->count++;
    s->last = line;
    strncat(s->text, text, length);
    return length > 20 ? SBP_INPUT : SBP_OK;
}

static void test_lines(void **state) {
    io_fixture *f = *state;
    seen_lines s = {0};
    static const char text[] = "\xef\xbb\xbf{1}\r\n\n  \t\n{2}\n{3}";
    io_put(io_path(f, "lines"), text, sizeof text - 1);
    assert_ok(f, sbp_lines_read(f->diag, io_path(f, "lines"), see, &s));
    assert_int_equal(s.count, 3);
    assert_int_equal(s.last, 5);
    assert_string_equal(s.text, "{1}{2}{3}");
    assert_fails(f, SBP_IO, "cannot read", sbp_lines_read(f->diag, "/nowhere/x", see, &s));
    assert_fails(f, SBP_IO, "it is a directory", sbp_lines_read(f->diag, f->directory, see, &s));
    io_put(io_path(f, "lines"), "a line of more than twenty characters\nx\n", 40);
    s = (seen_lines){0};
    assert_int_equal(sbp_lines_read(f->diag, io_path(f, "lines"), see, &s), SBP_INPUT);
    assert_int_equal(s.count, 1);
}

/* ---- documents -------------------------------------------------------------------------------------- */

static const sbp_tokenizer *load_tokenizer(io_fixture *f) {
    const sbp_tokenizer *tokenizer;
    assert_ok(f, sbp_tokenizer_load(f->arena, f->diag, "tests/data/stories260K", &tokenizer));
    return tokenizer;
}

static sbp_document make(io_fixture *f, sbp_document_maker *maker, const char *line) {
    row_job job = start(f);
    sbp_documents made;
    job.options.vocab_size = 512;
    assert_ok(f, parse(&job, line));
    assert_ok(f, sbp_documents_make(maker, f->arena, &job.row, &made));
    assert_int_equal(made.count, 1);
    return *made.documents;
}

static void expect_ids(io_fixture *f, const sbp_document *d, const sbp_tokenizer *tokenizer,
                       const char *text) {
    sbp_encoding want;
    assert_ok(f, sbp_tokenizer_encode(tokenizer, f->arena, f->diag, text, strlen(text),
                                      SBP_ADD_SPECIAL_TOKENS, &want));
    assert_int_equal(d->count, want.count);
    assert_memory_equal(d->ids, want.ids, (size_t)want.count * sizeof *want.ids);
}

/* Labels are the ids from `from` on. */
static void expect_labels(const sbp_document *d, int64_t from) {
    for (int64_t i = 0; i < d->count; i++)
        assert_int_equal(d->labels[i], i < from ? -100 : d->ids[i]);
}

static void test_texts(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *tokenizer = load_tokenizer(f);
    sbp_document_maker maker = {.tokenizer = tokenizer, .diag = f->diag};
    assert_string_equal(sbp_eos_text(tokenizer), "</s>");
    sbp_document d = make(f, &maker, "{\"text\": \"The end.\"}");
    expect_ids(f, &d, tokenizer, "The end.</s>");
    assert_int_equal(d.ids[0], 1); /* BOS, by the post-processor */
    assert_int_equal(d.ids[d.count - 1], 2);
    expect_labels(&d, 0);
    assert_string_equal(d.part, "text");
    d = make(f, &maker, "{\"text\": \"The end.</s>\"}"); /* not twice */
    expect_ids(f, &d, tokenizer, "The end.</s>");
    d = make(f, &maker, "{\"text\": \"\"}");
    assert_int_equal(d.count, 2);
    row_job job = start(f);
    sbp_documents made;
    assert_ok(f, parse(&job, "{\"text\": \"a\"}"));
    maker.loss_on = SBP_LOSS_COMPLETION;
    assert_fails(f, SBP_INPUT, "rows have no completion",
                 sbp_documents_make(&maker, f->arena, &job.row, &made));
    maker = (sbp_document_maker){.diag = f->diag};
    assert_fails(f, SBP_INPUT, "need a tokenizer", sbp_documents_make(&maker, f->arena, &job.row, &made));
}

static void test_prompts(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *tokenizer = load_tokenizer(f);
    sbp_document_maker maker = {.tokenizer = tokenizer, .diag = f->diag};
    sbp_document d = make(f, &maker, "{\"prompt\": \"One day,\", \"completion\": \" a cat\"}");
    sbp_encoding prompt;
    assert_ok(f, sbp_tokenizer_encode(tokenizer, f->arena, f->diag, "One day,", 8, SBP_ADD_SPECIAL_TOKENS,
                                      &prompt));
    expect_ids(f, &d, tokenizer, "One day, a cat</s>");
    expect_labels(&d, prompt.count);
    assert_int_equal(d.prompt, prompt.count);
    assert_string_equal(d.part, "completion");
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 0);

    /* "thi" + "ng": tokens merge across the border */
    d = make(f, &maker, "{\"prompt\": \"Once upon a ti\", \"completion\": \"me\"}");
    assert_ok(f, sbp_tokenizer_encode(tokenizer, f->arena, f->diag, "Once upon a ti", 14,
                                      SBP_ADD_SPECIAL_TOKENS, &prompt));
    expect_ids(f, &d, tokenizer, "Once upon a time</s>");
    int64_t common = 0;
    while (common < prompt.count && prompt.ids[common] == d.ids[common])
        common++;
    assert_true(common < prompt.count);
    expect_labels(&d, common);
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 1);
    make(f, &maker, "{\"prompt\": \"Once upon a ti\", \"completion\": \"me\"}"); /* once */
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 1);

    maker.loss_on = SBP_LOSS_ALL;
    d = make(f, &maker, "{\"prompt\": \"One day,\", \"completion\": \" a cat\"}");
    expect_labels(&d, 0);
    d = make(f, &maker, "{\"prompt\": \"One day,\", \"completion\": \"</s>\"}");
    expect_ids(f, &d, tokenizer, "One day,</s>");
}

static void test_ids(void **state) {
    io_fixture *f = *state;
    sbp_document_maker maker = {.diag = f->diag};
    sbp_document d = make(f, &maker, "{\"input_ids\": [5, 6, 7]}");
    expect_labels(&d, 0);
    d = make(f, &maker, "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 9, -100]}");
    assert_int_equal(d.labels[1], 9); /* as given */
    assert_int_equal(d.labels[2], -100);
    d = make(f, &maker, "{\"prompt_ids\": [5, 6], \"completion_ids\": [7, 8]}");
    assert_int_equal(d.count, 4);
    assert_int_equal(d.prompt, 2);
    expect_labels(&d, 2);
    d = make(f, &maker, "{\"input_ids\": [5, 6, 7], \"assistant_masks\": [0, 1, 0]}");
    assert_int_equal(d.labels[0], -100);
    assert_int_equal(d.labels[1], 6);
    assert_int_equal(d.labels[2], -100);
    /* completion_mask counts only when asked for */
    d = make(f, &maker, "{\"input_ids\": [5, 6, 7], \"completion_mask\": [0, 1, 1]}");
    expect_labels(&d, 0);
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 1);
    maker.loss_on = SBP_LOSS_COMPLETION;
    d = make(f, &maker,
             "{\"input_ids\": [5, 6, 7], \"completion_mask\": [0, 1, 1], \"assistant_masks\": [true, false, "
             "true]}");
    assert_int_equal(d.labels[0], -100);
    assert_int_equal(d.labels[1], -100);
    assert_int_equal(d.labels[2], 7);
    maker.loss_on = SBP_LOSS_ALL;
    d = make(f, &maker, "{\"prompt_ids\": [5, 6], \"completion_ids\": [7, 8]}");
    expect_labels(&d, 0);
}

/* The first rows of the recorded run, token for token. */
static void test_tokens_of_trl(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *tokenizer = load_tokenizer(f);
    sbp_document_maker maker = {.tokenizer = tokenizer, .diag = f->diag};
    const sbp_json *trl, *rows, *counts;
    const char *text;
    size_t length;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/golden/stories260k_trl/trl.json", 0, &trl));
    assert_ok(f, sbp_json_get_array(f->diag, trl, "token_ids_of_first_rows", SBP_JSON_REQUIRED, &rows));
    assert_ok(f, sbp_json_get_array(f->diag, trl, "token_counts", SBP_JSON_REQUIRED, &counts));
    assert_ok(f,
              sbp_file_read(f->arena, f->diag, "tests/golden/stories260k_trl/train.jsonl", &text, &length));
    int64_t row = 0;
    for (char *at = strtok(sbp_arena_strdup(f->arena, text), "\n"); at; at = strtok(NULL, "\n"), row++) {
        sbp_document d = make(f, &maker, at);
        assert_int_equal(d.count, counts->items[row].integer);
        for (int64_t i = 0; row < rows->count && i < d.count; i++)
            assert_int_equal(d.ids[i], rows->items[row].items[i].integer);
    }
    assert_int_equal(row, counts->count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_types, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bad_rows, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_first_row_decides, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_lines, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_texts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_prompts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ids, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_tokens_of_trl, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
