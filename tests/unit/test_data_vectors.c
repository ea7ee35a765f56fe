/* Rows of every type as TRL tokenizes them: tests/golden/rows/vectors.jsonl, written by compare_rows.py
 * there. */
#include "tests/unit/io_testing.h"

#include <math.h>

#include "runtime/data/tokenize.h"

static const char *read_text(io_fixture *f, const char *path) {
    const char *text;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &text, &length));
    return sbp_arena_strndup(f->arena, text, length);
}

static void expect_ids(const sbp_json *want, const int32_t *got, int64_t count) {
    assert_int_equal(want->count, count);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(want->items[i].integer, got[i]);
}

static void expect_number(const sbp_json *want, double got) {
    if (want->kind == SBP_JSON_NULL)
        assert_true(isnan(got));
    else
        assert_true(got == (want->kind == SBP_JSON_INT ? (double)want->integer : want->real));
}

/* All that the vector has of a document, and nothing else. */
static void expect_document(const sbp_json *want, const sbp_document *d) {
    expect_ids(sbp_json_member(want, "input_ids"), d->ids, d->count);
    expect_ids(sbp_json_member(want, "labels"), d->labels, d->count);
    assert_int_equal(want->count, 2 + d->column_count + d->number_count);
    for (int32_t k = 0; k < d->column_count; k++) {
        const sbp_json *column = sbp_json_member(want, d->columns[k].name);
        assert_non_null(column);
        assert_int_equal(column->count, d->count);
        for (int64_t i = 0; i < d->count; i++)
            expect_number(&column->items[i], d->columns[k].values[i]);
    }
    for (int32_t k = 0; k < d->number_count; k++) {
        const sbp_json *number = sbp_json_member(want, d->numbers[k].name);
        assert_non_null(number);
        expect_number(number, d->numbers[k].value);
    }
}

typedef struct vector_job {
    io_fixture *f;
    const sbp_tokenizer *tokenizer;
    const char *text;
    int count, by_kind[6];
} vector_job;

static const char *const kinds[] = {"sft", "assistant", "pair", "unpaired", "prompt", "rollout"};

static sbp_status check_vector(vector_job *job, const char *line) {
    io_fixture *f = job->f;
    const sbp_json *vector;
    const char *kind, *template;
    SBP_TRY(sbp_json_parse(f->arena, f->diag, "vectors", line, strlen(line), SBP_JSON_ROW, &vector));
    SBP_TRY(sbp_json_get_string(f->diag, vector, "kind", SBP_JSON_REQUIRED, &kind));
    SBP_TRY(sbp_json_get_string(f->diag, vector, "template", SBP_JSON_REQUIRED, &template));
    bool assistant = strcmp(kind, "assistant") == 0, ours = strcmp(template, "think.jinja") == 0;
    const char *source =
        read_text(f, sbp_arena_printf(f->arena, "tests/golden/%s/%s", ours ? "rows" : "chat", template));
    const sbp_chat_options chat = {.source = {.text = source, .length = strlen(source), .name = template},
                                   .date = "2026-03-01",
                                   .tokenizer = job->tokenizer,
                                   .assistant = assistant,
                                   .quiet = true};
    sbp_document_maker maker = {.tokenizer = job->tokenizer,
                                .loss_on = assistant ? SBP_LOSS_ASSISTANT : SBP_LOSS_AUTO,
                                .diag = f->diag,
                                .chat_options = &chat};
    const sbp_row_options options = {.vocab_size = 512, .fields = true};
    sbp_row_form form = {0};
    sbp_row row;
    sbp_documents made;
    const sbp_json *want = sbp_json_member(vector, "want");
    SBP_TRY(sbp_row_read(f->arena, f->diag, "row", sbp_json_member(vector, "row"), &options, &form, &row));
    SBP_TRY(sbp_documents_make(&maker, f->arena, &row, &made));
    bool parts = !sbp_json_member(want, "input_ids");
    assert_int_equal(made.count, parts ? want->count : 1);
    for (int32_t i = 0; i < made.count; i++)
        expect_document(parts ? sbp_json_member(want, made.documents[i].part) : want, &made.documents[i]);
    for (int k = 0; k < SBP_COUNT(kinds); k++)
        job->by_kind[k] += strcmp(kind, kinds[k]) == 0;
    job->count++;
    return SBP_OK;
}

static sbp_status check_all(void *user) {
    vector_job *job = user;
    for (const char *at = job->text; *at;) {
        size_t length = strcspn(at, "\n");
        SBP_TRY(check_vector(job, sbp_arena_strndup(job->f->arena, at, length)));
        at += length + (at[length] == '\n');
    }
    return SBP_OK;
}

static void test_rows_of_trl(void **state) {
    io_fixture *f = *state;
    vector_job job = {.f = f, .text = read_text(f, "tests/golden/rows/vectors.jsonl")};
    assert_ok(f, sbp_tokenizer_load(f->arena, f->diag, "tests/data/stories260K", &job.tokenizer));
    assert_ok(f, sbp_guard(f->arena, f->diag, check_all, &job));
    print_message("%d rows as TRL tokenizes them\n", job.count);
    for (int k = 0; k < SBP_COUNT(kinds); k++)
        assert_true(job.by_kind[k] >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rows_of_trl, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
