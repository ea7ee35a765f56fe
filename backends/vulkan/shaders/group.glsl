// group.glsl: reductions over a workgroup of a power of two of invocations. Every invocation gets the result;
// the order of the operations is fixed.

shared REAL group_values[LOCAL];

#define GROUP_REDUCTION(name, expression)                                                                    \
    REAL name(REAL x) {                                                                                      \
        barrier();                                                                                           \
        group_values[LANE] = x;                                                                              \
        barrier();                                                                                           \
        for (uint half_count = LOCAL / 2u; half_count > 0u; half_count >>= 1) {                              \
            if (LANE < half_count) {                                                                         \
                REAL a = group_values[LANE], b = group_values[LANE + half_count];                            \
                group_values[LANE] = expression;                                                             \
            }                                                                                                \
            barrier();                                                                                       \
        }                                                                                                    \
        return group_values[0];                                                                              \
    }

GROUP_REDUCTION(group_sum, a + b)
GROUP_REDUCTION(group_max, larger(a, b))
GROUP_REDUCTION(group_min, smaller(a, b))
