// fill.cu: dst = the bits in ints[0] and ints[1].
#include "own.cuh"
#include "units.cuh"

KERNEL(256) {
    const Operand &dst = args.operands[0];
    u64 bits = (u64)(u32)args.ints[0] | (u64)(u32)args.ints[1] << 32, wide = (Element)bits;
    for (int width = 8 * BYTES; width < 64; width *= 2)
        wide |= wide << width;
    if (args.ints[8]) {
        FOR_OWN(row, column, dst.rows, dst.cols, PER_UNIT) {
            if (column + PER_UNIT <= (u64)dst.cols)
                unit(dst, row, column) = make_uint4((u32)wide, (u32)(wide >> 32), (u32)wide, (u32)(wide >> 32));
            else
                for (int i = (int)column; i < dst.cols; i++)
                    element(dst, row, i) = (Element)bits;
        }
    } else {
        FOR_OWN(row, column, dst.rows, dst.cols, 1)
            element(dst, row, column) = (Element)bits;
    }
}
