/* onnx_numbers.h: tensors of numbers that an ONNX graph computes from shapes and positions alone: shape
 * arithmetic, positions, masks. Their elements are expressions in the indices of the element and in T, the
 * number of tokens, and so are their sizes. Positions are 0 .. T - 1, since a graph describes one document.
 *
 * An expression is normal as far as this file can tell: sums of products with constants are one node
 * (LINEAR), whose terms are sorted; equal expressions are the same pointer. Truth values are 0 and 1. All
 * numbers are doubles; what must be whole (sizes, indices) is.
 *
 * Rewriting is bounded: a graph that takes more than some million steps leaves `full` set, which callers must
 * look at. Below a guard; expressions live in the arena. Threads: one set per thread. */
#ifndef SBP_FRONTENDS_ONNX_NUMBERS_H
#define SBP_FRONTENDS_ONNX_NUMBERS_H

#include "ir/base/base.h"

enum { SBP_NUMBERS_RANK = 8 };

typedef enum sbp_number_kind {
    SBP_NUMBER_LINEAR,   /* constant + sum of factor * term */
    SBP_NUMBER_TOKENS,   /* T */
    SBP_NUMBER_AXIS,     /* index of the element along `axis` */
    SBP_NUMBER_TABLE,    /* table[a], a constant tensor, flat */
    SBP_NUMBER_PRODUCT,  /* a b */
    SBP_NUMBER_QUOTIENT, /* a / b */
    SBP_NUMBER_FLOOR,    /* largest whole number not above a */
    SBP_NUMBER_POWER,    /* a to the power of b */
    SBP_NUMBER_FUNCTION, /* one of sbp_number_function of a */
    SBP_NUMBER_POSITIVE, /* a > 0 */
    SBP_NUMBER_ZERO,     /* a == 0 */
    SBP_NUMBER_CHOICE    /* a != 0 ? b : c */
} sbp_number_kind;

typedef enum sbp_number_function {
    SBP_NUMBER_COS,
    SBP_NUMBER_SIN,
    SBP_NUMBER_EXP,
    SBP_NUMBER_LOG,
    SBP_NUMBER_TANH,
    SBP_NUMBER_FUNCTION_COUNT
} sbp_number_function;

typedef struct sbp_number sbp_number;

typedef struct sbp_number_term {
    double factor;
    const sbp_number *value;
} sbp_number_term;

struct sbp_number {
    sbp_number_kind kind;
    int32_t id;    /* in the order they were made */
    int32_t axis;  /* AXIS; the function of FUNCTION */
    uint32_t axes; /* bit set: indices it depends on */
    bool tokens;   /* depends on T */
    double constant;
    const sbp_number_term *terms; /* LINEAR, sorted by id */
    int32_t count;                /* of terms; of the table's numbers */
    const double *table;
    const sbp_number *a, *b, *c;
};

typedef struct sbp_numbers {
    sbp_arena *arena;
    sbp_map known; /* text of a node -> its id */
    const sbp_number **all;
    int32_t count, capacity;
    double most_tokens; /* T is at most this, INFINITY at first: what runs with more is refused */
    int64_t steps;      /* of rewriting so far */
    bool full;          /* too many: results are meaningless from then on */
} sbp_numbers;

/* A tensor of rank axes: sizes, and an element by AXIS 0 .. rank - 1. */
typedef struct sbp_number_tensor {
    int32_t rank;
    const sbp_number *size[SBP_NUMBERS_RANK];
    const sbp_number *element;
} sbp_number_tensor;

void sbp_numbers_init(sbp_numbers *n, sbp_arena *arena);

const sbp_number *sbp_number_constant(sbp_numbers *n, double value);
const sbp_number *sbp_number_tokens(sbp_numbers *n);
const sbp_number *sbp_number_axis(sbp_numbers *n, int32_t axis);
const sbp_number *sbp_number_table(sbp_numbers *n, const double *table, int64_t count,
                                   const sbp_number *index);
/* a + factor b */
const sbp_number *sbp_number_add(sbp_numbers *n, const sbp_number *a, double factor, const sbp_number *b);
const sbp_number *sbp_number_multiply(sbp_numbers *n, const sbp_number *a, const sbp_number *b);
const sbp_number *sbp_number_divide(sbp_numbers *n, const sbp_number *a, const sbp_number *b);
const sbp_number *sbp_number_floor(sbp_numbers *n, const sbp_number *a);
const sbp_number *sbp_number_power(sbp_numbers *n, const sbp_number *a, const sbp_number *b);
const sbp_number *sbp_number_apply(sbp_numbers *n, sbp_number_function f, const sbp_number *a);
const sbp_number *sbp_number_positive(sbp_numbers *n, const sbp_number *a);
const sbp_number *sbp_number_zero(sbp_numbers *n, const sbp_number *a);
const sbp_number *sbp_number_choose(sbp_numbers *n, const sbp_number *condition, const sbp_number *yes,
                                    const sbp_number *no);
/* 1 - a, of a truth value. */
const sbp_number *sbp_number_not(sbp_numbers *n, const sbp_number *a);
const sbp_number *sbp_number_less(sbp_numbers *n, const sbp_number *a, const sbp_number *b);

/* Whether it is this constant; *out its value when it is any. */
bool sbp_number_is_constant(const sbp_number *a, double *out);
bool sbp_number_equals(const sbp_number *a, double value);

/* a with AXIS k replaced by with[k], for k below count (NULL: left as it is). */
const sbp_number *sbp_number_substitute(sbp_numbers *n, const sbp_number *a, const sbp_number *const *with,
                                        int32_t count);
/* The same element, simpler where the sizes decide: conditions that always or never hold for indices
 * within them and any T from 1 to most_tokens, and indices of which a condition leaves but one value. */
const sbp_number *sbp_number_refine(sbp_numbers *n, const sbp_number_tensor *t, const sbp_number *a);

/* Its value for these indices and T. */
double sbp_number_value(const sbp_number *a, const double *indices, double tokens);
/* "k - q + 1 > 0 ? .."; axes are i0, i1, .. */
void sbp_number_print(sbp_text *out, const sbp_number *a);

#endif
