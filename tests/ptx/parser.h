/* parser.h: what the files that read PTX share. */
#ifndef SBP_TESTS_PTX_PARSER_H
#define SBP_TESTS_PTX_PARSER_H

#include "tests/ptx/module.h"

typedef enum {
    PTX_SYM_VARIABLE,
    PTX_SYM_FUNCTION,
    PTX_SYM_LABEL,
    PTX_SYM_TARGETS,
    PTX_SYM_OPAQUE
} ptx_symbol_kind;

// A name that is no register.
typedef struct ptx_symbol {
    struct ptx_symbol *next; // of its scope
    const char *name;
    int length;
    ptx_symbol_kind kind;
    ptx_space space;  // VARIABLE
    uint64_t address; // VARIABLE: within its space; LABEL: position
    uint64_t bytes;
    bool dynamic;               // VARIABLE: .extern .shared: after all others
    const ptx_operand *targets; // TARGETS: names
    int target_count;
} ptx_symbol;

// Registers that were declared together: one name, or a prefix and how many.
typedef struct ptx_registers {
    struct ptx_registers *next;
    const char *name;
    int length, bytes; // bytes 0: predicates
    bool numbered;
    uint32_t count, place, first;
} ptx_registers;

typedef struct ptx_scope {
    struct ptx_scope *up;
    ptx_symbol *symbols;
    ptx_registers *registers;
} ptx_scope;

// A branch that waits for its label.
typedef struct {
    uint32_t insn;
    ptx_scope *scope;
} ptx_fixup;

struct ptx_parser {
    jmp_buf fail;
    sbp_ptx_report *report;
    sbp_ptx_module *module;
    const char *at, *end;
    int line;
    ptx_scope *scope; // innermost; the outermost is the module's
    int depth;
    sbp_ptx_entry *entry; // being read
    ptx_insn *code;
    int code_count, code_capacity;
    ptx_fixup *fixups;
    int fixup_count, fixup_capacity;
    uint32_t register_bytes, registers;
    uint32_t shared_bytes, local_bytes; // of the entry
    bool uses_dynamic;
    struct { // patches of addresses of dynamic shared variables
        ptx_operand **operands;
        int count, capacity;
    } dynamic;
};

// ---- text.c
void ptx_skip(ptx_parser *p); // spaces
bool ptx_peek(ptx_parser *p, char c);
bool ptx_accept(ptx_parser *p, char c);
void ptx_expect(ptx_parser *p, char c);
// A word of letters, digits, _ $ % and, with dots, . and ::; refuses what is none.
const char *ptx_word(ptx_parser *p, bool dots, int *out_length);
bool ptx_word_is(const char *word, int length, const char *what);
const char *ptx_copy(ptx_parser *p, const char *word, int length);
// A number: INTEGER, FLOAT32 or FLOAT64 into *o.
void ptx_number(ptx_parser *p, ptx_operand *o);
int64_t ptx_count(ptx_parser *p, int64_t most); // an integer >= 0
// Blanks comments out; lines stay.
void ptx_strip_comments(char *text, size_t bytes);

// ---- operand.c
ptx_symbol *ptx_find_symbol(ptx_scope *scope, const char *name, int length);
void ptx_declare_registers(ptx_parser *p, int bytes);
ptx_symbol *ptx_declare(ptx_parser *p, const char *name, int length, ptx_symbol_kind kind);
void ptx_read_operand(ptx_parser *p, ptx_operand *out);
/* Bits 0-4 of a place number of a special register that does not change; see special.c. */
bool ptx_special_find(ptx_parser *p, const char *name, int length, ptx_operand *out);

// ---- variables.c
// After .global, .shared, ... (`space`): the rest of the declaration to its end.
void ptx_read_variable(ptx_parser *p, ptx_space space, bool external);
// A type and alignment: `.align 16 .b8`; returns the type.
ptx_type ptx_read_type(ptx_parser *p, uint64_t *inout_align, int *out_vector);

#endif
