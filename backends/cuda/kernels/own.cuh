// own.cuh: which elements of a matrix a thread does: side by side along columns, then in strides
// of the whole grid.

// Loops over the first columns of all pieces of `wide` columns that are this thread's.
#define FOR_OWN(row, column, rows, cols, wide)                                                                              \
    for (u32 row = blockIdx.y * blockDim.y + threadIdx.y; row < (u32)(rows); row += gridDim.y * blockDim.y)                 \
        for (u64 column = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * (wide); column < (u64)(cols);                      \
             column += (u64)gridDim.x * blockDim.x * (wide))
