/* tokenizer.c: putting a tokenizer together, its accessors, and its self-contained JSON. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>

const char *sbp_token_role_name(sbp_token_role role) {
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    return names[role];
}

/* ---- added tokens ------------------------------------------------------------------------------------ */

static int32_t find_added(const sbp_tokenizer *t, const char *content, int64_t length) {
    for (int32_t i = t->added_count - 1; i >= 0; i--)
        if (t->added[i].content.length == length &&
            memcmp(t->added[i].content.text, content, (size_t)length) == 0)
            return i;
    return -1;
}

/* State while tokens are being added: a name table of their contents and the next free id. */
typedef struct adding {
    sbp_tokenizer *t;
    sbp_diag *diag;
    sbp_map contents;
    int32_t next_id;
} adding;

/* As Hugging Face: the id that the vocabulary has, else the next one behind it. An id in the file that says
 * otherwise is a contradiction. */
static sbp_status add_token(adding *a, const tok_extra_token *given) {
    sbp_tokenizer *t = a->t;
    int64_t length = (int64_t)strlen(given->content);
    if (length == 0)
        return SBP_OK;
    tok_added added = {.single_word = given->single_word,
                       .left_strip = given->left_strip,
                       .right_strip = given->right_strip,
                       .normalized = given->normalized,
                       .special = given->special};
    int32_t before = sbp_map_get(&a->contents, given->content);
    added.id = before >= 0 ? t->added[before].id : sbp_model_id(&t->model, given->content, length);
    if (added.id >= 0 && given->id >= 0 && given->id != added.id)
        sbp_warn(a->diag, "%s: added token '%s' has id %lld, but the vocabulary gives it %d, which is used",
                 t->file, given->content, (long long)given->id, added.id);
    if (added.id < 0) {
        added.id = a->next_id++;
        if (given->id >= 0 && given->id != added.id)
            return sbp_fail(a->diag, SBP_INPUT,
                            "%s: added token '%s' has id %lld, expected %d, the next one after the "
                            "vocabulary",
                            t->file, given->content, (long long)given->id, added.id);
    }
    added.content.text =
        before >= 0 ? t->added[before].content.text : sbp_arena_strdup(t->arena, given->content);
    added.content.length = (int32_t)length;
    added.normalized_content = added.content;
    if (before >= 0) {
        t->added[before] = added; /* the later properties count */
        return SBP_OK;
    }
    sbp_map_set(&a->contents, added.content.text, t->added_count);
    SBP_PUSH(t->arena, t->added, t->added_count, t->added_capacity, added);
    return SBP_OK;
}

static sbp_status parse_added(adding *a, const sbp_json *root) {
    const sbp_json *list = NULL;
    SBP_TRY(sbp_json_get_array(a->diag, root, "added_tokens", SBP_JSON_NULLABLE, &list));
    for (int64_t i = 0; list && i < list->count; i++) {
        const sbp_json *item = &list->items[i];
        tok_extra_token token = {.id = -1};
        SBP_TRY(sbp_json_get_i64(a->diag, item, "id", SBP_JSON_REQUIRED, &token.id));
        SBP_TRY(sbp_json_get_string(a->diag, item, "content", SBP_JSON_REQUIRED, &token.content));
        SBP_TRY(sbp_json_get_bool(a->diag, item, "single_word", SBP_JSON_REQUIRED, &token.single_word));
        SBP_TRY(sbp_json_get_bool(a->diag, item, "lstrip", SBP_JSON_REQUIRED, &token.left_strip));
        SBP_TRY(sbp_json_get_bool(a->diag, item, "rstrip", SBP_JSON_REQUIRED, &token.right_strip));
        SBP_TRY(sbp_json_get_bool(a->diag, item, "normalized", SBP_JSON_REQUIRED, &token.normalized));
        SBP_TRY(sbp_json_get_bool(a->diag, item, "special", SBP_JSON_REQUIRED, &token.special));
        SBP_TRY(add_token(a, &token));
    }
    return SBP_OK;
}

/* Those that are not there yet; among them named ones that so far are only in the vocabulary. */
static sbp_status add_extras(adding *a, const tok_extras *extras) {
    for (int32_t i = 0; i < extras->token_count; i++)
        if (sbp_map_get(&a->contents, extras->tokens[i].content) < 0)
            SBP_TRY(add_token(a, &extras->tokens[i]));
    for (int32_t i = 0; i < extras->named_count; i++) {
        const char *content = extras->named[i].value;
        if (sbp_map_get(&a->contents, content) < 0 &&
            sbp_model_id(&a->t->model, content, (int64_t)strlen(content)) >= 0)
            SBP_TRY(add_token(a, &(tok_extra_token){.content = content, .id = -1, .special = true}));
    }
    return SBP_OK;
}

/* A token may begin at every byte of a text. */
static sbp_status check_length(const tok_work *work, const tok_added *added, int64_t length) {
    return length <= TOK_MOST_ADDED_BYTES
               ? SBP_OK
               : sbp_fail(work->diag, SBP_INPUT,
                          "%s: the added token '%.60s..' has %lld bytes; at most %d are supported",
                          work->t->file, added->content.text, (long long)length, TOK_MOST_ADDED_BYTES);
}

/* What normalization makes of a token that is to be matched in normalized text. */
static sbp_status normalize_token(sbp_tokenizer *t, tok_work *work, tok_added *added) {
    tok_piece piece = {.text = added->content.text,
                       .length = added->content.length,
                       .end = added->content.length,
                       .added = -1};
    work->left += TOK_MOST_MADE_PER_BYTE * piece.length;
    SBP_TRY(sbp_normalize(work, &piece));
    SBP_TRY(check_length(work, added, piece.length));
    if (piece.length != added->content.length ||
        memcmp(piece.text, added->content.text, (size_t)piece.length) != 0) {
        added->normalized_content.text = sbp_arena_strndup(t->arena, piece.text, (size_t)piece.length);
        added->normalized_content.length = (int32_t)piece.length;
    }
    return SBP_OK;
}

static sbp_status index_added(sbp_tokenizer *t, sbp_diag *diag, sbp_arena *scratch) {
    tok_work work; /* one for all of them: what they may make together */
    sbp_work_init(&work, t, scratch, scratch, diag, false);
    t->size = t->model.size;
    for (int32_t i = 0; i < t->added_count; i++)
        t->size = t->added[i].id >= t->size ? t->added[i].id + 1 : t->size;
    t->added_of_id = SBP_NEW_ARRAY(t->arena, int32_t, t->size);
    for (int32_t id = 0; id < t->size; id++)
        t->added_of_id[id] = -1;
    sbp_trie_init(&t->raw_trie, t->arena);
    sbp_trie_init(&t->normalized_trie, t->arena);
    for (int32_t i = 0; i < t->added_count; i++) {
        tok_added *added = &t->added[i];
        t->added_of_id[added->id] = i;
        SBP_TRY(check_length(&work, added, added->content.length));
        if (added->normalized && t->normalizer_count > 0)
            SBP_TRY(normalize_token(t, &work, added));
        const tok_string *s = &added->normalized_content;
        if (s->length > 0)
            sbp_trie_add(added->normalized ? &t->normalized_trie : &t->raw_trie, t->arena, s->text, s->length,
                         i);
        static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";
        if (added->single_word && !t->word_char)
            SBP_TRY(sbp_regex_compile(t->arena, diag, t->file, word, sizeof word - 1, &t->word_char));
    }
    for (int32_t i = 0; i < t->before_count + t->after_count; i++) {
        int32_t id = i < t->before_count ? t->before[i] : t->after[i - t->before_count];
        if (!sbp_tokenizer_token(t, id, NULL))
            return sbp_fail(diag, SBP_INPUT, "%s: the post_processor adds the id %d, which has no token",
                            t->file, id);
    }
    return SBP_OK;
}

/* ---- special tokens ----------------------------------------------------------------------------------- */

static const char *named_value(const tok_named *list, int32_t count, const char *name) {
    for (int32_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return list[i].value;
    return NULL;
}

static void add_named(sbp_tokenizer *t, const char *name, const char *value) {
    if (named_value(t->named, t->named_count, name))
        return;
    tok_named copy = {sbp_arena_strdup(t->arena, name), sbp_arena_strdup(t->arena, value)};
    SBP_PUSH(t->arena, t->named, t->named_count, t->named_capacity, copy);
}

static sbp_status resolve_roles(sbp_tokenizer *t, sbp_diag *diag, const tok_extras *extras) {
    for (int32_t i = 0; i < extras->named_count; i++)
        add_named(t, extras->named[i].name, extras->named[i].value);
    for (int role = 0; role < 4; role++) {
        const char *name = sbp_token_role_name((sbp_token_role)role);
        const char *value = named_value(t->named, t->named_count, name);
        int64_t id = extras->role_ids[role];
        if (!value && role == SBP_TOKEN_UNK &&
            id < 0) { /* not named: its spelling in a text is no special token */
            t->roles[role] = t->model.unk;
            continue;
        }
        if (!value && id >= 0) {
            value = id < t->size ? sbp_tokenizer_token(t, (int32_t)id, NULL) : NULL;
            if (!value)
                return sbp_fail(diag, SBP_INPUT,
                                "%s: the id %lld is to be the %s, but the tokenizer has no such id", t->file,
                                (long long)id, name);
            add_named(t, name, value);
        }
        t->roles[role] = value ? sbp_tokenizer_id(t, value, strlen(value)) : -1;
        if (value && t->roles[role] < 0 && role == SBP_TOKEN_EOS)
            return sbp_fail(diag, SBP_INPUT, "%s: the eos_token '%s' is not in the vocabulary", t->file,
                            value);
        if (value && t->roles[role] < 0)
            sbp_note(diag, "%s: the %s '%s' is not in the vocabulary", t->file, name, value);
    }
    return SBP_OK;
}

/* ---- building ----------------------------------------------------------------------------------------- */

typedef struct construction {
    sbp_arena *arena, *scratch;
    sbp_diag *diag;
    const char *file, *text;
    size_t length;
    const tok_extras *extras;
    sbp_tokenizer *t;
} construction;

/* The carrier of the named tokens: an added token without content, which Hugging Face skips. (A key of our
 * own at the top would not do: its parser does not skip values of unknown keys.) */
static sbp_status parse_named(construction *c, const sbp_json *root, tok_extras *out) {
    const sbp_json *named = NULL, *tokens = sbp_json_member(root, "added_tokens");
    for (int64_t i = 0; tokens && tokens->kind == SBP_JSON_ARRAY && i < tokens->count && !named; i++)
        if (sbp_json_member(&tokens->items[i], TOK_NAMED_KEY))
            SBP_TRY(
                sbp_json_get_object(c->diag, &tokens->items[i], TOK_NAMED_KEY, SBP_JSON_REQUIRED, &named));
    for (int64_t i = 0; named && i < named->count; i++) {
        tok_named entry = {.name = named->items[i].key};
        SBP_TRY(sbp_json_as_string(c->diag, &named->items[i], &entry.value));
        SBP_PUSH(c->scratch, out->named, out->named_count, out->named_capacity, entry);
    }
    return SBP_OK;
}

static sbp_status construct(void *user) {
    construction *c = user;
    sbp_tokenizer *t = SBP_NEW(c->arena, sbp_tokenizer);
    const sbp_json *root, *model;
    tok_extras all = c->extras ? *c->extras : (tok_extras){.role_ids = {-1, -1, -1, -1}};
    t->arena = c->arena;
    t->aligned_until = -1;
    t->file = sbp_arena_strdup(c->arena, c->file);
    t->json = c->text;
    t->json_length = c->length;
    SBP_TRY(sbp_json_parse(c->scratch, c->diag, c->file, c->text, c->length, 0, &root));
    SBP_TRY(sbp_json_as_object(c->diag, root, &root));
    const char *version = "1.0";
    SBP_TRY(sbp_json_get_string(c->diag, root, "version", SBP_JSON_NULLABLE, &version));
    if (strcmp(version, "1.0") != 0)
        return sbp_json_fail(c->diag, root, "tokenizer version '%s' is not supported, only 1.0", version);
    SBP_TRY(sbp_json_get_object(c->diag, root, "model", SBP_JSON_REQUIRED, &model));
    SBP_TRY(sbp_model_parse(c->arena, c->diag, model, &t->model));
    SBP_TRY(sbp_tokenizer_parse_components(t, c->diag, root));

    SBP_TRY(parse_named(c, root, &all)); /* names that other files give count first */
    const tok_extras *extras = &all;
    adding a = {.t = t, .diag = c->diag, .next_id = t->model.count};
    sbp_map_init(&a.contents, c->scratch);
    SBP_TRY(parse_added(&a, root));
    SBP_TRY(add_extras(&a, extras));
    SBP_TRY(index_added(t, c->diag, c->scratch));
    SBP_TRY(resolve_roles(t, c->diag, extras));
    c->t = t;
    return SBP_OK;
}

/* The scratch arena needs a guard of its own. */
static sbp_status construct_outer(void *user) {
    construction *c = user;
    return sbp_guard(c->scratch, c->diag, construct, c);
}

sbp_status sbp_tokenizer_build(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text,
                               size_t length, const tok_extras *extras, const sbp_tokenizer **out) {
    construction c = {.arena = arena,
                      .scratch = sbp_arena_create(),
                      .diag = diag,
                      .file = file,
                      .text = text,
                      .length = length,
                      .extras = extras};
    if (!c.scratch)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", file);
    sbp_status status = sbp_guard(arena, diag, construct_outer, &c);
    sbp_arena_destroy(c.scratch);
    if (status == SBP_OK)
        *out = c.t;
    return status;
}

sbp_status sbp_tokenizer_from_json(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text,
                                   size_t length, const sbp_tokenizer **out) {
    return sbp_tokenizer_build(arena, diag, file, text, length, NULL, out);
}

/* ---- accessors ---------------------------------------------------------------------------------------- */

int32_t sbp_tokenizer_id(const sbp_tokenizer *t, const char *token, size_t length) {
    if (length > INT32_MAX)
        return -1;
    int32_t id = sbp_model_id(&t->model, token, (int64_t)length);
    if (id >= 0)
        return id;
    int32_t added = find_added(t, token, (int64_t)length);
    return added >= 0 ? t->added[added].id : -1;
}

const char *sbp_tokenizer_token(const sbp_tokenizer *t, int32_t id, size_t *length) {
    const tok_string *s = NULL;
    if (id >= 0 && id < t->size && t->added_of_id[id] >= 0)
        s = &t->added[t->added_of_id[id]].content;
    else if (id >= 0 && id < t->model.size && t->model.tokens[id].text)
        s = &t->model.tokens[id];
    if (s && length)
        *length = (size_t)s->length;
    return s ? s->text : NULL;
}

bool sbp_tokenizer_is_special(const sbp_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->size && t->added_of_id[id] >= 0 && t->added[t->added_of_id[id]].special;
}

int32_t sbp_tokenizer_role(const sbp_tokenizer *t, sbp_token_role role) {
    return t->roles[role];
}

bool sbp_tokenizer_carrier(const char *text, size_t length, size_t *begin, size_t *end) {
    const char *head = length > 0 ? memmem(text, length, TOK_NAMED_HEAD, strlen(TOK_NAMED_HEAD)) : NULL;
    bool quoted = false;
    if (!head)
        return false;
    size_t at = (size_t)(head - text) + strlen(TOK_NAMED_HEAD);
    for (; at < length && (quoted || text[at] != '}'); at++) {
        if (text[at] == '"')
            quoted = !quoted;
        at += quoted && text[at] == '\\';
    }
    if (at + 2 > length || text[at + 1] != '}')
        return false;
    *begin = (size_t)(head - text);
    *end = at + 2;
    if (*begin > 0 && text[*begin - 1] == ',')
        --*begin;
    else if (*end < length && text[*end] == ',')
        ++*end;
    return true;
}

int32_t sbp_tokenizer_named_count(const sbp_tokenizer *t) {
    return t->named_count;
}

void sbp_tokenizer_named_at(const sbp_tokenizer *t, int32_t index, const char **name, const char **value) {
    *name = t->named[index].name;
    *value = t->named[index].value;
}

/* ---- self-contained JSON ------------------------------------------------------------------------------ */

typedef struct printing {
    const sbp_tokenizer *t;
    sbp_arena *scratch, *arena;
    sbp_diag *diag;
    sbp_text out;
    const char *text;
} printing;

/* An object that stays open. */
static void begin_added(sbp_json_writer *w, const tok_added *token) {
    sbp_json_write_object(w, NULL);
    sbp_json_write_int(w, "id", token->id);
    sbp_json_write_string(w, "content", token->content.text);
    sbp_json_write_bool(w, "single_word", token->single_word);
    sbp_json_write_bool(w, "lstrip", token->left_strip);
    sbp_json_write_bool(w, "rstrip", token->right_strip);
    sbp_json_write_bool(w, "normalized", token->normalized);
    sbp_json_write_bool(w, "special", token->special);
}

void sbp_write_added(sbp_json_writer *w, const tok_added *token) {
    begin_added(w, token);
    sbp_json_write_end(w);
}

void sbp_write_named(sbp_json_writer *w) {
    begin_added(w, &(tok_added){.content.text = ""});
    sbp_json_write_object(w, TOK_NAMED_KEY);
}

/* As "a b" where no part has a space: a third of the memory when it is read again. */
static void write_merges(sbp_json_writer *w, const sbp_json *merges) {
    bool pairs = false;
    sbp_text joined;
    sbp_text_init(&joined, w->out->arena);
    for (int64_t i = 0; i < merges->count; i++) {
        const sbp_json *m = &merges->items[i];
        for (int k = 0; m->kind == SBP_JSON_ARRAY && k < 2; k++)
            pairs |= memchr(m->items[k].string, ' ', (size_t)m->items[k].count) != NULL;
    }
    sbp_json_write_array(w, "merges");
    for (int64_t i = 0; i < merges->count; i++) {
        const sbp_json *m = &merges->items[i];
        if (pairs || m->kind == SBP_JSON_STRING) {
            sbp_json_write_value(w, NULL, m);
            continue;
        }
        joined.length = 0;
        sbp_text_add_n(&joined, m->items[0].string, (size_t)m->items[0].count);
        sbp_text_add_n(&joined, " ", 1);
        sbp_text_add_n(&joined, m->items[1].string, (size_t)m->items[1].count);
        sbp_json_write_bytes(w, NULL, joined.data, joined.length);
    }
    sbp_json_write_end(w);
}

static void write_model(sbp_json_writer *w, const sbp_json *model) {
    sbp_json_write_object(w, "model");
    for (int64_t i = 0; i < model->count; i++) {
        if (strcmp(model->items[i].key, "merges") == 0)
            write_merges(w, &model->items[i]);
        else
            sbp_json_write_value(w, model->items[i].key, &model->items[i]);
    }
    sbp_json_write_end(w);
}

static void write_all_added(sbp_json_writer *w, const sbp_tokenizer *t) {
    sbp_json_write_array(w, "added_tokens");
    for (int32_t i = 0; i < t->added_count; i++)
        sbp_write_added(w, &t->added[i]);
    sbp_write_named(w);
    for (int32_t i = 0; i < t->named_count; i++)
        sbp_json_write_string(w, t->named[i].name, t->named[i].value);
    sbp_json_write_end(w);
    sbp_json_write_end(w);
    sbp_json_write_end(w);
}

static sbp_status write_scratch(void *user) {
    printing *p = user;
    const sbp_tokenizer *t = p->t;
    const sbp_json *root;
    SBP_TRY(sbp_json_parse(p->scratch, p->diag, t->file, t->json, t->json_length, 0, &root));
    sbp_text_init(&p->out, p->scratch);
    sbp_json_writer w = sbp_json_writer_on(&p->out);
    w.compact = true;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "version", "1.0");
    sbp_json_write_null(&w, "truncation");
    sbp_json_write_null(&w, "padding");
    write_all_added(&w, t);
    static const char *const copied[] = {"normalizer", "pre_tokenizer", "post_processor", "decoder"};
    for (int i = 0; i < SBP_COUNT(copied); i++)
        sbp_json_write_value(&w, copied[i], sbp_json_member(root, copied[i]));
    write_model(&w, sbp_json_member(root, "model"));
    sbp_json_write_end(&w);
    return SBP_OK;
}

static sbp_status print_result(void *user) {
    printing *p = user;
    p->text = sbp_arena_strndup(p->arena, p->out.data, p->out.length);
    return SBP_OK;
}

sbp_status sbp_tokenizer_to_json(const sbp_tokenizer *t, sbp_arena *arena, sbp_diag *diag, const char **text,
                                 size_t *length) {
    printing p = {.t = t, .scratch = sbp_arena_create(), .arena = arena, .diag = diag};
    if (!p.scratch)
        return sbp_fail(diag, SBP_MACHINE, "out of memory writing the tokenizer of '%s'", t->file);
    sbp_status status = sbp_guard(p.scratch, diag, write_scratch, &p);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, print_result, &p);
    if (status == SBP_OK) {
        *text = p.text;
        *length = p.out.length;
    }
    sbp_arena_destroy(p.scratch);
    return status;
}
