// scatter_add.comp: dst[index[r], :] += src[r, :]. The first position of each segment of the sorted order
// sums its rows, in that order. One invocation per sorted position and column.
#include "sums.glsl"

void main() {
    Operand dst = args.operands[dst_OPERAND], src = args.operands[src_OPERAND];
    Operand perm = args.operands[perm_OPERAND], index = args.operands[index_OPERAND];
    uint position, column;
    flat_position(uint(src.cols), position, column);
    if (position >= uint(src.rows))
        return;
    int first = int(position);
    int count = INDEX_segment(row_address(args.operands[segment_OPERAND], first, segment_BYTES));
    int row = INDEX_perm(row_address(perm, first, perm_BYTES));
    if (count <= 0 || row < 0 || row >= src.rows)
        return;
    int to = INDEX_index(row_address(index, row, index_BYTES));
    if (to < 0 || to >= dst.rows)
        return;
    count = min(count, src.rows - first);
    Sum s = Sum(REAL(0.0), REAL(0.0));
    for (int k = first; k < first + count; k++) {
        int from = INDEX_perm(row_address(perm, k, perm_BYTES));
        if (from >= 0 && from < src.rows)
            add(s, LOAD_src(row_address(src, from, src_BYTES), int(column)));
    }
    uint64_t at = row_address(dst, to, dst_BYTES);
    STORE_dst(at, int(column), LOAD_dst(at, int(column)) + total(s));
}
