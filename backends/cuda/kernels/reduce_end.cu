// reduce_end.cu: the second step of reduce: one block, over what the first has left.
#include "group.cuh"

KERNEL(256) {
    REAL result = OP == 1 ? -REAL_INFINITY : 0.0;
    for (int k = LANE; k < args.ints[8]; k += LOCAL) {
        REAL x = *at_element<const double>(args.scratch, k);
        result = OP == 1 ? larger(x, result) : result + x;
    }
    result = GROUP(result);
    if (LANE != 0)
        return;
    double *to = at_element<double>(args.operands[0].address, 0);
    REAL beta = ARG_NUMBER(0);
    if (beta != 0.0)
        result = OP == 1 ? larger(beta * *to, result) : beta * *to + result;
    *to = result;
}
