/* Words, numbers, constants and memory of the PTX parser. */
#include "tests/ptx/parser.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void *ptx_module_alloc(sbp_ptx_module *module, size_t bytes) {
    if (bytes > SIZE_MAX / 4) {
        return NULL;
    }
    bytes = (bytes + 15) / 16 * 16;
    ptx_chunk *chunk = module->chunks;
    if (!chunk || chunk->size - chunk->used < bytes) {
        const size_t size = bytes > 65536 ? bytes : 65536;
        chunk = calloc(1, sizeof *chunk + size);
        if (!chunk) {
            return NULL;
        }
        chunk->size = size;
        chunk->next = module->chunks;
        module->chunks = chunk;
    }
    void *at = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return at;
}

void ptx_refuse(ptx_parser *p, const char *format, ...) {
    p->report->status = SBP_PTX_REFUSED;
    p->report->line = p->line;
    int used = snprintf(p->report->text, sizeof p->report->text, "line %d: ", p->line);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(p->report->text + used, sizeof p->report->text - (size_t)used, format, args);
    va_end(args);
    longjmp(p->fail, 1);
}

void *ptx_parser_alloc(ptx_parser *p, size_t bytes) {
    void *at = ptx_module_alloc(p->module, bytes);
    if (!at) {
        ptx_refuse(p, "out of memory");
    }
    return at;
}

sbp_ptx_entry *ptx_parser_entry(ptx_parser *p) {
    return p->entry;
}

// ---- types ------------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    int bytes;
    char kind;
} types[] = {
    {"none", 0, 0},
#define PTX_TYPE(name, bytes, kind) {#name, bytes, kind},
#include "tests/ptx/types.def"
#undef PTX_TYPE
};

int ptx_type_bytes(ptx_type type) {
    return types[type].bytes;
}

char ptx_type_kind(ptx_type type) {
    return types[type].kind;
}

const char *ptx_type_name(ptx_type type) {
    return types[type].name;
}

ptx_type ptx_type_find(const char *name, size_t length) {
    for (int i = 1; i < (int)(sizeof types / sizeof types[0]); i++) {
        if (strlen(types[i].name) == length && memcmp(types[i].name, name, length) == 0) {
            return (ptx_type)i;
        }
    }
    return PTX_NO_TYPE;
}

// ---- words ------------------------------------------------------------------------------------------------

void ptx_strip_comments(char *text, size_t bytes) {
    for (size_t i = 0; i + 1 < bytes; i++) {
        if (text[i] == '"') {
            for (i++; i < bytes && text[i] != '"' && text[i] != '\n'; i++) {
            }
        } else if (text[i] == '/' && text[i + 1] == '/') {
            for (; i < bytes && text[i] != '\n'; i++) {
                text[i] = ' ';
            }
        } else if (text[i] == '/' && text[i + 1] == '*') {
            for (; i < bytes && !(text[i] == '*' && i + 1 < bytes && text[i + 1] == '/'); i++) {
                text[i] = text[i] == '\n' ? '\n' : ' ';
            }
            for (size_t k = i; k < bytes && k < i + 2; k++) {
                text[k] = ' ';
            }
        }
    }
}

void ptx_skip(ptx_parser *p) {
    while (p->at < p->end && isspace((unsigned char)*p->at)) {
        p->line += *p->at == '\n';
        p->at++;
    }
}

bool ptx_peek(ptx_parser *p, char c) {
    ptx_skip(p);
    return p->at < p->end && *p->at == c;
}

bool ptx_accept(ptx_parser *p, char c) {
    const bool there = ptx_peek(p, c);
    p->at += there;
    return there;
}

void ptx_expect(ptx_parser *p, char c) {
    if (!ptx_accept(p, c)) {
        if (p->at >= p->end) {
            ptx_refuse(p, "expected '%c', the text ends", c);
        }
        ptx_refuse(p, "expected '%c', not '%c'", c, isprint((unsigned char)*p->at) ? *p->at : '?');
    }
}

static bool word_char(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

const char *ptx_word(ptx_parser *p, bool dots, int *out_length) {
    ptx_skip(p);
    const char *begin = p->at;
    while (p->at < p->end) {
        const char c = *p->at;
        if (word_char(c) || (dots && c == '.')) {
            p->at++;
        } else if (dots && c == ':' && p->end - p->at > 2 && p->at[1] == ':' && word_char(p->at[2])) {
            p->at += 2;
        } else {
            break;
        }
    }
    if (p->at == begin || p->at - begin > 1000) {
        if (p->at >= p->end) {
            ptx_refuse(p, "expected a word, the text ends");
        }
        ptx_refuse(p, "expected a word, not '%c'", isprint((unsigned char)*p->at) ? *p->at : '?');
    }
    *out_length = (int)(p->at - begin);
    return begin;
}

bool ptx_word_is(const char *word, int length, const char *what) {
    return (size_t)length == strlen(what) && memcmp(word, what, (size_t)length) == 0;
}

const char *ptx_copy(ptx_parser *p, const char *word, int length) {
    char *copy = ptx_parser_alloc(p, (size_t)length + 1);
    memcpy(copy, word, (size_t)length);
    return copy;
}

// ---- numbers ----------------------------------------------------------------------------------------------

static int digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

// Digits of a base at p->at; at least one, at most `most` (0: as many as fit 64 bits).
static uint64_t digits(ptx_parser *p, unsigned base, int most) {
    uint64_t value = 0;
    int count = 0;
    while (p->at < p->end && (unsigned)digit(*p->at) < base && (most == 0 || count < most)) {
        const uint64_t next = value * base + (unsigned)digit(*p->at);
        if (value > UINT64_MAX / base || next < value * base) {
            ptx_refuse(p, "a number of more than 64 bits");
        }
        value = next;
        p->at++;
        count++;
    }
    if (count == 0 || (most && count != most)) {
        ptx_refuse(p, "a broken number");
    }
    return value;
}

static bool decimal_float(ptx_parser *p, double *out) {
    const char *c = p->at;
    while (c < p->end && isdigit((unsigned char)*c)) {
        c++;
    }
    if (c >= p->end || (*c != '.' && *c != 'e' && *c != 'E')) {
        return false;
    }
    char text[64] = {0};
    size_t n = 0;
    for (c = p->at; c < p->end && n < sizeof text - 1 && (isalnum((unsigned char)*c) || strchr(".+-", *c));
         c++) {
        text[n++] = *c;
    }
    char *after;
    *out = strtod(text, &after);
    p->at += after - text;
    return after != text;
}

void ptx_number(ptx_parser *p, ptx_operand *o) {
    ptx_skip(p);
    bool minus = false;
    while (p->at < p->end && (*p->at == '-' || *p->at == '+')) {
        minus ^= *p->at == '-';
        p->at++;
        ptx_skip(p);
    }
    if (p->at >= p->end || !isdigit((unsigned char)*p->at)) {
        ptx_refuse(p, "expected a number");
    }
    o->kind = PTX_INTEGER;
    uint64_t value;
    double real;
    const char kind = p->at + 1 < p->end && p->at[0] == '0' ? (char)(p->at[1] | 0x20) : 0;
    if (kind == 'f' || kind == 'd') {
        p->at += 2;
        value = digits(p, 16, kind == 'f' ? 8 : 16);
        o->kind = kind == 'f' ? PTX_FLOAT32 : PTX_FLOAT64;
        value ^= minus ? UINT64_C(1) << (kind == 'f' ? 31 : 63) : 0;
        minus = false;
    } else if (kind == 'x' || kind == 'b') {
        p->at += 2;
        value = digits(p, kind == 'x' ? 16 : 2, 0);
    } else if (decimal_float(p, &real)) {
        o->kind = PTX_FLOAT64;
        real = minus ? -real : real;
        memcpy(&value, &real, sizeof value);
        minus = false;
    } else {
        value = digits(p, *p->at == '0' ? 8 : 10, 0);
    }
    if (p->at < p->end && (*p->at == 'U' || *p->at == 'u')) {
        p->at++;
    }
    if (p->at < p->end && word_char(*p->at)) {
        ptx_refuse(p, "a broken number");
    }
    o->value = (int64_t)(minus ? 0 - value : value);
}

int64_t ptx_count(ptx_parser *p, int64_t most) {
    ptx_operand o = {0};
    ptx_number(p, &o);
    if (o.kind != PTX_INTEGER || o.value < 0 || o.value > most) {
        ptx_refuse(p, "a number that is out of range (0 to %lld)", (long long)most);
    }
    return o.value;
}

// ---- constants --------------------------------------------------------------------------------------------

static uint32_t hash(uint64_t bits, int bytes) {
    return (uint32_t)((bits * 0x9e3779b97f4a7c15u + (unsigned)bytes * 0x5851f42du) >> 33);
}

static bool constants_grow(sbp_ptx_module *m) {
    if (m->constant_count * 2 >= m->constant_slots) {
        const uint32_t slots = m->constant_slots ? 2 * m->constant_slots : 256;
        uint32_t *index = calloc(slots * 2, sizeof *index); // place + 1, bytes
        if (!index) {
            return false;
        }
        for (uint32_t i = 0; i < m->constant_slots; i++) {
            const uint32_t place = m->constant_index[2 * i], bytes = m->constant_index[2 * i + 1];
            if (place) {
                uint64_t bits = 0;
                memcpy(&bits, m->constants + place - 1, bytes);
                uint32_t at = hash(bits, (int)bytes) & (slots - 1);
                while (index[2 * at]) {
                    at = (at + 1) & (slots - 1);
                }
                index[2 * at] = place;
                index[2 * at + 1] = bytes;
            }
        }
        free(m->constant_index);
        m->constant_index = index;
        m->constant_slots = slots;
    }
    if (m->constant_capacity - m->constant_bytes < 256) {
        const uint32_t capacity = m->constant_capacity ? 2 * m->constant_capacity : 65536;
        uint8_t *grown = capacity <= UINT32_C(1) << 30 ? aligned_alloc(64, capacity) : NULL;
        if (!grown) {
            return false;
        }
        memcpy(grown, m->constants ? m->constants : grown, m->constant_bytes);
        free(m->constants);
        m->constants = grown;
        m->constant_capacity = capacity;
    }
    return true;
}

uint32_t ptx_constant(ptx_parser *p, uint64_t bits, int bytes) {
    sbp_ptx_module *m = p->module;
    if (!constants_grow(m)) {
        ptx_refuse(p, "out of memory");
    }
    if (bytes < 8) {
        bits &= (UINT64_C(1) << 8 * bytes) - 1;
    }
    uint32_t at = hash(bits, bytes) & (m->constant_slots - 1);
    for (; m->constant_index[2 * at]; at = (at + 1) & (m->constant_slots - 1)) {
        const uint32_t place = m->constant_index[2 * at] - 1;
        if (m->constant_index[2 * at + 1] == (uint32_t)bytes &&
            memcmp(m->constants + place, &bits, (size_t)bytes) == 0) {
            return place | PTX_CONSTANT;
        }
    }
    const uint32_t place = m->constant_bytes;
    for (int lane = 0; lane < PTX_LANES; lane++) {
        memcpy(m->constants + place + lane * bytes, &bits, (size_t)bytes);
    }
    m->constant_bytes += (uint32_t)((PTX_LANES * bytes + 63) / 64 * 64);
    m->constant_index[2 * at] = place + 1;
    m->constant_index[2 * at + 1] = (uint32_t)bytes;
    m->constant_count++;
    return place | PTX_CONSTANT;
}
