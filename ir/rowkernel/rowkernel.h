/* rowkernel.h: the kernel IR. A row kernel is straight-line data, not code: every backend generates its
 * row-wise work (norms, rope, activations, residuals, log-probabilities, losses, optimizer, casts,
 * flushes and all their gradients) from it.
 *
 * Iteration. A kernel runs over rows x heads x n. `rows` comes with the command, heads and n are fixed.
 * A value varies with any subset of the three axes; a value that does not vary with an axis has one
 * element for it. The length of a value along n is its own (`length`, 1 when it does not vary with n):
 * halves of a head (rope) are values of length n/2, loaded and stored at an element offset.
 *
 * Operands are 2-D views [rows, columns] given by the command. Element (row, head, j) of an operand is at
 * column head * head_stride + j of that row. An operand that does not vary with the row is read at row 0
 * of its view. Values are computed in `compute` (f32 or f64); loads widen, stores round to the operand's
 * dtype as sbp_element_set() does (types.h). Integers load as numbers (exact up to 2^24 in f32); functions of
 * whole numbers (intops.def) take their bits apart, in two's complement, and tables of constants are looked
 * up by them: the verifier proves from the types of what is loaded that the numbers are whole and in range.
 *
 * Order. For one (row, head) the instructions mean: all loads, then all stores. An out operand may be the
 * same memory as an in operand when sbp_rowkernel_may_alias() says so; nothing else may overlap.
 *
 * Levels. A device that does not keep a whole row at hand runs a row in passes: the level of a value is
 * the number of reductions on the longest path to it (sbp_rowkernel_levels). Pass p computes, element by
 * element, the values that the reductions, stores and partials of level p need, loading operands again
 * where it has to; for each element (or block of elements) its loads come before its stores; in passes after
 * the first, stores that do not vary with the element come when all elements are done. What
 * may_alias() allows is right for every device that runs stores in the pass of their level or later, all
 * stores later or none.
 *
 * Partials. A `partial` operand receives column sums over blocks of SBP_PARTIAL_ROWS consecutive rows:
 * its view has ceil(rows / SBP_PARTIAL_ROWS) rows, row b holding the sum over rows b*16 .. of the block,
 * added in row order, then head order (when the value varies with the head and the operand does not; a
 * value without head is added once per row). Columns that no instruction adds to are left alone.
 *
 * Kernels are untrusted when they come from a plan: sbp_rowkernel_verify() must pass before use.
 */
#ifndef SBP_IR_ROWKERNEL_ROWKERNEL_H
#define SBP_IR_ROWKERNEL_ROWKERNEL_H

#include "ir/base/types.h"

enum {
    SBP_PARTIAL_ROWS = 16, /* few, so that a chunk has more blocks than a GPU has processors */
    SBP_ROWKERNEL_MAX_OPERANDS = 24,
    SBP_ROWKERNEL_MAX_SCALARS = 16,
    SBP_ROWKERNEL_MAX_TABLES = 8,
    SBP_ROWKERNEL_MAX_INSTRS = 1024,
    SBP_ROWKERNEL_TABLE_NUMBERS = 16 /* of a table, at most: what fits a vector register */
};

/* Axes a value or operand varies with; a bit set. */
typedef enum sbp_vary { SBP_VARY_ROW = 1, SBP_VARY_HEAD = 2, SBP_VARY_ELEM = 4 } sbp_vary;

typedef enum sbp_rowop {
#define ROWOP(name, arity, cost, vjp, value) SBP_ROWOP_##name,
#include "ir/rowkernel/rowops.def"
#undef ROWOP
    SBP_ROWOP_COUNT
} sbp_rowop;

const char *sbp_rowop_name(sbp_rowop op);
int sbp_rowop_arity(sbp_rowop op);
const char *sbp_rowop_vjp(sbp_rowop op); /* the derivative text of rowops.def */
/* Scalar operations that it counts as in estimates; more than 1 where it is not a processor's own. */
int sbp_rowop_cost(sbp_rowop op);
double sbp_rowop_eval(sbp_rowop op, double a, double b, double c);
/* SBP_ROWOP_COUNT when there is none of that name. */
sbp_rowop sbp_rowop_from_name(const char *name);

/* Functions of whole numbers, by which codes are taken out of bytes. */
typedef enum sbp_intop {
#define INTOP(name, arity, constants, value, low, high) SBP_INTOP_##name,
#include "ir/rowkernel/intops.def"
#undef INTOP
    SBP_INTOP_COUNT
} sbp_intop;

const char *sbp_intop_name(sbp_intop op);
int sbp_intop_arity(sbp_intop op);
int sbp_intop_constants(sbp_intop op);
const char *sbp_intop_text(sbp_intop op); /* the value of intops.def, for emitters */
int32_t sbp_intop_eval(sbp_intop op, int32_t x, int32_t p, int32_t q);
/* SBP_INTOP_COUNT when there is none of that name. */
sbp_intop sbp_intop_from_name(const char *name);

/* bf16 by its bits. An fp32 number is a bf16 one and 16 bits, with which a weight in bf16 has an exact
 * master: high(a) has the bits (bits(a) + 0x8000) & 0xffff0000, so it is a rounded, halves away from 0, and
 * infinite where that is too large; low(a) is the sign-extended low half of bits(a), -32768 .. 32767;
 * join(high, low) has the bits bits(high) + low, so that join(high(a), low(a)) is a, bit by bit, for all a
 * but NaN. NaN has a high of NaN and a low of 0 and is joined to NaN. A low that is no such integer becomes
 * the nearest. random(a, u) is a rounded to bf16 upwards in magnitude with the probability of what is lost,
 * for u uniform in [0, 1): its bits are (bits(a) + floor(65536 u)) & 0xffff0000, infinity beyond the largest;
 * infinity and NaN stay. A u outside becomes the nearest of 0 and 65535 / 65536, NaN 0. Operands are fp32;
 * what computes in fp64 rounds them to it first. */
double sbp_bf16_high(double a);
double sbp_bf16_low(double a);
double sbp_bf16_join(double high, double low);
double sbp_bf16_random(double a, double u);

typedef enum sbp_rk_mode { SBP_RK_IN, SBP_RK_OUT, SBP_RK_PARTIAL } sbp_rk_mode;

typedef struct sbp_rk_operand {
    const char *name;
    sbp_rk_mode mode;
    sbp_dtype dtype;
    uint8_t vary;        /* sbp_vary bits; a partial never varies with the row */
    int64_t length;      /* elements per (row, head) that may be addressed: offsets + lengths stay below it */
    int64_t head_stride; /* columns from head to head; 0 when it does not vary with the head */
} sbp_rk_operand;

typedef enum sbp_rk_op {
    SBP_RK_LOAD,    /* operand[offset .. offset+length) */
    SBP_RK_CONST,   /* imm */
    SBP_RK_SCALAR,  /* the kernel's scalar number `index`, set per command */
    SBP_RK_INDEX,   /* element index along n: offset + j */
    SBP_RK_RANDOM,  /* uniform in [0,1), 24 bits: Philox4x32-10; key = scalar number `index` (an integer below
                       2^53, low and high 32 bits); counter = (absolute row, stream, head, e / 4) for element
                       e = offset + j, whose word is number e mod 4, >> 8. stream: the value a, which varies
                       with nothing, an integer below 2^32 (what is none is 0); 0 without a. Rows are below
                       2^32. With b and c, which vary with the row at most, the counter is (b, stream, c,
                       e / 4), wherever the row stands; then nothing varies with the head. */
    SBP_RK_MAP,     /* map(a, b, c); operands broadcast to the varying axes of the result */
    SBP_RK_INTEGER, /* integer(a, b), a function of intops.def with constants[]; the verifier proves that its
                       operands are whole numbers and that it is exact in the type of the arithmetic */
    SBP_RK_LOOKUP,  /* number a of table `index`; a is proved to be one that the table has */
    SBP_RK_ROUND,   /* a as `dtype` has it, as if it were stored and loaded; neither bool nor i64 */
    SBP_RK_SUM,     /* over `axes` (HEAD, ELEM or both) */
    SBP_RK_MAX,     /* likewise; NaN wins. `axes` are axes that a varies with */
    SBP_RK_MIN,
    SBP_RK_STORE,      /* operand[offset .. offset+length) = a; vary is the operand's */
    SBP_RK_PARTIAL_ADD /* partial operand[offset ..) += a, over the rows of the block */
} sbp_rk_op;

typedef struct sbp_rk_instr {
    sbp_rk_op op;
    sbp_rowop map;
    sbp_intop integer;
    int32_t constants[2]; /* of an INTEGER: p, q; 0 elsewhere */
    sbp_dtype dtype;
    uint8_t vary;
    uint8_t axes;
    int64_t length;  /* along n; 1 when not varying with it */
    int32_t a, b, c; /* values: indices of earlier instructions, -1 when absent */
    int32_t index;   /* operand, scalar or table number, -1 when absent */
    int64_t offset;
    double imm;
    const char *name; /* of the value in the text form; NULL: its number */
} sbp_rk_instr;

static inline bool sbp_rk_is_reduction(const sbp_rk_instr *instr) {
    return instr->op == SBP_RK_SUM || instr->op == SBP_RK_MAX || instr->op == SBP_RK_MIN;
}

static inline bool sbp_rk_is_store(const sbp_rk_instr *instr) {
    return instr->op == SBP_RK_STORE || instr->op == SBP_RK_PARTIAL_ADD;
}

/* Constant numbers that a kernel looks up. */
typedef struct sbp_rk_table {
    const char *name;
    int32_t count;
    double numbers[SBP_ROWKERNEL_TABLE_NUMBERS];
} sbp_rk_table;

typedef struct sbp_rowkernel {
    const char *name;
    sbp_dtype compute; /* F32 or F64 */
    int64_t heads, n;  /* n: the largest length of any value */
    sbp_rk_operand *operands;
    int32_t operand_count, operand_capacity;
    const char **scalars; /* names, for the text form and for binding */
    int32_t scalar_count, scalar_capacity;
    sbp_rk_table *tables;
    int32_t table_count, table_capacity;
    sbp_rk_instr *instrs; /* operands precede users; stores come last */
    int32_t instr_count, instr_capacity;
} sbp_rowkernel;

/* Checks everything a backend relies on; messages name the kernel and the constraint ("rowkernel_c3"). */
sbp_status sbp_rowkernel_verify(const sbp_rowkernel *kernel, sbp_diag *diag) SBP_CHECKED;

/* Scalar operations of one row, for estimates: a load, a store, an addition count as one, functions what
 * sbp_rowop_cost() says. What does not vary with the row counts as if it did, constants
 * do not count. */
double sbp_rowkernel_ops(const sbp_rowkernel *kernel);

/* The level of each instruction (see above); levels has instr_count elements. A store or partial has the
 * level of the value it stores. */
void sbp_rowkernel_levels(const sbp_rowkernel *kernel, int32_t *levels);

/* Whether out operand `out` may be the same memory (same view) as in operand `in` of a verified kernel:
 * same dtype size, axes, length and head stride, and every load of `in` is at an offset and length that
 * is also stored, used only at its own element and in passes up to the store's, or in earlier passes. */
bool sbp_rowkernel_may_alias(const sbp_rowkernel *kernel, int32_t out, int32_t in);

/* Memory operands as the reference interpreter takes them. */
typedef struct sbp_rk_view {
    void *data;     /* element (row 0, column 0) */
    int64_t stride; /* elements from row to row */
} sbp_rk_view;

/* Runs a verified kernel in double precision, slowly and readably; the oracle of every backend.
 * views: one per operand; row0: absolute index of row 0 (for random numbers). SBP_INPUT when rows do not fit.
 */
sbp_status sbp_rowkernel_run_reference(const sbp_rowkernel *kernel, int64_t rows, int64_t row0,
                                       const sbp_rk_view *views, const double *scalars) SBP_CHECKED;

/* A kernel of elements made ready for the host, which reads files with it: its arithmetic is fp32, as a
 * device's. Such a kernel computes in f32 and has no reduction, partial, scalar, random number or rounding to
 * another type than f32, bf16 and f16, and its values fit 32 KiB; NULL for another one. kernel: verified,
 * lives as long. */
typedef struct sbp_rowrunner sbp_rowrunner;
sbp_rowrunner *sbp_rowrunner_create(sbp_arena *arena, const sbp_rowkernel *kernel);
/* views: one per operand; no out operand is the memory of an in. Any number of threads at once. */
void sbp_rowrunner_run(const sbp_rowrunner *runner, int64_t rows, const sbp_rk_view *views);

/* Philox4x32-10 (Salmon et al., SC'11), the one random source of all backends. */
static inline void sbp_philox_words(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Its first word. */
static inline uint32_t sbp_philox(const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t words[4];
    sbp_philox_words(counter, key, words);
    return words[0];
}

/* The number that SBP_RK_RANDOM gives for an element; key and stream as they come out of scalars and memory.
 */
double sbp_random_at(double key, double stream, int64_t row, int64_t head, int64_t element);
/* The 32-bit word that a number contributes to the random counter: itself where it is an integer from 0 to
 * 2^32 - 1, else 0. */
uint32_t sbp_random_word(double number);
/* Whether a kernel may run over these rows: they are 0 .. 2^32 - 1. */
bool sbp_rowkernel_rows_fit(int64_t row0, int64_t rows);

/* Text form: printing and parsing round-trip exactly. The parser starts at `kernel` (ir/base/lex.h). */
void sbp_rowkernel_print(sbp_text *out, const sbp_rowkernel *kernel);
struct sbp_lexer;
sbp_status sbp_rowkernel_parse(struct sbp_lexer *lexer, sbp_arena *arena, sbp_rowkernel **out) SBP_CHECKED;

/* Building. Return values are numbers of operands, scalars, tables, values. sbp_rowkernel_add fills in what
 * follows from the rest when `length` is 0: vary and length of every instruction (a load or store covers
 * the whole operand then; index and random are to be given theirs), and raises kernel->n to the longest
 * length. heads is 1 until set. Names are not copied. */
sbp_rowkernel *sbp_rowkernel_create(sbp_arena *arena, const char *name, sbp_dtype compute);
int32_t sbp_rowkernel_add_operand(sbp_arena *arena, sbp_rowkernel *kernel, const sbp_rk_operand *operand);
int32_t sbp_rowkernel_add_scalar(sbp_arena *arena, sbp_rowkernel *kernel, const char *name);
int32_t sbp_rowkernel_add_table(sbp_arena *arena, sbp_rowkernel *kernel, const sbp_rk_table *table);
int32_t sbp_rowkernel_add(sbp_arena *arena, sbp_rowkernel *kernel, const sbp_rk_instr *instr);

#endif
