/* module.h: PTX as the machine keeps it: decoded instructions in arrays, registers as places, labels as
 * positions. parse.c makes it from text, decode*.c choose what executes an instruction. */
#ifndef SBP_TESTS_PTX_MODULE_H
#define SBP_TESTS_PTX_MODULE_H

#include "tests/ptx/memory.h"

#include <setjmp.h>

enum { PTX_CALL_PARAM = 1 << 24 }; // address of a parameter of a call
enum { PTX_LANES = 32, PTX_MAX_SHARED = 227 * 1024, PTX_ALL_LANES_MAX = 1024 };
#define PTX_FULL UINT32_MAX
#define PTX_NO_PLACE UINT32_MAX
#define PTX_CONSTANT UINT32_C(0x80000000) // of a place: in the module's constants, not the warp's registers

// ---- types ------------------------------------------------------------------------------------------------

typedef enum {
    PTX_NO_TYPE,
#define PTX_TYPE(name, bytes, kind) PTX_##name,
#include "tests/ptx/types.def"
#undef PTX_TYPE
} ptx_type;

int ptx_type_bytes(ptx_type type);
char ptx_type_kind(ptx_type type); // 'b', 'u', 's', 'f' or 'p'
const char *ptx_type_name(ptx_type type);
ptx_type ptx_type_find(const char *name, size_t length); // PTX_NO_TYPE: no such type

// ---- operands ---------------------------------------------------------------------------------------------

typedef enum {
    PTX_OPERAND_NONE,
    PTX_REGISTER,  // place, bytes, reg
    PTX_PREDICATE, // place, reg, negated
    PTX_INTEGER,   // value
    PTX_FLOAT32,   // value: bits
    PTX_FLOAT64,   // value: bits; also decimal ones of any type
    PTX_ADDRESS,   // register (bytes 0: none) + value; parts: coordinates of a tensor
    PTX_VECTOR,    // parts
    PTX_PAIR,      // d|p: two parts
    PTX_SINK,      // _
    PTX_NAME,      // a label or function: name
} ptx_operand_kind;

typedef struct ptx_operand {
    uint8_t kind, bytes;
    bool negated;
    uint8_t window;  // of a variable's address (PTX_INTEGER, PTX_ADDRESS): its ptx_space, or 0
    uint8_t special; // ptx_special_id of a special register, or 0
    uint32_t place;  // of 32 lanes in the register file
    uint32_t reg;    // number, for messages and for what is pending
    int64_t value;
    const struct ptx_operand *parts;
    int count;
    const char *name;
    int length;
} ptx_operand;

typedef enum {
    PTX_GENERIC,
    PTX_GLOBAL,
    PTX_SHARED,
    PTX_LOCAL,
    PTX_PARAM,
    PTX_CONST,
} ptx_space;

// Where the other spaces begin in generic addresses; global memory is below all of them.
#define PTX_SHARED_WINDOW UINT64_C(0x7f0000000000)
#define PTX_LOCAL_WINDOW UINT64_C(0x7e0000000000)
#define PTX_PARAM_WINDOW UINT64_C(0x7d0000000000)
#define PTX_WINDOW_BYTES UINT64_C(0x100000000)

typedef enum {
    PTX_NO_SPECIAL,
#define PTX_SPECIAL(id, name, bytes) PTX_SPECIAL_##id,
#include "tests/ptx/specials.def"
#undef PTX_SPECIAL
} ptx_special_id;

// ---- instructions -----------------------------------------------------------------------------------------

typedef struct ptx_warp ptx_warp;
typedef struct ptx_insn ptx_insn;

/* Executes for the lanes in mask (not 0). w->pc is already behind the instruction; whoever jumps or waits
 * changes it. Faults do not return. */
typedef void ptx_exec_fn(ptx_warp *w, const ptx_insn *i, uint32_t mask);
// d[lane] = f(s[0][lane], ...) for the lanes in mask. extra: an immediate, or the mask of a predicate
// operand.
typedef void ptx_lanes_fn(void *d, const void *const *s, uint32_t mask, uint32_t extra);
// The lanes (of all 32) for which a comparison holds.
typedef uint32_t ptx_compare_fn(const void *a, const void *b);

typedef enum {
    PTX_RUN_LANES,   // lanes
    PTX_RUN_COMPARE, // compare, combine
    PTX_RUN_BRANCH,  // target
    PTX_RUN_EXEC,    // exec
} ptx_run;

// Classes of instructions, for counts.
typedef enum {
#define PTX_CLASS(name, text) PTX_CLASS_##name,
#include "tests/ptx/classes.def"
#undef PTX_CLASS
    PTX_CLASSES,
} ptx_class;

struct ptx_insn {
    uint8_t run, class, guard_not, sources;
    uint32_t guard;                  // place of a predicate, or PTX_NO_PLACE
    uint32_t dst, src[4];            // places of PTX_RUN_LANES and _COMPARE (dst: a predicate)
    uint32_t dst2;                   // _COMPARE: the other predicate, or PTX_NO_PLACE
    uint32_t combine;                // _COMPARE: place of the predicate operand, or PTX_NO_PLACE
    uint8_t combine_op, combine_not; // 0 none, 1 and, 2 or, 3 xor
    uint8_t flush, saturate;         // .ftz of f32 operands and result; .sat
    uint8_t writes;                  // operands, from the first, that are written
    bool copies;                     // mov of one register or number
    uint32_t extra, target;
    union {
        ptx_lanes_fn *lanes;
        ptx_compare_fn *compare;
        ptx_exec_fn *exec;
    };
    const ptx_operand *op; // all operands
    int ops;
    // What _EXEC instructions keep of their modifiers; each says in its decoder what it uses.
    uint8_t space, type, type2, form, sem, scope, vector, elem_bytes;
    bool flag, flag2;
    const void *more;
    uint32_t select; // place of a predicate that `extra` is taken from, or PTX_NO_PLACE
    bool select_not;
    int line;
    const char *name; // opcode with modifiers
};

// ---- modules ----------------------------------------------------------------------------------------------

typedef struct {
    uint32_t place; // of 32 lanes
    uint8_t special, bytes;
} ptx_special_use;

struct sbp_ptx_entry {
    struct sbp_ptx_module *module;
    const char *name;
    sbp_ptx_param *params;
    int param_count;
    size_t param_bytes;
    uint32_t max_threads, required[3];  // .reqntid; 0: not given
    uint32_t max_registers, min_blocks; // .maxnreg, .minnctapersm; 0: not given
    bool bounded;                       // .maxntid or .reqntid is there
    uint32_t shared_bytes;              // static, of the module's and its own variables
    uint32_t dynamic_at;                // where dynamic shared memory begins
    uint32_t local_bytes;
    ptx_insn *code; // ends with an exit
    int length;
    uint32_t register_bytes, registers;
    ptx_special_use *specials; // registers that a warp begins with
    int special_count, special_capacity;
    bool has_wgmma;
};

typedef struct ptx_chunk {
    struct ptx_chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
} ptx_chunk;

struct sbp_ptx_module {
    sbp_ptx_memory *memory;
    ptx_chunk *chunks; // all that lives as long as the module
    sbp_ptx_entry **entries;
    int entry_count, entry_capacity;
    struct ptx_symbol *symbols; // of the module's scope
    uint8_t *constants;         // 32 lanes each
    uint32_t constant_bytes, constant_capacity;
    uint32_t *constant_index; // open hash of places + 1
    uint32_t constant_slots, constant_count;
    uint64_t *globals; // allocations
    int global_count, global_capacity;
    uint32_t shared_bytes; // of module-scope variables
};

// Memory until the module goes, zeroed; NULL: none.
void *ptx_module_alloc(struct sbp_ptx_module *module, size_t bytes);

// ---- reading ----------------------------------------------------------------------------------------------

typedef struct ptx_parser ptx_parser;

// Refuses the text at the line that is being read. Does not return.
_Noreturn void ptx_refuse(ptx_parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *ptx_parser_alloc(ptx_parser *p, size_t bytes);
// The place of a constant of 2, 4 or 8 bytes in all lanes.
uint32_t ptx_constant(ptx_parser *p, uint64_t bits, int bytes);
sbp_ptx_entry *ptx_parser_entry(ptx_parser *p);
// A place in the register file for a value of 32 lanes that no name has.
uint32_t ptx_hidden_register(ptx_parser *p, int bytes);

// The modifiers of an opcode: what a decoder has taken is gone, what is left is refused.
typedef struct {
    const char *opcode;
    const char *mods[16];
    int count;
    ptx_type types[6]; // in order
    int type_count;
} ptx_mods;

bool ptx_take(ptx_mods *mods, const char *name);
// Which of the names (ended by NULL) is there, from 1; 0: none.
int ptx_take_one(ptx_mods *mods, const char *const *names);

// Fills *insn from its operands and modifiers; refuses what it does not know.
void ptx_decode(ptx_parser *p, ptx_insn *insn, ptx_mods *mods);

// Decoding helpers (decode.c).
void ptx_need_ops(ptx_parser *p, const ptx_insn *insn, int least, int most);
// The place of operand `o` as a source of `bytes`, immediates of `type` included.
uint32_t ptx_source(ptx_parser *p, const ptx_operand *o, ptx_type type);
// The place of a destination register of `bytes`; a sink gets a hidden one.
uint32_t ptx_target(ptx_parser *p, const ptx_operand *o, int bytes);
uint32_t ptx_predicate(ptx_parser *p, const ptx_operand *o, bool *out_not);
int64_t ptx_integer(ptx_parser *p, const ptx_operand *o);

#endif
