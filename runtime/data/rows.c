/* rows.c: lines to typed rows. */
#include "runtime/data/rows.h"

#include <math.h>
#include <string.h>

#include "ir/program/routed.h"
#include "runtime/data/messages.h"

static const struct {
    const char *key, *alias, *part;
    sbp_column_id column;
    sbp_row_type type;
    bool list;
} fields[SBP_FIELD_COUNT] = {
#define FIELD(id, key, alias, column, type, part, list) {key, alias, part, SBP_DATA_##column, type, list},
#include "runtime/data/row_fields.def"
#undef FIELD
};

typedef struct row_reader {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *where;
    const sbp_json *root;
    const sbp_row_options *options;
    const sbp_row_form *first; /* of the first row; SBP_ROW_NONE: this is the first */
    sbp_row *row;
} row_reader;

const char *sbp_row_field_key(sbp_row_field field) {
    return fields[field].key;
}

const char *sbp_row_field_name(sbp_row_field field) {
    return sbp_data_columns[fields[field].column].name;
}

const char *sbp_row_field_part(sbp_row_field field) {
    return fields[field].part;
}

bool sbp_row_field_is_list(sbp_row_field field) {
    return fields[field].list;
}

bool sbp_row_may_need(const char *key) {
    static const char *const keys[] = {
        "text",          "input_ids",   "labels",       "completion_mask", "assistant_masks",      "messages",
        "conversations", "prompt",      "completion",   "prompt_ids",      "completion_ids",       "chosen",
        "rejected",      "chosen_ids",  "rejected_ids", "tools",           "chat_template_kwargs", "group",
        "env_mask",      "end_of_step", SBP_ROUTED};
    for (int i = 0; i < SBP_COUNT(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    for (int i = 0; i < SBP_FIELD_COUNT; i++)
        if (strcmp(fields[i].key, key) == 0 || (fields[i].alias && strcmp(fields[i].alias, key) == 0))
            return true;
    return false;
}

/* ---- types ------------------------------------------------------------------------------------------ */

/* Keys of the values of a type, as messages call them; whole texts apart. */
static const char *value_names(const sbp_row_form *form) {
    bool ids = form->values == SBP_VALUES_IDS, messages = form->values == SBP_VALUES_MESSAGES;
    switch (form->type) {
    case SBP_ROW_COMPLETION:
        return ids        ? "'prompt_ids', 'completion_ids'"
               : messages ? "'prompt', 'completion' of messages"
                          : "'prompt', 'completion'";
    case SBP_ROW_PAIR:
        return ids        ? "'prompt_ids', 'chosen_ids', 'rejected_ids'"
               : messages ? "'chosen', 'rejected' of messages"
                          : "'chosen', 'rejected'";
    case SBP_ROW_PROMPT:
        return ids ? "'prompt_ids' alone" : messages ? "'prompt' of messages alone" : "'prompt' alone";
    default:
        return "nothing";
    }
}

static const char *type_name(const row_reader *r, const sbp_row_form *form) {
    sbp_text out;
    sbp_text_init(&out, r->arena);
    if (form->type == SBP_ROW_INPUT_IDS)
        sbp_text_add(&out, "'input_ids'%s%s%s", form->labels ? ", 'labels'" : "",
                     form->completion_mask ? ", 'completion_mask'" : "",
                     form->assistant_masks ? ", 'assistant_masks'" : "");
    else if (form->type == SBP_ROW_TEXT && form->values == SBP_VALUES_MESSAGES)
        sbp_text_add(&out, "'messages'");
    else if (form->type == SBP_ROW_TEXT)
        sbp_text_add(&out, "'text'");
    else
        sbp_text_add(&out, "%s", value_names(form));
    for (int i = 0; i < SBP_FIELD_COUNT; i++)
        if (form->fields >> i & 1)
            sbp_text_add(&out, ", '%s'", fields[i].key);
    if (form->group)
        sbp_text_add(&out, ", 'group'");
    return out.data;
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

static bool is_list(const row_reader *r, const char *key) {
    const sbp_json *member = sbp_json_member(r->root, key);
    return member && member->kind == SBP_JSON_ARRAY;
}

/* One message, as the answers of pairs are in some data. */
static bool is_message(const row_reader *r, const char *key) {
    const sbp_json *member = sbp_json_member(r->root, key);
    return member && member->kind == SBP_JSON_OBJECT;
}

static bool are_messages(const row_reader *r, const char *key) {
    return is_list(r, key) || is_message(r, key);
}

static const sbp_json *field_node(const row_reader *r, int field) {
    if (has(r, fields[field].key))
        return sbp_json_member(r->root, fields[field].key);
    return fields[field].alias && has(r, fields[field].alias) ? sbp_json_member(r->root, fields[field].alias)
                                                              : NULL;
}

/* "label" is many things in many data; it says whether an answer was wanted where it is true or false, or 1
 * or 0. */
static bool is_field(int field, const sbp_json *node) {
    return field != SBP_FIELD_WANTED || node->kind == SBP_JSON_BOOL ||
           (node->kind == SBP_JSON_INT && (node->integer == 0 || node->integer == 1));
}

/* null is one: there is none of this row. */
static bool may_be_null(int field) {
    return field == SBP_FIELD_REWARD || field == SBP_FIELD_ADVANTAGE;
}

static void find_fields(const row_reader *r, sbp_row_form *form) {
    for (int i = 0; i < SBP_FIELD_COUNT && r->options->fields; i++) {
        const sbp_json *node = fields[i].type == form->type ? field_node(r, i) : NULL;
        bool null = may_be_null(i) && fields[i].type == form->type && sbp_json_member(r->root, fields[i].key);
        if (null || (node && is_field(i, node)))
            form->fields |= 1u << i;
    }
    form->group = r->options->fields && form->type == SBP_ROW_COMPLETION && has(r, "group");
}

static void take(sbp_row_form *form, sbp_row_type type, sbp_row_values values) {
    form->type = type;
    form->values = values;
}

static bool find_pair(const row_reader *r, sbp_row_form *form) {
    if (has(r, "chosen_ids") || has(r, "rejected_ids"))
        take(form, SBP_ROW_PAIR, SBP_VALUES_IDS);
    else if (has(r, "chosen") || has(r, "rejected"))
        take(form, SBP_ROW_PAIR,
             are_messages(r, "chosen") || are_messages(r, "rejected") ? SBP_VALUES_MESSAGES
                                                                      : SBP_VALUES_STRINGS);
    return form->type == SBP_ROW_PAIR;
}

static bool find_single(const row_reader *r, sbp_row_form *form) {
    if (has(r, "prompt_ids") && has(r, "completion_ids"))
        take(form, SBP_ROW_COMPLETION, SBP_VALUES_IDS);
    else if (has(r, "prompt") && has(r, "completion"))
        take(form, SBP_ROW_COMPLETION,
             is_list(r, "prompt") || is_list(r, "completion") ? SBP_VALUES_MESSAGES : SBP_VALUES_STRINGS);
    else if (has(r, "messages") || has(r, "conversations"))
        take(form, SBP_ROW_TEXT, SBP_VALUES_MESSAGES);
    else if (has(r, "text"))
        take(form, SBP_ROW_TEXT, SBP_VALUES_STRINGS);
    return form->type != SBP_ROW_NONE;
}

static bool find_prompt(const row_reader *r, sbp_row_form *form) {
    if (has(r, "prompt_ids"))
        take(form, SBP_ROW_PROMPT, SBP_VALUES_IDS);
    else if (has(r, "prompt"))
        take(form, SBP_ROW_PROMPT, is_list(r, "prompt") ? SBP_VALUES_MESSAGES : SBP_VALUES_STRINGS);
    return form->type == SBP_ROW_PROMPT;
}

static sbp_status fail_pairs(const row_reader *r, const sbp_row_form *form) {
    const char *own = r->options->objective, *better = r->options->objective_of_pairs;
    return sbp_fail(r->diag, SBP_USAGE,
                    "%s: rows with %s are preference pairs, and %s trains on single texts: use %s%s",
                    r->where, value_names(form), own ? own : "the objective",
                    better ? "--objective " : "an objective for them", better ? better : "");
}

static sbp_status find_form(const row_reader *r, sbp_row_form *form) {
    bool no_pairs = r->options->no_pairs;
    *form = (sbp_row_form){0};
    if (has(r, "input_ids")) {
        *form = (sbp_row_form){.type = SBP_ROW_INPUT_IDS,
                               .labels = has(r, "labels"),
                               .completion_mask = has(r, "completion_mask"),
                               .assistant_masks = has(r, "assistant_masks")};
        return SBP_OK;
    }
    bool found = (!no_pairs && find_pair(r, form)) || find_single(r, form);
    if (found) {
        find_fields(r, form);
        return SBP_OK;
    }
    if (no_pairs && find_pair(r, form))
        return fail_pairs(r, form);
    if (!no_pairs && find_prompt(r, form))
        return SBP_OK;
    if (has(r, "end_of_step"))
        return sbp_fail(r->diag, SBP_USAGE,
                        "%s: a line that ends a step: these are for --data - (standard input)", r->where);
    if (r->first->type != SBP_ROW_NONE)
        return sbp_fail(r->diag, SBP_INPUT, "%s: found %s; the first row has %s, and so must all", r->where,
                        keys_of(r), type_name(r, r->first));
    if (has(r, "instruction") && (has(r, "output") || has(r, "response")))
        return sbp_fail(r->diag, SBP_INPUT, "%s: found %s: give --columns prompt=instruction%s,completion=%s",
                        r->where, keys_of(r), sbp_json_member(r->root, "input") ? "+input" : "",
                        has(r, "output") ? "output" : "response");
    return sbp_fail(
        r->diag, SBP_INPUT,
        "%s: found %s, expected 'text', 'messages', 'prompt' and 'completion', 'chosen' and "
        "'rejected', 'input_ids', or 'prompt_ids' and 'completion_ids'; --columns text=KEY names another key "
        "of the text, --columns others: --columns prompt=question,completion=answer",
        r->where, keys_of(r));
}

static bool same_form(const sbp_row_form *a, const sbp_row_form *b) {
    return a->type == b->type && a->values == b->values && a->labels == b->labels &&
           a->completion_mask == b->completion_mask && a->assistant_masks == b->assistant_masks &&
           a->group == b->group && a->fields == b->fields;
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* A value that belongs to the row's type: null or absent is an error. */
static sbp_status member(const row_reader *r, const char *key, const sbp_json **out) {
    *out = sbp_json_member(r->root, key);
    if (has(r, key))
        return SBP_OK;
    return sbp_fail(r->diag, SBP_INPUT, "%s: expected '%s', found %s", r->where, key, keys_of(r));
}

static sbp_status read_text(const row_reader *r, const char *key, sbp_row_text *out) {
    const sbp_json *node;
    SBP_TRY(member(r, key, &node));
    if (node->kind != SBP_JSON_STRING)
        return sbp_json_fail(r->diag, node, "expected a string, found %s", sbp_json_kind_name(node->kind));
    *out = (sbp_row_text){node->string, (size_t)node->count};
    return SBP_OK;
}

/* A list of whole numbers from `least` on (-100 as well, for labels), below the vocabulary. */
static sbp_status read_ids(const row_reader *r, const char *key, bool labels, sbp_row_ids *out) {
    const sbp_json *node, *list;
    SBP_TRY(member(r, key, &node));
    SBP_TRY(sbp_json_as_array(r->diag, node, &list));
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
    if (found == r->row->text.ids.count)
        return SBP_OK;
    return sbp_json_fail(r->diag, sbp_json_member(r->root, key),
                         "expected as many items as 'input_ids' has (%lld), found %lld",
                         (long long)r->row->text.ids.count, (long long)found);
}

static sbp_status read_mask(const row_reader *r, const char *key, const int8_t **out, int64_t *count) {
    const sbp_json *list;
    SBP_TRY(sbp_json_get_array(r->diag, r->root, key, SBP_JSON_REQUIRED, &list));
    *count = list->count;
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
    const sbp_json *node;
    SBP_TRY(member(r, key, &node));
    if (r->row->form.type == SBP_ROW_PAIR && is_message(r, key)) /* an answer */
        node = sbp_messages_of_one(r->arena, node);
    return sbp_messages_read(r->arena, r->diag, node, may_be_empty, out);
}

/* The value of a key; ids: its other key, where values are ids. */
static sbp_status read_value(const row_reader *r, const char *key, const char *ids, bool may_be_empty,
                             sbp_row_value *out) {
    out->key = r->row->form.values == SBP_VALUES_IDS ? ids : key;
    switch (r->row->form.values) {
    case SBP_VALUES_IDS:
        return read_ids(r, ids, false, &out->ids);
    case SBP_VALUES_MESSAGES:
        return read_messages(r, key, may_be_empty, &out->messages);
    default:
        return read_text(r, key, &out->text);
    }
}

static sbp_status read_input_ids(const row_reader *r) {
    sbp_row *row = r->row;
    int64_t count;
    row->text.key = "input_ids";
    SBP_TRY(read_ids(r, "input_ids", false, &row->text.ids));
    if (row->form.labels) {
        sbp_row_ids labels;
        SBP_TRY(read_ids(r, "labels", true, &labels));
        SBP_TRY(check_length(r, "labels", labels.count));
        row->labels = labels.data;
    }
    if (row->form.completion_mask) {
        SBP_TRY(read_mask(r, "completion_mask", &row->completion_mask, &count));
        SBP_TRY(check_length(r, "completion_mask", count));
    }
    if (!row->form.assistant_masks)
        return SBP_OK;
    SBP_TRY(read_mask(r, "assistant_masks", &row->assistant_masks, &count));
    return check_length(r, "assistant_masks", count);
}

static int64_t split_messages(const sbp_json *a, const sbp_json *b) {
    int64_t shorter = a->count < b->count ? a->count : b->count, at = 0;
    while (at < shorter && sbp_messages_equal(&a->items[at], &b->items[at]))
        at++;
    return at == shorter && at > 0 ? at - 1 : at;
}

/* Answers that begin alike get what they begin with as their prompt. */
static sbp_status part_pair(const row_reader *r) {
    sbp_row *row = r->row;
    sbp_row_value *chosen = &row->completion, *rejected = &row->rejected;
    if (row->form.values == SBP_VALUES_IDS)
        return sbp_fail(r->diag, SBP_INPUT, "%s: expected 'prompt_ids' beside '%s', found %s", r->where,
                        chosen->key, keys_of(r));
    if (row->form.values == SBP_VALUES_MESSAGES) {
        int64_t split = split_messages(chosen->messages, rejected->messages);
        row->text.messages = sbp_messages_part(r->arena, chosen->messages, 0, split);
        chosen->messages = sbp_messages_part(r->arena, chosen->messages, split, chosen->messages->count);
        rejected->messages =
            sbp_messages_part(r->arena, rejected->messages, split, rejected->messages->count);
        return SBP_OK;
    }
    for (int i = 0; i < 2; i++)
        if ((i ? rejected : chosen)->text.length == 0)
            return sbp_json_fail(r->diag, sbp_json_member(r->root, (i ? rejected : chosen)->key),
                                 "expected prompt and answer, found an empty string");
    size_t split = sbp_pair_split_texts(chosen->text, rejected->text);
    row->text.text = (sbp_row_text){chosen->text.data, split};
    chosen->text = (sbp_row_text){chosen->text.data + split, chosen->text.length - split};
    rejected->text = (sbp_row_text){rejected->text.data + split, rejected->text.length - split};
    return SBP_OK;
}

static sbp_status read_pair(const row_reader *r) {
    sbp_row *row = r->row;
    SBP_TRY(read_value(r, "chosen", "chosen_ids", false, &row->completion));
    SBP_TRY(read_value(r, "rejected", "rejected_ids", false, &row->rejected));
    const char *prompt = row->form.values == SBP_VALUES_IDS ? "prompt_ids" : "prompt";
    bool within = row->form.values == SBP_VALUES_MESSAGES && has(r, prompt) && !is_list(r, prompt);
    if (row->form.values == SBP_VALUES_MESSAGES && (is_message(r, "chosen") || is_message(r, "rejected")))
        return read_value(r, is_list(r, "conversations") ? "conversations" : prompt, NULL, false, &row->text);
    if (!has(r, prompt) || within)
        return part_pair(r);
    return read_value(r, "prompt", "prompt_ids", true, &row->text);
}

static sbp_status read_values(const row_reader *r) {
    sbp_row *row = r->row;
    if (row->form.values == SBP_VALUES_MESSAGES)
        SBP_TRY(read_settings(r));
    switch (row->form.type) {
    case SBP_ROW_INPUT_IDS:
        return read_input_ids(r);
    case SBP_ROW_COMPLETION:
        SBP_TRY(read_value(r, "prompt", "prompt_ids", true, &row->text));
        return read_value(r, "completion", "completion_ids", false, &row->completion);
    case SBP_ROW_PAIR:
        return read_pair(r);
    case SBP_ROW_PROMPT:
        return read_value(r, "prompt", "prompt_ids", false, &row->text);
    default:
        if (row->form.values == SBP_VALUES_MESSAGES)
            return read_value(r, has(r, "messages") ? "messages" : "conversations", NULL, false, &row->text);
        return read_value(r, "text", NULL, false, &row->text);
    }
}

/* ---- beside the texts ------------------------------------------------------------------------------- */

static sbp_status read_list(const row_reader *r, const sbp_json *node, sbp_row_list *out) {
    const sbp_json *list;
    SBP_TRY(sbp_json_as_array(r->diag, node, &list));
    double *data = SBP_NEW_ARRAY(r->arena, double, list->count);
    for (int64_t i = 0; i < list->count; i++)
        if (list->items[i].kind == SBP_JSON_NULL)
            data[i] = NAN;
        else
            SBP_TRY(sbp_json_as_double(r->diag, &list->items[i], &data[i]));
    *out = (sbp_row_list){list, data, list->count};
    return SBP_OK;
}

static sbp_status read_group(const row_reader *r) {
    const sbp_json *node = sbp_json_member(r->root, "group");
    uint64_t hash;
    if (node->kind == SBP_JSON_STRING)
        hash = sbp_hash_bytes(node->string, (size_t)node->count, 1);
    else if (node->kind == SBP_JSON_INT)
        hash = sbp_hash_bytes(&node->integer, sizeof node->integer, 2);
    else
        return sbp_json_fail(r->diag, node, "expected a string or an integer, found %s",
                             sbp_json_kind_name(node->kind));
    r->row->group = hash ? hash : 1;
    r->row->group_name = node->kind == SBP_JSON_STRING
                             ? node->string
                             : sbp_arena_printf(r->arena, "%lld", (long long)node->integer);
    return SBP_OK;
}

static sbp_status list_of(const row_reader *r, const sbp_json *node, int64_t *count, const sbp_json **out) {
    SBP_TRY(sbp_json_as_array(r->diag, node, out));
    if (*count < 0)
        *count = (*out)->count;
    if ((*out)->count == 0)
        return sbp_json_fail(r->diag, node, "expected at least one item, found none");
    if ((*out)->count == *count)
        return SBP_OK;
    return sbp_json_fail(r->diag, node, "expected %lld items, as the first list there has, found %lld",
                         (long long)*count, (long long)(*out)->count);
}

static sbp_status read_routed(const row_reader *r) {
    sbp_row_routed *out = &r->row->routed;
    const sbp_json *tokens, *layers, *ids;
    int16_t *at = NULL;
    *out = (sbp_row_routed){
        .node = sbp_json_member(r->root, SBP_ROUTED), .count = -1, .layers = -1, .chosen = -1};
    SBP_TRY(list_of(r, out->node, &out->count, &tokens));
    for (int64_t t = 0; t < out->count; t++) {
        SBP_TRY(list_of(r, &tokens->items[t], &out->layers, &layers));
        for (int64_t l = 0; l < out->layers; l++) {
            SBP_TRY(list_of(r, &layers->items[l], &out->chosen, &ids));
            if (!at)
                out->ids = at = SBP_NEW_ARRAY(r->arena, int16_t, out->count * out->layers * out->chosen);
            for (int64_t j = 0; j < out->chosen; j++) {
                int64_t id;
                SBP_TRY(sbp_json_as_i64(r->diag, &ids->items[j], &id));
                if (id < 0 || id > INT16_MAX)
                    return sbp_json_fail(r->diag, &ids->items[j], "expected the id of an expert, found %lld",
                                         (long long)id);
                *at++ = (int16_t)id;
            }
        }
    }
    return SBP_OK;
}

static sbp_status read_fields(const row_reader *r) {
    sbp_row *row = r->row;
    if (row->form.type != SBP_ROW_PAIR && row->form.type != SBP_ROW_PROMPT && has(r, SBP_ROUTED))
        SBP_TRY(read_routed(r));
    for (int i = 0; i < SBP_FIELD_COUNT; i++) {
        if (!(row->form.fields >> i & 1))
            continue;
        const sbp_json *node = field_node(r, i);
        if (!node)
            row->numbers[i] = NAN;
        else if (fields[i].list)
            SBP_TRY(read_list(r, node, &row->lists[i]));
        else if (node->kind == SBP_JSON_BOOL && i == SBP_FIELD_WANTED)
            row->numbers[i] = node->boolean;
        else
            SBP_TRY(sbp_json_as_double(r->diag, node, &row->numbers[i]));
    }
    if (row->form.type == SBP_ROW_COMPLETION && r->options->fields && has(r, "env_mask"))
        SBP_TRY(read_mask(r, "env_mask", &row->env_mask, &row->env_mask_count));
    return row->form.group ? read_group(r) : SBP_OK;
}

/* What stands for them in a row of text would be trained on without them. */
static sbp_status refuse_images(const row_reader *r) {
    static const char *const keys[] = {"image", "images", "video", "videos", "audio", "audios"};
    for (int i = 0; i < SBP_COUNT(keys); i++) {
        const sbp_json *node = has(r, keys[i]) ? sbp_json_member(r->root, keys[i]) : NULL;
        bool empty = !node || (node->kind == SBP_JSON_ARRAY && node->count == 0) ||
                     (node->kind == SBP_JSON_STRING && !*node->string);
        if (!empty)
            return sbp_fail(
                r->diag, SBP_INPUT,
                "%s: the row has '%s': models are trained on text, without images, sounds and films",
                r->where, keys[i]);
    }
    return SBP_OK;
}

sbp_status sbp_row_read(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *root,
                        const sbp_row_options *options, sbp_row_form *form, sbp_row *out) {
    *out = (sbp_row){.where = where};
    row_reader r = {.arena = arena,
                    .diag = diag,
                    .where = where,
                    .root = root,
                    .options = options,
                    .first = form,
                    .row = out};
    SBP_TRY(sbp_json_as_object(diag, root, &r.root));
    SBP_TRY(refuse_images(&r));
    SBP_TRY(find_form(&r, &out->form));
    if (form->type != SBP_ROW_NONE && !same_form(form, &out->form))
        return sbp_fail(diag, SBP_INPUT, "%s: found a row with %s; the first row has %s, and so must all",
                        where, type_name(&r, &out->form), type_name(&r, form));
    *form = out->form;
    SBP_TRY(read_values(&r));
    return read_fields(&r);
}

/* ---- what is not read ---------------------------------------------------------------------------------- */

static bool is_among(const char *key, const char *const *keys) {
    while (*keys && strcmp(key, *keys) != 0)
        keys++;
    return *keys != NULL;
}

/* Whether a key is one of the values of a form, or stands beside them. */
static bool is_read(const sbp_row_form *form, const sbp_json *node) {
    static const char *const of_ids[] = {"input_ids", "labels", "completion_mask", "assistant_masks", NULL},
                             *const of_talks[] = {"tools", "chat_template_kwargs", NULL},
                             *const of_answers[] = {"prompt", "completion", "group", "env_mask", NULL},
                             *const of_answer_ids[] = {"prompt_ids", "completion_ids", "group", "env_mask",
                                                       NULL},
                             *const of_pairs[] = {"prompt", "chosen", "rejected", "conversations", NULL},
                             *const of_pair_ids[] = {"prompt_ids", "chosen_ids", "rejected_ids", NULL};
    bool ids = form->values == SBP_VALUES_IDS, talk = form->values == SBP_VALUES_MESSAGES;
    for (int i = 0; i < SBP_FIELD_COUNT; i++)
        if (fields[i].type == form->type && is_field(i, node) &&
            (strcmp(node->key, fields[i].key) == 0 ||
             (fields[i].alias && strcmp(node->key, fields[i].alias) == 0)))
            return true;
    if (talk && is_among(node->key, of_talks))
        return true;
    if (form->type != SBP_ROW_PAIR && form->type != SBP_ROW_PROMPT && strcmp(node->key, SBP_ROUTED) == 0)
        return true;
    switch (form->type) {
    case SBP_ROW_INPUT_IDS:
        return is_among(node->key, of_ids);
    case SBP_ROW_COMPLETION:
        return is_among(node->key, ids ? of_answer_ids : of_answers);
    case SBP_ROW_PAIR:
        return is_among(node->key, ids ? of_pair_ids : of_pairs);
    case SBP_ROW_PROMPT:
        return strcmp(node->key, ids ? "prompt_ids" : "prompt") == 0;
    default:
        return talk ? strcmp(node->key, "messages") == 0 || strcmp(node->key, "conversations") == 0
                    : strcmp(node->key, "text") == 0;
    }
}

const char *sbp_row_unused(sbp_arena *arena, const sbp_row_form *form, const sbp_json *root) {
    enum { SHOWN = 12 };
    sbp_text out;
    int32_t count = 0;
    sbp_text_init(&out, arena);
    for (int64_t i = 0; i < root->count; i++) {
        const sbp_json *node = &root->items[i];
        if (is_read(form, node))
            continue;
        if (count < SHOWN)
            sbp_text_add(&out, "%s'%.40s'", count ? ", " : "", node->key);
        count++;
    }
    if (count > SHOWN)
        sbp_text_add(&out, " and %d more", count - SHOWN);
    return count ? out.data : NULL;
}

/* ---- pairs without a prompt ---------------------------------------------------------------------------- */

size_t sbp_pair_split_texts(sbp_row_text a, sbp_row_text b) {
    size_t shorter = a.length < b.length ? a.length : b.length, at = 0;
    const char *text = a.data;
    if (shorter == 0)
        return 0;
    while (at < shorter && text[at] == b.data[at])
        at++;
    bool begins = at == shorter; /* one the other: the last character is no part of the prompt */
    if (begins)
        at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) /* to where a character begins */
        at--;
    if (at == 0 || begins)
        return at;
    return text[at - 1] == ' ' ? at - 1 : at;
}

static bool has_id(const sbp_row_ids *ids, int64_t id) {
    for (int64_t i = 0; i < ids->count; i++)
        if (ids->data[i] == id)
            return true;
    return false;
}

void sbp_row_ids_add(sbp_arena *arena, const sbp_json *node, sbp_row_ids *ids) {
    const sbp_json *items = node && node->kind == SBP_JSON_ARRAY ? node->items : node;
    int64_t count = !node ? 0 : node->kind == SBP_JSON_ARRAY ? node->count : 1;
    int32_t *all = SBP_NEW_ARRAY(arena, int32_t, ids->count + count + 1);
    if (ids->count > 0)
        memcpy(all, ids->data, (size_t)ids->count * sizeof *all);
    ids->data = all;
    for (int64_t i = 0; i < count; i++)
        if (items[i].kind == SBP_JSON_INT && items[i].integer >= 0 && items[i].integer <= INT32_MAX &&
            !has_id(ids, items[i].integer))
            ids->data[ids->count++] = (int32_t)items[i].integer;
}
