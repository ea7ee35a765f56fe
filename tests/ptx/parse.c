/* Reads PTX: directives, functions, statements. Words and numbers are in text.c, operands in operand.c, what
 * an opcode means in decode.c and its neighbours. */
#include "tests/ptx/parser.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CODE = 1 << 20, MAX_PARAMS = 256, MAX_PARAM_BYTES = 32764, MAX_SCOPES_DEEP = 64 };

// ---- statements -------------------------------------------------------------------------------------------

// Past the next occurrence of c outside of braces and strings.
static void skip_past(ptx_parser *p, char c) {
    int depth = 0;
    for (; p->at < p->end; p->at++) {
        p->line += *p->at == '\n';
        if (*p->at == '"') {
            for (p->at++; p->at < p->end && *p->at != '"' && *p->at != '\n'; p->at++) {
            }
            if (p->at == p->end) {
                break;
            }
            continue;
        }
        depth += *p->at == '{';
        depth -= *p->at == '}';
        if (*p->at == c && depth <= 0) {
            p->at++;
            return;
        }
    }
    ptx_refuse(p, "expected '%c', the text ends", c);
}

static void skip_line(ptx_parser *p) {
    while (p->at < p->end && *p->at != '\n') {
        p->at++;
    }
}

static ptx_insn *new_insn(ptx_parser *p) {
    if (p->code_count == p->code_capacity) {
        const int capacity = p->code_capacity ? 2 * p->code_capacity : 1024;
        ptx_insn *grown = capacity <= MAX_CODE ? realloc(p->code, (size_t)capacity * sizeof *grown) : NULL;
        if (!grown) {
            ptx_refuse(p, "more than %d instructions", p->code_count);
        }
        p->code = grown;
        p->code_capacity = capacity;
    }
    ptx_insn *i = &p->code[p->code_count++];
    *i = (ptx_insn){.guard = PTX_NO_PLACE,
                    .dst2 = PTX_NO_PLACE,
                    .combine = PTX_NO_PLACE,
                    .select = PTX_NO_PLACE,
                    .target = UINT32_MAX,
                    .line = p->line};
    return i;
}

static void fix_later(ptx_parser *p, uint32_t insn) {
    if (p->fixup_count == p->fixup_capacity) {
        const int capacity = p->fixup_capacity ? 2 * p->fixup_capacity : 256;
        ptx_fixup *grown = realloc(p->fixups, (size_t)capacity * sizeof *grown);
        if (!grown) {
            ptx_refuse(p, "out of memory");
        }
        p->fixups = grown;
        p->fixup_capacity = capacity;
    }
    p->fixups[p->fixup_count++] = (ptx_fixup){insn, p->scope};
}

// Splits "mul.wide.s32" into opcode, modifiers and types.
static void split_opcode(ptx_parser *p, const char *word, int length, ptx_insn *insn, ptx_mods *mods) {
    insn->name = ptx_copy(p, word, length);
    char *text = ptx_parser_alloc(p, (size_t)length + 1);
    memcpy(text, word, (size_t)length);
    *mods = (ptx_mods){.opcode = text};
    for (char *dot = strchr(text, '.'); dot; dot = strchr(dot, '.')) {
        *dot++ = 0;
        const size_t n = strcspn(dot, ".");
        const ptx_type type = ptx_type_find(dot, n);
        if (type != PTX_NO_TYPE) {
            if (mods->type_count == (int)(sizeof mods->types / sizeof mods->types[0])) {
                ptx_refuse(p, "too many types in %s", insn->name);
            }
            mods->types[mods->type_count++] = type;
        } else {
            if (mods->count == (int)(sizeof mods->mods / sizeof mods->mods[0])) {
                ptx_refuse(p, "too many modifiers in %s", insn->name);
            }
            mods->mods[mods->count++] = dot;
        }
    }
}

static void read_guard(ptx_parser *p, ptx_insn *insn) {
    ptx_operand o;
    ptx_read_operand(p, &o);
    bool negated;
    insn->guard = ptx_predicate(p, &o, &negated);
    insn->guard_not = negated;
}

// The operands of a call, of which only the name is kept: it is refused when executed, for code that is never
// reached may print or assert.
static void read_call(ptx_parser *p, ptx_insn *insn) {
    if (ptx_accept(p, '(')) {
        skip_past(p, ')');
        (void)ptx_accept(p, ',');
    }
    ptx_skip(p);
    int length;
    const char *word = ptx_word(p, true, &length);
    insn->more = ptx_copy(p, word, length);
    skip_past(p, ';');
}

static void read_instruction(ptx_parser *p) {
    enum { MAX_OPS = 16 };
    ptx_skip(p);
    const uint32_t index = (uint32_t)p->code_count;
    ptx_insn *insn = new_insn(p);
    if (ptx_accept(p, '@')) {
        read_guard(p, insn);
        ptx_skip(p);
    }
    int length;
    const char *word = ptx_word(p, true, &length);
    insn->line = p->line;
    ptx_mods mods;
    split_opcode(p, word, length, insn, &mods);
    ptx_operand ops[MAX_OPS];
    int count = 0;
    if (strcmp(mods.opcode, "call") == 0) {
        read_call(p, insn);
    } else if (!ptx_accept(p, ';')) {
        do {
            if (count == MAX_OPS) {
                ptx_refuse(p, "too many operands of %s", insn->name);
            }
            ptx_read_operand(p, &ops[count++]);
        } while (ptx_accept(p, ','));
        ptx_expect(p, ';');
    }
    ptx_operand *kept = ptx_parser_alloc(p, (size_t)(count + 1) * sizeof *kept);
    memcpy(kept, ops, (size_t)count * sizeof *kept);
    insn->op = kept;
    insn->ops = count;
    const int line = p->line;
    p->line = insn->line;
    ptx_decode(p, insn, &mods);
    if (mods.count > 0) {
        ptx_refuse(p, "unknown modifier .%s of %s", mods.mods[0], insn->name);
    }
    p->line = line;
    for (int i = 0; i < count; i++) {
        if (ops[i].kind == PTX_NAME) {
            fix_later(p, index);
            break;
        }
    }
}

// `name: .branchtargets a, b;`
static void read_targets(ptx_parser *p, ptx_symbol *s) {
    ptx_operand list = {0};
    int count = 0, capacity = 16;
    ptx_operand *names = ptx_parser_alloc(p, (size_t)capacity * sizeof *names);
    do {
        ptx_read_operand(p, &list);
        if (count == capacity) {
            ptx_operand *grown = ptx_parser_alloc(p, 2 * (size_t)capacity * sizeof *grown);
            memcpy(grown, names, (size_t)capacity * sizeof *grown);
            names = grown;
            capacity *= 2;
        }
        names[count++] = list;
    } while (ptx_accept(p, ','));
    ptx_expect(p, ';');
    s->kind = PTX_SYM_TARGETS;
    s->targets = names;
    s->target_count = count;
}

static bool read_label(ptx_parser *p) {
    ptx_skip(p);
    const char *c = p->at;
    while (c < p->end && (isalnum((unsigned char)*c) || strchr("_$%", *c)) && *c) {
        c++;
    }
    const char *after = c;
    while (after < p->end && (*after == ' ' || *after == '\t')) {
        after++;
    }
    if (c == p->at || after >= p->end || *after != ':' || (after + 1 < p->end && after[1] == ':')) {
        return false;
    }
    ptx_symbol *s = ptx_declare(p, p->at, (int)(c - p->at), PTX_SYM_LABEL);
    s->address = (uint64_t)p->code_count;
    p->at = after + 1;
    ptx_skip(p);
    if (p->end - p->at > 14 && memcmp(p->at, ".branchtargets", 14) == 0) {
        p->at += 14;
        read_targets(p, s);
    } else if (p->end - p->at > 14 && memcmp(p->at, ".callprototype", 14) == 0) {
        skip_past(p, ';');
    }
    return true;
}

static void read_body_directive(ptx_parser *p) {
    int length;
    ptx_expect(p, '.');
    const char *word = ptx_word(p, false, &length);
    if (ptx_word_is(word, length, "reg")) {
        uint64_t align = 0;
        int vector;
        const ptx_type type = ptx_read_type(p, &align, &vector);
        int bytes = ptx_type_bytes(type);
        if (vector != 1 || bytes > 8) {
            ptx_refuse(p, "registers of type .%s%s", vector == 1 ? "" : "v", ptx_type_name(type));
        }
        bytes = bytes == 1 ? 2 : bytes;
        ptx_declare_registers(p, type == PTX_pred ? 0 : bytes);
    } else if (ptx_word_is(word, length, "shared")) {
        ptx_read_variable(p, PTX_SHARED, false);
    } else if (ptx_word_is(word, length, "local")) {
        ptx_read_variable(p, PTX_LOCAL, false);
    } else if (ptx_word_is(word, length, "param")) {
        ptx_read_variable(p, PTX_PARAM, false);
    } else if (ptx_word_is(word, length, "pragma")) {
        skip_past(p, ';');
    } else if (ptx_word_is(word, length, "loc") || ptx_word_is(word, length, "file")) {
        skip_line(p);
    } else {
        ptx_refuse(p, "unknown directive .%.*s", length, word);
    }
}

static void push_scope(ptx_parser *p) {
    ptx_scope *scope = ptx_parser_alloc(p, sizeof *scope);
    scope->up = p->scope;
    p->scope = scope;
}

static void read_body(ptx_parser *p) {
    int depth = 1;
    ptx_expect(p, '{');
    push_scope(p);
    while (depth > 0) {
        if (ptx_accept(p, '{')) {
            if (++depth > MAX_SCOPES_DEEP) {
                ptx_refuse(p, "blocks are nested too deeply");
            }
            push_scope(p);
        } else if (ptx_accept(p, '}')) {
            depth--;
            p->scope = p->scope->up;
        } else if (ptx_peek(p, '.')) {
            read_body_directive(p);
        } else if (!ptx_accept(p, ';') && !read_label(p)) {
            if (p->at >= p->end) {
                ptx_refuse(p, "a function without an end");
            }
            read_instruction(p);
        }
    }
}

static uint32_t label_of(ptx_parser *p, const ptx_scope *scope, const ptx_operand *name) {
    const ptx_symbol *s = ptx_find_symbol((ptx_scope *)scope, name->name, name->length);
    if (!s || s->kind != PTX_SYM_LABEL) {
        ptx_refuse(p, "no label '%.*s'", name->length, name->name ? name->name : "");
    }
    return (uint32_t)s->address;
}

static void resolve(ptx_parser *p) {
    for (int f = 0; f < p->fixup_count; f++) {
        ptx_insn *insn = &p->code[p->fixups[f].insn];
        const ptx_scope *scope = p->fixups[f].scope;
        p->line = insn->line;
        if (insn->run == PTX_RUN_BRANCH) {
            insn->target = label_of(p, scope, &insn->op[0]);
            continue;
        }
        const ptx_operand *last = &insn->op[insn->ops - 1];
        const ptx_symbol *s =
            last->kind == PTX_NAME ? ptx_find_symbol((ptx_scope *)scope, last->name, last->length) : NULL;
        if (!insn->flag2 || !s || s->kind != PTX_SYM_TARGETS) { // flag2: brx.idx
            for (int i = 0; i < insn->ops; i++) {
                if (insn->op[i].kind == PTX_NAME) {
                    ptx_refuse(p, "'%.*s' is not declared", insn->op[i].length, insn->op[i].name);
                }
            }
            ptx_refuse(p, "no list of branch targets");
        }
        uint32_t *targets = ptx_parser_alloc(p, (size_t)s->target_count * sizeof *targets);
        for (int i = 0; i < s->target_count; i++) {
            targets[i] = label_of(p, scope, &s->targets[i]);
        }
        insn->more = targets;
        insn->extra = (uint32_t)s->target_count;
    }
}

// ---- entries ----------------------------------------------------------------------------------------------

static void read_param(ptx_parser *p, sbp_ptx_param *out) {
    sbp_ptx_entry *e = p->entry;
    int length, vector = 1;
    uint64_t align = 0;
    ptx_expect(p, '.');
    const char *word = ptx_word(p, false, &length);
    if (!ptx_word_is(word, length, "param")) {
        ptx_refuse(p, "expected .param");
    }
    const ptx_type type = ptx_read_type(p, &align, &vector);
    while (ptx_accept(p, '.')) { // .ptr .global .align 1: what the pointer is said to point at
        (void)ptx_word(p, false, &length);
        ptx_skip(p);
        if (p->at < p->end && isdigit((unsigned char)*p->at)) {
            (void)ptx_count(p, 1 << 20);
        }
    }
    const char *name = ptx_word(p, false, &length);
    uint64_t bytes = (uint64_t)(ptx_type_bytes(type) * vector);
    if (ptx_accept(p, '[')) {
        bytes *= (uint64_t)ptx_count(p, MAX_PARAM_BYTES);
        ptx_expect(p, ']');
    }
    ptx_symbol *s = ptx_declare(p, name, length, PTX_SYM_VARIABLE);
    s->space = PTX_PARAM;
    s->bytes = bytes;
    if (bytes == 0 || align == 0) {
        ptx_refuse(p, "a parameter without bytes");
    }
    s->address = (e->param_bytes + align - 1) / align * align;
    *out = (sbp_ptx_param){s->address, bytes, align};
    e->param_bytes = s->address + bytes;
    if (e->param_bytes > MAX_PARAM_BYTES) {
        ptx_refuse(p, "more than %d bytes of parameters", MAX_PARAM_BYTES);
    }
}

static void read_params(ptx_parser *p) {
    sbp_ptx_entry *e = p->entry;
    if (!ptx_accept(p, '(')) {
        return;
    }
    e->params = ptx_parser_alloc(p, MAX_PARAMS * sizeof *e->params);
    while (!ptx_accept(p, ')')) {
        if (e->param_count == MAX_PARAMS) {
            ptx_refuse(p, "more than %d parameters", MAX_PARAMS);
        }
        read_param(p, &e->params[e->param_count++]);
        (void)ptx_accept(p, ',');
    }
}

static void read_directives(ptx_parser *p) {
    sbp_ptx_entry *e = p->entry;
    e->max_threads = PTX_ALL_LANES_MAX;
    while (ptx_accept(p, '.')) {
        int length;
        const char *word = ptx_word(p, false, &length);
        const bool required = ptx_word_is(word, length, "reqntid");
        uint32_t n[3] = {1, 1, 1};
        const bool least = ptx_word_is(word, length, "minnctapersm");
        if (required || ptx_word_is(word, length, "maxntid")) {
            int i = 0;
            do {
                if (i == 3) {
                    ptx_refuse(p, "more than 3 dimensions");
                }
                n[i++] = (uint32_t)ptx_count(p, PTX_ALL_LANES_MAX);
            } while (ptx_accept(p, ','));
            const uint64_t threads = (uint64_t)n[0] * n[1] * n[2];
            e->max_threads = threads < e->max_threads ? (uint32_t)threads : e->max_threads;
            e->bounded = true;
            if (required) {
                memcpy(e->required, n, sizeof n);
            }
        } else if (ptx_word_is(word, length, "pragma")) {
            skip_past(p, ';');
        } else if (ptx_word_is(word, length, "reqnctapercluster")) {
            do {
                if (ptx_count(p, 1 << 20) != 1) {
                    ptx_refuse(p, "clusters of more than one block");
                }
            } while (ptx_accept(p, ','));
        } else if (ptx_word_is(word, length, "explicitcluster") ||
                   ptx_word_is(word, length, "blocksareclusters")) {
            // a cluster of one
        } else if (least || ptx_word_is(word, length, "maxnreg")) {
            *(least ? &e->min_blocks : &e->max_registers) = (uint32_t)ptx_count(p, 1 << 20);
        } else if (ptx_word_is(word, length, "maxnctapersm") || ptx_word_is(word, length, "maxclusterrank")) {
            (void)ptx_count(p, 1 << 20);
        } else {
            ptx_refuse(p, "unknown directive .%.*s", length, word);
        }
    }
}

static void entry_add(ptx_parser *p, sbp_ptx_entry *e) {
    sbp_ptx_module *m = p->module;
    if (m->entry_count == m->entry_capacity) {
        const int capacity = m->entry_capacity + 16;
        sbp_ptx_entry **grown = ptx_parser_alloc(p, (size_t)capacity * sizeof(sbp_ptx_entry *));
        if (m->entry_count) {
            memcpy(grown, m->entries, (size_t)m->entry_count * sizeof *grown);
        }
        m->entries = grown;
        m->entry_capacity = capacity;
    }
    m->entries[m->entry_count++] = e;
}

// The body, with dynamic shared memory said to begin at dynamic_at.
static void read_entry_body(ptx_parser *p) {
    p->code_count = p->fixup_count = 0;
    p->register_bytes = p->registers = p->local_bytes = 0;
    p->shared_bytes = p->module->shared_bytes;
    p->uses_dynamic = false;
    p->entry->special_count = 0;
    read_body(p);
    ptx_insn *end = new_insn(p);
    end->name = "exit";
    ptx_mods mods = {.opcode = "exit"};
    ptx_decode(p, end, &mods);
    resolve(p);
}

static void read_entry(ptx_parser *p) {
    sbp_ptx_entry *e = ptx_parser_alloc(p, sizeof *e);
    int length;
    const char *name = ptx_word(p, false, &length);
    p->entry = e;
    e->module = p->module;
    e->name = ptx_declare(p, name, length, PTX_SYM_FUNCTION)->name;
    if (sbp_ptx_module_entry(p->module, e->name)) {
        ptx_refuse(p, "'%s' is defined twice", e->name);
    }
    push_scope(p);
    read_params(p);
    read_directives(p);
    if (ptx_accept(p, ';')) { // declared only
        p->scope = p->scope->up;
        p->entry = NULL;
        return;
    }
    /* Addresses of dynamic shared memory are known when all static variables are: where the first guess was
     * wrong, the body is read again. */
    const char *begin = p->at;
    const int line = p->line;
    e->dynamic_at = (p->module->shared_bytes + 1023) / 1024 * 1024;
    read_entry_body(p);
    const uint32_t right = (p->shared_bytes + 1023) / 1024 * 1024;
    if (p->uses_dynamic && right != e->dynamic_at) {
        e->dynamic_at = right;
        p->at = begin;
        p->line = line;
        read_entry_body(p);
    }
    e->dynamic_at = right;
    p->scope = p->scope->up;
    e->shared_bytes = p->shared_bytes;
    e->local_bytes = (p->local_bytes + 15) / 16 * 16;
    e->register_bytes = (p->register_bytes + 63) / 64 * 64;
    e->registers = p->registers;
    e->length = p->code_count;
    e->code = ptx_parser_alloc(p, (size_t)e->length * sizeof *e->code);
    memcpy(e->code, p->code, (size_t)e->length * sizeof *e->code);
    entry_add(p, e);
    p->entry = NULL;
}

// ---- modules ----------------------------------------------------------------------------------------------

// .func: only declarations matter; a body is skipped, for calls are refused when executed.
static void read_function(ptx_parser *p) {
    while (p->at < p->end && !ptx_peek(p, '{') && !ptx_peek(p, ';')) {
        p->at++;
    }
    if (!ptx_accept(p, ';')) {
        skip_past(p, '}');
    }
}

static void read_target(ptx_parser *p) {
    do {
        int length;
        const char *word = ptx_word(p, false, &length);
        if (length < 3 || (memcmp(word, "sm_", 3) != 0 && !ptx_word_is(word, length, "debug") &&
                           !ptx_word_is(word, length, "texmode_independent"))) {
            ptx_refuse(p, "unknown target %.*s", length, word);
        }
    } while (ptx_accept(p, ','));
}

static void read_module_directive(ptx_parser *p) {
    int length;
    bool external = false;
    for (;;) {
        ptx_expect(p, '.');
        const char *word = ptx_word(p, false, &length);
        if (ptx_word_is(word, length, "visible") || ptx_word_is(word, length, "weak") ||
            ptx_word_is(word, length, "common")) {
            continue;
        }
        if (ptx_word_is(word, length, "extern")) {
            external = true;
        } else if (ptx_word_is(word, length, "version")) {
            ptx_operand version;
            ptx_number(p, &version);
            return;
        } else if (ptx_word_is(word, length, "target")) {
            read_target(p);
            return;
        } else if (ptx_word_is(word, length, "address_size")) {
            if (ptx_count(p, 64) != 64) {
                ptx_refuse(p, "addresses of 32 bits");
            }
            return;
        } else if (ptx_word_is(word, length, "entry")) {
            read_entry(p);
            return;
        } else if (ptx_word_is(word, length, "func")) {
            read_function(p);
            return;
        } else if (ptx_word_is(word, length, "global") || ptx_word_is(word, length, "const")) {
            ptx_read_variable(p, *word == 'g' ? PTX_GLOBAL : PTX_CONST, external);
            return;
        } else if (ptx_word_is(word, length, "shared")) {
            ptx_read_variable(p, PTX_SHARED, external);
            return;
        } else if (ptx_word_is(word, length, "file") || ptx_word_is(word, length, "loc")) {
            skip_line(p);
            return;
        } else if (ptx_word_is(word, length, "section")) {
            skip_past(p, '}');
            return;
        } else if (ptx_word_is(word, length, "pragma")) {
            skip_past(p, ';');
            return;
        } else {
            ptx_refuse(p, "unknown directive .%.*s", length, word);
        }
    }
}

static void read_module(ptx_parser *p) {
    push_scope(p);
    for (ptx_skip(p); p->at < p->end; ptx_skip(p)) {
        if (*p->at == 0) {
            break;
        }
        read_module_directive(p);
        p->module->symbols = p->scope->symbols;
    }
}

// What is refused ends here.
static void read_guarded(ptx_parser *p) {
    if (setjmp(p->fail) == 0) {
        read_module(p);
    }
}

sbp_ptx_module *sbp_ptx_module_load(sbp_ptx_memory *memory, const char *text, size_t bytes,
                                    sbp_ptx_report *report) {
    *report = (sbp_ptx_report){0};
    ptx_parser *p = calloc(1, sizeof *p);
    sbp_ptx_module *m = calloc(1, sizeof *m);
    bytes = strnlen(text, bytes);
    char *copy = m ? ptx_module_alloc(m, bytes + 1) : NULL;
    if (!p || !m || !copy) {
        free(p);
        sbp_ptx_module_unload(m);
        report->status = SBP_PTX_REFUSED;
        (void)snprintf(report->text, sizeof report->text, "out of memory");
        return NULL;
    }
    memcpy(copy, text, bytes);
    ptx_strip_comments(copy, bytes);
    m->memory = memory;
    p->report = report;
    p->module = m;
    p->at = copy;
    p->end = copy + bytes;
    p->line = 1;
    read_guarded(p);
    free(p->code);
    free(p->fixups);
    free(p);
    if (report->status != SBP_PTX_OK) {
        sbp_ptx_module_unload(m);
        return NULL;
    }
    return m;
}
