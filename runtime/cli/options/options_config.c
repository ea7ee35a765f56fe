/* options_config.c: options from a file, flat JSON or `key: value` lines; settings of TRL that are put
 * together. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "ir/base/json.h"
#include "runtime/cli/options/options_internal.h"

typedef struct config_reader {
    sbp_options *o;
    sbp_diag *diag;
    const char *path;
    bool *seen; /* per line of the table: set by an earlier line of this file */
} config_reader;

static bool is_list(const option_target *t) {
    return t->index >= 0 && sbp_option_at(t->index)->kind == SBP_OPTION_LIST;
}

/* One value of one key. */
static sbp_status take(config_reader *r, const char *where, const char *key, const char *text) {
    option_setting setting = {.where = where, .config = r->path, .key = key};
    option_target t = sbp_options_find(key, strlen(key));
    if (t.index < 0)
        return sbp_options_assign(r->o, r->diag, &setting, &t, text);
    if (sbp_options_leaves_default(r->o, &setting, &t, text))
        return SBP_OK;
    if (strcmp(sbp_option_at(t.index)->name, "config") == 0)
        return sbp_fail(r->diag, SBP_USAGE, "%s: a config file cannot name another", where);
    const option_value *v = &r->o->values[t.index];
    if (v->given && !v->config)
        return SBP_OK;                           /* the command line wins */
    bool component = t.alias && *t.alias == '#'; /* the other one may follow */
    if (r->seen[t.index] && !is_list(&t) && !component)
        return sbp_fail(r->diag, SBP_USAGE, "%s: '%.100s' is given twice (as '%s')", where, key,
                        sbp_option_at(t.index)->name);
    r->seen[t.index] = true;
    return sbp_options_assign(r->o, r->diag, &setting, &t, text);
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static const char *json_text(sbp_arena *arena, const sbp_json *node) {
    sbp_text out;
    sbp_text_init(&out, arena);
    if (node->kind == SBP_JSON_STRING)
        return strlen(node->string) == (size_t)node->count ? node->string : NULL;
    if (node->kind == SBP_JSON_BOOL)
        return node->boolean ? "true" : "false";
    if (node->kind == SBP_JSON_INT)
        return sbp_arena_printf(arena, "%lld", (long long)node->integer);
    if (node->kind != SBP_JSON_REAL)
        return NULL;
    sbp_text_add_double(&out, node->real);
    return out.data;
}

/* Several values of a key: of a list, two numbers, or losses that are added. A wrong number of them is of
 * `status`, which says where it was. */
static sbp_status take_values(config_reader *r, const char *where, const char *key, const char *const *texts,
                              int64_t count, bool *taken) {
    option_target t = sbp_options_find(key, strlen(key));
    const sbp_option *option = t.index >= 0 ? sbp_option_at(t.index) : NULL;
    *taken = true;
    if (option && option->kind == SBP_OPTION_PAIR && count == 2)
        return take(r, where, key, sbp_arena_printf(r->o->arena, "%s,%s", texts[0], texts[1]));
    if (!option || (option->kind == SBP_OPTION_TEXT && strcmp(option->name, "loss-type") == 0)) {
        sbp_text all; /* "sigmoid+sft"; of what has no effect, or is refused, any text */
        sbp_text_init(&all, r->o->arena);
        for (int64_t i = 0; i < count; i++)
            sbp_text_add(&all, "%s%s", i > 0 ? "+" : "", texts[i]);
        return take(r, where, key, all.data);
    }
    *taken = is_list(&t) || count == 0;
    for (int64_t i = 0; i < count && *taken; i++)
        SBP_TRY(take(r, where, key, texts[i]));
    return SBP_OK;
}

static sbp_status take_array(config_reader *r, const char *where, const sbp_json *array) {
    bool taken = true;
    const char **texts = SBP_NEW_ARRAY(r->o->arena, const char *, array->count + 1);
    for (int64_t i = 0; i < array->count && taken; i++)
        taken = (texts[i] = json_text(r->o->arena, &array->items[i])) != NULL;
    if (taken)
        SBP_TRY(take_values(r, where, array->key, texts, array->count, &taken));
    return taken ? SBP_OK : sbp_json_fail(r->diag, array, "expected one value, found an array");
}

static sbp_status take_member(config_reader *r, const sbp_json *member) {
    option_target t = sbp_options_find(member->key, strlen(member->key));
    option_setting setting = {.where = r->path, .config = r->path, .key = member->key};
    if (t.index < 0 && !t.reason && !t.usual)
        return sbp_options_unknown(r->o, r->diag, &setting);
    if (member->kind == SBP_JSON_NULL)
        return SBP_OK;
    if (member->kind == SBP_JSON_ARRAY)
        return take_array(r, r->path, member);
    const char *value = json_text(r->o->arena, member);
    if (!value && (t.reason || t.usual))
        value = member->count == 0 ? "{}" : "{..}"; /* an object as a refused key: its reason says more */
    if (!value)
        return sbp_json_fail(r->diag, member, "expected a number, a string or true or false, found %s",
                             sbp_json_kind_name(member->kind));
    return take(r, r->path, member->key, value);
}

static sbp_status read_json(config_reader *r, const char *text, size_t length) {
    const sbp_json *root;
    sbp_status first = SBP_OK;
    SBP_TRY(sbp_json_parse(r->o->arena, r->diag, r->path, text, length, SBP_JSON_COMMENTS, &root));
    SBP_TRY(sbp_json_as_object(r->diag, root, &root));
    for (int64_t i = 0; i < root->count; i++) { /* all that is wrong is said */
        sbp_status status = take_member(r, &root->items[i]);
        first = first == SBP_OK ? status : first;
    }
    return first;
}

sbp_status sbp_options_inherit(sbp_options *o, sbp_diag *diag, const char *path, const sbp_json *member) {
    config_reader r = {.o = o, .diag = diag, .path = path};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, sbp_option_count());
    return take_member(&r, member);
}

/* ---- lines ------------------------------------------------------------------------------------------ */

/* The value of a line: without quotes, or up to a comment. NULL: a quote is not closed. */
static const char *line_value(sbp_arena *arena, const char *p, const char *end) {
    if (p < end && (*p == '"' || *p == '\'')) {
        const char *close = memchr(p + 1, *p, (size_t)(end - p - 1));
        if (!close)
            return NULL;
        const char *rest = close + 1;
        while (rest < end && isspace((unsigned char)*rest))
            rest++;
        return rest == end || *rest == '#' ? sbp_arena_strndup(arena, p + 1, (size_t)(close - p - 1)) : NULL;
    }
    for (const char *q = p; q < end; q++)
        if (*q == '#' && (q == p || isspace((unsigned char)q[-1]))) {
            end = q;
            break;
        }
    while (end > p && isspace((unsigned char)end[-1]))
        end--;
    return sbp_arena_strndup(arena, p, (size_t)(end - p));
}

/* Lines, one after the other. */
typedef struct lines {
    const char *at, *end; /* what is left */
    const char *p, *stop; /* the line */
    int number;
} lines;

static bool next_line(lines *l) {
    if (l->at >= l->end)
        return false;
    l->p = l->at;
    const char *stop = memchr(l->p, '\n', (size_t)(l->end - l->p));
    stop = stop ? stop : l->end;
    l->at = stop + 1;
    l->number++;
    while (stop > l->p && isspace((unsigned char)stop[-1]))
        stop--;
    l->stop = stop;
    return true;
}

static bool says_nothing(const lines *l) {
    const char *p = l->p;
    while (p < l->stop && isspace((unsigned char)*p))
        p++;
    return p == l->stop || *p == '#' || (l->stop - l->p == 3 && memcmp(l->p, "---", 3) == 0);
}

/* A line that goes on with the key above it. */
static bool belongs_above(const lines *l) {
    return isspace((unsigned char)*l->p) || (*l->p == '-' && !says_nothing(l));
}

/* What a key has below it, or in brackets. */
typedef struct block {
    const char **values;
    int32_t count, capacity;
    int nested; /* line of what is no value; 0: there is none */
} block;

static void add_value(config_reader *r, block *b, const char *p, const char *end, int number) {
    while (p < end && isspace((unsigned char)*p))
        p++;
    const char *text = line_value(r->o->arena, p, end);
    bool quoted = p < end && (*p == '"' || *p == '\'');
    bool map = !quoted && text && (strstr(text, ": ") || (*text && text[strlen(text) - 1] == ':'));
    if (!text || map ||
        (!quoted && p < end && (strchr("[{|>", *p) || (*p == '-' && p + 1 < end && p[1] == ' '))))
        b->nested = b->nested ? b->nested : number;
    else
        SBP_PUSH(r->o->arena, b->values, b->count, b->capacity, text);
}

/* The lines below a key that go on with it: "- value" each. */
static void read_block(config_reader *r, lines *l, block *b) {
    for (lines ahead = *l; next_line(&ahead) && (says_nothing(&ahead) || belongs_above(&ahead)); *l = ahead) {
        const char *p = ahead.p;
        if (says_nothing(&ahead))
            continue;
        while (isspace((unsigned char)*p))
            p++;
        if (*p == '-' && p + 1 < ahead.stop && p[1] == ' ')
            add_value(r, b, p + 2, ahead.stop, ahead.number);
        else
            b->nested = b->nested ? b->nested : ahead.number;
    }
}

/* "[a, 'b']" */
static void read_flow(config_reader *r, const char *text, int number, block *b) {
    const char *end = text + strlen(text);
    if (*text == '{' || end[-1] != ']') {
        b->nested = number;
        return;
    }
    for (const char *p = text + 1; p < end - 1;) {
        const char *stop = p + strcspn(p, ",");
        stop = stop < end - 1 ? stop : end - 1;
        const char *last = stop;
        while (last > p && isspace((unsigned char)last[-1]))
            last--;
        if (last > p && strspn(p, " ") < (size_t)(last - p))
            add_value(r, b, p, last, number);
        p = stop + 1;
    }
}

static sbp_status take_block(config_reader *r, const char *where, const char *key, const block *b) {
    option_target t = sbp_options_find(key, strlen(key));
    bool taken;
    if (b->nested && (t.usual || t.reason)) /* it has no effect, or its reason says more */
        return take(r, where, key, "{..}");
    if (b->nested)
        return sbp_fail(r->diag, SBP_USAGE,
                        "%s:%d: '%s': nested YAML is not supported: give single values, or a list of them",
                        r->path, b->nested, key);
    SBP_TRY(take_values(r, where, key, b->values, b->count, &taken));
    return taken ? SBP_OK
                 : sbp_fail(r->diag, SBP_USAGE, "%s: '%s': expected one value, found a list", where, key);
}

/* A line, with those that belong to it. */
static sbp_status read_line(config_reader *r, lines *l) {
    sbp_arena *arena = r->o->arena;
    const char *p = l->p, *end = l->stop, *where = sbp_arena_printf(arena, "%s:%d", r->path, l->number);
    block b = {0};
    if (says_nothing(l))
        return SBP_OK;
    if (belongs_above(l)) {
        read_block(r, l, &b);
        return sbp_fail(r->diag, SBP_USAGE, "%s: expected 'key: value'; nested YAML is not supported", where);
    }
    const char *colon = memchr(p, ':', (size_t)(end - p));
    if (!colon)
        return sbp_fail(r->diag, SBP_USAGE, "%s: expected 'key: value', found '%.*s'", where,
                        (int)(end - p < 60 ? end - p : 60), p);
    const char *key = sbp_arena_strndup(arena, p, (size_t)(colon - p)), *value = colon + 1;
    while (value < end && isspace((unsigned char)*value))
        value++;
    bool quoted = value < end && (*value == '"' || *value == '\'');
    const char *text = line_value(arena, value, end);
    if (!quoted && (!text || !*text || strchr("|>", *text)))
        read_block(r, l, &b);
    option_setting setting = {.where = where, .config = r->path, .key = key};
    option_target t = sbp_options_find(key, strlen(key));
    if (t.index < 0 && !t.reason && !t.usual)
        return sbp_options_unknown(r->o, r->diag, &setting);
    if (!text)
        return sbp_fail(r->diag, SBP_USAGE, "%s: '%s': a quote is not closed", where, key);
    if (!quoted && strcmp(text, "{}") != 0 && (*text == '[' || *text == '{'))
        read_flow(r, text, l->number, &b);
    else if (*text && b.count == 0 && b.nested == 0)
        return take(r, where, key, text);
    return b.count > 0 || b.nested ? take_block(r, where, key, &b) : SBP_OK;
}

sbp_status sbp_options_read_config(sbp_options *o, sbp_diag *diag, const char *path) {
    const char *text;
    size_t length;
    config_reader r = {.o = o, .diag = diag, .path = path};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, sbp_option_count());
    SBP_TRY(sbp_file_read(o->arena, diag, path, &text, &length));
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
        text += 3;
        length -= 3;
    }
    size_t first = 0;
    while (first < length && isspace((unsigned char)text[first]))
        first++;
    if (first < length && text[first] == '{')
        return read_json(&r, text, length);
    sbp_status first_status = SBP_OK;
    for (lines l = {.at = text, .end = text + length}; next_line(&l);) { /* all that is wrong is said */
        sbp_status status = read_line(&r, &l);
        first_status = first_status == SBP_OK ? status : first_status;
    }
    return first_status;
}

/* ---- several into one ------------------------------------------------------------------------------- */

/* Puts a value where the option was not given. */
static sbp_status settle(sbp_options *o, sbp_diag *diag, sbp_option_id id, const char *text,
                         const char *config) {
    option_setting setting = {.where = o->program, .config = config, .key = sbp_option_name(id)};
    option_target target = {.index = (int32_t)id};
    return sbp_options_assign(o, diag, &setting, &target, text);
}

static sbp_status settle_model(sbp_options *o, sbp_diag *diag) {
    option_value *model = &o->values[SBP_OPT_MODEL_NAME_OR_PATH];
    if (!model->given)
        return SBP_OK;
    model->given = false;
    if (o->arg_count == 0)
        SBP_PUSH(o->arena, o->args, o->arg_count, o->arg_capacity, model->text);
    else if (!model->config && strcmp(o->args[0], model->text) != 0)
        return sbp_fail(diag, SBP_USAGE,
                        "%s: --model_name_or_path is '%.200s' and MODEL '%.200s': give one of them",
                        o->program, model->text, o->args[0]);
    return SBP_OK;
}

/* With weights in fp32 it is autocast, which keeps them so, as --dtype bf16 does. */
static sbp_status settle_bf16(sbp_options *o, sbp_diag *diag) {
    option_value *bf16 = &o->values[SBP_OPT_BF16], *dtype = &o->values[SBP_OPT_DTYPE];
    bool on = bf16->given && strcmp(bf16->text, "on") == 0;
    bool typed = dtype->given && !dtype->config && bf16->config; /* the command line wins */
    bf16->given = false;
    if (!on || typed || (dtype->given && strcmp(dtype->text, "fp64") == 0))
        return SBP_OK;
    return settle(o, diag, SBP_OPT_DTYPE, "bf16", bf16->config);
}

sbp_status sbp_options_settle(sbp_options *o, sbp_diag *diag) {
    if (o->without_effect.length > 0 && !sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag, "these settings have no effect here: %s", o->without_effect.data);
    SBP_TRY(settle_model(o, diag));
    return settle_bf16(o, diag);
}

sbp_status sbp_options_settle_batch(sbp_options *o, sbp_diag *diag, int64_t ranks) {
    option_value *part = &o->values[SBP_OPT_PER_DEVICE_TRAIN_BATCH_SIZE],
                 *passes = &o->values[SBP_OPT_GRADIENT_ACCUMULATION_STEPS];
    const option_value *rows = &o->values[SBP_OPT_BATCH_SIZE], *tokens = &o->values[SBP_OPT_BATCH_TOKENS];
    int64_t together = sbp_options_int(o, SBP_OPT_CONTEXT_PARALLEL), product;
    const char *config = part->given ? part->config : passes->config;
    bool given = part->given || passes->given, other = rows->given || tokens->given;
    const char *other_config = rows->given ? rows->config : tokens->config;
    part->given = passes->given = false;
    if (!given || (other && config && !other_config)) /* the command line wins */
        return SBP_OK;
    if (other)
        return sbp_fail(
            diag, SBP_USAGE,
            "%s: --batch-size is per_device_train_batch_size x gradient_accumulation_steps x ranks: "
            "give one or the others",
            config ? config : o->program);
    if (together < 0)
        return sbp_fail(diag, SBP_USAGE,
                        "%s: with --context-parallel auto, give --batch-size N: rows of a step",
                        config ? config : o->program);
    ranks = ranks / together > 1 ? ranks / together : 1;
    if (!sbp_mul_i64(part->integer, passes->integer, &product) || !sbp_mul_i64(product, ranks, &product))
        return sbp_fail(diag, SBP_USAGE, "%s: per_device_train_batch_size is too large", o->program);
    if (!sbp_options_on(o, SBP_OPT_QUIET))
        sbp_note(diag,
                 "--batch-size %lld: per_device_train_batch_size %lld x gradient_accumulation_steps %lld x "
                 "%lld rank%s",
                 (long long)product, (long long)part->integer, (long long)passes->integer, (long long)ranks,
                 ranks == 1 ? "" : "s");
    return settle(o, diag, SBP_OPT_BATCH_SIZE, sbp_arena_printf(o->arena, "%lld", (long long)product),
                  config);
}
