/* export_special.c: special tokens, what is put around a text, and chat templates, read from the files as
 * llama.cpp's converter reads them. */
#include <dirent.h>
#include <string.h>

#include "frontends/formats/export/export_tokens.h"

static const struct {
    const char *name, *key;
} kinds[] = {
    {"bos", "tokenizer.ggml.bos_token_id"},     {"eos", "tokenizer.ggml.eos_token_id"},
    {"unk", "tokenizer.ggml.unknown_token_id"}, {"sep", "tokenizer.ggml.seperator_token_id"},
    {"pad", "tokenizer.ggml.padding_token_id"}, {"cls", NULL},
    {"mask", "tokenizer.ggml.mask_token_id"},   {"eot", "tokenizer.ggml.eot_token_id"},
    {"eom", "tokenizer.ggml.eom_token_id"},
};

enum { BOS, EOS, UNK, SEP, PAD, CLS, MASK, EOT, EOM, KINDS };

typedef struct special {
    sbp_arena *arena;
    sbp_diag *diag;
    const exp_special_request *request;
    sbp_gguf_keys *keys;
    const sbp_json *config;   /* tokenizer_config.json; NULL: there is none */
    const char *token[KINDS]; /* their texts; NULL: none */
    int64_t id[KINDS];        /* -1: none */
    int add[KINDS];           /* -1: nobody says */
    int kinds;                /* that are looked for */
} special;

/* ---- tokens ------------------------------------------------------------------------------------------- */

/* A token is a string, or an object with its content; an empty one is none. */
static const char *text_of(const sbp_json *node) {
    if (node && node->kind == SBP_JSON_OBJECT)
        node = sbp_json_member(node, "content");
    return node && node->kind == SBP_JSON_STRING && node->count > 0 ? node->string : NULL;
}

static void read_tokens(special *s) {
    for (int k = 0; k < KINDS; k++)
        s->token[k] =
            text_of(sbp_json_member(s->config, sbp_arena_printf(s->arena, "%s_token", kinds[k].name)));
    if (!s->token[BOS])
        s->token[BOS] = s->token[CLS];
    if (!s->token[EOS])
        s->token[EOS] = s->token[SEP];
}

static const char *word_of(const sbp_json *object, const char *key) {
    const sbp_json *node = sbp_json_member(object, key);
    return node && node->kind == SBP_JSON_STRING ? node->string : NULL;
}

/* The id of a part of a template that is a special token; NULL: it is none. */
static const char *special_of(const sbp_json *part) {
    return word_of(sbp_json_member(part, "SpecialToken"), "id");
}

static bool same(const char *a, const char *b) {
    return a && b && strcmp(a, b) == 0;
}

static void read_first(special *s, const char *first) {
    if (!s->config) {
        s->token[BOS] = first;
    } else if (!same(first, s->token[BOS]) && !same(first, s->token[CLS])) {
        if (!s->token[BOS])
            s->token[BOS] = first;
        if (!s->token[CLS])
            s->token[CLS] = first;
    }
    s->add[BOS] = same(first, s->token[BOS]) || same(first, s->token[CLS]);
}

/* What a text ends with is its end; what was called so ends a turn then. */
static void read_last(special *s, const char *last) {
    if (s->config && !same(last, s->token[EOS])) {
        if (s->kinds <= EOT) {
            s->token[EOT] = s->token[EOS];
            s->kinds = EOT + 1;
        } else if (s->kinds <= EOM) {
            s->token[EOM] = s->token[EOS];
            s->kinds = EOM + 1;
        }
    }
    s->token[EOS] = last;
    s->add[EOS] = 1;
}

/* Between the two texts of a pair: [first] A .. B [last]. */
static void read_pair(special *s, const sbp_json *pair, const char *first, const char *last) {
    int64_t begin = 0, end = pair->count;
    if (end > 0 && first && same(special_of(&pair->items[0]), first))
        begin++;
    if (end > begin && last && same(special_of(&pair->items[end - 1]), last))
        end--;
    if (end - begin < 3 || !same(word_of(sbp_json_member(&pair->items[begin], "Sequence"), "id"), "A") ||
        !same(word_of(sbp_json_member(&pair->items[end - 1], "Sequence"), "id"), "B"))
        return;
    const char *entry = special_of(&pair->items[begin + 1]);
    bool separates = entry && (same(entry, s->token[SEP]) || same(entry, s->token[EOS])),
         add = separates && !last;
    if (end - begin == 4) {
        entry = special_of(&pair->items[begin + 2]);
        add |= entry && (same(entry, s->token[SEP]) || same(entry, s->token[EOS]));
    }
    s->add[SEP] = add;
    if (add && !s->token[SEP])
        s->token[SEP] = s->token[EOS];
}

static void read_template(special *s, const sbp_json *processor) {
    const sbp_json *single = sbp_json_member(processor, "single"), *pair = sbp_json_member(processor, "pair");
    const char *first = NULL, *last = NULL;
    if (single && single->kind == SBP_JSON_ARRAY && single->count > 1) {
        first = special_of(&single->items[0]);
        last = special_of(&single->items[single->count - 1]);
        if (first)
            read_first(s, first);
        if (last)
            read_last(s, last);
    }
    if (pair && pair->kind == SBP_JSON_ARRAY && pair->count > 0)
        read_pair(s, pair, first, last);
}

static void read_processor(special *s, const sbp_json *processor) {
    const char *type = word_of(processor, "type");
    if (same(type, "ByteLevel")) {
        s->add[BOS] = s->add[BOS] < 0 ? 0 : s->add[BOS];
        s->add[EOS] = s->add[EOS] < 0 ? 0 : s->add[EOS];
    } else if (same(type, "RobertaProcessing")) {
        s->add[BOS] = s->add[EOS] = s->add[SEP] = 1;
    } else if (same(type, "TemplateProcessing")) {
        read_template(s, processor);
    }
}

static void read_processors(special *s) {
    const sbp_json *all = sbp_json_member(s->request->tokenizer, "post_processor"),
                   *list = sbp_json_member(all, "processors");
    if (!all || all->kind != SBP_JSON_OBJECT)
        return;
    for (int64_t i = 0; list && list->kind == SBP_JSON_ARRAY && i < list->count; i++)
        read_processor(s, &list->items[i]);
    if (!list)
        read_processor(s, all);
}

/* ---- ids ---------------------------------------------------------------------------------------------- */

static void set_id(special *s, int kind, int64_t id) {
    if (id >= 0 && s->id[kind] < 0 && (s->request->most == 0 || id < s->request->most))
        s->id[kind] = id;
}

static int64_t added_id(const special *s, const char *text) {
    const sbp_json *added = sbp_json_member(s->request->tokenizer, "added_tokens");
    for (int64_t i = 0; added && added->kind == SBP_JSON_ARRAY && i < added->count; i++) {
        const sbp_json *id = sbp_json_member(&added->items[i], "id");
        if (same(word_of(&added->items[i], "content"), text) && id && id->kind == SBP_JSON_INT)
            return id->integer;
    }
    return -1;
}

static void find_ids(special *s) {
    const sbp_json *text = sbp_json_member(s->request->config, "text_config");
    for (int k = 0; k < s->kinds && s->config; k++) {
        const sbp_json *add =
            sbp_json_member(s->config, sbp_arena_printf(s->arena, "add_%s_token", kinds[k].name));
        if (add && add->kind == SBP_JSON_BOOL && s->add[k] < 0)
            s->add[k] = add->boolean;
        if (s->token[k])
            set_id(s, k, added_id(s, s->token[k]));
    }
    for (int k = 0; k < s->kinds; k++) {
        const char *key = sbp_arena_printf(s->arena, "%s_token_id", kinds[k].name);
        const sbp_json *id = sbp_json_member(s->request->config, key);
        if (!id || id->kind == SBP_JSON_NULL)
            id = sbp_json_member(text, key);
        if (id && id->kind == SBP_JSON_INT)
            set_id(s, k, id->integer);
    }
    const exp_special_request *r = s->request;
    const char *const given[KINDS] = {
        [BOS] = r->bos, [EOS] = r->eos, [UNK] = r->unk, [EOT] = r->eot, [EOM] = r->eom};
    for (int k = 0; k < KINDS; k++)
        if (given[k])
            set_id(s, k, added_id(s, given[k]));
}

static void put_ids(const special *s) {
    static const char *const adds[KINDS] = {[BOS] = "tokenizer.ggml.add_bos_token",
                                            [EOS] = "tokenizer.ggml.add_eos_token",
                                            [SEP] = "tokenizer.ggml.add_sep_token"};
    for (int k = 0; k < KINDS; k++)
        if (s->id[k] >= 0 && kinds[k].key)
            sbp_gguf_put_u32(s->keys, kinds[k].key, (uint32_t)s->id[k]);
    for (int k = 0; k < KINDS; k++)
        if (s->add[k] >= 0 && adds[k])
            sbp_gguf_put_bool(s->keys, adds[k], s->add[k] != 0);
}

/* ---- merges, normalizers ------------------------------------------------------------------------------ */

/* A space inside a part of a merge is written as the character that GPT-2 has for it. */
static void add_part(sbp_text *out, const sbp_json *part) {
    for (int64_t i = 0; i < part->count; i++)
        sbp_text_add_n(out, part->string[i] == ' ' ? "\xc4\xa0" : part->string + i,
                       part->string[i] == ' ' ? 2 : 1);
}

static sbp_status put_merges(const special *s) {
    const sbp_json *merges = sbp_json_member(sbp_json_member(s->request->tokenizer, "model"), "merges");
    if (!merges || merges->kind != SBP_JSON_ARRAY || merges->count == 0)
        return SBP_OK;
    sbp_text *out = sbp_gguf_put_array(s->keys, "tokenizer.ggml.merges", SBP_GGUF_STRING, merges->count);
    sbp_text merge;
    sbp_text_init(&merge, s->arena);
    for (int64_t i = 0; i < merges->count; i++) {
        const sbp_json *m = &merges->items[i];
        merge.length = 0;
        if (m->kind == SBP_JSON_STRING) {
            sbp_text_add_n(&merge, m->string, (size_t)m->count);
        } else if (m->kind == SBP_JSON_ARRAY && m->count == 2 && m->items[0].kind == SBP_JSON_STRING &&
                   m->items[1].kind == SBP_JSON_STRING) {
            add_part(&merge, &m->items[0]);
            sbp_text_add_n(&merge, " ", 1);
            add_part(&merge, &m->items[1]);
        } else {
            return sbp_json_fail(s->diag, m, "expected a merge of two tokens");
        }
        sbp_gguf_add_string(out, merge.data, (int64_t)merge.length);
    }
    return SBP_OK;
}

static void put_normalizer(const special *s, const sbp_json *normalizer) {
    const char *type = word_of(normalizer, "type");
    const sbp_json *list = sbp_json_member(normalizer, "normalizers");
    if (same(type, "Lowercase"))
        sbp_gguf_put_bool(s->keys, "tokenizer.ggml.normalizer.lowercase", true);
    if (same(type, "StripAccents"))
        sbp_gguf_put_bool(s->keys, "tokenizer.ggml.normalizer.strip_accents", true);
    for (int64_t i = 0; same(type, "Sequence") && list && list->kind == SBP_JSON_ARRAY && i < list->count;
         i++)
        put_normalizer(s, &list->items[i]);
}

/* ---- chat templates ----------------------------------------------------------------------------------- */

typedef struct named_template {
    const char *name, *text;
    size_t length;
} named_template;

typedef struct template_list {
    named_template *items;
    int32_t count, capacity;
} template_list;

static void add_template(const special *s, template_list *list, const char *name, const char *text,
                         size_t length) {
    named_template t = {name, text, length};
    SBP_PUSH(s->arena, list->items, list->count, list->capacity, t);
}

enum { MOST_TEMPLATES = 64, NAME_BYTES = 256 };

/* additional_chat_templates/NAME.jinja, by name. */
static sbp_status read_additional(const special *s, template_list *list) {
    const char *folder = sbp_file_join(s->arena, s->request->directory, "additional_chat_templates");
    char(*names)[NAME_BYTES] = sbp_arena_array(s->arena, MOST_TEMPLATES, sizeof *names);
    int count = 0;
    DIR *open = sbp_directory_exists(folder) ? opendir(folder) : NULL;
    for (struct dirent *entry; open && count < MOST_TEMPLATES && (entry = readdir(open));) {
        size_t n = strlen(entry->d_name);
        if (n <= 6 || n >= NAME_BYTES || strcmp(entry->d_name + n - 6, ".jinja") != 0)
            continue;
        int at = count++;
        for (; at > 0 && strcmp(names[at - 1], entry->d_name) > 0; at--)
            memcpy(names[at], names[at - 1], NAME_BYTES);
        memcpy(names[at], entry->d_name, n + 1);
    }
    if (open)
        closedir(open);
    for (int i = 0; i < count; i++) {
        const char *text;
        size_t length;
        SBP_TRY(sbp_file_read(s->arena, s->diag, sbp_file_join(s->arena, folder, names[i]), &text, &length));
        add_template(s, list, sbp_arena_strndup(s->arena, names[i], strlen(names[i]) - 6), text, length);
    }
    return SBP_OK;
}

static void read_list(const special *s, const sbp_json *node, template_list *list) {
    if (node && node->kind == SBP_JSON_STRING)
        add_template(s, list, "default", node->string, (size_t)node->count);
    for (int64_t i = 0; node && node->kind == SBP_JSON_ARRAY && i < node->count; i++) {
        const sbp_json *text = sbp_json_member(&node->items[i], "template");
        const char *name = word_of(&node->items[i], "name");
        if (name && text && text->kind == SBP_JSON_STRING)
            add_template(s, list, name, text->string, (size_t)text->count);
    }
}

/* Templates of tokenizer_config.json; where it has none, those of files. */
static sbp_status read_templates(const special *s, template_list *list) {
    const char *jinja = sbp_file_join(s->arena, s->request->directory, "chat_template.jinja"),
               *json = sbp_file_join(s->arena, s->request->directory, "chat_template.json"), *text;
    size_t length;
    const sbp_json *root;
    if (sbp_json_member(s->config, "chat_template")) {
        read_list(s, sbp_json_member(s->config, "chat_template"), list);
    } else if (sbp_file_exists(jinja)) {
        SBP_TRY(sbp_file_read(s->arena, s->diag, jinja, &text, &length));
        add_template(s, list, "default", text, length);
        return read_additional(s, list);
    } else if (sbp_file_exists(json)) {
        SBP_TRY(sbp_json_read(s->arena, s->diag, json, 0, &root));
        read_list(s, sbp_json_member(root, "chat_template"), list);
    }
    return SBP_OK;
}

static sbp_status put_templates(const special *s) {
    template_list list = {0};
    int32_t others = 0;
    SBP_TRY(read_templates(s, &list));
    for (int32_t i = 0; i < list.count; i++) {
        char *name = sbp_arena_strdup(s->arena, list.items[i].name);
        for (char *c = name; *c; c++)
            if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9')))
                *c = '_';
        list.items[i].name = name;
        bool first = strcmp(name, "default") == 0;
        others += !first;
        sbp_gguf_put_bytes(s->keys,
                           first ? "tokenizer.chat_template"
                                 : sbp_arena_printf(s->arena, "tokenizer.chat_template.%s", name),
                           list.items[i].text, (int64_t)list.items[i].length);
    }
    sbp_text *names =
        others ? sbp_gguf_put_array(s->keys, "tokenizer.chat_templates", SBP_GGUF_STRING, others) : NULL;
    for (int32_t i = 0; names && i < list.count; i++)
        if (strcmp(list.items[i].name, "default") != 0)
            sbp_gguf_add_string(names, list.items[i].name, (int64_t)strlen(list.items[i].name));
    return SBP_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

sbp_status sbp_exp_put_special(sbp_arena *arena, sbp_diag *diag, const exp_special_request *request,
                               sbp_gguf_keys *keys) {
    special s = {.arena = arena, .diag = diag, .request = request, .keys = keys, .kinds = EOT};
    const char *path = sbp_file_join(arena, request->directory, "tokenizer_config.json");
    if (sbp_file_exists(path))
        SBP_TRY(sbp_json_read(arena, diag, path, 0, &s.config));
    for (int k = 0; k < KINDS; k++)
        s.id[k] = s.add[k] = -1;
    if (request->merges)
        SBP_TRY(put_merges(&s));
    read_tokens(&s);
    read_processors(&s);
    find_ids(&s);
    put_ids(&s);
    if (s.config)
        SBP_TRY(put_templates(&s));
    put_normalizer(&s, sbp_json_member(request->tokenizer, "normalizer"));
    return SBP_OK;
}
