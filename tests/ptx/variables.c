/* Declarations of variables in the PTX parser: their places and what they begin with. */
#include "tests/ptx/parser.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ALIGN = 1 << 12, MAX_LOCAL = 1 << 19 };
#define MAX_GLOBAL (INT64_C(1) << 31)

ptx_type ptx_read_type(ptx_parser *p, uint64_t *inout_align, int *out_vector) {
    *out_vector = 1;
    for (;;) {
        int length;
        ptx_expect(p, '.');
        const char *word = ptx_word(p, false, &length);
        if (ptx_word_is(word, length, "align")) {
            *inout_align = (uint64_t)ptx_count(p, MAX_ALIGN);
            if (*inout_align == 0 || *inout_align & (*inout_align - 1)) {
                ptx_refuse(p, "an alignment that is no power of 2");
            }
        } else if (ptx_word_is(word, length, "v2") || ptx_word_is(word, length, "v4")) {
            *out_vector = word[1] - '0';
        } else {
            const ptx_type type = ptx_type_find(word, (size_t)length);
            if (type == PTX_NO_TYPE) {
                ptx_refuse(p, "unknown type .%.*s", length, word);
            }
            if (*inout_align == 0) {
                *inout_align = (uint64_t)(ptx_type_bytes(type) * *out_vector);
            }
            return type;
        }
    }
}

// The value of one element of an initialiser.
static uint64_t read_initial(ptx_parser *p, ptx_type type) {
    ptx_operand o;
    ptx_read_operand(p, &o);
    const uint64_t bits = (uint64_t)o.value;
    if (o.kind == PTX_NAME && o.length == 7 && memcmp(o.name, "generic", 7) == 0 && ptx_accept(p, '(')) {
        ptx_read_operand(p, &o);
        ptx_expect(p, ')');
    }
    if (o.kind == PTX_INTEGER && o.window && o.window != PTX_GLOBAL && o.window != PTX_CONST) {
        ptx_refuse(p, "an initialiser with the address of what is neither .global nor .const");
    }
    if (o.kind == PTX_INTEGER) {
        return (uint64_t)o.value;
    }
    if (o.kind == PTX_FLOAT64 && type == PTX_f32) {
        double wide;
        memcpy(&wide, &bits, sizeof wide);
        const float narrow = (float)wide;
        uint32_t low;
        memcpy(&low, &narrow, sizeof low);
        return low;
    }
    if (o.kind != PTX_FLOAT32 && o.kind != PTX_FLOAT64) {
        ptx_refuse(p, "an initialiser that is no number");
    }
    return bits;
}

static void read_initials(ptx_parser *p, ptx_type type, uint8_t *to, uint64_t bytes) {
    const uint64_t size = (uint64_t)ptx_type_bytes(type);
    if (!ptx_accept(p, '{')) {
        const uint64_t value = read_initial(p, type);
        if (size > 8 || size > bytes) {
            ptx_refuse(p, "an initialiser larger than its variable");
        }
        memcpy(to, &value, size);
        return;
    }
    int depth = 1;
    for (uint64_t at = 0; depth > 0;) { // rows of a matrix may have braces of their own
        if (ptx_accept(p, '{')) {
            depth++;
        } else if (ptx_accept(p, '}')) {
            depth--;
        } else if (!ptx_accept(p, ',')) {
            const uint64_t value = read_initial(p, type);
            if (size == 0 || size > 8 || at + size > bytes) {
                ptx_refuse(p, "an initialiser larger than its variable");
            }
            memcpy(to + at, &value, size);
            at += size;
        }
    }
}

static uint64_t read_bytes(ptx_parser *p, ptx_type type, int vector, bool *out_open) {
    uint64_t bytes = (uint64_t)(ptx_type_bytes(type) * vector);
    if (bytes == 0) {
        ptx_refuse(p, "a variable of type .%s", ptx_type_name(type));
    }
    *out_open = false;
    while (ptx_accept(p, '[')) {
        if (ptx_accept(p, ']')) {
            *out_open = true;
            continue;
        }
        const uint64_t count = (uint64_t)ptx_count(p, MAX_GLOBAL);
        bytes *= count;
        if (bytes > (uint64_t)MAX_GLOBAL) {
            ptx_refuse(p, "a variable of more than %lld bytes", (long long)MAX_GLOBAL);
        }
        ptx_expect(p, ']');
    }
    return bytes;
}

static uint64_t take(ptx_parser *p, uint32_t *inout_used, uint64_t align, uint64_t bytes, uint64_t most) {
    const uint64_t at = (*inout_used + align - 1) / align * align;
    if (at + bytes > most) {
        ptx_refuse(p, "variables of more than %llu bytes", (unsigned long long)most);
    }
    *inout_used = (uint32_t)(at + bytes);
    return at;
}

static void global_place(ptx_parser *p, ptx_symbol *s, ptx_type type) {
    sbp_ptx_module *m = p->module;
    if (m->global_count == m->global_capacity) {
        const int capacity = m->global_capacity + 64;
        uint64_t *grown = realloc(m->globals, (size_t)capacity * sizeof *grown);
        if (!grown) {
            ptx_refuse(p, "out of memory");
        }
        m->globals = grown;
        m->global_capacity = capacity;
    }
    s->address = sbp_ptx_memory_alloc(m->memory, s->bytes);
    if (!s->address) {
        ptx_refuse(p, "no device memory for '%s'", s->name);
    }
    m->globals[m->global_count++] = s->address;
    uint8_t *host = sbp_ptx_memory_host(m->memory, s->address, s->bytes);
    memset(host, 0, s->bytes);
    (void)sbp_ptx_memory_mark(m->memory, s->address, s->bytes, true);
    if (ptx_accept(p, '=')) {
        read_initials(p, type, host, s->bytes);
    }
}

void ptx_read_variable(ptx_parser *p, ptx_space space, bool external) {
    uint64_t align = 0;
    int vector;
    const ptx_type type = ptx_read_type(p, &align, &vector);
    do {
        int length;
        bool open;
        const char *name = ptx_word(p, false, &length);
        ptx_symbol *s = ptx_declare(p, name, length, PTX_SYM_VARIABLE);
        s->space = space;
        s->bytes = read_bytes(p, type, vector, &open);
        if (space == PTX_SHARED && open && external) {
            s->dynamic = true;
            s->bytes = 0;
        } else if (open || external) {
            ptx_refuse(p, "'%s' has no size or is defined elsewhere", s->name);
        } else if (s->bytes == 0) {
            ptx_refuse(p, "'%s' is empty", s->name);
        } else if (space == PTX_SHARED) {
            s->address = take(p, p->entry ? &p->shared_bytes : &p->module->shared_bytes, align, s->bytes,
                              PTX_MAX_SHARED);
        } else if (space == PTX_LOCAL) {
            s->address = take(p, &p->local_bytes, align, s->bytes, MAX_LOCAL);
        } else if (space == PTX_GLOBAL || space == PTX_CONST) {
            global_place(p, s, type);
        } else {
            s->kind = PTX_SYM_OPAQUE; // .param of a call
        }
    } while (ptx_accept(p, ','));
    ptx_expect(p, ';');
}
