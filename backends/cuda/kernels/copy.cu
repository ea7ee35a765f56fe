// copy.cu: dst = src, element by element.
#include "own.cuh"
#include "units.cuh"

KERNEL(256) {
    const Operand &dst = args.operands[0], &src = args.operands[1];
    if (args.ints[8]) {
        FOR_OWN(row, column, dst.rows, dst.cols, PER_UNIT) {
            if (column + PER_UNIT <= (u64)dst.cols)
                unit(dst, row, column) = unit(src, row, column);
            else
                for (int i = (int)column; i < dst.cols; i++)
                    element(dst, row, i) = element(src, row, i);
        }
    } else {
        FOR_OWN(row, column, dst.rows, dst.cols, 1)
            element(dst, row, column) = element(src, row, column);
    }
}
