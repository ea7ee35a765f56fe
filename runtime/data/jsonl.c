/* jsonl.c: lines to typed rows. */
#include "runtime/data/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/data/messages.h"

typedef struct row_reader {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *where;
    const sbp_json *root;
    const sbp_row_options *options;
    sbp_row *row;
} row_reader;

/* ---- types ------------------------------------------------------------------------------------------ */

static const char *type_name(const row_reader *r, const sbp_row_form *form) {
    switch (form->type) {
    case SBP_ROW_INPUT_IDS:
        return sbp_arena_printf(r->arena, "'input_ids'%s%s%s", form->labels ? ", 'labels'" : "",
                                form->completion_mask ? ", 'completion_mask'" : "",
                                form->assistant_masks ? ", 'assistant_masks'" : "");
    case SBP_ROW_PROMPT_IDS:
        return "'prompt_ids', 'completion_ids'";
    case SBP_ROW_PROMPT:
        return "'prompt', 'completion'";
    case SBP_ROW_MESSAGES:
        return "'messages'";
    case SBP_ROW_PROMPT_MESSAGES:
        return "'prompt', 'completion' of messages";
    case SBP_ROW_TEXT:
        return sbp_arena_printf(r->arena, "'%s'", r->options->text_field);
    default:
        return "nothing";
    }
}

static const char *keys_of(const row_reader *r) {
    sbp_text out;
    sbp_text_init(&out, r->arena);
    for (int64_t i = 0; i < r->root->count && i < 12; i++)
        sbp_text_add(&out, "%s'%.40s'%s", i ? ", " : "", r->root->items[i].key,
                     r->root->items[i].kind == SBP_JSON_NULL ? " (null)" : "");
    return r->root->count ? out.data : "no keys";
}

static bool has(const row_reader *r, const char *key) {
    const sbp_json *member = sbp_json_member(r->root, key);
    return member && member->kind != SBP_JSON_NULL;
}

static sbp_status not_built(const row_reader *r, const char *what) {
    return sbp_fail(r->diag, SBP_USAGE, "%s: %s are not built yet", r->where, what);
}

static sbp_status find_form(const row_reader *r, sbp_row_form *form) {
    *form = (sbp_row_form){0};
    if (has(r, "input_ids")) {
        *form = (sbp_row_form){.type = SBP_ROW_INPUT_IDS,
                               .labels = has(r, "labels"),
                               .completion_mask = has(r, "completion_mask"),
                               .assistant_masks = has(r, "assistant_masks")};
        return SBP_OK;
    }
    if (has(r, "prompt_ids") && has(r, "completion_ids")) {
        form->type = SBP_ROW_PROMPT_IDS;
        return SBP_OK;
    }
    if (has(r, "chosen") || has(r, "rejected") || has(r, "chosen_ids") || has(r, "rejected_ids"))
        return not_built(r, "rows with chosen and rejected answers");
    if (has(r, "prompt") && has(r, "completion")) {
        bool messages = sbp_json_member(r->root, "prompt")->kind == SBP_JSON_ARRAY ||
                        sbp_json_member(r->root, "completion")->kind == SBP_JSON_ARRAY;
        form->type = messages ? SBP_ROW_PROMPT_MESSAGES : SBP_ROW_PROMPT;
        return SBP_OK;
    }
    if (has(r, "messages") || has(r, "conversations")) {
        form->type = SBP_ROW_MESSAGES;
        return SBP_OK;
    }
    if (has(r, r->options->text_field)) {
        form->type = SBP_ROW_TEXT;
        return SBP_OK;
    }
    if (has(r, "end_of_step"))
        return not_built(r, "rows that end a step");
    return sbp_fail(r->diag, SBP_INPUT,
                    "%s: found %s, expected '%s', 'messages', 'prompt' and 'completion', 'input_ids', or "
                    "'prompt_ids' and "
                    "'completion_ids'; --text-field names another key of the text",
                    r->where, keys_of(r), r->options->text_field);
}

static bool same_form(const sbp_row_form *a, const sbp_row_form *b) {
    return a->type == b->type && a->labels == b->labels && a->completion_mask == b->completion_mask &&
           a->assistant_masks == b->assistant_masks;
}

/* ---- fields ----------------------------------------------------------------------------------------- */

static sbp_status read_text(const row_reader *r, const char *key, sbp_row_text *out) {
    const sbp_json *node = sbp_json_member(r->root, key);
    if (node->kind != SBP_JSON_STRING)
        return sbp_json_fail(r->diag, node, "expected a string, found %s", sbp_json_kind_name(node->kind));
    *out = (sbp_row_text){node->string, (size_t)node->count};
    return SBP_OK;
}

/* A list of whole numbers from `least` on (-100 as well, for labels), below the vocabulary. */
static sbp_status read_ids(const row_reader *r, const char *key, bool labels, sbp_row_ids *out) {
    const sbp_json *list;
    SBP_TRY(sbp_json_get_array(r->diag, r->root, key, SBP_JSON_REQUIRED, &list));
    *out = (sbp_row_ids){SBP_NEW_ARRAY(r->arena, int32_t, list->count), list->count};
    for (int64_t i = 0; i < list->count; i++) {
        int64_t id;
        SBP_TRY(sbp_json_as_i64(r->diag, &list->items[i], &id));
        int64_t end = r->options->vocab_size > 0 ? r->options->vocab_size : (int64_t)INT32_MAX + 1;
        if (id >= end)
            return sbp_json_fail(r->diag, &list->items[i],
                                 "expected an id below the vocabulary's %lld, found %lld", (long long)end,
                                 (long long)id);
        if (id < 0 && !(labels && id == -100))
            return sbp_json_fail(r->diag, &list->items[i], "expected %s, found %lld",
                                 labels ? "an id or -100" : "an id", (long long)id);
        out->data[i] = (int32_t)id;
    }
    return SBP_OK;
}

static sbp_status check_length(const row_reader *r, const char *key, int64_t found) {
    if (found == r->row->ids.count)
        return SBP_OK;
    return sbp_json_fail(r->diag, sbp_json_member(r->root, key),
                         "expected as many items as 'input_ids' has (%lld), found %lld",
                         (long long)r->row->ids.count, (long long)found);
}

static sbp_status read_mask(const row_reader *r, const char *key, const int8_t **out) {
    const sbp_json *list;
    SBP_TRY(sbp_json_get_array(r->diag, r->root, key, SBP_JSON_REQUIRED, &list));
    SBP_TRY(check_length(r, key, list->count));
    int8_t *mask = SBP_NEW_ARRAY(r->arena, int8_t, list->count);
    for (int64_t i = 0; i < list->count; i++) {
        const sbp_json *item = &list->items[i];
        if (!(item->kind == SBP_JSON_INT && (item->integer == 0 || item->integer == 1)) &&
            item->kind != SBP_JSON_BOOL)
            return sbp_json_fail(r->diag, item, "expected 0 or 1, found %s",
                                 item->kind == SBP_JSON_INT
                                     ? sbp_arena_printf(r->arena, "%lld", (long long)item->integer)
                                     : sbp_json_kind_name(item->kind));
        mask[i] = item->kind == SBP_JSON_BOOL ? item->boolean : (int8_t)item->integer;
    }
    *out = mask;
    return SBP_OK;
}

/* What belongs to messages: tools and chat_template_kwargs. */
static sbp_status read_settings(const row_reader *r) {
    SBP_TRY(sbp_tools_read(r->arena, r->diag, r->where, sbp_json_member(r->root, "tools"), &r->row->tools));
    if (has(r, "chat_template_kwargs"))
        SBP_TRY(sbp_json_get_object(r->diag, r->root, "chat_template_kwargs", SBP_JSON_REQUIRED,
                                    &r->row->template_kwargs));
    return SBP_OK;
}

static sbp_status read_messages(const row_reader *r, const char *key, bool may_be_empty,
                                const sbp_json **out) {
    return sbp_messages_read(r->arena, r->diag, sbp_json_member(r->root, key), may_be_empty, out);
}

static sbp_status read_fields(const row_reader *r) {
    sbp_row *row = r->row;
    switch (row->form.type) {
    case SBP_ROW_INPUT_IDS:
        SBP_TRY(read_ids(r, "input_ids", false, &row->ids));
        if (row->form.labels) {
            sbp_row_ids labels;
            SBP_TRY(read_ids(r, "labels", true, &labels));
            SBP_TRY(check_length(r, "labels", labels.count));
            row->labels = labels.data;
        }
        if (row->form.completion_mask)
            SBP_TRY(read_mask(r, "completion_mask", &row->completion_mask));
        if (row->form.assistant_masks)
            SBP_TRY(read_mask(r, "assistant_masks", &row->assistant_masks));
        return SBP_OK;
    case SBP_ROW_PROMPT_IDS:
        SBP_TRY(read_ids(r, "prompt_ids", false, &row->ids));
        return read_ids(r, "completion_ids", false, &row->completion_ids);
    case SBP_ROW_PROMPT:
        SBP_TRY(read_text(r, "prompt", &row->text));
        return read_text(r, "completion", &row->completion);
    case SBP_ROW_MESSAGES:
        SBP_TRY(read_settings(r));
        return read_messages(r, has(r, "messages") ? "messages" : "conversations", false, &row->messages);
    case SBP_ROW_PROMPT_MESSAGES:
        SBP_TRY(read_settings(r));
        SBP_TRY(read_messages(r, "prompt", true, &row->messages));
        return read_messages(r, "completion", false, &row->completion_messages);
    default:
        return read_text(r, r->options->text_field, &row->text);
    }
}

sbp_status sbp_row_read(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *root,
                        const sbp_row_options *options, sbp_row_form *form, sbp_row *out) {
    *out = (sbp_row){.where = where};
    row_reader r = {
        .arena = arena, .diag = diag, .where = where, .root = root, .options = options, .row = out};
    SBP_TRY(sbp_json_as_object(diag, root, &r.root));
    SBP_TRY(find_form(&r, &out->form));
    if (form->type != SBP_ROW_NONE && !same_form(form, &out->form))
        return sbp_fail(diag, SBP_INPUT, "%s: found a row with %s; the first row has %s, and so must all",
                        where, type_name(&r, &out->form), type_name(&r, form));
    *form = out->form;
    return read_fields(&r);
}

sbp_status sbp_row_parse(sbp_arena *arena, sbp_diag *diag, const char *where, const char *line, size_t length,
                         const sbp_row_options *options, sbp_row_form *form, sbp_row *out) {
    const sbp_json *root;
    sbp_status status = sbp_json_parse(arena, diag, where, line, length, SBP_JSON_ROW, &root);
    if (status == SBP_INPUT || (status == SBP_OK && root->kind != SBP_JSON_OBJECT))
        sbp_note(diag, "rows are JSON objects, each on a line of its own: {\"text\": \"...\"}");
    SBP_TRY(status);
    return sbp_row_read(arena, diag, where, root, options, form, out);
}

/* ---- lines ------------------------------------------------------------------------------------------ */

static bool is_blank(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i])
            return false;
    return true;
}

static sbp_status read_lines(sbp_diag *diag, FILE *file, const char *path, sbp_line_visitor visit,
                             void *user) {
    char *text = NULL;
    size_t capacity = 0;
    sbp_status status = SBP_OK;
    int64_t line = 0;
    for (;;) {
        errno = 0;
        ssize_t got = getline(&text, &capacity, file);
        if (got < 0) {
            if (errno == ENOMEM)
                status = sbp_fail(diag, SBP_MACHINE, "%s:%lld: out of memory for a line", path,
                                  (long long)line + 1);
            else if (ferror(file))
                status = sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
            break;
        }
        line++;
        size_t length = (size_t)got;
        const char *begin = text;
        if (line == 1 && length >= 3 && memcmp(begin, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
            begin += 3;
            length -= 3;
        }
        while (length > 0 && (begin[length - 1] == '\n' || begin[length - 1] == '\r'))
            length--;
        if (!is_blank(begin, length))
            status = visit(user, path, line, begin, length);
        if (status != SBP_OK)
            break;
    }
    free(text);
    return status;
}

/* Files that are no lines of JSON, known by how they begin, and what makes such lines of them. */
static sbp_status check_format(sbp_diag *diag, FILE *file, const char *path) {
    static const char python[] = "python3 -c \"import pandas as p; p.read_%s('%s').to_json('data.jsonl', "
                                 "orient='records', lines=True, force_ascii=False)\"";
    char head[512] = "", command[700];
    size_t length = fread(head, 1, sizeof head - 1, file);
    const char *begin = head + strspn(head, " \t\r\n"), *dot = strrchr(path, '.');
    const char *what = NULL, *reader = NULL;
    rewind(file);
    if (length >= 4 && memcmp(head, "PAR1", 4) == 0) {
        what = "Parquet";
        reader = "parquet";
    } else if (length >= 2 && memcmp(head, "\x1f\x8b", 2) == 0) {
        return sbp_fail(diag, SBP_INPUT,
                        "'%s' is compressed by gzip: zcat '%s' | sbprun ... --data - (or gunzip it)", path,
                        path);
    } else if (*begin == '[' && begin[1 + strspn(begin + 1, " \t\r\n")] == '{') {
        what = "one JSON array";
        reader = "json";
    } else if (dot && (strcmp(dot, ".csv") == 0 || strcmp(dot, ".tsv") == 0) && *begin != '{') {
        what = "CSV";
        reader = "csv";
    }
    if (!what)
        return SBP_OK;
    snprintf(command, sizeof command, python, reader, path);
    return sbp_fail(diag, SBP_INPUT, "'%s' is %s; rows are JSON objects, one a line: %s", path, what,
                    command);
}

sbp_status sbp_lines_read(sbp_diag *diag, const char *path, sbp_line_visitor visit, void *user) {
    if (strcmp(path, "-") == 0)
        return read_lines(diag, stdin, "standard input", visit, user);
    if (sbp_directory_exists(path))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': it is a directory", path);
    FILE *file = fopen(path, "re");
    if (!file)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    struct stat info;
    sbp_status status =
        fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode) ? check_format(diag, file, path) : SBP_OK;
    if (status == SBP_OK)
        status = read_lines(diag, file, path, visit, user);
    fclose(file);
    return status;
}
