// gather.cu: dst[r, :] = table[index[r], :], 0 where the index is no row of the table. SAME: both
// are of one type.
#include "own.cuh"
#include "units.cuh"

DEVICE int row_of_table(const Args &args, int row) {
    int from = INDEX_index(row_address(args.operands[index_OPERAND], row, index_BYTES));
    return from >= 0 && from < args.operands[table_OPERAND].rows ? from : -1;
}

KERNEL(256) {
    const Operand &dst = args.operands[dst_OPERAND], &table = args.operands[table_OPERAND];
#ifdef SAME
    if (args.ints[8]) {
        FOR_OWN(row, column, dst.rows, dst.cols, PER_UNIT) {
            int from = row_of_table(args, row);
            if (column + PER_UNIT <= (u64)dst.cols)
                unit(dst, row, column) = from < 0 ? make_uint4(0, 0, 0, 0) : unit(table, from, column);
            else
                for (int i = (int)column; i < dst.cols; i++)
                    element(dst, row, i) = from < 0 ? (Element)0 : element(table, from, i);
        }
        return;
    }
#endif
    FOR_OWN(row, column, dst.rows, dst.cols, 1) {
        int from = row_of_table(args, row);
#ifdef SAME
        element(dst, row, column) = from < 0 ? (Element)0 : element(table, from, column);
#else
        REAL x = from < 0 ? (REAL)0.0 : LOAD_table(row_address(table, from, table_BYTES), column);
        STORE_dst(row_address(dst, row, dst_BYTES), column, x);
#endif
    }
}
