/* case.h: attention to compute, drawn at random, and what comes out of it in double precision.
 *
 * A sequence of `total` rows in documents, some of them several completions of one prompt. The command sees
 * the last `rows` as queries, and the keys from the first that any of them sees (or from the sequence's
 * beginning) on. Inputs are rounded to their type, so nothing is lost before the kernel begins. p and ds are
 * rounded where ir/program/program.h lets a device do so and our kernels do: so results in fp32 agree to
 * 2e-4, in which one factor in 10^3 to 10^4 that is rounded to the neighbour is what counts; a rounding left
 * out, or one too many, is 10^-3. Memory belongs to the case. */
#ifndef SBP_TESTS_CUDA_CASE_H
#define SBP_TESTS_CUDA_CASE_H

#include "backends/gpu/gpu.h"

enum { CASE_OPERANDS = 13 };

typedef enum case_layout {
    CASE_DENSE,
    CASE_FUSED, /* columns of a wider buffer, rows at multiples of 16 bytes */
    CASE_ODD    /* of odd width: nothing is aligned */
} case_layout;

typedef struct attention_case {
    /* the caller's */
    bool backward;
    sbp_attention_attrs attrs;
    int64_t total, rows;
    bool documents,
        all_keys;    /* all_keys: keys from row 0 on, and 5 behind the last query, as a chunk may have them */
    sbp_dtype dtype; /* of q, k, v, o, do */
    bool wide;       /* o (forward) and dq in fp32 */
    case_layout layout;
    sbp_dtype index; /* SBP_I32, SBP_I64 */
    bool work;       /* backward: with the operand of that name */
    uint64_t seed;
    /* made by attention_case_make() */
    int64_t row0, lo, keys;
    int64_t *first, *shared_end, *own; /* [total] */
    struct {
        sbp_dtype dtype;
        int64_t rows, cols, first_row, stride;
        double *values;    /* [rows, cols] */
        double *expected;  /* what the command writes; else NULL */
        double terms;      /* size of an element's terms where they cancel */
        double tolerance;  /* relative, in the norm */
        double difference; /* found, relative */
    } operands[CASE_OPERANDS];
    int32_t count;
} attention_case;

void attention_case_make(attention_case *c);
void attention_case_free(attention_case *c);

/* The gpu key of PLAIN, and the record without addresses. */
sbp_gpu_key attention_case_key(const attention_case *c);
void attention_case_args(const attention_case *c, sbp_gpu_args *args);

/* Bytes of an operand, with what lies between its rows, and its contents before the command. */
int64_t attention_case_bytes(const attention_case *c, int32_t operand);
void attention_case_fill(const attention_case *c, int32_t operand, void *to);
/* Compares what the command left with what was expected: NULL, or what is wrong, in a static buffer. */
const char *attention_case_compare(attention_case *c, int32_t operand, const void *found);

#endif
