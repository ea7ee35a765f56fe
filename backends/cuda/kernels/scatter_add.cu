// scatter_add.cu: dst[index[r], :] += src[r, :]. The first position of each segment of the sorted order sums
// its rows, in that order. One thread per sorted position and column.
#include "own.cuh"
#include "sums.cuh"

KERNEL(256) {
    const Operand &dst = args.operands[dst_OPERAND], &src = args.operands[src_OPERAND];
    const Operand &perm = args.operands[perm_OPERAND];
    FOR_OWN(first, column, src.rows, src.cols, 1) {
        int count = INDEX_segment(row_address(args.operands[segment_OPERAND], first, segment_BYTES));
        int row = INDEX_perm(row_address(perm, first, perm_BYTES));
        if (count <= 0 || row < 0 || row >= src.rows)
            continue;
        int to = INDEX_index(row_address(args.operands[index_OPERAND], row, index_BYTES));
        if (to < 0 || to >= dst.rows)
            continue;
        count = min(count, src.rows - (int)first);
        Sum s = {0, 0};
        for (int k = 0; k < count; k++) {
            int from = INDEX_perm(row_address(perm, first + k, perm_BYTES));
            if (from >= 0 && from < src.rows)
                add(s, LOAD_src(row_address(src, from, src_BYTES), column));
        }
        u64 at = row_address(dst, to, dst_BYTES);
        STORE_dst(at, column, LOAD_dst(at, column) + s.sum);
    }
}
