/* tokenizer_decode.c: ids to text. Decoders turn a list of strings into another one. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>

typedef struct decoding {
    tok_decoding at;
    const sbp_tokenizer *t;
    sbp_arena *arena;
    sbp_diag *diag;
    const int32_t *ids;
    int64_t count;
    bool skip_special;
    const char *text;
    size_t length;
} decoding;

/* Text that is UTF-8 as far as possible: U+FFFD for every maximal invalid piece. */
static sbp_gguf_string lossy(sbp_arena *arena, const char *bytes, int64_t length) {
    char *out = sbp_arena_alloc(arena, (size_t)length * 3 + 1);
    int64_t n = 0;
    for (int64_t at = 0; at < length;) {
        int skip, size = sbp_utf8_check(bytes + at, length - at, &skip);
        memcpy(out + n, size > 0 ? bytes + at : "\xef\xbf\xbd", (size_t)(size > 0 ? size : 3));
        n += size > 0 ? size : 3;
        at += size > 0 ? size : skip;
    }
    return (sbp_gguf_string){out, n};
}

static sbp_gguf_string join(sbp_arena *arena, const sbp_gguf_string *list, int64_t n, const char *between) {
    sbp_text text;
    sbp_text_init(&text, arena);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && *between)
            sbp_text_add_n(&text, between, strlen(between));
        sbp_text_add_n(&text, list[i].data, (size_t)list[i].length);
    }
    return (sbp_gguf_string){text.data, (int64_t)text.length};
}

static void replace_all(tok_decoding *d, sbp_gguf_string whole) {
    d->list[0] = whole;
    d->n = 1;
}

void sbp_decode_bytes(sbp_text *bytes, sbp_gguf_string token) {
    size_t from = bytes->length;
    bool all = true;
    for (int64_t at = 0; at < token.length && all;) {
        uint32_t code;
        at += sbp_utf8_get(token.data + at, &code);
        int byte = sbp_char_to_byte(code);
        char c = (char)byte;
        all = byte >= 0;
        if (all)
            sbp_text_add_n(bytes, &c, 1);
    }
    if (!all) { /* an added token: as it is */
        bytes->length = from;
        sbp_text_add_n(bytes, token.data, (size_t)token.length);
    }
}

static void decode_byte_level(tok_decoding *d) {
    sbp_text bytes;
    sbp_text_init(&bytes, d->scratch);
    for (int64_t i = 0; i < d->n; i++)
        sbp_decode_bytes(&bytes, d->list[i]);
    replace_all(d, lossy(d->scratch, bytes.data, (int64_t)bytes.length));
}

typedef struct replacing {
    const tok_decoder *decoder;
    const char *from;
    sbp_text text;
    tok_work *work;
} replacing;

static sbp_status replace_match(void *user, tok_match m) {
    replacing *r = user;
    if (!sbp_work_take(r->work, m.is_match ? r->decoder->length : m.end - m.begin))
        return sbp_work_check(r->work);
    if (m.is_match)
        sbp_text_add_n(&r->text, r->decoder->text, (size_t)r->decoder->length);
    else
        sbp_text_add_n(&r->text, r->from + m.begin, (size_t)(m.end - m.begin));
    return SBP_OK;
}

static sbp_status decode_replace(tok_decoding *d, const tok_decoder *decoder) {
    for (int64_t i = 0; i < d->n; i++) {
        replacing r = {.decoder = decoder, .from = d->list[i].data, .work = &d->work};
        sbp_text_init(&r.text, d->scratch);
        SBP_TRY(sbp_find_matches(&d->work, &decoder->pattern, r.from, d->list[i].length, replace_match, &r));
        d->list[i] = (sbp_gguf_string){r.text.data, (int64_t)r.text.length};
    }
    return SBP_OK;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int sbp_decode_named_byte(sbp_gguf_string token) {
    if (token.length != 6 || memcmp(token.data, "<0x", 3) != 0 || token.data[5] != '>')
        return -1;
    /* Rust's from_str_radix takes a sign, so "<0x+A>" is a byte too. */
    int high = token.data[3] == '+' ? 0 : hex_digit(token.data[3]), low = hex_digit(token.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Runs of byte tokens become their text, or one U+FFFD a byte when that is no UTF-8. */
static void decode_byte_fallback(tok_decoding *d) {
    int64_t n = 0;
    for (int64_t i = 0; i < d->n;) {
        int64_t end = i;
        while (end < d->n && sbp_decode_named_byte(d->list[end]) >= 0)
            end++;
        if (end == i) {
            d->list[n++] = d->list[i++];
            continue;
        }
        int64_t length = end - i;
        char *bytes = sbp_arena_alloc(d->scratch, (size_t)length + 1);
        for (int64_t k = 0; k < length; k++)
            bytes[k] = (char)sbp_decode_named_byte(d->list[i + k]);
        int skip, size = 1;
        int64_t at = 0;
        while (at < length && (size = sbp_utf8_check(bytes + at, length - at, &skip)) > 0)
            at += size;
        if (at == length)
            d->list[n++] = (sbp_gguf_string){bytes, length};
        else
            for (int64_t k = 0; k < length; k++)
                d->list[n++] = (sbp_gguf_string){"\xef\xbf\xbd", 3};
        i = end;
    }
    d->n = n;
}

/* Removes up to start, stop of one character at the ends of every string. */
static void decode_strip(tok_decoding *d, const tok_decoder *decoder) {
    char character[4];
    int64_t size = sbp_utf8_put(character, decoder->code);
    for (int64_t i = 0; i < d->n; i++) {
        sbp_gguf_string *s = &d->list[i];
        for (int64_t k = 0;
             k < decoder->start && s->length >= size && memcmp(s->data, character, (size_t)size) == 0; k++) {
            s->data += size;
            s->length -= size;
        }
        for (int64_t k = 0; k < decoder->stop && s->length >= size &&
                            memcmp(s->data + s->length - size, character, (size_t)size) == 0;
             k++)
            s->length -= size;
    }
}

static void decode_metaspace(tok_decoding *d, const tok_decoder *decoder) {
    for (int64_t i = 0; i < d->n; i++) {
        char *out = sbp_arena_alloc(d->scratch, (size_t)d->list[i].length + 1);
        int64_t n = 0;
        for (int64_t at = 0; at < d->list[i].length;) {
            uint32_t code;
            int size = sbp_utf8_get(d->list[i].data + at, &code);
            if (code != decoder->code) {
                memcpy(out + n, d->list[i].data + at, (size_t)size);
                n += size;
            } else if (d->before + i > 0 || decoder->keep_first) {
                out[n++] = ' ';
            }
            at += size;
        }
        d->list[i] = (sbp_gguf_string){out, n};
    }
}

/* All `from` in a string as `to`, from the left. An empty `from` is before every character and at the end, as
 * Rust has it. */
static sbp_gguf_string replaced(tok_decoding *d, sbp_gguf_string s, const char *from, int64_t from_length,
                                const char *to) {
    sbp_text text;
    size_t size = strlen(to);
    sbp_text_init(&text, d->scratch);
    if (from_length > 0 && !memmem(s.data, (size_t)s.length, from, (size_t)from_length))
        return s;
    for (int64_t at = 0; at <= s.length;) {
        bool here = s.length - at >= from_length && memcmp(s.data + at, from, (size_t)from_length) == 0;
        uint32_t code;
        if (!sbp_work_take(&d->work, (int64_t)size + 1))
            break; /* asked about behind each decoder */
        if (here)
            sbp_text_add_n(&text, to, size);
        if (here && from_length > 0) {
            at += from_length;
            continue;
        }
        int64_t step = at < s.length ? sbp_utf8_get(s.data + at, &code) : 1;
        if (at < s.length)
            sbp_text_add_n(&text, s.data + at, (size_t)step);
        at += step;
    }
    return (sbp_gguf_string){text.data, (int64_t)text.length};
}

static void decode_wordpiece(tok_decoding *d, const tok_decoder *decoder) {
    static const char *const clean[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (int64_t i = 0; i < d->n; i++) {
        sbp_gguf_string *s = &d->list[i];
        bool first = d->before + i == 0;
        if (!first && s->length >= decoder->length &&
            memcmp(s->data, decoder->text, (size_t)decoder->length) == 0)
            *s = (sbp_gguf_string){s->data + decoder->length, s->length - decoder->length};
        else if (!first)
            *s = join(d->scratch, (sbp_gguf_string[]){{" ", 1}, *s}, 2, "");
        for (int k = 0; decoder->cleanup && k < SBP_COUNT(clean); k++)
            *s = replaced(d, *s, clean[k][0], (int64_t)strlen(clean[k][0]), clean[k][1]);
    }
}

static void decode_suffix(tok_decoding *d, const tok_decoder *decoder) {
    for (int64_t i = 0; i < d->n; i++)
        d->list[i] =
            replaced(d, d->list[i], decoder->text, decoder->length, i + 1 == d->n && !d->more ? "" : " ");
}

sbp_status sbp_decode_stage(tok_decoding *d, const tok_decoder *decoder) {
    switch (decoder->kind) {
    case TOK_DECODE_BYTE_LEVEL:
        decode_byte_level(d);
        break;
    case TOK_DECODE_REPLACE:
        SBP_TRY(decode_replace(d, decoder));
        break;
    case TOK_DECODE_BYTE_FALLBACK:
        decode_byte_fallback(d);
        break;
    case TOK_DECODE_FUSE:
        replace_all(d, join(d->scratch, d->list, d->n, ""));
        break;
    case TOK_DECODE_STRIP:
        decode_strip(d, decoder);
        break;
    case TOK_DECODE_METASPACE:
        decode_metaspace(d, decoder);
        break;
    case TOK_DECODE_WORDPIECE:
        decode_wordpiece(d, decoder);
        break;
    case TOK_DECODE_SUFFIX:
        decode_suffix(d, decoder);
        break;
    }
    return sbp_work_check(&d->work);
}

/* An added token that was matched in normalized text has its normalized form. */
sbp_gguf_string sbp_decode_spelling(const sbp_tokenizer *t, int32_t id, bool skip_special) {
    if (id >= t->size || (skip_special && sbp_tokenizer_is_special(t, id)))
        return (sbp_gguf_string){NULL, 0};
    int32_t index = t->added_of_id[id];
    const tok_string *s = index >= 0           ? &t->added[index].normalized_content
                          : id < t->model.size ? &t->model.tokens[id]
                                               : NULL;
    return s ? (sbp_gguf_string){s->text, s->length} : (sbp_gguf_string){NULL, 0};
}

static sbp_status decode_scratch(void *user) {
    decoding *d = user;
    tok_decoding *at = &d->at;
    sbp_work_init(&at->work, d->t, at->scratch, at->scratch, d->diag, false);
    at->list = SBP_NEW_ARRAY(at->scratch, sbp_gguf_string, d->count + 1);
    for (int64_t i = 0; i < d->count; i++) {
        if (d->ids[i] < 0)
            return sbp_fail(d->diag, SBP_INPUT, "cannot decode the id %d at position %lld", d->ids[i],
                            (long long)i);
        sbp_gguf_string s = sbp_decode_spelling(d->t, d->ids[i], d->skip_special);
        at->work.left += TOK_MOST_MADE_PER_BYTE * s.length;
        if (s.data)
            at->list[at->n++] = s;
    }
    for (int32_t k = 0; k < d->t->decoder_count; k++)
        SBP_TRY(sbp_decode_stage(at, &d->t->decoders[k]));
    return SBP_OK;
}

static sbp_status decode_result(void *user) {
    decoding *d = user;
    sbp_gguf_string text = join(d->arena, d->at.list, d->at.n, d->t->has_decoder ? "" : " ");
    d->text = text.data;
    d->length = (size_t)text.length;
    return SBP_OK;
}

sbp_status sbp_tokenizer_decode(const sbp_tokenizer *t, sbp_arena *arena, sbp_diag *diag, const int32_t *ids,
                                int64_t count, bool skip_special, const char **text, size_t *length) {
    decoding d = {.at = {.scratch = sbp_arena_create()},
                  .t = t,
                  .arena = arena,
                  .diag = diag,
                  .ids = ids,
                  .count = count,
                  .skip_special = skip_special};
    if (!d.at.scratch)
        return sbp_fail(diag, SBP_MACHINE, "out of memory decoding %lld ids", (long long)count);
    sbp_status status = sbp_guard(d.at.scratch, diag, decode_scratch, &d);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, decode_result, &d);
    sbp_arena_destroy(d.at.scratch);
    if (status == SBP_OK) {
        *text = d.text;
        *length = d.length;
    }
    return status;
}
