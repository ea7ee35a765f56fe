// reduce.cu: the first step of reduce: each block leaves the sum, maximum or sum of squares (OP 0, 1, 2) of
// its share of the elements in scratch memory. All in fp64. How many blocks there are (ints[8]) follows from
// the sizes alone.
#include "group.cuh"

KERNEL(256) {
    const Operand &src = args.operands[src_OPERAND];
    u64 count = (u64)src.rows * (u64)src.cols, blocks = (u64)args.ints[8], share = (count + blocks - 1) / blocks;
    u64 at = share * group_number(), end = min(at + share, count);
    at += LANE;
    REAL result = OP == 1 ? -REAL_INFINITY : 0.0;
    if (at < end) {
        int row = (int)(at / (u64)src.cols), column = (int)(at % (u64)src.cols);
        for (; at < end; at += LOCAL) {
            REAL x = LOAD_src(row_address(src, row, src_BYTES), column);
            result = OP == 0 ? result + x : OP == 1 ? larger(x, result) : result + x * x;
            column += (int)LOCAL;
            if (column >= src.cols) {
                row += column / src.cols;
                column %= src.cols;
            }
        }
    }
    result = GROUP(result);
    if (LANE == 0)
        *at_element<double>(args.scratch, group_number()) = result;
}
