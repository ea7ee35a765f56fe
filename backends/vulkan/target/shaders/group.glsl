// group.glsl: reductions over a workgroup: within subgroups by the hardware, then over the subgroups in
// order. Every invocation gets the result.

shared REAL group_values[LOCAL];

// x: the result of this invocation's subgroup.
#define OVER_SUBGROUPS(x, expression)                                                                        \
    if (gl_NumSubgroups == 1u)                                                                               \
        return x;                                                                                            \
    barrier();                                                                                               \
    if (subgroupElect())                                                                                     \
        group_values[gl_SubgroupID] = x;                                                                     \
    barrier();                                                                                               \
    REAL a = group_values[0];                                                                                \
    for (uint s = 1u; s < gl_NumSubgroups; s++) {                                                            \
        REAL b = group_values[s];                                                                            \
        a = expression;                                                                                      \
    }                                                                                                        \
    return a;

REAL group_sum(REAL x) {
    x = subgroupAdd(x);
    OVER_SUBGROUPS(x, a + b)
}
// The hardware's maximum need not keep NaN.
REAL group_max(REAL x) {
    bool broken = subgroupAny(is_nan(x));
    x = broken ? REAL_NAN : subgroupMax(x);
    OVER_SUBGROUPS(x, larger(a, b))
}
REAL group_min(REAL x) {
    bool broken = subgroupAny(is_nan(x));
    x = broken ? REAL_NAN : subgroupMin(x);
    OVER_SUBGROUPS(x, smaller(a, b))
}
