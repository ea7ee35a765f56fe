/* Rows of data: types, checks, tokenization and labels. The tokenizer is that of stories260K. */
#include "tests/common/row_line.h"
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
    return row_of_line(job->f->arena, job->f->diag, "data.jsonl:7", job->line, strlen(job->line),
                       &job->options, &job->form, &job->row);
}

/* Parses a line after others of this job. */
static sbp_status parse(row_job *job, const char *line) {
    job->line = line;
    return sbp_guard(job->f->arena, job->f->diag, parse_body, job);
}

static row_job start(io_fixture *f) {
    return (row_job){.f = f, .options = {.vocab_size = 100, .fields = true}};
}

static void test_types(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *line;
        sbp_row_type type;
        sbp_row_values values;
    } cases[] = {
        {"{\"text\": \"a\"}", SBP_ROW_TEXT, SBP_VALUES_STRINGS},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"c\", \"id\": 7}", SBP_ROW_COMPLETION,
         SBP_VALUES_STRINGS},
        {"{\"input_ids\": [1, 2]}", SBP_ROW_INPUT_IDS, SBP_VALUES_IDS},
        {"{\"input_ids\": [1, 2], \"attention_mask\": [1, 1], \"labels\": [-100, 2]}", SBP_ROW_INPUT_IDS,
         SBP_VALUES_IDS},
        {"{\"prompt_ids\": [], \"completion_ids\": [3]}", SBP_ROW_COMPLETION, SBP_VALUES_IDS},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"messages\": [{\"role\": \"user\"}]}",
         SBP_ROW_PAIR, SBP_VALUES_STRINGS},
        {"{\"chosen\": [{\"role\": \"user\"}], \"rejected\": [{\"role\": \"user\"}]}", SBP_ROW_PAIR,
         SBP_VALUES_MESSAGES},
        {"{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [3]}", SBP_ROW_PAIR, SBP_VALUES_IDS},
        {"{\"prompt\": \"a\", \"answer\": \"b\"}", SBP_ROW_PROMPT, SBP_VALUES_STRINGS},
        {"{\"prompt\": [{\"role\": \"user\"}]}", SBP_ROW_PROMPT, SBP_VALUES_MESSAGES},
        {"{\"prompt_ids\": [1]}", SBP_ROW_PROMPT, SBP_VALUES_IDS},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        row_job job = start(f);
        assert_ok(f, parse(&job, cases[i].line));
        assert_int_equal(job.form.type, cases[i].type);
        assert_int_equal(job.form.values, cases[i].values);
    }
    row_job job = start(f);
    assert_ok(f, parse(&job, "{\"text\": \"a\\u0000b\"}"));
    assert_int_equal(job.row.text.text.length, 3);
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
        {SBP_INPUT, "{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}",
         "found 'instruction', 'input', 'output': give --columns prompt=instruction+input,completion=output"},
        {SBP_INPUT, "{\"instruction\": \"a\", \"response\": \"b\"}",
         "give --columns prompt=instruction,completion=response"},
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
        {SBP_INPUT, "{\"conversations\": [{\"from\": \"bard\", \"value\": \"a\"}]}",
         "conversations[0].from: expected human, gpt, system, tool, observation or function_call, found "
         "'bard'"},
        {SBP_INPUT, "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"f(x)\"}]}",
         "conversations[0].value: expected the JSON of a call"},
        {SBP_INPUT, "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"[]\"}]}",
         "conversations[0].value: expected the JSON of a call"},
        {SBP_INPUT, "{\"conversations\": [{\"from\": \"function_call\"}]}", "expected 'value'"},
        {SBP_INPUT, "{\"prompt\": \"a\", \"chosen\": {\"from\": \"gpt\"}, \"rejected\": {\"from\": \"gpt\"}}",
         "prompt: expected a list of messages, found a string"},
        {SBP_INPUT, "{\"messages\": {\"role\": \"user\"}}", "messages: expected a list of messages"},
        {SBP_INPUT, "{\"prompt\": [], \"completion\": []}", "completion: expected messages"},
        {SBP_INPUT, "{\"prompt\": [], \"completion\": \"a\"}", "completion: expected a list of messages"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"tools\": 5}",
         "tools: expected a list of tools"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"tools\": \"[\"}", "the text of tools"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"tools\": [1]}", "tools[0]: expected an object"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"chat_template_kwargs\": 1}",
         "expected an object"},
        {SBP_INPUT, "{\"chosen\": \"b\"}", "data.jsonl:7: expected 'rejected', found 'chosen'"},
        {SBP_INPUT, "{\"chosen\": \"b\", \"rejected\": null}",
         "expected 'rejected', found 'chosen', 'rejected' (null)"},
        {SBP_INPUT, "{\"chosen\": \"\", \"rejected\": \"b\"}",
         "chosen: expected prompt and answer, found an empty string"},
        {SBP_INPUT, "{\"chosen\": [], \"rejected\": []}", "chosen: expected messages, found an empty list"},
        {SBP_INPUT, "{\"chosen\": [{\"role\": \"user\"}], \"rejected\": \"b\"}",
         "rejected: expected a list of messages"},
        {SBP_INPUT, "{\"prompt\": [], \"chosen\": \"b\", \"rejected\": \"c\"}",
         "prompt: expected a string, found an array"},
        {SBP_INPUT, "{\"chosen_ids\": [1], \"rejected_ids\": [2]}",
         "expected 'prompt_ids' beside 'chosen_ids'"},
        {SBP_INPUT, "{\"prompt_ids\": [1], \"chosen_ids\": [100], \"rejected_ids\": [2]}",
         "chosen_ids[0]: expected an id below"},
        {SBP_INPUT, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"ref_chosen_logps\": [1]}",
         "ref_chosen_logps: expected a number, found an array"},
        {SBP_INPUT, "{\"prompt_ids\": [1], \"completion_ids\": [2], \"logprobs\": 1}",
         "logprobs: expected an array"},
        {SBP_INPUT, "{\"prompt_ids\": [1], \"completion_ids\": [2], \"logprobs\": [\"a\"]}",
         "logprobs[0]: expected a number"},
        {SBP_INPUT, "{\"prompt_ids\": [1], \"completion_ids\": [2], \"env_mask\": [2]}",
         "env_mask[0]: expected 0 or 1"},
        {SBP_INPUT, "{\"prompt_ids\": [1], \"completion_ids\": [2], \"group\": 1.5}",
         "group: expected a string or an integer"},
        {SBP_INPUT, "{\"prompt_ids\": [1], \"completion_ids\": [2], \"advantage\": \"1\"}",
         "advantage: expected a number"},
        {SBP_USAGE, "{\"end_of_step\": true}", "are for --data -"},
        {SBP_INPUT, "{\"text\": \"a\", \"images\": [\"b.png\"]}",
         "data.jsonl:7: the row has 'images': models are trained on text, without images"},
        {SBP_INPUT, "{\"messages\": [{\"role\": \"user\"}], \"video\": {\"path\": \"b\"}}", "has 'video'"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        row_job job = start(f);
        assert_fails(f, cases[i].status, cases[i].message, parse(&job, cases[i].line));
    }
    row_job job = start(f);
    assert_ok(f, parse(&job, "{\"input_ids\": [1], \"images\": [], \"image\": null, \"audio\": \"\"}"));
    job = start(f);
    job.options.vocab_size = 0;
    assert_fails(f, SBP_INPUT, "found 2147483648", parse(&job, "{\"input_ids\": [2147483648]}"));
}

typedef struct unused_job {
    row_job *row;
    const sbp_json *root;
    const char *names;
} unused_job;

static sbp_status unused_body(void *user) {
    unused_job *job = user;
    row_job *row = job->row;
    SBP_TRY(sbp_json_parse(row->f->arena, row->f->diag, "d", row->line, strlen(row->line), SBP_JSON_ROW,
                           &job->root));
    job->names = sbp_row_unused(row->f->arena, &row->form, job->root);
    return SBP_OK;
}

/* Columns that nobody reads are named; those that some objective reads are not. */
static void test_what_is_not_read(void **state) {
    io_fixture *f = *state;
    static const char *const cases[][2] = {
        {"{\"text\": \"a\"}", NULL},
        {"{\"text\": \"a\", \"id\": 5, \"meta\": {}}", "'id', 'meta'"},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"input\": \"c\", \"reward\": 1}", "'input'"},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true, \"group\": 1}", NULL},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"label\": \"x\", \"text\": \"c\"}", "'label', 'text'"},
        {"{\"messages\": [{\"role\": \"user\"}], \"tools\": [], \"prompt\": \"a\"}", "'prompt'"},
        {"{\"text\": \"a\", \"tools\": []}", "'tools'"},
        {"{\"text\": \"a\", \"reward\": 1}", "'reward'"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"ref_chosen_logps\": 1, \"margin\": "
         "2}",
         "'margin'"},
        {"{\"input_ids\": [1], \"labels\": [1], \"attention_mask\": [1]}", "'attention_mask'"},
        {"{\"prompt_ids\": [1], \"completion_ids\": [2], \"logprobs\": [0], \"env_mask\": [1]}", NULL},
        {"{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [3], \"prompt\": \"a\"}", "'prompt'"},
        {"{\"prompt\": \"a\", "
         "\"1\":1,\"2\":1,\"3\":1,\"4\":1,\"5\":1,\"6\":1,\"7\":1,\"8\":1,\"9\":1,\"10\":1,"
         "\"11\":1,\"12\":1,\"13\":1}",
         "'1', '2', '3', '4', '5', '6', '7', '8', '9', '10', '11', '12' and 1 more"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        row_job job = start(f);
        unused_job unused = {.row = &job};
        assert_ok(f, parse(&job, cases[i][0]));
        assert_ok(f, sbp_guard(f->arena, f->diag, unused_body, &unused));
        if (cases[i][1])
            assert_string_equal(unused.names, cases[i][1]);
        else
            assert_null(unused.names);
    }
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

/* ---- pairs, prompts, rollouts ---------------------------------------------------------------------------
 */

static void test_where_pairs_part(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        size_t split;
    } cases[] = {
        {"The sky is blue", "The sky is green", 10}, /* the space goes to the answers */
        {"The sky isblue", "The sky isgreen", 10},
        {"abc", "abd", 2},
        {"abc", "xbc", 0},
        {"abc ", "xbc ", 0}, /* TRL: 3 */
        {"abc", "abcd", 2},  /* one begins the other: all but the last character */
        {"abcd", "abc", 2},
        {"abc", "abc", 2},
        {"a", "a", 0},
        {" a", " b", 0},
        {"  a", "  b", 1},
        {"ab ", "ab c", 2},            /* no break: the space is the last character, as it is */
        {"d\xc3\xa9", "d\xc3\xa8", 1}, /* e with two accents: not within a character */
        {"d\xc3\xa9", "d\xc3\xa9x", 1},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x81", 0},
        {"x \xf0\x9f\x98\x80", "x \xf0\x9f\x98\x81", 1},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_row_text a = {cases[i].a, strlen(cases[i].a)}, b = {cases[i].b, strlen(cases[i].b)};
        assert_int_equal(sbp_pair_split_texts(a, b), cases[i].split);
    }
}

/* A conversation's answers: 'prompt' of the row that a list of messages is left of. */
static void test_messages_of_pairs(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *chosen, *rejected;
        int64_t prompt;
    } cases[] = {
        {"{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}",
         "{\"content\": \"a\", \"role\": \"user\", \"name\": null}, {\"role\": \"assistant\", \"content\": "
         "\"c\"}",
         1},
        {"{\"role\": \"user\", \"content\": \"a\"}", "{\"role\": \"user\", \"content\": \"b\"}", 0},
        {"{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}",
         "{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}", 1},
        {"{\"role\": \"user\", \"content\": \"a\", \"x\": [1, {\"y\": true}]}, {\"role\": \"assistant\"}",
         "{\"role\": \"user\", \"content\": \"a\", \"x\": [1.0, {\"y\": true}]}, {\"role\": \"tool\"}", 1},
        {"{\"role\": \"user\", \"content\": \"a\", \"x\": [1]}, {\"role\": \"assistant\"}",
         "{\"role\": \"user\", \"content\": \"a\", \"x\": [2]}, {\"role\": \"assistant\"}", 0},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        row_job job = start(f);
        /* a prompt that is a string beside conversations is not read */
        assert_ok(f, parse(&job, sbp_arena_printf(f->arena, "{%s\"chosen\": [%s], \"rejected\": [%s]}",
                                                  i % 2 ? "\"prompt\": \"a\", " : "", cases[i].chosen,
                                                  cases[i].rejected)));
        assert_int_equal(job.row.text.messages->count, cases[i].prompt);
        assert_true(job.row.completion.messages->count > 0);
        assert_true(job.row.rejected.messages->count > 0);
    }
}

static void test_pairs_where_none_is_wanted(void **state) {
    io_fixture *f = *state;
    row_job job = start(f);
    job.options.no_pairs = true;
    assert_fails(
        f, SBP_USAGE,
        "data.jsonl:7: rows with 'chosen', 'rejected' are preference pairs, and the objective trains on "
        "single texts: use an objective for them",
        parse(&job, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}"));
    job.options.objective = "one";
    job.options.objective_of_pairs = "two";
    assert_fails(f, SBP_USAGE, "and one trains on single texts: use --objective two",
                 parse(&job, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}"));
    assert_fails(f, SBP_INPUT, "data.jsonl:7: found 'prompt', expected 'text'",
                 parse(&job, "{\"prompt\": \"a\"}"));
    /* what else the row is counts then */
    assert_ok(f, parse(&job, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"text\": \"d\"}"));
    assert_int_equal(job.form.type, SBP_ROW_TEXT);
    /* and what stands beside is not read, if not wanted */
    job = start(f);
    assert_ok(f, parse(&job, "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}"));
    assert_fails(f, SBP_INPUT, "the first row has 'prompt', 'completion', 'label', and so must all",
                 parse(&job, "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": \"x\"}"));
    job = start(f);
    job.options.fields = false;
    assert_ok(f, parse(&job, "{\"prompt\": \"a\", \"completion\": \"b\", \"reward\": \"?\", \"group\": []}"));
    assert_int_equal(job.form.fields, 0);
}

static sbp_documents make_all(io_fixture *f, sbp_document_maker *maker, const char *line) {
    row_job job = start(f);
    sbp_documents made;
    job.options.vocab_size = 512;
    assert_ok(f, parse(&job, line));
    assert_ok(f, sbp_documents_make(maker, f->arena, &job.row, &made));
    return made;
}

static void test_pairs(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *tokenizer = load_tokenizer(f);
    sbp_document_maker maker = {.tokenizer = tokenizer, .diag = f->diag};
    sbp_documents made =
        make_all(f, &maker,
                 "{\"prompt\": \"One day,\", \"chosen\": \" a cat\", \"rejected\": \" a dog</s>\", "
                 "\"ref_rejected_logps\": -2.5, \"ref_chosen_logps\": -1}");
    sbp_encoding prompt;
    assert_ok(f, sbp_tokenizer_encode(tokenizer, f->arena, f->diag, "One day,", 8, SBP_ADD_SPECIAL_TOKENS,
                                      &prompt));
    assert_int_equal(made.count, 2);
    assert_int_equal(made.group, 0);
    expect_ids(f, &made.documents[0], tokenizer, "One day, a cat</s>");
    expect_ids(f, &made.documents[1], tokenizer, "One day, a dog</s>");
    assert_string_equal(made.documents[0].part, "chosen");
    assert_string_equal(made.documents[1].part, "rejected");
    for (int i = 0; i < 2; i++) {
        const sbp_document *d = &made.documents[i];
        expect_labels(d, prompt.count);
        assert_int_equal(d->prompt, prompt.count);
        assert_int_equal(d->number_count, 1);
        assert_string_equal(d->numbers[0].name, "ref_logps_sum");
        assert_true(d->numbers[0].value == (i ? -2.5 : -1));
    }
    /* tokens merge across the border of one answer: both begin earlier */
    made = make_all(f, &maker, "{\"prompt\": \"Once upon a ti\", \"chosen\": \"me\", \"rejected\": \" xx\"}");
    assert_int_equal(sbp_diag_count(f->diag, SBP_WARNING), 1);
    assert_int_equal(made.documents[0].prompt, made.documents[1].prompt);
    assert_ok(f, sbp_tokenizer_encode(tokenizer, f->arena, f->diag, "Once upon a ti", 14,
                                      SBP_ADD_SPECIAL_TOKENS, &prompt));
    assert_true(made.documents[1].prompt < prompt.count);
    assert_memory_equal(made.documents[1].ids, prompt.ids, (size_t)prompt.count * 4); /* alone it would not */
    expect_labels(&made.documents[1], made.documents[0].prompt);
    /* ids */
    made = make_all(f, &maker, "{\"prompt_ids\": [5], \"chosen_ids\": [6, 7], \"rejected_ids\": [8]}");
    assert_int_equal(made.documents[0].count, 3);
    assert_int_equal(made.documents[1].ids[1], 8);
    expect_labels(&made.documents[1], 1);

    row_job job = start(f);
    assert_ok(f, parse(&job, "{\"prompt_ids\": [5], \"chosen_ids\": [6], \"rejected_ids\": []}"));
    assert_fails(f, SBP_INPUT, "data.jsonl:7: rejected_ids: expected an answer, found no token",
                 sbp_documents_make(&maker, f->arena, &job.row, &made));
    maker.loss_on = SBP_LOSS_ALL;
    assert_fails(f, SBP_USAGE, "--loss-on all does not apply",
                 sbp_documents_make(&maker, f->arena, &job.row, &made));
}

static void test_prompts_alone(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *tokenizer = load_tokenizer(f);
    sbp_document_maker maker = {.tokenizer = tokenizer, .diag = f->diag};
    sbp_document d = make(f, &maker, "{\"prompt\": \"One day,\"}");
    expect_ids(f, &d, tokenizer, "One day,");
    expect_labels(&d, d.count);
    assert_int_equal(d.prompt, d.count);
    assert_string_equal(d.part, "prompt");
}

static void test_rollouts(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *tokenizer = load_tokenizer(f);
    sbp_document_maker maker = {.tokenizer = tokenizer, .diag = f->diag};
    sbp_documents made = make_all(
        f, &maker,
        "{\"prompt_ids\": [5, 6], \"completion_ids\": [7, 8, 9], \"logprobs\": [-1, null, -3], \"env_mask\": "
        "[1, 0, 1], "
        "\"old_per_token_logps\": [-0.1, -0.2, -0.3], \"reward\": 2, \"advantage\": -0.5, \"group\": \"a\"}");
    const sbp_document *d = made.documents;
    assert_int_equal(made.count, 1);
    assert_int_equal(d->column_count, 2);
    assert_string_equal(d->columns[0].name, "old_logps");
    assert_string_equal(d->columns[1].name, "sampling_logps");
    static const double want[] = {0, 0, -0.1, -0.2, -0.3};
    assert_memory_equal(d->columns[0].values, want, sizeof want);
    assert_true(d->columns[1].values[2] == -1 && d->columns[1].values[4] == -3);
    assert_true(d->columns[1].values[3] != d->columns[1].values[3]); /* null */
    static const int32_t labels[] = {-100, -100, 7, -100, 9};
    assert_memory_equal(d->labels, labels, sizeof labels);
    assert_int_equal(d->number_count, 2);
    assert_string_equal(d->numbers[0].name, "advantage");
    assert_true(d->numbers[0].value == -0.5 && d->numbers[1].value == 2);

    /* groups: by key; without one by the tokens of the prompt */
    static const char row[] = "{\"prompt_ids\": [%d], \"completion_ids\": [7], \"reward\": 1%s}";
    uint64_t groups[5];
    static const struct {
        int prompt;
        const char *group;
    } rows[] = {{5, ""}, {5, ""}, {6, ""}, {5, ", \"group\": 1"}, {6, ", \"group\": 1"}};
    for (int i = 0; i < SBP_COUNT(rows); i++) {
        groups[i] = make_all(f, &maker, sbp_arena_printf(f->arena, row, rows[i].prompt, rows[i].group)).group;
        assert_true(groups[i] != 0);
    }
    assert_true(groups[0] == groups[1] && groups[0] != groups[2] && groups[3] == groups[4]);

    static const struct {
        const char *line, *message;
    } bad[] = {
        {"{\"prompt_ids\": [5], \"completion_ids\": [7], \"logprobs\": []}",
         "logprobs: expected as many items as the completion has tokens (1), found 0"},
        {"{\"prompt_ids\": [5], \"completion_ids\": [7], \"env_mask\": [1, 1]}",
         "env_mask: expected as many items as the completion has tokens (1), found 2"},
        {"{\"prompt\": \"One day,\", \"completion\": \" a\", \"ref_per_token_logps\": [1]}",
         "ref_per_token_logps: expected as many items as the completion has tokens (2), found 1"},
    };
    for (int i = 0; i < SBP_COUNT(bad); i++) {
        row_job job = start(f);
        assert_ok(f, parse(&job, bad[i].line));
        assert_fails(f, SBP_INPUT, bad[i].message, sbp_documents_make(&maker, f->arena, &job.row, &made));
    }
    maker.loss_on = SBP_LOSS_ALL;
    row_job job = start(f);
    assert_ok(f, parse(&job, "{\"prompt_ids\": [5], \"completion_ids\": [7], \"logprobs\": [1]}"));
    assert_fails(f, SBP_USAGE, "logprobs belong to the completion: --loss-on all",
                 sbp_documents_make(&maker, f->arena, &job.row, &made));
    /* an answer without a token is one that nothing is learnt from */
    maker.loss_on = SBP_LOSS_AUTO;
    made = make_all(f, &maker, "{\"prompt_ids\": [5], \"completion_ids\": [], \"reward\": 1}");
    assert_int_equal(made.documents->count, 1);
    assert_int_equal(made.documents->labels[0], -100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_types, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bad_rows, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_not_read, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_first_row_decides, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_lines, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_texts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_prompts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ids, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_tokens_of_trl, io_setup, io_teardown),
        cmocka_unit_test(test_where_pairs_part),
        cmocka_unit_test_setup_teardown(test_messages_of_pairs, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_pairs_where_none_is_wanted, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_pairs, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_prompts_alone, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_rollouts, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
