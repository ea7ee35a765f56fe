/* tokenizer_load.c: tokenizers from paths, with the files that lie beside tokenizer.json. */
#include "frontends/formats/tokenizer/tokenizer_convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/files/hub.h"

typedef struct loading {
    sbp_arena *arena, *scratch;
    sbp_diag *diag;
    const char *path;
    tok_extras extras;
    bool has_special_files;
    const char *class;      /* tokenizer_class, or NULL */
    const char *model_type; /* or NULL */
    bool prefix_space, legacy;
    int add_bos, add_eos; /* -1: nobody says */
    const sbp_tokenizer *t;
} loading;

static bool has_suffix(const char *text, const char *suffix) {
    size_t a = strlen(text), b = strlen(suffix);
    return a >= b && strcmp(text + a - b, suffix) == 0;
}

/* A special token is a string, or an object with its content and properties. NULL: null or no token. */
static sbp_status token_content(loading *l, const sbp_json *node, const char **content) {
    *content = NULL;
    if (node->kind == SBP_JSON_STRING)
        return sbp_json_as_string(l->diag, node, content);
    if (node->kind == SBP_JSON_OBJECT)
        return sbp_json_get_string(l->diag, node, "content", SBP_JSON_REQUIRED, content);
    return SBP_OK;
}

static void add_named(loading *l, const char *name, const char *content) {
    for (int32_t i = 0; i < l->extras.named_count; i++)
        if (strcmp(l->extras.named[i].name, name) == 0)
            return; /* the first file counts */
    tok_named named = {name, content};
    SBP_PUSH(l->scratch, l->extras.named, l->extras.named_count, l->extras.named_capacity, named);
}

static sbp_status add_properties(loading *l, const sbp_json *node, int64_t id, bool special) {
    tok_extra_token token = {.id = id, .special = special};
    SBP_TRY(token_content(l, node, &token.content));
    if (!token.content)
        return SBP_OK;
    if (node->kind == SBP_JSON_OBJECT) {
        token.normalized = !special;
        SBP_TRY(sbp_json_get_bool(l->diag, node, "single_word", SBP_JSON_NULLABLE, &token.single_word));
        SBP_TRY(sbp_json_get_bool(l->diag, node, "lstrip", SBP_JSON_NULLABLE, &token.left_strip));
        SBP_TRY(sbp_json_get_bool(l->diag, node, "rstrip", SBP_JSON_NULLABLE, &token.right_strip));
        SBP_TRY(sbp_json_get_bool(l->diag, node, "normalized", SBP_JSON_NULLABLE, &token.normalized));
        SBP_TRY(sbp_json_get_bool(l->diag, node, "special", SBP_JSON_NULLABLE, &token.special));
    }
    SBP_PUSH(l->scratch, l->extras.tokens, l->extras.token_count, l->extras.token_capacity, token);
    return SBP_OK;
}

/* added_tokens_decoder: {"151643": {"content": ...}}. */
static sbp_status read_added_tokens(loading *l, const sbp_json *root) {
    const sbp_json *map = NULL;
    SBP_TRY(sbp_json_get_object(l->diag, root, "added_tokens_decoder", SBP_JSON_NULLABLE, &map));
    for (int64_t i = 0; map && i < map->count; i++) {
        char *end;
        long long id = strtoll(map->items[i].key, &end, 10);
        if (*end || end == map->items[i].key || id < 0)
            return sbp_json_fail(l->diag, &map->items[i], "expected an id as the key");
        SBP_TRY(add_properties(l, &map->items[i], id, false));
    }
    return SBP_OK;
}

/* What LlamaTokenizer is made with. Other types than those of Python's defaults count as absent. */
static void read_class(loading *l, const sbp_json *root) {
    const sbp_json *class = sbp_json_member(root, "tokenizer_class");
    const sbp_json *prefix = sbp_json_member(root, "add_prefix_space");
    const sbp_json *legacy = sbp_json_member(root, "legacy");
    if (class && class->kind == SBP_JSON_STRING && !l->class)
        l->class = class->string;
    if (prefix && prefix->kind == SBP_JSON_BOOL)
        l->prefix_space = prefix->boolean;
    if (legacy && legacy->kind == SBP_JSON_BOOL)
        l->legacy = legacy->boolean;
    const sbp_json *bos = sbp_json_member(root, "add_bos_token"),
                   *eos = sbp_json_member(root, "add_eos_token");
    if (bos && bos->kind == SBP_JSON_BOOL)
        l->add_bos = bos->boolean;
    if (eos && eos->kind == SBP_JSON_BOOL)
        l->add_eos = eos->boolean;
}

/* Every "..._token", and the tokens that models bring beyond the usual ones. */
static sbp_status read_named(loading *l, const sbp_json *root) {
    static const char *const lists[] = {"extra_special_tokens", "additional_special_tokens"};
    for (int64_t i = 0; i < root->count; i++) {
        const char *content;
        if (!has_suffix(root->items[i].key, "_token"))
            continue;
        SBP_TRY(token_content(l, &root->items[i], &content));
        if (content)
            add_named(l, root->items[i].key, content);
    }
    for (int k = 0; k < SBP_COUNT(lists); k++) {
        const sbp_json *list = sbp_json_member(root, lists[k]);
        for (int64_t i = 0;
             list && (list->kind == SBP_JSON_ARRAY || list->kind == SBP_JSON_OBJECT) && i < list->count;
             i++) {
            const char *content;
            SBP_TRY(token_content(l, &list->items[i], &content));
            if (content && list->kind == SBP_JSON_OBJECT)
                add_named(l, list->items[i].key, content);
        }
    }
    return SBP_OK;
}

static sbp_status read_special_file(loading *l, const char *name, bool added_tokens) {
    const char *path = sbp_file_join(l->scratch, l->path, name);
    const sbp_json *root;
    if (!sbp_file_exists(path))
        return SBP_OK;
    l->has_special_files = true;
    SBP_TRY(sbp_json_read(l->scratch, l->diag, path, 0, &root));
    SBP_TRY(sbp_json_as_object(l->diag, root, &root));
    if (added_tokens) {
        read_class(l, root);
        SBP_TRY(read_added_tokens(l, root));
    }
    return read_named(l, root);
}

/* An id, or the first of a list of ids. */
static sbp_status read_role_id(loading *l, const sbp_json *root, const char *key, int64_t *out) {
    const sbp_json *node = sbp_json_member(root, key);
    if (node && node->kind == SBP_JSON_ARRAY)
        node = node->count > 0 ? &node->items[0] : NULL;
    if (!node || node->kind == SBP_JSON_NULL)
        return SBP_OK;
    int64_t id;
    SBP_TRY(sbp_json_as_i64(l->diag, node, &id));
    *out = id >= 0 ? id : -1; /* some files write -1 for none */
    return SBP_OK;
}

static sbp_status read_config(loading *l) {
    const char *path = sbp_file_join(l->scratch, l->path, "config.json");
    const sbp_json *root, *text;
    if (!sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(l->scratch, l->diag, path, SBP_JSON_PYTHON, &root));
    SBP_TRY(sbp_json_as_object(l->diag, root, &root));
    const sbp_json *type = sbp_json_member(root, "model_type"),
                   *class = sbp_json_member(root, "tokenizer_class");
    if (type && type->kind == SBP_JSON_STRING)
        l->model_type = type->string;
    if (class && class->kind == SBP_JSON_STRING && !l->class)
        l->class = class->string;
    int64_t *ids = l->extras.role_ids;
    SBP_TRY(read_role_id(l, root, "eos_token_id", &ids[SBP_TOKEN_EOS]));
    text = sbp_json_member(root, "text_config"); /* the language model of a multimodal one */
    if (ids[SBP_TOKEN_EOS] < 0 && text)
        SBP_TRY(read_role_id(l, text, "eos_token_id", &ids[SBP_TOKEN_EOS]));
    if (l->has_special_files)
        return SBP_OK;
    SBP_TRY(read_role_id(l, root, "bos_token_id", &ids[SBP_TOKEN_BOS]));
    return read_role_id(l, root, "pad_token_id", &ids[SBP_TOKEN_PAD]);
}

/* ---- LlamaTokenizer ----------------------------------------------------------------------------------- */

/* Whether a component, or one inside it, is of a type. */
static bool has_type(const sbp_json *node, const char *type) {
    const sbp_json *name = sbp_json_member(node, "type");
    if (name && name->kind == SBP_JSON_STRING && strcmp(name->string, type) == 0)
        return true;
    bool found = false;
    for (int64_t i = 0; (node->kind == SBP_JSON_ARRAY || node->kind == SBP_JSON_OBJECT) && i < node->count;
         i++)
        found |= has_type(&node->items[i], type);
    return found;
}

/* As AutoTokenizer decides: mistral and qwen2 take no notice of this class, nor does a byte-level file. */
static bool is_llama_class(const loading *l) {
    if (!l->class || (strcmp(l->class, "LlamaTokenizer") != 0 && strcmp(l->class, "LlamaTokenizerFast") != 0))
        return false;
    return !l->model_type || (strcmp(l->model_type, "mistral") != 0 && strcmp(l->model_type, "qwen2") != 0);
}

static bool is_byte_level(const sbp_json *root) {
    const sbp_json *splitter = sbp_json_member(root, "pre_tokenizer"),
                   *decoder = sbp_json_member(root, "decoder");
    return (splitter && has_type(splitter, "ByteLevel")) || (decoder && has_type(decoder, "ByteLevel"));
}

/* Members of an object that are there. */
static void write_kept(sbp_json_writer *w, const sbp_json *object, const char *const *kept, int count) {
    for (int i = 0; i < count; i++)
        if (sbp_json_member(object, kept[i]))
            sbp_json_write_value(w, kept[i], sbp_json_member(object, kept[i]));
}

static void write_llama_model(sbp_json_writer *w, const sbp_json *model) {
    static const char *const kept[] = {"type", "vocab", "merges"};
    sbp_json_write_object(w, "model");
    sbp_json_write_bool(w, "fuse_unk", true);
    sbp_json_write_bool(w, "byte_fallback", true);
    write_kept(w, model, kept, SBP_COUNT(kept));
    sbp_json_write_end(w);
}

/* Transformers 5 takes vocabulary, merges, added tokens and post-processor from the file, and brings the
 * rest: where transformers 4 put a space before the text behind every special token, and before a space, this
 * puts one only before the first text, unless there is one. */
static void write_llama(const loading *l, sbp_text *out, const sbp_json *root) {
    static const char *const kept[] = {"added_tokens", "post_processor", "truncation", "padding"};
    int first = l->extras.token_count > 0; /* those of tokenizer_config.json count */
    sbp_json_writer w = sbp_json_writer_on(out);
    w.compact = true;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "version", "1.0");
    sbp_json_write_null(&w, "normalizer");
    sbp_json_write_object(&w, "pre_tokenizer");
    sbp_json_write_string(&w, "type", "Metaspace");
    sbp_json_write_string(&w, "replacement", "\xe2\x96\x81");
    sbp_json_write_string(&w, "prepend_scheme", !l->prefix_space ? "never" : l->legacy ? "always" : "first");
    sbp_json_write_bool(&w, "split", false);
    sbp_json_write_end(&w);
    sbp_convert_decoder(&w, l->prefix_space);
    write_kept(&w, root, kept + first, SBP_COUNT(kept) - first);
    write_llama_model(&w, sbp_json_member(root, "model"));
    sbp_json_write_end(&w);
}

/* The text that a LlamaTokenizer is made of, in place of that of the file. */
static sbp_status apply_llama(const loading *l, const char *path, const char **text, size_t *length) {
    const sbp_json *root;
    SBP_TRY(sbp_json_parse(l->scratch, l->diag, path, *text, *length, 0, &root));
    const sbp_json *model = sbp_json_member(root, "model");
    if (!model || model->kind != SBP_JSON_OBJECT || is_byte_level(root))
        return SBP_OK;
    sbp_text out;
    sbp_text_init(&out, l->scratch);
    write_llama(l, &out, root);
    *text = sbp_arena_strndup(l->arena, out.data, out.length);
    *length = out.length;
    return SBP_OK;
}

/* ---- files of any kind -----------------------------------------------------------------------------------
 */

/* The text of a tokenizer.json for what the file has, told by how it begins: JSON (tekken.json by its
 * "config"), a protobuf message, or lines. */
static sbp_status convert(loading *l, const char *path, const char **text, size_t *length) {
    size_t blank = strspn(*text, " \t\r\n");
    sbp_text out;
    if (blank < *length && (*text)[blank] == '{') {
        if (!memmem(*text, *length, "\"token_bytes\"", 13))
            return SBP_OK;
        const sbp_json *root;
        SBP_TRY(sbp_json_parse(l->scratch, l->diag, path, *text, *length, 0, &root));
        if (!sbp_json_member(root, "config"))
            return SBP_OK;
        SBP_TRY(sbp_convert_tekken(l->scratch, l->diag, path, root, l->add_bos, l->add_eos, &out));
    } else if (*length > 0 && **text == '\n') { /* field 1, a piece */
        SBP_TRY(sbp_convert_sentencepiece(l->scratch, l->diag, path, *text, *length, l->add_bos, l->add_eos,
                                          &out));
    } else if (*length > 0 && !has_suffix(path, ".json")) {
        SBP_TRY(sbp_convert_tiktoken(l->scratch, l->diag, path, *text, *length, &out));
    } else {
        return SBP_OK; /* the JSON parser says what is wrong */
    }
    *text = sbp_arena_strndup(l->arena, out.data, out.length);
    *length = out.length;
    return SBP_OK;
}

static sbp_status load_file(void *user) {
    loading *l = user;
    const char *text;
    size_t length;
    SBP_TRY(sbp_file_read(l->arena, l->diag, l->path, &text, &length));
    SBP_TRY(convert(l, l->path, &text, &length));
    return sbp_tokenizer_build(l->arena, l->diag, l->path, text, length, NULL, &l->t);
}

/* What a directory's tokenizer is read from; NULL: there is none. */
static const char *file_of(sbp_arena *arena, const char *directory) {
    static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const char *path = sbp_file_join(arena, directory, names[i]);
        if (sbp_file_exists(path))
            return path;
    }
    return NULL;
}

bool sbp_tokenizer_is_in(sbp_arena *arena, const char *path) {
    return sbp_directory_exists(path) && file_of(arena, path);
}

/* The base of an adapter without a tokenizer; NULL: it is none, or its base is unknown. */
static const char *base_of(sbp_arena *arena, const char *directory, const char *base) {
    const char *config = sbp_file_join(arena, directory, "adapter_config.json"), *named = NULL;
    const sbp_json *root;
    if (file_of(arena, directory) || !sbp_file_exists(config))
        return NULL;
    if (base)
        return sbp_hub_base(arena, NULL, base);
    if (sbp_json_read(arena, NULL, config, 0, &root) != SBP_OK ||
        sbp_json_get_string(NULL, root, "base_model_name_or_path", SBP_JSON_NULLABLE, &named) != SBP_OK)
        return NULL;
    return named ? sbp_hub_base(arena, directory, named) : NULL;
}

const char *sbp_tokenizer_place(sbp_arena *arena, const char *model, const char *base) {
    const char *of = sbp_directory_exists(model) ? base_of(arena, model, base) : NULL;
    if (of)
        model = of;
    const char *slash = strrchr(model, '/');
    if (sbp_directory_exists(model) || has_suffix(model, ".gguf"))
        return model;
    return slash ? sbp_arena_strndup(arena, model, (size_t)(slash - model) + (slash == model)) : ".";
}

static sbp_status load_directory(void *user) {
    loading *l = user;
    const char *path = file_of(l->scratch, l->path);
    if (!path)
        return sbp_fail(l->diag, SBP_IO, "'%s' has no tokenizer.json, tekken.json or tokenizer.model",
                        l->path);
    SBP_TRY(read_special_file(l, "tokenizer_config.json", true));
    SBP_TRY(read_special_file(l, "special_tokens_map.json", false));
    SBP_TRY(read_config(l));
    const char *text;
    size_t length;
    SBP_TRY(sbp_file_read(l->arena, l->diag, path, &text, &length));
    SBP_TRY(convert(l, path, &text, &length));
    if (is_llama_class(l))
        SBP_TRY(apply_llama(l, path, &text, &length));
    return sbp_tokenizer_build(l->arena, l->diag, path, text, length, &l->extras, &l->t);
}

sbp_status sbp_tokenizer_load(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_tokenizer **out) {
    bool directory = sbp_directory_exists(path);
    if (!directory && has_suffix(path, ".gguf")) {
        const sbp_gguf *gguf;
        SBP_TRY(sbp_gguf_open(arena, diag, path, &gguf));
        return sbp_tokenizer_from_gguf(arena, diag, gguf, out);
    }
    loading l = {.arena = arena,
                 .scratch = sbp_arena_create(),
                 .diag = diag,
                 .path = path,
                 .prefix_space = true,
                 .add_bos = -1,
                 .add_eos = -1,
                 .extras = {.role_ids = {-1, -1, -1, -1}}};
    if (!l.scratch)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", path);
    sbp_status status = sbp_guard(l.scratch, diag, directory ? load_directory : load_file, &l);
    sbp_arena_destroy(l.scratch);
    if (status == SBP_OK)
        *out = l.t;
    return status;
}

/* Messages on their way: the last error is kept, until its status is known. */
typedef struct pass_on_job {
    sbp_diag *diag;
    char error[600];
} pass_on_job;

static void pass_on(void *user, sbp_severity severity, const char *text) {
    pass_on_job *job = user;
    if (severity == SBP_NOTE)
        sbp_note(job->diag, "%s", text);
    else if (severity == SBP_WARNING)
        sbp_warn(job->diag, "%s", text);
    else
        snprintf(job->error, sizeof job->error, "%s", text);
}

sbp_status sbp_tokenizer_load_optional(sbp_arena *arena, sbp_diag *diag, const char *path,
                                       const sbp_tokenizer **out) {
    pass_on_job job = {.diag = diag};
    sbp_diag *own = sbp_diag_create();
    if (!own)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", path);
    sbp_diag_set_sink(own, pass_on, &job);
    sbp_status status = sbp_tokenizer_load(arena, own, path, out);
    sbp_diag_destroy(own);
    if (status == SBP_OK)
        return SBP_OK;
    *out = NULL;
    if (status != SBP_INPUT)
        return sbp_fail(diag, status, "%s", job.error);
    sbp_warn(diag, "%s; without a tokenizer only rows of ids can be used", job.error);
    return SBP_OK;
}
