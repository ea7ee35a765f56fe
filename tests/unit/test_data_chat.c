/* Conversations: rows as templates see them, what the assistant said, prompts and completions, rows left out.
 * The tokenizer is that of stories260K, whose special tokens are <s> and </s>. */
#include "tests/common/row_line.h"
#include "tests/unit/io_testing.h"

#include "runtime/data/dataset.h"

typedef struct chat_case {
    io_fixture *f;
    sbp_chat_options options;
    sbp_document_maker maker;
    const char *line;
    sbp_document document;
    bool render, prompt; /* only the text, with the generation prompt */
    sbp_rendering text;
} chat_case;

static void begin(chat_case *c, io_fixture *f, const char *template, sbp_loss_on loss_on) {
    *c = (chat_case){.f = f};
    const sbp_tokenizer *tokenizer;
    assert_ok(f, sbp_tokenizer_load(f->arena, f->diag, "tests/data/stories260K", &tokenizer));
    c->options = (sbp_chat_options){.source = {.text = template, .length = strlen(template), .name = "t"},
                                    .date = "2026-03-01",
                                    .tokenizer = tokenizer,
                                    .assistant = loss_on == SBP_LOSS_ASSISTANT};
    c->maker = (sbp_document_maker){
        .tokenizer = tokenizer, .loss_on = loss_on, .diag = f->diag, .chat_options = &c->options};
    c->maker.chat_arena = f->arena;
}

static sbp_status case_body(void *user) {
    chat_case *c = user;
    sbp_row_options options = {};
    sbp_row_form form = {0};
    sbp_row row;
    sbp_documents made;
    SBP_TRY(row_of_line(c->f->arena, c->f->diag, "d:7", c->line, strlen(c->line), &options, &form, &row));
    if (c->render)
        return sbp_row_render(&c->maker, c->f->arena, &row, 0, c->prompt, &c->text);
    SBP_TRY(sbp_documents_make(&c->maker, c->f->arena, &row, &made));
    c->document = *made.documents;
    return SBP_OK;
}

static sbp_status make(chat_case *c, const char *line) {
    c->line = line;
    return sbp_guard(c->f->arena, c->f->diag, case_body, c);
}

/* The text of the tokens that count, each stretch behind a '|'. */
static const char *counted(chat_case *c) {
    const sbp_document *d = &c->document;
    char *out = sbp_arena_alloc(c->f->arena, 2000);
    for (int64_t i = 0, end; i < d->count; i = end) {
        for (end = i + 1; end < d->count && (d->labels[end] >= 0) == (d->labels[i] >= 0);)
            end++;
        const char *text;
        size_t length;
        if (d->labels[i] < 0)
            continue;
        assert_ok(c->f, sbp_tokenizer_decode(c->maker.tokenizer, c->f->arena, c->f->diag, d->ids + i, end - i,
                                             false, &text, &length));
        strcat(strcat(out, "|"), text);
        for (int64_t k = i; k < end; k++)
            assert_int_equal(d->labels[k], d->ids[k]);
    }
    return out;
}

#define TURNS                                                                                                \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"hi you\"}, {\"role\": \"assistant\", \"content\": " \
    "\"yes\"}, "                                                                                             \
    "{\"role\": \"user\", \"content\": \"more\"}, {\"role\": \"assistant\", \"content\": \"no it is\"}]}"

#define SHARED_TURNS                                                                                         \
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi you\"}, {\"from\": \"gpt\", \"value\": "     \
    "\"yes\"}, {\"from\": \"human\", \"value\": \"more\"}, {\"from\": \"gpt\", \"value\": \"no it is\"}]}"

static const char plain[] = "{% for m in messages %}<s>{{ m.role }}:\n{{ m.content }}</s>\n{% endfor %}"
                            "{% if add_generation_prompt %}<s>assistant:\n{% endif %}";
static const char marked[] = "{% for m in messages %}<s>{{ m.role }}:\n{% if m.role == 'assistant' %}{% "
                             "generation %}{{ m.content }}</s>\n"
                             "{% endgeneration %}{% else %}{{ m.content }}</s>\n{% endif %}{% endfor %}";

static void test_what_the_assistant_said(void **state) {
    io_fixture *f = *state;
    chat_case by_marks, by_differences, all;
    begin(&by_marks, f, marked, SBP_LOSS_ASSISTANT);
    begin(&by_differences, f, plain, SBP_LOSS_ASSISTANT);
    begin(&all, f, plain, SBP_LOSS_AUTO);
    assert_ok(f, make(&by_marks, TURNS));
    assert_ok(f, make(&by_differences, TURNS));
    assert_ok(f, make(&all, TURNS));
    assert_string_equal(counted(&by_differences), "|yes</s> |no it is</s> ");
    assert_int_equal(by_differences.document.count, all.document.count);
    assert_memory_equal(by_differences.document.ids, all.document.ids,
                        (size_t)all.document.count * sizeof(int32_t));
    for (int64_t i = 0; i < all.document.count; i++)
        assert_int_equal(all.document.labels[i], all.document.ids[i]);
    assert_string_equal(all.document.part, "text");
    assert_ok(f, make(&by_marks, SHARED_TURNS));
    assert_string_equal(counted(&by_marks), "|yes</s> |no it is</s> ");
    assert_ok(f, make(&by_differences, SHARED_TURNS));
    assert_string_equal(counted(&by_differences), "|yes</s> |no it is</s> ");
    assert_int_equal(0, sbp_diag_count(f->diag, SBP_WARNING));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE),
                           "chat template: t; assistant tokens: found by comparing renderings of it"));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "assistant tokens: as the template marks them"));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "all tokens of conversations are trained"));
    assert_fails(f, SBP_INPUT, "d:7: no token would be trained: no message is the assistant's",
                 make(&by_marks, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"));
    by_marks.maker.loss_on = SBP_LOSS_COMPLETION;
    assert_fails(f, SBP_INPUT, "rows have no completion", make(&by_marks, TURNS));
    by_marks.maker.loss_on = SBP_LOSS_ASSISTANT;
    assert_fails(f, SBP_INPUT, "rows are not conversations", make(&by_marks, "{\"text\": \"a\"}"));
}

/* A conversation of `answers` answers of `bytes` bytes. */
static const char *long_talk(io_fixture *f, int answers, int bytes) {
    sbp_text row;
    sbp_text_init(&row, f->arena);
    for (int i = 0; i < answers; i++)
        sbp_text_add(&row, "%s{\"role\": \"assistant\", \"content\": \"%0*d\"}",
                     i ? ", " : "{\"messages\": [", bytes, 0);
    sbp_text_add(&row, "]}");
    return row.data;
}

/* Comparing renderings takes memory of one of them, and ends before it takes hours. */
static void test_long_conversations_are_compared(void **state) {
    enum { ANSWERS = 400, BYTES = 100 };
    io_fixture *f = *state;
    chat_case by_marks, by_differences;
    size_t bytes[2];
    begin(&by_marks, f, marked, SBP_LOSS_ASSISTANT);
    begin(&by_differences, f, plain, SBP_LOSS_ASSISTANT);
    const char *talk = long_talk(f, ANSWERS, BYTES);
    chat_case *const cases[] = {&by_marks, &by_differences};
    for (int i = 0; i < 2; i++) {
        size_t before = sbp_arena_bytes(f->arena);
        assert_ok(f, make(cases[i], talk));
        bytes[i] = sbp_arena_bytes(f->arena) - before;
    }
    assert_true(bytes[1] <
                bytes[0] + (size_t)ANSWERS * ANSWERS * BYTES / 4); /* all of them: four times as much */
    for (int64_t i = 0; i < by_differences.document.count; i++)
        assert_true(by_differences.document.labels[i] < 0 ||
                    by_differences.document.labels[i] == by_differences.document.ids[i]);
    assert_fails(f, SBP_INPUT, "d:7: to find what the assistant said in a conversation of ",
                 make(&by_differences, long_talk(f, 140 * ANSWERS, BYTES)));
}

static void test_what_cannot_be_told(void **state) {
    io_fixture *f = *state;
    chat_case c;
    static const char forgets[] =
        "{% for m in messages %}{{ m.role }}{{ m.content if loop.last else '' }};{% endfor %}";
    begin(&c, f, forgets, SBP_LOSS_ASSISTANT);
    assert_fails(f, SBP_INPUT,
                 "d:7: message 1 (from 0): the template writes the conversation up to here differently",
                 make(&c, TURNS));
    begin(&c, f, "{{ messages | nofilter }}", SBP_LOSS_AUTO);
    assert_fails(f, SBP_INPUT, "t:1:15: there is no filter 'nofilter'", make(&c, TURNS));
    begin(&c, f, "{{ raise_exception('roles') }}", SBP_LOSS_AUTO);
    assert_fails(f, SBP_INPUT, "d:7: t:1:19: the template refuses the conversation: roles", make(&c, TURNS));
    begin(&c, f, "", SBP_LOSS_AUTO);
    c.options.source.text = NULL;
    assert_fails(f, SBP_INPUT, "the model has no chat template: give --chat-template", make(&c, TURNS));
}

static void test_an_end_outside_warns(void **state) {
    io_fixture *f = *state;
    chat_case c;
    begin(&c, f,
          "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %} </s>{% "
          "endfor %}",
          SBP_LOSS_ASSISTANT);
    assert_ok(f, make(&c, TURNS));
    assert_int_equal(1, sbp_diag_count(f->diag, SBP_WARNING));
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_WARNING), "leaves the token '</s>' behind an answer outside"));
    sbp_diag_clear(f->diag);
    begin(&c, f, "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}", SBP_LOSS_AUTO);
    assert_ok(f, make(&c, TURNS));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_WARNING), "'<|im_start|>', which is "));
}

static void test_prompts(void **state) {
    io_fixture *f = *state;
    chat_case c;
    static const char line[] =
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}], \"completion\": [{\"role\": "
        "\"assistant\", \"content\": \"yes\"}, {\"role\": \"user\", \"content\": \"so\"}]}";
    static const struct {
        sbp_loss_on loss_on;
        const char *counted;
    } cases[] = {{SBP_LOSS_AUTO, "|yes</s> \n<s> user:\nso</s>"},
                 {SBP_LOSS_COMPLETION, "|yes</s> \n<s> user:\nso</s>"},
                 {SBP_LOSS_ASSISTANT, "|yes</s>"}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        begin(&c, f, plain, cases[i].loss_on);
        assert_ok(f, make(&c, line));
        assert_string_equal(c.document.part, "completion");
        if (strncmp(counted(&c), cases[i].counted, strlen(cases[i].counted)) != 0)
            fail_msg("expected %s, found %s", cases[i].counted, counted(&c));
    }
    assert_int_equal(0, sbp_diag_count(f->diag, SBP_WARNING));
    begin(&c, f,
          "{% for m in messages %}{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}other{% endif "
          "%}",
          SBP_LOSS_AUTO);
    assert_ok(f, make(&c, line));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_WARNING), "The completion begins where they differ"));
}

static void test_what_templates_see(void **state) {
    io_fixture *f = *state;
    static const char *const cases[][3] = {
        {"{{ messages }}",
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": "
         "null}]}",
         "[{'role': 'user', 'content': 'a'}, {'role': 'assistant'}]"},
        {"{{ messages }}",
         "{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"function_call\", "
         "\"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": null}}\"}, {\"from\": "
         "\"observation\", \"value\": \"o\"}, {\"from\": \"function\", \"value\": {\"a\": 1}}, {\"from\": "
         "\"user\", "
         "\"value\": \"u\", \"weight\": 1}]}",
         "[{'role': 'system', 'content': 's'}, {'role': 'assistant', 'tool_calls': [{'type': 'function', "
         "'function': {'name': 'f', 'arguments': {'x': None}}}]}, {'role': 'tool', 'content': 'o'}, {'role': "
         "'tool', 'content': {'a': 1}}, {'role': 'user', 'content': 'u'}]"},
        {"{{ messages }}",
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}], \"chosen\": {\"from\": \"gpt\", "
         "\"value\": \"a\"}, \"rejected\": {\"from\": \"gpt\", \"value\": \"b\"}}",
         "[{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]"},
        {"{{ messages }}",
         "{\"prompt\": [{\"from\": \"human\", \"value\": \"q\"}], \"chosen\": [{\"from\": \"gpt\", "
         "\"value\": "
         "\"a\"}], \"rejected\": [{\"from\": \"gpt\", \"value\": \"b\"}]}",
         "[{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]"},
        {"{{ messages }}",
         "{\"messages\": [{\"role\": \"assistant\", \"reasoning\": \"r\", \"name\": null, \"tool_calls\": "
         "[{\"function\": "
         "{\"name\": \"f\", \"arguments\": {\"x\": null, \"y\": [null]}}}]}]}",
         "[{'thinking': 'r', 'role': 'assistant', 'reasoning': 'r', 'tool_calls': [{'function': {'name': "
         "'f', "
         "'arguments': {'y': [None]}}}], 'reasoning_content': 'r'}]"},
        {"{{ tools }}{{ documents }}{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}",
         "{\"messages\": [{\"role\": \"user\"}]}", "NoneNone<s></s>False"},
        {"{{ tools | tojson }}",
         "{\"messages\": [{\"role\": \"user\"}], \"tools\": \"[{\\\"a\\\": 1, \\\"b\\\": null}]\"}",
         "[{\"a\": 1, \"b\": null}]"}, /* as a list it has no nulls, as a text it keeps them */
        {"{{ bos_token }}{{ flag }}",
         "{\"messages\": [{\"role\": \"user\"}], \"chat_template_kwargs\": {\"flag\": true, \"bos_token\": "
         "\"B\"}}",
         "BTrue"},
        {"{{ strftime_now('%d %b %Y') }}", "{\"messages\": [{\"role\": \"user\"}]}", "01 Mar 2026"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        chat_case c;
        begin(&c, f, cases[i][0], SBP_LOSS_AUTO);
        c.render = true;
        assert_ok(f, make(&c, cases[i][1]));
        assert_string_equal(c.text.text, cases[i][2]);
    }
    chat_case c;
    begin(&c, f, "default", SBP_LOSS_AUTO);
    c.options.source.tool_text = "with tools{{ add_generation_prompt }}";
    c.options.source.tool_length = strlen(c.options.source.tool_text);
    c.render = c.prompt = true;
    assert_ok(f, make(&c, "{\"messages\": [{\"role\": \"user\"}], \"tools\": [{}]}"));
    assert_string_equal(c.text.text, "with toolsTrue");
    assert_ok(f, make(&c, "{\"messages\": [{\"role\": \"user\"}]}"));
    assert_string_equal(c.text.text, "default");
}

#define PARTS "[{\"type\": \"text\", \"text\": \"one \"}, {\"type\": \"text\", \"text\": \"two\"}]"
#define CALLS "\"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

/* Lists of parts and calls without a content, by templates that read them, refuse them, or print them. */
static void test_contents(void **state) {
    io_fixture *f = *state;
    static const char adds[] = "{% for m in messages %}<{{ m.role + m.content }}>{% endfor %}",
                      prints[] = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}",
                      dumps[] = "{% for m in messages %}<{{ m.content | tojson }}>{% endfor %}",
                      reads[] =
                          "{% for m in messages %}{% if m.content is string %}<{{ m.content }}>{% else %}"
                          "{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}",
                      none[] = "{% for m in messages %}{% if m.content is none %}<none>{% else %}{{ m.role + "
                               "m.content }}{% endif %}{% endfor %}";
    static const struct {
        const char *template, *message, *want; /* NULL: an error */
        const char *error;
    } cases[] = {
        {adds, "\"content\": " PARTS, "<assistantone two>", NULL},
        {adds, "\"content\": []", "<assistant>", NULL},
        {prints, "\"content\": " PARTS, "<one two>", NULL},
        {dumps, "\"content\": " PARTS, "<\"one two\">", NULL},
        {reads, "\"content\": " PARTS, "(one )(two)", NULL},
        {prints, "\"content\": \"'type': 'x'\"", "<'type': 'x'>", NULL},
        {reads, "\"content\": [{\"type\": \"text\", \"text\": \"'type': 'x'\"}]", "('type': 'x')", NULL},
        {adds, "\"content\": [{\"type\": \"thought\"}]", NULL,
         "messages[0].content[0].type: found a part of type 'thought', and the template takes texts only"},
        {reads, "\"content\": [{\"type\": \"thought\", \"text\": \"t\"}]", "(t)", NULL},
        {reads, "\"content\": [{\"type\": \"image_url\"}]", NULL,
         "messages[0].content[0].type: found a part of type 'image_url': models are trained on text"},
        {adds, "\"content\": [{\"type\": \"text\", \"text\": 5}]", NULL,
         "content[0].text: expected a string"},
        {prints, CALLS, "<>", NULL},
        {prints, "\"content\": null, " CALLS, "<>", NULL},
        {none, "\"content\": null, " CALLS, "<none>", NULL},
        {none, "\"content\": " PARTS ", " CALLS, "assistantone two", NULL},
        {none, "\"content\": null", NULL, "'dict' has no attribute 'content'"},
        {adds, CALLS, NULL, "messages[0]: has tool_calls and no content, which the template does not take"},
        {adds, "\"content\": \"\", " CALLS, "<assistant>", NULL},
        {"{{ raise_exception('no') }}", CALLS, NULL, "refuses the conversation: no"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        chat_case c;
        begin(&c, f, cases[i].template, SBP_LOSS_AUTO);
        c.render = true;
        const char *line =
            sbp_arena_printf(f->arena, "{\"messages\": [{\"role\": \"assistant\", %s}]}", cases[i].message);
        if (!cases[i].want) {
            assert_fails(f, SBP_INPUT, cases[i].error, make(&c, line));
            continue;
        }
        assert_ok(f, make(&c, line));
        assert_string_equal(c.text.text, cases[i].want);
    }
}

/* What is trained on is told by the same form of contents. */
static void test_contents_that_count(void **state) {
    io_fixture *f = *state;
    chat_case c;
    begin(&c, f, plain, SBP_LOSS_ASSISTANT);
    assert_ok(
        f, make(&c, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hi "
                    "you\"}]}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": "
                    "\"yes\"}]}]}"));
    assert_string_equal(counted(&c), "|yes</s> ");
    assert_ok(f,
              make(&c, "{\"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hi "
                       "you\"}]}], \"completion\": [{\"role\": \"assistant\", \"content\": [{\"type\": "
                       "\"text\", \"text\": \"yes\"}]}]}"));
    assert_string_equal(counted(&c), "|yes</s> ");
}

static void test_rows_left_out(void **state) {
    io_fixture *f = *state;
    chat_case c;
    sbp_dataset *data;
    static const char lines[] =
        "{\"messages\": 5}\n" TURNS "\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n"
        "no json\n{\"text\": \"a\"}\n" TURNS "\n";
    io_put(io_path(f, "d.jsonl"), lines, sizeof lines - 1);
    begin(&c, f, plain, SBP_LOSS_ASSISTANT);
    const char *file = io_path(f, "d.jsonl");
    sbp_dataset_options options = {.files = &file,
                                   .file_count = 1,
                                   .tokenizer = c.maker.tokenizer,
                                   .loss_on = SBP_LOSS_ASSISTANT,
                                   .chat = &c.options,
                                   .skip_bad_rows = true};
    assert_ok(f, sbp_dataset_load(f->diag, &options, &data));
    assert_int_equal(data->row_count, 2);
    assert_int_equal(data->bad, 4);
    assert_int_equal(data->docs[1].row, 5);
    assert_int_equal(0, sbp_diag_count(f->diag, SBP_ERROR));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "4 of 6 rows left out: they are wrong"));
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_WARNING), "d.jsonl:3: no token would be trained"));
    sbp_dataset_destroy(data);
    options.skip_bad_rows = false;
    assert_fails(f, SBP_INPUT, "d.jsonl:1: messages: expected a list",
                 sbp_dataset_load(f->diag, &options, &data));
}

/* Columns that nobody reads are named for the first row that is good, and once. */
static void test_columns_that_are_not_used(void **state) {
    io_fixture *f = *state;
    static const char lines[] =
        "{\"text\": 5}\n{\"text\": \"a\", \"id\": 1}\n{\"text\": \"b\", \"more\": 1}\n";
    io_put(io_path(f, "d.jsonl"), lines, sizeof lines - 1);
    const char *file = io_path(f, "d.jsonl");
    chat_case c;
    sbp_dataset *data;
    begin(&c, f, plain, SBP_LOSS_AUTO);
    sbp_dataset_options options = {
        .files = &file, .file_count = 1, .tokenizer = c.maker.tokenizer, .skip_bad_rows = true};
    for (int i = 0; i < 2; i++) {
        sbp_diag_clear(f->diag);
        options.quiet = i == 1;
        assert_ok(f, sbp_dataset_load(f->diag, &options, &data));
        sbp_dataset_destroy(data);
        const char *notes = sbp_diag_text(f->diag, SBP_NOTE);
        assert_int_equal(i == 0, strstr(notes, "d.jsonl:2: columns that are not used: 'id'\n") != NULL);
        assert_null(strstr(notes, "more"));
    }
}

/* What is no row's fault ends the reading, whatever is done with bad rows. */
static void test_what_is_no_fault_of_rows(void **state) {
    io_fixture *f = *state;
    chat_case c;
    sbp_dataset *data;
    static const char lines[] = TURNS "\n" TURNS "\n";
    io_put(io_path(f, "d.jsonl"), lines, sizeof lines - 1);
    begin(&c, f, "{{ messages | nofilter }}", SBP_LOSS_AUTO);
    const char *file = io_path(f, "d.jsonl");
    sbp_dataset_options options = {.files = &file,
                                   .file_count = 1,
                                   .tokenizer = c.maker.tokenizer,
                                   .chat = &c.options,
                                   .skip_bad_rows = true};
    assert_fails(f, SBP_INPUT, "no filter 'nofilter'", sbp_dataset_load(f->diag, &options, &data));
    c.options.source.text = NULL;
    assert_fails(f, SBP_INPUT, "the model has no chat template: give --chat-template",
                 sbp_dataset_load(f->diag, &options, &data));
    options.tokenizer = NULL;
    assert_fails(f, SBP_INPUT, "d.jsonl:1: rows of text need a tokenizer, and no tokenizer.json was read",
                 sbp_dataset_load(f->diag, &options, &data));
}

/* A directory's templates: the file before the field, the default of a list, tool_use, names. */
typedef struct source_job {
    io_fixture *f;
    const char *request;
    sbp_template_source out;
} source_job;

static sbp_status find_source(void *user) {
    source_job *job = user;
    sbp_arena *arena = job->f->arena;
    if (job->request)
        return sbp_template_source_find(arena, job->f->diag, job->request, job->f->directory, &job->out);
    return sbp_template_source_of_model(arena, job->f->diag, job->f->directory, &job->out);
}

static void put(io_fixture *f, const char *name, const char *text) {
    io_put(io_path(f, name), text, strlen(text));
}

static void test_sources(void **state) {
    io_fixture *f = *state;
    source_job job = {.f = f};
    assert_ok(f, sbp_guard(f->arena, f->diag, find_source, &job));
    assert_null(job.out.text);
    put(f, "tokenizer_config.json", "{\"chat_template\": \"field\"}");
    assert_ok(f, sbp_guard(f->arena, f->diag, find_source, &job));
    assert_string_equal(job.out.text, "field");
    put(f, "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"}, {\"name\": "
        "\"default\", \"template\": \"usual\"}, {\"name\": \"rag\", \"template\": \"r\"}]}");
    assert_ok(f, sbp_guard(f->arena, f->diag, find_source, &job));
    assert_string_equal(job.out.text, "usual");
    assert_string_equal(job.out.tool_text, "tools");
    job.request = "rag";
    assert_ok(f, sbp_guard(f->arena, f->diag, find_source, &job));
    assert_string_equal(job.out.text, "r");
    job.request = "nothing";
    assert_fails(f, SBP_USAGE, "--chat-template nothing: no file, no directory",
                 sbp_guard(f->arena, f->diag, find_source, &job));
    put(f, "chat_template.jinja", "file");
    job.request = f->directory;
    assert_ok(f, sbp_guard(f->arena, f->diag, find_source, &job));
    assert_string_equal(job.out.text, "file");
    job.request = io_path(f, "tokenizer_config.json");
    assert_ok(f, sbp_guard(f->arena, f->diag, find_source, &job));
    assert_int_equal('{', job.out.text[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, io_setup, io_teardown)
        CASE(test_what_the_assistant_said),
        CASE(test_long_conversations_are_compared),
        CASE(test_what_cannot_be_told),
        CASE(test_an_end_outside_warns),
        CASE(test_prompts),
        CASE(test_what_templates_see),
        CASE(test_rows_left_out),
        CASE(test_contents),
        CASE(test_contents_that_count),
        CASE(test_columns_that_are_not_used),
        CASE(test_what_is_no_fault_of_rows),
        CASE(test_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
