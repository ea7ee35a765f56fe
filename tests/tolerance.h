/* tolerance.h: every tolerance of the project, and why it is what it is. No other file has one.
 *
 * Relative errors of tensors are ||x - reference|| / ||reference||, both norms over the whole tensor. */
#ifndef SBP_TESTS_TOLERANCE_H
#define SBP_TESTS_TOLERANCE_H

#include "ir/base/types.h"

/* Results of a command or a whole step against double precision, relative to the norm. fp64: sums of up to
 * 1e5 terms lose 4 to 5 digits of 16 at worst. fp32: 2^-24 per rounding; sums in blocks keep the growth to a
 * few dozen roundings. */
#define SBP_TOLERANCE_F64 1e-12
#define SBP_TOLERANCE_F32 1e-5
/* A rounding of fp32, relative, at most: for bounds of errors that are counted. */
#define SBP_HALF_ULP_F32 0x1p-24

/* A product in fp32 whose sums have 10^5 terms of random sign, relative: in blocks of up to 512 terms about
 * ten times 2^-24; in a single chain a hundred times. */
#define SBP_TOLERANCE_LONG_SUM 1e-6

/* A weight that a GGUF file has as 1 + w or -exp(w) in fp32, relative to the larger of it and 1: a rounding
 * of 2^-24 of what is up to twice as large, and of what the logarithm makes of it. */
#define SBP_TOLERANCE_GGUF_RULE 0x1p-22

/* An element of a result in fp32, absolute, per term of size 1 that it sums: a few dozen roundings of 2^-24.
 */
#define SBP_TOLERANCE_ELEMENT_F32 2e-6

/* Results stored once as bf16 (f16): half a unit in the last place of an element is at most 2^-8 (2^-11) of
 * it, in the norm of many about half of that; inputs are compared after rounding, so nothing else is lost. */
#define SBP_TOLERANCE_BF16 0x1p-8
#define SBP_TOLERANCE_F16 0x1p-11

/* Results in fp32 of what rounds to 16 bits on its way (attention of bf16: p and ds; row kernels). The
 * reference rounds there too, and what fp32 computes a few 2^-24 beside it is now and then (one of 10^3 to
 * 10^4) rounded to the neighbour, 2^-8 away. With a rounding left out or added: 10^-3. */
#define SBP_TOLERANCE_ROUNDED_INSIDE 2e-4
/* Where such a factor is so near to the middle of two numbers that fp32 may end on either, tests of attention
 * take either (SBP_TOLERANCE_F32 for all else): of how many. A bound for errors of sums of 64 terms is 2^-15,
 * which is 2^-6 of what lies between two numbers of bf16. */
#define SBP_MOST_DOUBTS 0x1p-4
/* In f16 the neighbour is 8 times nearer, 2^-11 away, but 8 times as many factors lie near enough to the
 * middle of two: the root of the sum of squares is sqrt(8) smaller. (2.5e-5 stood here, without a reason; the
 * worst of the drawn cases of 700 keys takes 2.51e-5.) Without a rounding: 10^-4. */
#define SBP_TOLERANCE_ROUNDED_INSIDE_F16 (SBP_TOLERANCE_ROUNDED_INSIDE * 0.3535)

/* Attention in bf16 over 10^4 keys against double precision that rounds nothing: p and ds are rounded to bf16
 * (2^-9 each in the mean, of many terms of which the errors cancel in part), o once more. Over all rows that
 * are compared, and in the worst of them, relative to a row of middling size. Seen on the CPU: 3e-3 and 1e-2.
 * 64 of 300 keys that are other numbers: 10^-1 and more. */
#define SBP_TOLERANCE_BF16_LONG 0x1p-7
#define SBP_TOLERANCE_BF16_LONG_ROW 0x1p-5

/* Gradients of a step computed in bf16, the worst tensor, against the double evaluator with the same
 * roundings. Where none of its 10^5 roundings is decided by the order of a sum, a case agrees to 1e-7. Where
 * one is, an element is off by 2^-8, and the roundings behind it spread that. STEP: what most cases keep
 * (seen: 14 of 16); ANY: all of them, also tensors whose terms nearly cancel (seen: 2.7e-2). Without the
 * roundings inside of row kernels every case is at 3.3e-2 to 9.8e-2. Against fp64 this project and
 * transformers are both off by up to 0.1. */
#define SBP_TOLERANCE_BF16_STEP 0x1p-7
#define SBP_TOLERANCE_BF16_ANY 0x1p-5

/* Gradients in fp32 of a model of which some weights were rounded to bf16, against fp64 without: seen are
 * 0.09. Tells rounded weights from garbage, no more. */
#define SBP_TOLERANCE_BF16_WEIGHTS 0.15

/* Gradients of a step whose products are of factors in TF32, 2^-11 each, against fp32: seen are
 * 6e-4 to 3e-3. */
#define SBP_TOLERANCE_TF32 0x1p-7

/* Log-probabilities of golden cases in fp64, absolute: values up to 20, through a few layers, summed in
 * another order than PyTorch's. */
#define SBP_TOLERANCE_LOGP_F64 1e-11
/* Against numbers that somebody else computed in fp32, or from constants that a file rounded to fp32: a few
 * 2^-24 of what went in, times what the layers make of it. Relative for gradients, absolute for
 * log-probabilities. */
#define SBP_TOLERANCE_FROM_F32 1e-6
/* Negative log-likelihoods of stories260K by llama2.c, in fp32 with its own order of sums, printed with 6
 * decimals; the weights there were quantized nowhere. */
#define SBP_TOLERANCE_STORIES 1e-4

/* Gradients of a drawn model that are off by more than the type's tolerance, over how far they go in double
 * precision when every parameter, and every value that an op makes, is off by up to half an ulp of the type;
 * and over the root of the longest sum, whose numbers are rounded one by one inside of an op. */
#define SBP_TIMES_ROUNDED_ONCE_MORE 4

/* Scores of two experts that fp32 may order either way, relative: a thousand roundings of 2^-24. */
#define SBP_UNDECIDED_CHOICE 0x1p-14

/* Losses of 50 steps of training by two devices in fp32, absolute: they round differently, and steps add up.
 * Seen is 2e-6; asked for, 1e-3. What TRL logs of 20 steps of DPO, KTO and SFT of a new model in fp32,
 * relative where above 1: seen is 1e-5. */
#define SBP_TOLERANCE_CURVE 1e-4

/* Gradients in fp32 of a golden case, over what transformers in fp32 is off (expect.json): layers with a
 * delta rule are conditioned worse than SBP_TOLERANCE_F32 takes. */
#define SBP_TIMES_TRANSFORMERS_F32 3

/* How far a parameter went in 20 steps of Adam in fp64, relative, where gradients of 1e-11 are sums of terms
 * of 1e-4 (decays of a new model) and Adam divides by their size: seen is 1.3e-10. */
#define SBP_TOLERANCE_WAY_F64 1e-9

/* Losses of training in bf16 from those in fp64, relative, over what transformers' own two runs are off at
 * most in these steps (0.2 %, golden/stories260k_trl/bf16.json): other roundings at other places, of the same
 * size. */
#define SBP_TIMES_TRANSFORMERS_BF16 2

/* Gradients of a step of a real model by two devices in fp32, relative: 30 layers multiply what either
 * rounds. */
#define SBP_TOLERANCE_DEEP_F32 1e-4

/* Scalar functions (backends/rowmath.h). */
#define SBP_TOLERANCE_ULP_F32 2.0
#define SBP_TOLERANCE_RELATIVE_F64 1e-15

/* 1 - p of a label with 1 - p = 1e-6 in fp64, relative: the rounding of p, 1e-16, is 1e-10 of it. With that
 * of a log-sum-exp of 2^20 it would be 1e-4. */
#define SBP_TOLERANCE_SURE_LABEL 1e-9

/* Central differences in fp64 with a step of 1e-5: truncation 1e-10, cancellation 1e-11. */
#define SBP_TOLERANCE_DIFFERENCES 1e-7

/* By how much a process on the CPU may take less memory than was planned; it never takes more. In bytes: one
 * huge page, of which scratch memory is made; the system gives them whole or not at all. */
#define SBP_TOLERANCE_PROCESS_BYTES (2 << 20)

/* Likewise where that is more, relative: of a process whose arenas are all but everything. */
#define SBP_TOLERANCE_PROCESS 0.005

/* By how much a process takes less than its plan with any objective, relative; never more. */
#define SBP_TOLERANCE_PLANNED 0.015

/* How far weights in two halves end from the same in fp32, relative to the way of training: one weight in
 * 2^16 stands exactly between two bf16 numbers and is seen as the other of them, and from there on gradients
 * in bf16 are rounded otherwise, which Adam makes large where they are small (12 steps: 0.028; without low
 * halves 0.66). */
#define SBP_TOLERANCE_BF16_MASTER 0.05

/* What a driver says a process uses of a device against what was planned, relative. */
#define SBP_TOLERANCE_USED_MEMORY 0.01

/* Results that are the same number, where 0 would mean the tolerance of the type. */
#define SBP_TOLERANCE_NONE 1e-300

static inline double sbp_tolerance(sbp_dtype dtype) {
    switch (dtype) {
    case SBP_F32:
        return SBP_TOLERANCE_F32;
    case SBP_BF16:
        return SBP_TOLERANCE_BF16;
    case SBP_F16:
        return SBP_TOLERANCE_F16;
    default:
        return SBP_TOLERANCE_F64;
    }
}

#endif
