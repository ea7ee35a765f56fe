/* check_rows.c: the rows that a check runs: the first of the data, cut to a short micro-batch, or random
 * tokens. */
#include <stdio.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/check.h"
#include "runtime/data/groups.h"

/* ---- random tokens ---------------------------------------------------------------------------------- */

enum { RANDOM_ROWS = 64, PROMPT_TOKENS = 24 };

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void write_ids(sbp_json_writer *w, const char *key, int64_t count, int64_t vocabulary,
                      uint64_t *state) {
    sbp_json_write_array(w, key);
    for (int64_t i = 0; i < count; i++)
        sbp_json_write_int(w, NULL, (int64_t)(next(state) % (uint64_t)vocabulary));
    sbp_json_write_end(w);
}

/* A row with all that objectives read; what one does not read is passed over. */
static void write_row(sbp_json_writer *w, int64_t row, int64_t length, int64_t vocabulary,
                      sbp_rows_wanted wanted, uint64_t *state) {
    uint64_t of_prompt = (uint64_t)(row / 2 + 1); /* two answers each */
    sbp_json_write_object(w, NULL);
    if (wanted == SBP_ROWS_TEXTS) {
        uint64_t again = *state;
        write_ids(w, "input_ids", length, vocabulary, state);
        write_ids(w, "labels", length, vocabulary, &again);
    } else {
        write_ids(w, "prompt_ids", PROMPT_TOKENS, vocabulary, &of_prompt);
    }
    if (wanted == SBP_ROWS_PAIRS) {
        write_ids(w, "chosen_ids", length, vocabulary, state);
        write_ids(w, "rejected_ids", length, vocabulary, state);
    } else if (wanted != SBP_ROWS_TEXTS) {
        write_ids(w, "completion_ids", length, vocabulary, state);
        sbp_json_write_double(w, "advantage", row % 2 ? -0.75 : 1.25);
        sbp_json_write_double(w, "reward", row % 2 ? -0.75 : 1.25);
        sbp_json_write_int(w, "group", row / 2);
        sbp_json_write_bool(w, "label", row % 2 == 0);
    }
    sbp_json_write_end(w);
}

sbp_status sbp_check_write_rows(const sbp_world *world, const sbp_session *session, const char *path) {
    sbp_text text;
    int64_t vocabulary = session->info.meta.vocab_size, most = sbp_program_most_rows(session->plan->program);
    sbp_rows_wanted wanted = sbp_pack_rows_wanted(session->plan->program);
    uint64_t state = 1;
    if (vocabulary < 1)
        return sbp_fail(world->diag, SBP_USAGE, "'%s' does not say its vocabulary: give --data FILE",
                        session->plan_path);
    int64_t length = most / (wanted == SBP_ROWS_TEXTS ? 2 : 4) - PROMPT_TOKENS;
    length = length < 8 ? 8 : length > 512 ? 512 : length;
    sbp_text_init(&text, world->arena);
    for (int64_t row = 0; row < RANDOM_ROWS; row++) {
        sbp_json_writer w = sbp_json_writer_on(&text);
        write_row(&w, row, length - row % 5, vocabulary, wanted, &state);
        sbp_text_add(&text, "\n");
    }
    FILE *file = fopen(path, "we");
    bool written = file && fwrite(text.data, 1, text.length, file) == text.length;
    if (!file || fclose(file) != 0 || !written)
        return sbp_fail(world->diag, SBP_IO, "%s: rows of random tokens cannot be written", path);
    return SBP_OK;
}

/* ---- the first rows --------------------------------------------------------------------------------- */

static int32_t count_labels(const sbp_dataset *data, const sbp_doc *doc) {
    int32_t count = 0;
    for (int32_t i = 1; i < doc->count; i++)
        count += data->labels[doc->first + i] >= 0;
    return count;
}

/* Documents as they came. */
static void restore(sbp_check *check) {
    sbp_dataset *data = check->inputs->data;
    if (!check->came.docs) {
        check->came.docs = SBP_NEW_ARRAY(check->world->arena, sbp_doc, data->doc_count + 1);
        memcpy(check->came.docs, data->docs, (size_t)data->doc_count * sizeof *data->docs);
        check->came.doc_count = data->doc_count;
        check->came.row_count = data->row_count;
        check->rows = SBP_NEW_ARRAY(check->world->arena, int64_t, data->row_count + 1);
    }
    memcpy(data->docs, check->came.docs, (size_t)check->came.doc_count * sizeof *data->docs);
    data->row_count = check->came.row_count;
    for (int64_t r = 0; r < data->row_count; r++)
        check->rows[r] = r;
}

/* The rows from `row` on that belong together: behind the last. */
static int64_t unit_end(const sbp_dataset *data, int64_t row) {
    do
        row++;
    while (row < data->row_count && !sbp_dataset_begins_group(data, row));
    return row;
}

/* Documents of rows [row, end) keep their last `most` tokens. Their tokens. */
static int64_t cut(sbp_dataset *data, int64_t row, int64_t end, int64_t most, int64_t *labels) {
    int64_t tokens = 0;
    for (int64_t k = data->rows[row]; k < data->rows[end]; k++) {
        sbp_doc *doc = &data->docs[sbp_dataset_doc_at(data, k)];
        if (doc->count > most) {
            doc->first += doc->count - most;
            doc->count = (int32_t)most;
            doc->labels = count_labels(data, doc);
        }
        tokens += doc->count;
        *labels += doc->labels;
    }
    return tokens;
}

int64_t sbp_check_most_rows(const sbp_program *program) {
    enum { SHORT_CHUNK = 256 }; /* of these there are three */
    int64_t chunk = program->chunk, most = sbp_program_most_rows(program);
    int64_t rows = chunk <= SHORT_CHUNK ? 2 * chunk + chunk / 2 + 1 : chunk + chunk / 8 + 1;
    return rows < most ? rows : most;
}

sbp_status sbp_check_take_rows(sbp_check *check, int64_t most) {
    enum { LEAST = 4 }; /* tokens of a document */
    sbp_dataset *data = check->inputs->data;
    int64_t row = 0, tokens = 0, labels = 0;
    restore(check);
    while (row < data->row_count) {
        int64_t end = unit_end(data, row), docs = data->rows[end] - data->rows[row];
        int64_t each = (row == 0 ? most * 3 / 4 : most - tokens) / docs; /* two documents at least */
        if (each < LEAST)
            break;
        tokens += cut(data, row, end, each, &labels);
        row = end;
    }
    data->row_count = row;
    if (labels == 0)
        return sbp_fail(check->world->diag, SBP_MACHINE,
                        "the first rows of the data train none of their last tokens, so there is no gradient "
                        "to check (%lld rows, %lld tokens)",
                        (long long)row, (long long)tokens);
    return SBP_OK;
}
