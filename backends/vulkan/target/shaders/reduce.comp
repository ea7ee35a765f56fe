// reduce.comp: the first step of reduce: each workgroup leaves the sum, maximum or sum of squares (OP 0, 1,
// 2) of its share of the elements in scratch memory. All in fp64.
#include "group.glsl"

void main() {
    Operand src = args.operands[src_OPERAND];
    uint64_t count = uint64_t(src.rows) * uint64_t(src.cols), groups = uint64_t(args.ints[8]);
    uint64_t share = (count + groups - 1) / groups;
    uint64_t at = share * group_number(), end = min(at + share, count);
    at += LANE;
#if OP == 1
    REAL result = packDouble2x32(uvec2(0u, 0xfff00000u));
#else
    REAL result = REAL(0.0);
#endif
    if (at < end) {
        int row = int(at / uint64_t(src.cols)), column = int(at % uint64_t(src.cols));
        for (; at < end; at += LOCAL) {
            REAL x = LOAD_src(row_address(src, row, src_BYTES), column);
#if OP == 0
            result += x;
#elif OP == 1
            result = larger(x, result);
#else
            result += x * x;
#endif
            column += int(LOCAL);
            if (column >= src.cols) {
                row += column / src.cols;
                column %= src.cols;
            }
        }
    }
    result = GROUP(result);
    if (LANE == 0u)
        M_f64(args.scratch).v[group_number()] = result;
}
