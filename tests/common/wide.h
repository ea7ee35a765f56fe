/* wide.h: wide cases (tests/golden/wide, make_wide.py): models at widths that people use, whose weights are
 * made by a formula, so that nothing large is stored, and of whose true gradients a summary is.
 *
 * Element i of the tensor NAME is mean + scale * u of splitmix64(fnv1a64(NAME) + i); a summary is a norm,
 * four projections on signs and 48 elements. make_wide.py says both in full. */
#ifndef SBP_TESTS_COMMON_WIDE_H
#define SBP_TESTS_COMMON_WIDE_H

#include "ir/base/json.h"
#include "tests/unit/io_testing.h"

enum { WIDE_PROJECTIONS = 4, WIDE_ELEMENTS = 48 };

typedef struct wide_summary {
    double norm, projections[WIDE_PROJECTIONS], elements[WIDE_ELEMENTS];
    int64_t n;
} wide_summary;

/* Element i of a tensor. */
double wide_value(const char *name, int64_t i, double mean, double scale);

/* The model of the case in folder `from`, config.json and model.safetensors, into the folder `to`,
 * which is made. */
void wide_write_model(io_fixture *f, const char *from, const char *to);

/* The summary of a gradient. */
wide_summary wide_summary_of(const char *name, const double *gradient, int64_t n);

/* The largest of |norm' - norm|, |projection' - projection| and |element' - element| sqrt(n), each over the
 * norm; infinite where a number is none. */
double wide_error(const wide_summary *truth, const wide_summary *got);

/* The largest error of any tensor of a file of gradients against expect.json of the case, which has the same
 * names; *tensor: its name. */
double wide_compare(io_fixture *f, const char *from, const char *gradients, const char **tensor);

#endif
