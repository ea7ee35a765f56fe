// reduce_pairs.comp: both steps of reduce (END: the second) for devices without double, as reduce.comp and
// reduce_end.comp; in the scratch memory pairs take the place of doubles.
#include "pairs.glsl"

shared vec2 group_pairs[LOCAL];

vec2 combine(vec2 a, vec2 b) {
#if OP == 1
    return pair_larger(a, b);
#else
    return pair_add(a, b);
#endif
}
#if OP == 1
#define NOTHING vec2(uintBitsToFloat(0xff800000u), 0.0)
#else
#define NOTHING vec2(0.0)
#endif

// The pairs of all invocations combined in order; the result is the first invocation's alone.
vec2 of_group(vec2 x) {
    group_pairs[LANE] = x;
    barrier();
    for (uint k = 1u; LANE == 0u && k < LOCAL; k++)
        x = combine(x, group_pairs[k]);
    return x;
}

#ifdef END
void main() {
    vec2 result = NOTHING;
    for (uint k = LANE; k < uint(args.ints[8]); k += LOCAL)
        result = combine(result, M_pair(args.scratch).v[k]);
    result = of_group(result);
    if (LANE != 0u)
        return;
    uint64_t to = args.operands[0].address;
    if (ARG_NUMBER(0) != 0.0)
        result = combine(pair_multiply(vec2(ARG_NUMBER(0), 0.0), pair_from_f64(M_f64bits(to).v[0])), result);
    M_f64bits(to).v[0] = f64_from_pair(result);
}
#else
vec2 element(uint64_t row, int column) {
#ifdef FROM_F64
    vec2 x = pair_from_f64(M_f64bits(row).v[column]);
#else
    vec2 x = vec2(LOAD_src(row, column), 0.0);
#endif
#if OP == 2
    return pair_multiply(x, x);
#else
    return x;
#endif
}

void main() {
    Operand src = args.operands[src_OPERAND];
    uint64_t count = uint64_t(src.rows) * uint64_t(src.cols), groups = uint64_t(args.ints[8]);
    uint64_t share = (count + groups - 1) / groups;
    uint64_t at = share * group_number(), end = min(at + share, count);
    vec2 result = NOTHING;
    at += LANE;
    if (at < end) {
        int row = int(at / uint64_t(src.cols)), column = int(at % uint64_t(src.cols));
        for (; at < end; at += LOCAL) {
            result = combine(result, element(row_address(src, row, src_BYTES), column));
            column += int(LOCAL);
            if (column >= src.cols) {
                row += column / src.cols;
                column %= src.cols;
            }
        }
    }
    result = of_group(result);
    if (LANE == 0u)
        M_pair(args.scratch).v[group_number()] = result;
}
#endif
