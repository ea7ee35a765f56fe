/* export_meta.c: general.* of a GGUF file: what the directory's name, its model card and its
 * generation_config.json say, as llama.cpp's converter takes it from them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/export/export_keys.h"
#include "ir/base/pattern.h"
#include "ir/base/yaml.h"

/* ---- names -------------------------------------------------------------------------------------------- */

/* Parts of "Organisation/Name-8B-Instruct-v0.1"; NULL: it has none. */
typedef struct name_parts {
    const char *name, *organization, *basename, *finetune, *version, *size;
} name_parts;

enum { IS_BASE = 1, IS_SIZE = 2, IS_TUNE = 4, IS_VERSION = 8, IS_TYPE = 16, MOST_PARTS = 32 };

typedef struct part {
    char *text;
    unsigned kinds;
} part;

static bool matches(sbp_arena *arena, const char *pattern, const char *text) {
    bool found = false;
    if (sbp_pattern_match(arena, NULL, "a name", pattern, SBP_PATTERN_WHOLE, text, &found) != SBP_OK)
        return false;
    return found;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static char upper(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* A part like 8B or 7b1; what is too far from the size that the model has is the length of a context. */
static void annotate_size(sbp_arena *arena, part *p, double parameters) {
    char *text = sbp_arena_strdup(arena, p->text);
    size_t n = strlen(text);
    for (char *c = text; *c; c++)
        *c = *c == '_' ? '.' : *c;
    if (is_digit(text[n - 1])) {
        text = sbp_arena_printf(arena, "%.*s.%c%c", (int)n - 2, text, text[n - 1], text[n - 2]);
        n = strlen(text);
    }
    if (n > 1 && is_digit(text[n - 2]) && strchr("kmbt", text[n - 1]))
        text[n - 1] = upper(text[n - 1]);
    char *end;
    double label = strtod(text, &end);
    const char *suffix = strchr("KMBT", text[n - 1]);
    if (parameters != 0 && end == text + n - 1 && suffix && *suffix && is_digit(text[0])) {
        double all = fabs(parameters);
        label *= pow(1000, (double)(suffix - "KMBT" + 1));
        for (int k = 0; k < 4; k++)
            if ("KMBT"[k] == text[n - 1])
                label = strtod(text, NULL) * pow(1000, k + 1);
        if ((parameters < 0 && label < floor(all / 8)) ||
            (parameters > 0 && fabs(label - parameters) > floor(7 * parameters / 8))) {
            p->kinds |= IS_TUNE;
            text[n - 1] = lower(text[n - 1]);
        }
    }
    if (p->kinds == 0)
        p->kinds |= IS_SIZE;
    p->text = text;
}

static void annotate(sbp_arena *arena, part *p, int at, double parameters) {
    const char *text = p->text;
    if (matches(arena, "(?i)(v|iter)?[0-9]+([.][0-9]+)*", text)) {
        p->kinds |= IS_VERSION;
    } else if (matches(arena, "(?i)i?q[0-9](_\\w)*|b?fp?(16|32)", text)) {
        p->kinds |= IS_TYPE;
        for (char *c = p->text; *c; c++)
            *c = upper(*c);
    } else if (at > 0 &&
               matches(arena,
                       "(?i)(([A]|[0-9]+[x])?[0-9]+([._][0-9]+)?[KMBT][0-9]?|small|mini|medium|large|x?xl)",
                       text)) {
        annotate_size(arena, p, parameters);
    } else if (at > 0 && matches(arena, "(?i)chat|instruct|vision|lora", text)) {
        p->kinds |= parameters < 0 && matches(arena, "(?i)lora", text) ? IS_TYPE : IS_TUNE;
    }
}

static bool has_digit(const char *text) {
    return strpbrk(text, "0123456789") != NULL;
}

static bool all_letters(const char *text) {
    for (; *text; text++)
        if (!is_letter(*text))
            return false;
    return true;
}

/* Words are no sizes where there is a number; the base name is what comes before anything that is known. */
static void settle(part *parts, int count) {
    bool numbers = false, at_start = true;
    for (int i = 0; i < count; i++)
        numbers |= (parts[i].kinds & IS_SIZE) && has_digit(parts[i].text);
    for (int i = 0; numbers && i < count; i++)
        if ((parts[i].kinds & IS_SIZE) && all_letters(parts[i].text))
            parts[i].kinds &= ~(unsigned)IS_SIZE;
    for (int i = 0; i < count; i++) {
        part *p = &parts[i];
        if (at_start && ((p->kinds == 0 && is_letter(p->text[0])) || (p->kinds & IS_VERSION))) {
            p->kinds |= IS_BASE;
        } else {
            at_start = false;
            if (p->kinds == 0)
                p->kinds |= IS_TUNE;
        }
    }
    for (int i = count - 1; i >= 0 && (parts[i].kinds & IS_BASE) && parts[i].kinds != IS_BASE; i--)
        parts[i].kinds &= ~(unsigned)IS_BASE;
}

/* Those of a kind, without those of another, joined by '-'; once each where `once`. */
static const char *join(sbp_arena *arena, const part *parts, int count, unsigned kind, unsigned without,
                        bool once) {
    sbp_text out;
    sbp_text_init(&out, arena);
    for (int i = 0; i < count; i++) {
        bool wanted = (parts[i].kinds & kind) && !(parts[i].kinds & without);
        for (int k = 0; once && wanted && k < i; k++)
            wanted = !((parts[k].kinds & kind) && strcmp(parts[k].text, parts[i].text) == 0);
        if (wanted)
            sbp_text_add(&out, "%s%s", out.length ? "-" : "", parts[i].text);
    }
    return out.length ? out.data : NULL;
}

static name_parts split_name(sbp_arena *arena, const char *id, double parameters) {
    name_parts n = {.name = id};
    const char *slash = strchr(id, '/');
    if (strchr(id, ' '))
        return n;
    if (slash) {
        n.organization = *id != '.' && slash > id ? sbp_arena_strndup(arena, id, (size_t)(slash - id)) : NULL;
        n.name = slash + 1;
    }
    part parts[MOST_PARTS];
    int count = 0;
    for (const char *at = n.name; *at && count < MOST_PARTS;) {
        size_t length = strcspn(at, "-");
        if (length > 0)
            parts[count++] = (part){sbp_arena_strndup(arena, at, length), 0};
        at += length + (at[length] == '-');
    }
    for (int i = 0; i < count; i++)
        annotate(arena, &parts[i], i, parameters);
    settle(parts, count);
    n.basename = join(arena, parts, count, IS_BASE, 0, false);
    n.size = join(arena, parts, count, IS_SIZE, 0, true);
    n.finetune = join(arena, parts, count, IS_TUNE, 0, false);
    n.version = join(arena, parts, count, IS_VERSION, IS_BASE, false);
    if (!n.size && !n.finetune && !n.version)
        n.basename = NULL;
    return n;
}

/* "qwen3-8b chat": words that are all small begin with a capital, but for versions and numbers. */
static const char *titled(sbp_arena *arena, const char *text) {
    sbp_text out;
    sbp_text_init(&out, arena);
    for (const char *at = text; at && *at;) {
        size_t n = strcspn(at, " -\t\n");
        char *word = sbp_arena_strndup(arena, at, n);
        bool small = false, large = false;
        for (size_t i = 0; i < n; i++) {
            small |= word[i] >= 'a' && word[i] <= 'z';
            large |= word[i] >= 'A' && word[i] <= 'Z';
        }
        if (small && !large && !matches(arena, "v[0-9]+(?:\\.[0-9]+)*|[0-9].*", word))
            for (size_t i = 0; i < n; i++)
                word[i] = i == 0 || !is_letter(word[i - 1]) ? upper(word[i]) : word[i];
        if (n > 0)
            sbp_text_add(&out, "%s%s", out.length ? " " : "", word);
        at += n + (at[n] != 0);
    }
    return out.length ? out.data : "";
}

/* ---- the card ----------------------------------------------------------------------------------------- */

static const char *const fields[] = {"name",        "author",   "version",  "organization",
                                     "description", "finetune", "basename", "size_label",
                                     "url",         "doi",      "uuid",     "repo_url"};
enum {
    NAME,
    AUTHOR,
    VERSION,
    ORGANIZATION,
    DESCRIPTION,
    FINETUNE,
    BASENAME,
    SIZE,
    FIELDS = SBP_COUNT(fields)
};

typedef struct describing {
    sbp_arena *arena;
    sbp_diag *diag;
    const exp_meta_request *request;
    sbp_gguf_keys *keys;
    const sbp_yaml *card; /* NULL: there is none */
    const char *value[FIELDS];
} describing;

static const char *scalar(const sbp_yaml *node) {
    bool none = !node || node->kind != SBP_YAML_SCALAR ||
                (node->plain &&
                 (node->text[0] == 0 || strcmp(node->text, "null") == 0 || strcmp(node->text, "~") == 0));
    return none ? NULL : node->text;
}

static sbp_status read_card(describing *d) {
    const char *path = sbp_file_join(d->arena, d->request->directory, "README.md"), *text;
    size_t length;
    if (!sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_file_read(d->arena, d->diag, path, &text, &length));
    if (strncmp(text, "---\n", 4) != 0)
        return SBP_OK;
    const char *end = strstr(text + 3, "\n---\n");
    if (!end || sbp_yaml_parse(d->arena, NULL, SBP_INPUT, path, text + 4,
                               end > text + 4 ? (size_t)(end - text - 3) : 0, &d->card) != SBP_OK)
        d->card = NULL; /* a card that is no YAML says nothing */
    return SBP_OK;
}

static void read_fields(describing *d) {
    for (int i = 0; i < FIELDS; i++)
        d->value[i] = scalar(sbp_yaml_member(d->card, fields[i]));
    for (int i = 0; i < FIELDS; i++)
        if (!d->value[i])
            d->value[i] = scalar(sbp_yaml_member(d->card, sbp_arena_printf(d->arena, "model_%s", fields[i])));
    if (!d->value[AUTHOR])
        d->value[AUTHOR] = scalar(sbp_yaml_member(d->card, "model_creator"));
    if (!d->value[BASENAME])
        d->value[BASENAME] = scalar(sbp_yaml_member(d->card, "model_type"));
}

/* Where the card says nothing: of a name. */
static void read_name(describing *d, const char *id) {
    name_parts n = split_name(d->arena, id, d->request->parameters);
    const char *const found[FIELDS] = {[NAME] = n.name ? titled(d->arena, n.name) : NULL,
                                       [ORGANIZATION] =
                                           n.organization ? titled(d->arena, n.organization) : NULL,
                                       [BASENAME] = n.basename,
                                       [FINETUNE] = n.finetune,
                                       [VERSION] = n.version,
                                       [SIZE] = n.size};
    for (int i = 0; i < FIELDS; i++)
        if (!d->value[i])
            d->value[i] = found[i];
}

/* "135M", "30x4.1B": two digits at least. */
static const char *rounded(sbp_arena *arena, double count) {
    static const struct {
        double least, factor;
        char suffix;
    } scales[] = {{1e12, 1e-12, 'T'}, {1e9, 1e-9, 'B'}, {1e6, 1e-6, 'M'}, {-1, 1e-3, 'K'}};
    int k = 0;
    while (count <= scales[k].least)
        k++;
    double value = count * scales[k].factor;
    char whole[32];
    snprintf(whole, sizeof whole, "%.0f", value);
    const char *digits = whole + strspn(whole, "0");
    int fix = 2 - (int)strlen(digits);
    return sbp_arena_printf(arena, "%.*f%c", fix > 0 ? fix : 0, value, scales[k].suffix);
}

static const char *size_label(const describing *d) {
    const exp_meta_request *r = d->request;
    if (r->experts > 0)
        return sbp_arena_printf(d->arena, "%lldx%s", (long long)r->experts,
                                rounded(d->arena, fabs(r->shared) + fabs(r->of_experts)));
    return rounded(d->arena, fabs(r->parameters));
}

static void put_fields(const describing *d) {
    static const char *const keys[FIELDS] = {
        "general.name",        "general.author",     "general.version",     "general.organization",
        "general.description", "general.finetune",   "general.basename",    "general.size_label",
        "general.source.url",  "general.source.doi", "general.source.uuid", "general.source.repo_url"};
    for (int i = 0; i < FIELDS; i++)
        if (d->value[i])
            sbp_gguf_put_string(d->keys, keys[i], d->value[i]);
}

/* ---- where it is from --------------------------------------------------------------------------------- */

static const char hub[] = "huggingface.co/";

/* organisation/name of a page of the Hub; NULL: it is none. */
static const char *id_of_page(const char *url) {
    const char *at = strstr(url, hub), *id = at ? at + sizeof hub - 1 : NULL;
    const char *slash = id ? strchr(id, '/') : NULL;
    return slash && slash > id && slash[1] && !strchr(slash + 1, '/') ? id : NULL;
}

static bool is_url(const char *text) {
    return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0 ||
           strncmp(text, "ssh://", 6) == 0;
}

static void put_origin(const describing *d, const char *kind, int32_t at, const char *id) {
    const char *name = is_url(id) ? id_of_page(id) : id;
    if (*id == '/') { /* a path of this machine is nobody's affair */
        const char *slash = strrchr(id, '/');
        name = slash[1] ? slash + 1 : NULL;
    }
    const char *prefix = sbp_arena_printf(d->arena, "general.%s.%d", kind, at);
    if (name) {
        name_parts n = split_name(d->arena, name, d->request->parameters);
        sbp_gguf_put_string(d->keys, sbp_arena_printf(d->arena, "%s.name", prefix), titled(d->arena, n.name));
        if (n.version)
            sbp_gguf_put_string(d->keys, sbp_arena_printf(d->arena, "%s.version", prefix), n.version);
        if (n.organization)
            sbp_gguf_put_string(d->keys, sbp_arena_printf(d->arena, "%s.organization", prefix),
                                titled(d->arena, n.organization));
        if (n.organization && !is_url(id))
            sbp_gguf_put_string(d->keys, sbp_arena_printf(d->arena, "%s.repo_url", prefix),
                                sbp_arena_printf(d->arena, "https://%s%s/%s", hub, n.organization, n.name));
    }
    if (is_url(id))
        sbp_gguf_put_string(d->keys, sbp_arena_printf(d->arena, "%s.repo_url", prefix), id);
}

/* The first of some members that is there. */
static const sbp_yaml *member_of(const sbp_yaml *card, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (sbp_yaml_member(card, names[i]))
            return sbp_yaml_member(card, names[i]);
    return NULL;
}

static void put_origins(const describing *d, const char *kind, const sbp_yaml *list) {
    int32_t count = 0;
    if (!list)
        return;
    if (scalar(list))
        put_origin(d, kind, count++, list->text);
    for (int32_t i = 0; list->kind == SBP_YAML_LIST && i < list->count; i++)
        if (scalar(&list->items[i]))
            put_origin(d, kind, count++, list->items[i].text);
    sbp_gguf_put_u32(d->keys, sbp_arena_printf(d->arena, "general.%s.count", kind), (uint32_t)count);
}

static int32_t strings_in(const sbp_yaml *node) {
    int32_t count = scalar(node) ? 1 : 0;
    for (int32_t i = 0; node && node->kind == SBP_YAML_LIST && i < node->count; i++)
        count += scalar(&node->items[i]) != NULL;
    return count;
}

static void add_strings(sbp_text *out, const sbp_yaml *node) {
    if (scalar(node))
        sbp_gguf_add_string(out, node->text, (int64_t)strlen(node->text));
    for (int32_t i = 0; node && node->kind == SBP_YAML_LIST && i < node->count; i++)
        if (scalar(&node->items[i]))
            sbp_gguf_add_string(out, node->items[i].text, (int64_t)strlen(node->items[i].text));
}

static void put_strings(const describing *d, const char *key, const char *first, const char *second) {
    const sbp_yaml *a = sbp_yaml_member(d->card, first), *b = sbp_yaml_member(d->card, second);
    int32_t count = strings_in(a) + strings_in(b);
    if (count == 0)
        return;
    sbp_text *out = sbp_gguf_put_array(d->keys, key, SBP_GGUF_STRING, count);
    add_strings(out, a);
    add_strings(out, b);
}

static void put_license(const describing *d) {
    const sbp_yaml *license = sbp_yaml_member(d->card, "license");
    sbp_text text;
    sbp_text_init(&text, d->arena);
    if (scalar(license))
        sbp_text_add(&text, "%s", license->text);
    for (int32_t i = 0; license && license->kind == SBP_YAML_LIST && i < license->count; i++)
        if (scalar(&license->items[i]))
            sbp_text_add(&text, "%s%s", text.length ? "," : "", license->items[i].text);
    if (text.length)
        sbp_gguf_put_string(d->keys, "general.license", text.data);
    const char *name = scalar(sbp_yaml_member(d->card, "license_name")),
               *link = scalar(sbp_yaml_member(d->card, "license_link"));
    if (name)
        sbp_gguf_put_string(d->keys, "general.license.name", name);
    if (link)
        sbp_gguf_put_string(d->keys, "general.license.link", link);
}

/* ---- how to sample ------------------------------------------------------------------------------------ */

static void put_number(const describing *d, const sbp_json *root, const char *field, const char *key,
                       bool whole) {
    const sbp_json *node = sbp_json_member(root, field);
    double value = node && node->kind == SBP_JSON_INT    ? (double)node->integer
                   : node && node->kind == SBP_JSON_REAL ? node->real
                                                         : NAN;
    if (isnan(value))
        return;
    if (whole)
        sbp_gguf_put_i32(d->keys, key, (int32_t)value);
    else
        sbp_gguf_put_f32(d->keys, key, (float)value);
}

static void put_sampling(const describing *d) {
    static const struct {
        const char *field, *key;
        bool whole;
    } settings[] = {{"top_k", "general.sampling.top_k", true},
                    {"top_p", "general.sampling.top_p", false},
                    {"min_p", "general.sampling.min_p", false},
                    {"xtc_probability", "general.sampling.xtc_probability", false},
                    {"xtc_threshold", "general.sampling.xtc_threshold", false},
                    {"temperature", "general.sampling.temp", false},
                    {"penalty_last_n", "general.sampling.penalty_last_n", true},
                    {"repetition_penalty", "general.sampling.penalty_repeat", false},
                    {"penalty_repeat", "general.sampling.penalty_repeat", false},
                    {"mirostat", "general.sampling.mirostat", true},
                    {"mirostat_tau", "general.sampling.mirostat_tau", false},
                    {"mirostat_eta", "general.sampling.mirostat_eta", false}};
    const char *path = sbp_file_join(d->arena, d->request->directory, "generation_config.json");
    const sbp_json *root;
    if (!sbp_file_exists(path) || sbp_json_read(d->arena, NULL, path, 0, &root) != SBP_OK)
        return; /* not every model has one that can be read */
    const sbp_json *sequence = sbp_json_member(root, "sequence");
    if (sequence && sequence->kind == SBP_JSON_STRING)
        sbp_gguf_put_string(d->keys, "general.sampling.sequence", sequence->string);
    for (int i = 0; i < SBP_COUNT(settings); i++)
        put_number(d, root, settings[i].field, settings[i].key, settings[i].whole);
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

/* "/a/b/" is b; what a path like "." is called is asked of the system. */
static const char *directory_name(sbp_arena *arena, const char *path) {
    char *real = realpath(path, NULL);
    const char *whole = real ? sbp_arena_strdup(arena, real) : path, *slash = strrchr(whole, '/');
    free(real);
    return slash && slash[1] ? slash + 1 : whole;
}

sbp_status sbp_exp_put_meta(sbp_arena *arena, sbp_diag *diag, const exp_meta_request *request,
                            sbp_gguf_keys *keys) {
    describing d = {.arena = arena, .diag = diag, .request = request, .keys = keys};
    static const char *const bases[] = {"base_model", "base_models", "base_model_sources"},
                             *const sets[] = {"datasets", "dataset", "dataset_sources"};
    SBP_TRY(read_card(&d));
    read_fields(&d);
    const sbp_json *path = request->config ? sbp_json_member(request->config, "_name_or_path") : NULL;
    const char *first = path && path->kind == SBP_JSON_STRING ? strchr(path->string, '/') : NULL;
    if (path && path->kind == SBP_JSON_STRING && path->string[0] && !(first && strchr(first + 1, '/')))
        read_name(&d, path->string);
    read_name(&d, directory_name(arena, request->directory));
    if (!d.value[SIZE] && request->parameters > 0)
        d.value[SIZE] = size_label(&d);
    put_sampling(&d);
    put_fields(&d);
    put_license(&d);
    put_origins(&d, "base_model", member_of(d.card, bases, SBP_COUNT(bases)));
    put_origins(&d, "dataset", member_of(d.card, sets, SBP_COUNT(sets)));
    put_strings(&d, "general.tags", "tags", "pipeline_tag");
    put_strings(&d, "general.languages", "languages", "language");
    return SBP_OK;
}
