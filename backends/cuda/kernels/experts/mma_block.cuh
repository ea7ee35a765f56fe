// mma_block.cuh: TILE x TILE (128 x 128) elements of a product by a block of 8 warps, each 32 x 64 of them,
// by mma.sync. DEEP terms at a time of both sides are in shared memory, STAGES of those: cp.async fills one
// while another is multiplied. A side is a tile whose rows are those of the product (TILE x DEEP), or,
// BY_TERMS, one whose rows are terms (DEEP x TILE).

// PIECE: elements of 16 bytes
enum { DEEP = 64, STAGES = 3, THREADS = 256, SIDE_BYTES = TILE * DEEP * 2, PIECE = 8 };

typedef Tile<DEEP> RowTile;
typedef Tile<TILE> TermTile;

DEVICE char *global(u64 address) {
    return at_element<char>(address, 0);
}

// Where this warp's part of a block begins, and its lane.
struct Place {
    int row, column, lane;
    __device__ Place() {
        int warp = (int)LANE / LANES;
        row = warp / 2 * 32;
        column = warp % 2 * 64;
        lane = (int)LANE % LANES;
    }
};

// sums += left right of the terms in a stage, of which the left side comes first.
template <bool A_BY_TERMS, bool B_BY_TERMS>
DEVICE void multiply_stage(float (&sums)[2][8][4], unsigned stage, const Place &place) {
    const int lane = place.lane;
    unsigned right_tile = stage + SIDE_BYTES, a, b;
    if (A_BY_TERMS) // read transposed: 16 terms of 16 rows
        a = TermTile::beside(right_address<TILE>(stage, lane), 0, place.row / 16);
    else
        a = left_address<DEEP>(stage + place.row * RowTile::PITCH, lane);
    if (B_BY_TERMS)
        b = TermTile::beside(left_address<TILE>(right_tile, lane), 0, place.column / 16);
    else
        b = right_address<DEEP>(right_tile + place.column * RowTile::PITCH, lane);
#pragma unroll
    for (int step = 0; step < DEEP / 16; step++) {
        unsigned left[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
            if (A_BY_TERMS)
                load_matrices_transposed(left[m], (a ^ 32 * m) + 16 * step * TermTile::PITCH);
            else
                load_matrices(left[m], RowTile::beside(a, 16 * m, step));
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            unsigned right[4];
            if (B_BY_TERMS)
                load_matrices_transposed(right, TermTile::beside(b, 16 * step, n / 2));
            else
                load_matrices(right, RowTile::beside(b, 8 * n, step));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply(sums[m][n], left[m], right[0], right[1]);
                multiply(sums[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// A Product has depth, the number of terms, and load(stage, term): asks for the terms from there on, each
// stage once, in order. `works`: whether this warp has any rows. Who comes back may fill shared memory anew.
template <bool A_BY_TERMS, bool B_BY_TERMS, class Product>
DEVICE void multiply_block(float (&sums)[2][8][4], Product &product, unsigned memory, const Place &place, bool works) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
            sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
    unsigned fill = memory, read = memory, end = memory + STAGES * 2 * SIDE_BYTES;
    int asked = 0;
    for (int ahead = 0; ahead < STAGES - 1; ahead++, asked += DEEP, fill += 2 * SIDE_BYTES) {
        if (asked < product.depth)
            product.load(fill, asked);
        copy_commit();
    }
    for (int term = 0; term < product.depth; term += DEEP) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads(); // this stage is there, and everybody is done with the one before it
        if (asked < product.depth)
            product.load(fill, asked);
        copy_commit();
        asked += DEEP;
        fill = fill + 2 * SIDE_BYTES == end ? memory : fill + 2 * SIDE_BYTES;
        if (works)
            multiply_stage<A_BY_TERMS, B_BY_TERMS>(sums, read, place);
        read = read + 2 * SIDE_BYTES == end ? memory : read + 2 * SIDE_BYTES;
    }
    copy_wait();
    __syncthreads();
}
