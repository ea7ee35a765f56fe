/* conformance.h: a command, run on a device and compared with double precision.
 *
 * A test describes operands (tensors: values as doubles, a view with guards around it), the command and the
 * expected values of what it writes. suite_check() then lays everything out in an arena filled with NaN, runs
 * the command, and demands that: written elements have the expected values within the tolerance; every other
 * byte is unchanged; a second run, and runs with 1, 2, 3 and 5 threads where a device has threads, give the
 * same bytes; on the CPU also runs in other instruction sets, where a case asks for that. */
#ifndef SBP_TESTS_CONFORMANCE_H
#define SBP_TESTS_CONFORMANCE_H

#include "backends/device.h"
#include "tests/rowkernel_random.h"
#include "tests/tolerance.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SUITE_MOST_TENSORS = SBP_MAX_COMMAND_OPERANDS };

/* Devices that a case is for. */
enum { SUITE_ON_CPU = 1, SUITE_ON_CUDA = 2, SUITE_ON_VULKAN = 4 };

/* How a tensor lies in memory. */
typedef enum suite_layout {
    SUITE_DENSE,   /* rows follow each other */
    SUITE_STRIDED, /* columns before and after, rows before and after; not aligned */
    SUITE_LAYOUTS
} suite_layout;

/* A factor of sums that rounds to 16 bits so near to the middle of two numbers that fp32 may end on either:
 * expected[at ..] of `count` elements, or that with step * vector[] added. */
typedef struct suite_doubt {
    int64_t at, count;
    double step;
    const double *vector;
} suite_doubt;

typedef struct suite_tensor {
    bool absent;
    sbp_dtype dtype;
    int64_t rows, cols, first_row;
    double *values;   /* [rows, cols], rounded to the type; input and, after expecting, unchanged */
    double *expected; /* [rows, cols]; NULL: the command must not write here */
    bool *written;    /* [rows, cols]; NULL: all of it when expected is there */
    double tolerance; /* relative, in the norm; 0: the type's */
    double terms;     /* size of the terms of an element's sum, which may cancel; 0: they do not */
    int32_t same_as;  /* shares memory with that tensor; -1: none */
    suite_doubt *doubts;
    int32_t doubt_count, doubt_capacity;
    /* layout */
    int64_t offset, stride;
} suite_tensor;

typedef struct suite_case {
    sbp_arena *arena; /* of everything in the case */
    sbp_rng rng;
    suite_tensor tensors[SUITE_MOST_TENSORS];
    int32_t tensor_count;
    sbp_command command;
    sbp_rowkernel *kernel; /* row */
    int64_t rows, row0;
    double scalars[SBP_ROWKERNEL_MAX_SCALARS];
    suite_layout layout;
    bool same_bits;     /* in every instruction set of the CPU device */
    uint32_t only_on;   /* devices that choose another way at this size: the case is for these, and with
                           SBP_TEST_EDGES no sample leaves it out; 0: all devices, sampled */
    bool asked, wanted; /* suite_wants */
    const char *name;   /* for messages */
} suite_case;

/* The device under test. */
const sbp_device_class *suite_device(void);
/* NULL when there is no device of that name. */
const sbp_device_class *suite_find_device(const char *name);

/* A device with the program loaded, its code compiled for these commands. The arenas must be set; the
 * commands and buffers for their operands are added to the program. */
sbp_device *suite_open(const sbp_device_class *class, const sbp_device_options *options, sbp_arena *arena,
                       sbp_program *program, const sbp_dispatch *dispatches, int32_t count, sbp_diag *diag);

suite_case *suite_begin(const char *name, uint64_t seed);
void suite_end(suite_case *c);
/* A tensor of random numbers in [-1, 1) (integers: 0; ud8: its numbers), rounded to the type. */
suite_tensor *suite_add(suite_case *c, sbp_dtype dtype, int64_t rows, int64_t cols);
suite_tensor *suite_add_absent(suite_case *c);
/* Makes t an output: expected starts as a copy of values. */
void suite_expect(suite_case *c, suite_tensor *t);
/* Elements of an output may be either of two. */
void suite_doubt_add(suite_case *c, suite_tensor *t, suite_doubt doubt);
/* Whether the validation layer searches its list before each access: what runs for long would be
 * stopped there. */
bool suite_searches_addresses(void);

/* Whether a case has shown that the device has no kernel for it: what submits by itself is left out then. */
bool suite_lacks(sbp_command_kind kind);

/* Whether the case will be run, once its command and its tensors are set: others run it, or it is not in the
 * sample. What takes long to expect is not worked out for a case that is not wanted. */
bool suite_wants(suite_case *c);
/* Runs the case, if it is wanted, and fails the test when something differs. */
void suite_check(suite_case *c);
void *suite_alloc(suite_case *c, int64_t count, int64_t size);

#define CHECK_OK(call, diag)                                                                                 \
    do {                                                                                                     \
        if ((call) != SBP_OK)                                                                                \
            fail_msg("%s: %s", #call, sbp_diag_text(diag, SBP_NOTE));                                        \
    } while (0)

extern const struct CMUnitTest suite_simple_tests[], suite_gemm_tests[], suite_row_tests[],
    suite_number_tests[], suite_form_tests[];
extern const struct CMUnitTest suite_attention_tests[], suite_order_tests[], suite_conv_tests[],
    suite_delta_tests[], suite_expert_tests[];
extern const int suite_simple_count, suite_gemm_count, suite_row_count, suite_form_count, suite_number_count,
    suite_attention_count, suite_order_count, suite_conv_count, suite_delta_count, suite_expert_count;

#endif
