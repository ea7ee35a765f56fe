/* odd_graphs.h: models that nobody would write by hand: ONNX graphs of n nodes in shapes that walks over a
 * graph find hard. */
#ifndef SBP_TESTS_COMMON_ODD_GRAPHS_H
#define SBP_TESTS_COMMON_ODD_GRAPHS_H

#include "tests/common/testing.h"

typedef enum odd_shape {
    ODD_CHAIN,       /* one operator after the other */
    ODD_DOUBLING,    /* x + x, again and again: 2^n ways through the graph */
    ODD_DIAMONDS,    /* two ways from each value to the next */
    ODD_SKIPS,       /* a chain; the sum of all its values at the end */
    ODD_RANDOM,      /* operands are any two earlier values: subexpressions are shared at random */
    ODD_ROTATIONS,   /* halves of a vector change places, at another element every time */
    ODD_NORMS,       /* a sum over the row between any two steps */
    ODD_FAN,         /* many parameters, a row-wise branch each, added up */
    ODD_PRODUCTS,    /* a chain of products, a parameter each */
    ODD_PRODUCT_FAN, /* many products of one value, added up */
    ODD_RESIDUALS,   /* a chain of products beside a stream */
    ODD_POSITIONS,   /* a chain over positions alone, read all along by one over tokens */
    ODD_LAYERS,      /* attention: a segment each, all alike */
    ODD_KINDS,       /* attention: a segment each, no two alike */
    ODD_SCALES, /* attention and a norm: a segment each; scales are made of parameters, all before the first
                 */
    ODD_SHARED, /* attention: a segment each; keys, values, embedded rows, queries and outputs of a layer are
                   read by layers beyond the next, drawn */
    ODD_SHAPE_COUNT
} odd_shape;

enum { ODD_WIDTH = 8, ODD_VOCABULARY = 50 };

const char *odd_shape_name(odd_shape shape);

/* The model as ONNX's JSON in a file: n steps of the shape, parameters with values, or without (graph
 * inputs). Returns the number of its nodes. */
int32_t odd_graph_write(testing *t, odd_shape shape, int32_t n, bool values, const char *path);

#endif
