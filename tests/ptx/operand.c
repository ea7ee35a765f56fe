/* Operands, registers and symbols of the PTX parser. */
#include "tests/ptx/parser.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REGISTERS = 1 << 17, MAX_PARTS = 256 };

// ---- registers --------------------------------------------------------------------------------------------

static uint32_t take_places(ptx_parser *p, int bytes, uint32_t count) {
    if (count > MAX_REGISTERS - p->registers) {
        ptx_refuse(p, "more than %d registers", MAX_REGISTERS);
    }
    const uint32_t stride = bytes ? (uint32_t)bytes * PTX_LANES : 8;
    p->register_bytes = (p->register_bytes + 63) / 64 * 64;
    const uint32_t place = p->register_bytes;
    p->register_bytes += count * stride;
    p->registers += count;
    return place;
}

uint32_t ptx_hidden_register(ptx_parser *p, int bytes) {
    return take_places(p, bytes, 1);
}

void ptx_declare_registers(ptx_parser *p, int bytes) {
    do {
        int length;
        const char *name = ptx_word(p, false, &length);
        uint32_t count = 1;
        bool numbered = false;
        if (ptx_accept(p, '<')) {
            count = (uint32_t)ptx_count(p, MAX_REGISTERS);
            ptx_expect(p, '>');
            numbered = true;
        }
        ptx_registers *r = ptx_parser_alloc(p, sizeof *r);
        *r = (ptx_registers){p->scope->registers, name, length, bytes, numbered, count, 0, p->registers};
        r->place = take_places(p, bytes, count);
        p->scope->registers = r;
    } while (ptx_accept(p, ','));
    ptx_expect(p, ';');
}

// The number behind the prefix of a numbered register; -1: none.
static int64_t number_behind(const ptx_registers *r, const char *name, int length) {
    int64_t number = 0;
    if (length <= r->length || length - r->length > 7 || memcmp(name, r->name, (size_t)r->length) != 0 ||
        (name[r->length] == '0' && length > r->length + 1)) {
        return -1;
    }
    for (int i = r->length; i < length; i++) {
        if (!isdigit((unsigned char)name[i])) {
            return -1;
        }
        number = number * 10 + (name[i] - '0');
    }
    return number < r->count ? number : -1;
}

static bool find_register(ptx_scope *scope, const char *name, int length, ptx_operand *out) {
    for (; scope; scope = scope->up) {
        for (const ptx_registers *r = scope->registers; r; r = r->next) {
            int64_t number = 0;
            if (r->numbered) {
                number = number_behind(r, name, length);
            } else if (r->length != length || memcmp(r->name, name, (size_t)length) != 0) {
                number = -1;
            }
            if (number >= 0) {
                out->kind = r->bytes ? PTX_REGISTER : PTX_PREDICATE;
                out->bytes = (uint8_t)r->bytes;
                out->place = r->place + (uint32_t)number * (r->bytes ? (uint32_t)r->bytes * PTX_LANES : 8);
                out->reg = r->first + (uint32_t)number;
                return true;
            }
        }
    }
    return false;
}

bool ptx_special_find(ptx_parser *p, const char *name, int length, ptx_operand *out) {
    static const struct {
        const char *name;
        int bytes;
    } specials[] = {
        {"", 0},
#define PTX_SPECIAL(id, name, bytes) {name, bytes},
#include "tests/ptx/specials.def"
#undef PTX_SPECIAL
    };
    int id = 1;
    while (id < (int)(sizeof specials / sizeof specials[0]) &&
           !ptx_word_is(name, length, specials[id].name)) {
        id++;
    }
    sbp_ptx_entry *e = p->entry;
    if (id == (int)(sizeof specials / sizeof specials[0]) || !e) {
        return false;
    }
    out->kind = PTX_REGISTER;
    out->bytes = (uint8_t)specials[id].bytes;
    out->special = (uint8_t)id;
    for (int i = 0; i < e->special_count; i++) {
        if (e->specials[i].special == id) {
            out->place = e->specials[i].place;
            return true;
        }
    }
    if (e->special_count == e->special_capacity) {
        const int capacity = e->special_capacity + 16;
        ptx_special_use *grown = ptx_parser_alloc(p, (size_t)capacity * sizeof *grown);
        if (e->special_count) {
            memcpy(grown, e->specials, (size_t)e->special_count * sizeof *grown);
        }
        e->specials = grown;
        e->special_capacity = capacity;
    }
    out->place = ptx_hidden_register(p, out->bytes);
    e->specials[e->special_count++] = (ptx_special_use){out->place, (uint8_t)id, out->bytes};
    return true;
}

// ---- symbols ----------------------------------------------------------------------------------------------

ptx_symbol *ptx_find_symbol(ptx_scope *scope, const char *name, int length) {
    for (; scope; scope = scope->up) {
        for (ptx_symbol *s = scope->symbols; s; s = s->next) {
            if (s->length == length && memcmp(s->name, name, (size_t)length) == 0) {
                return s;
            }
        }
    }
    return NULL;
}

ptx_symbol *ptx_declare(ptx_parser *p, const char *name, int length, ptx_symbol_kind kind) {
    for (ptx_symbol *s = p->scope->symbols; s; s = s->next) {
        if (s->length == length && memcmp(s->name, name, (size_t)length) == 0) {
            if (s->kind == PTX_SYM_FUNCTION && kind == PTX_SYM_FUNCTION) {
                return s; // a declaration before the definition
            }
            ptx_refuse(p, "'%.*s' is declared twice", length, name);
        }
    }
    ptx_symbol *s = ptx_parser_alloc(p, sizeof *s);
    s->name = ptx_copy(p, name, length);
    s->length = length;
    s->kind = kind;
    s->next = p->scope->symbols;
    p->scope->symbols = s;
    return s;
}

// ---- operands ---------------------------------------------------------------------------------------------

static void read_name(ptx_parser *p, ptx_operand *out) {
    int length;
    ptx_skip(p);
    const bool special = p->at < p->end && *p->at == '%';
    const char *name = ptx_word(p, special, &length);
    if (find_register(p->scope, name, length, out) || (special && ptx_special_find(p, name, length, out))) {
        return;
    }
    if (ptx_word_is(name, length, "WARP_SZ")) {
        out->kind = PTX_INTEGER;
        out->value = PTX_LANES;
        return;
    }
    const ptx_symbol *s = ptx_find_symbol(p->scope, name, length);
    if (s && s->kind == PTX_SYM_VARIABLE) {
        out->kind = PTX_INTEGER;
        out->window = (uint8_t)s->space;
        out->value = (int64_t)(s->address + (s->dynamic ? p->entry->dynamic_at : 0));
        p->uses_dynamic |= s->dynamic;
        return;
    }
    if (s && s->kind == PTX_SYM_OPAQUE) { // of a call, which is refused when executed
        out->kind = PTX_INTEGER;
        out->window = PTX_PARAM;
        out->value = PTX_CALL_PARAM;
        return;
    }
    if (special) {
        ptx_refuse(p, "'%.*s' is not declared", length, name);
    }
    out->kind = PTX_NAME; // a label that may follow, or a function
    out->name = name;
    out->length = length;
}

static void read_parts(ptx_parser *p, ptx_operand *out, char closing) {
    ptx_operand parts[MAX_PARTS];
    int count = 0;
    if (++p->depth > 8) {
        ptx_refuse(p, "operands are nested too deeply");
    }
    do {
        if (count == MAX_PARTS) {
            ptx_refuse(p, "a vector of more than %d operands", MAX_PARTS);
        }
        ptx_read_operand(p, &parts[count++]);
    } while (ptx_accept(p, ','));
    ptx_expect(p, closing);
    p->depth--;
    ptx_operand *kept = ptx_parser_alloc(p, (size_t)count * sizeof *kept);
    memcpy(kept, parts, (size_t)count * sizeof *kept);
    out->parts = kept;
    out->count = count;
}

static void read_address(ptx_parser *p, ptx_operand *out) {
    ptx_operand base = {.place = PTX_NO_PLACE};
    ptx_skip(p);
    if (p->at < p->end && (isdigit((unsigned char)*p->at) || *p->at == '-')) {
        ptx_number(p, &base);
    } else {
        read_name(p, &base);
    }
    if (base.kind != PTX_REGISTER && base.kind != PTX_INTEGER) {
        ptx_refuse(p, "an address must be a register, a variable or a number");
    }
    *out = base;
    out->kind = PTX_ADDRESS;
    if (base.kind == PTX_REGISTER && base.bytes < 4) {
        ptx_refuse(p, "an address in a register of %d bits", 8 * base.bytes);
    }
    while (ptx_peek(p, '+') || ptx_peek(p, '-')) {
        ptx_operand offset = {0};
        ptx_number(p, &offset);
        if (offset.kind != PTX_INTEGER) {
            ptx_refuse(p, "an offset must be an integer");
        }
        out->value = (int64_t)((uint64_t)out->value + (uint64_t)offset.value);
    }
    if (ptx_accept(p, ',')) {
        ptx_expect(p, '{');
        read_parts(p, out, '}');
    }
    ptx_expect(p, ']');
}

void ptx_read_operand(ptx_parser *p, ptx_operand *out) {
    *out = (ptx_operand){.place = PTX_NO_PLACE};
    ptx_skip(p);
    const char c = p->at < p->end ? *p->at : 0;
    if (ptx_accept(p, '{')) {
        out->kind = PTX_VECTOR;
        read_parts(p, out, '}');
    } else if (ptx_accept(p, '[')) {
        read_address(p, out);
    } else if (ptx_accept(p, '!')) {
        read_name(p, out);
        if (out->kind != PTX_PREDICATE) {
            ptx_refuse(p, "'!' before what is no predicate");
        }
        out->negated = true;
    } else if (isdigit((unsigned char)c) || c == '-') {
        ptx_number(p, out);
    } else if (c == '_' &&
               (p->at + 1 == p->end || (!isalnum((unsigned char)p->at[1]) && !strchr("_$%", p->at[1])))) {
        p->at++;
        out->kind = PTX_SINK;
    } else {
        read_name(p, out);
        while (out->kind == PTX_INTEGER && out->window && (ptx_peek(p, '+') || ptx_peek(p, '-'))) {
            ptx_operand offset = {0};
            ptx_number(p, &offset);
            out->value = (int64_t)((uint64_t)out->value + (uint64_t)offset.value);
        }
    }
    if (ptx_accept(p, '|')) {
        ptx_operand *parts = ptx_parser_alloc(p, 2 * sizeof *parts);
        parts[0] = *out;
        if (++p->depth > 8) {
            ptx_refuse(p, "operands are nested too deeply");
        }
        ptx_read_operand(p, &parts[1]);
        p->depth--;
        *out = (ptx_operand){.kind = PTX_PAIR, .place = PTX_NO_PLACE, .parts = parts, .count = 2};
    }
}
