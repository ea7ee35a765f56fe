// reduce_end.comp: the second step of reduce: one workgroup, over what the first has left.
#include "group.glsl"

void main() {
#if OP == 1
    REAL result = packDouble2x32(uvec2(0u, 0xfff00000u));
#else
    REAL result = REAL(0.0);
#endif
    for (uint k = LANE; k < uint(args.ints[8]); k += LOCAL)
#if OP == 1
        result = larger(M_f64(args.scratch).v[k], result);
#else
        result += M_f64(args.scratch).v[k];
#endif
    result = GROUP(result);
    if (LANE != 0u)
        return;
    uint64_t to = args.operands[0].address;
    REAL beta = ARG_NUMBER(0), old = REAL(0.0);
    if (beta != REAL(0.0)) {
        old = beta * M_f64(to).v[0];
#if OP == 1
        result = larger(old, result);
#else
        result = old + result;
#endif
    }
    M_f64(to).v[0] = result;
}
