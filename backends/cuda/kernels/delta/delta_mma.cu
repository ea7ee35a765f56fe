// delta_mma.cu: delta_rule of bf16 by mma.sync, in blocks of 64 rows of a document (BLOCK). A block of
// threads has V_COLUMNS columns of the state of a head: it goes through the rows block by block. Names:
// ir/program/commands/delta_rule.c.
//
// Multiply-adds of matmuls for a row of a head, of L = 64 rows a block, what lies above a diagonal in tiles
// of 16 left out:
//   K S, Q S, K^T D   3 d_k d_v
//   K K^T, Q K^T      2 (3/4) L d_k in every block of threads; there are d_v / V_COLUMNS
//   T R, P D          2 (5/8) L d_v
//   T = (I + A)^-1    10 + 6 products of 16 x 16 x 16 a block, in fp32, by scalars
// S, R, which is without beta, and D of K^T D are sums of two bf16 each, T too, and what is smaller than
// 2^-17 of a product is left out: so 2 products for K^T D, 3 for T R, which is without the I of T, and 3 for
// K S, of which S is a sum of three. P, and D beside it, are rounded to bf16; so is S in Q S.
//
// A warp has 16 rows of the state, in registers, in fp32.
//
// Grid: heads times d_v / V_COLUMNS.

// P, in the place of A.
DEVICE void find_p(char *memory, int strip, int part, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float sums[4][4];
    int column0 = 32 * part;
    if (column0 > 16 * strip)
        return;
    scores(sums, shared_address(memory + Memory::Q), 16 * strip, shared_address(memory + Memory::K), column0, lane);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = 16 * strip + 8 * half + lane / 4, j = column0 + 8 * n + lane % 4 * 2;
            float x = j <= i ? of.between(i, j) * sums[n][2 * half] : 0.0f;
            float y = j + 1 <= i ? of.between(i, j + 1) * sums[n][2 * half + 1] : 0.0f;
            *pair_at<BLOCK>(memory + Memory::A, i, j) = pack(x, y);
        }
}

// D, for P D
DEVICE void keep_d(const float (&e)[PART / 8][4], char *memory, const Place &p) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
#pragma unroll
    for (int n = 0; n < PART / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *pair_at<V_COLUMNS>(memory + Memory::D, p.row(half), p.column(n)) =
                pack(of.beta[p.row(half)] * e[n][2 * half], of.beta[p.row(half)] * e[n][2 * half + 1]);
}

#ifdef o_OPERAND
// O = diag(e^c) Q S + P D
DEVICE void find_o(const Args &args, char *memory, const Rows &b, int head, int strip, int slice, int column0, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float sums[PART / 8][4];
    clear(sums);
    if (!b.begins) {
        add_product<D_K, V_COLUMNS>(sums, shared_address(memory + Memory::Q), 16 * strip, shared_address(memory + Memory::S),
                                  column0, D_K / 16, lane);
#pragma unroll
        for (int n = 0; n < PART / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] *= of.begin[16 * strip + i / 2 * 8 + lane / 4];
    }
    add_product<BLOCK, V_COLUMNS>(sums, shared_address(memory + Memory::A), 16 * strip, shared_address(memory + Memory::D),
                                column0, strip + 1, lane);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = 16 * strip + 8 * half + lane / 4;
        if (i >= b.rows)
            continue;
        char *to = element_address<TYPE_Q>(args.operands[o_OPERAND], b.row0 + i,
                                           head * D_V + slice * V_COLUMNS + column0 + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < PART / 8; n++)
            *(unsigned *)(to + 16 * n) = pack(sums[n][2 * half], sums[n][2 * half + 1]);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char memory[];
    const Delta c(args);
    const Place p(blockIdx.x);
    State s;
    load_state(s, args.operands[state_OPERAND].address, p.head, p.slice, p.warp, p.lane);
#pragma unroll 1
    for (int row0 = 0; row0 < c.rows;) {
        Rows b = rows_at(c, row0, p.lane);
        int end = b.row0 + b.rows;
        __syncthreads(); // tiles of the block before are done with
        fill<D_K, THREADS>(tile(memory, Memory::K), args.operands[k_OPERAND], b.row0, p.head / c.group * D_K, end);
#ifdef o_OPERAND
        fill<D_K, THREADS>(tile(memory, Memory::Q), args.operands[q_OPERAND], b.row0, p.head / c.group * D_K, end);
#endif
        fill<V_COLUMNS, THREADS>(tile(memory, Memory::V), args.operands[v_OPERAND], b.row0, p.head * D_V + p.slice * V_COLUMNS,
                                 end);
        copy_commit();
        if (p.warp == 0)
            find_numbers((Numbers *)(memory + Memory::NUMBERS), c, b, p.head, p.lane);
        if (p.has_state)
            keep_state(s, memory, p.warp, p.lane);
        copy_wait();
        __syncthreads();
        find_a(memory, true, p.strip, p.part, p.lane);
        float e[PART / 8][4];
        if (p.has_part)
            find_rest(e, memory, b.begins, p);
        __syncthreads();
        invert(memory);
#ifdef o_OPERAND
        find_p(memory, p.strip, p.part, p.lane);
#endif
        if (p.has_part)
            solve<false>(e, memory, p);
        __syncthreads();
        if (p.has_part) {
            keep_d(e, memory, p);
            keep_for_state(e, memory, p);
        }
        __syncthreads();
#ifdef o_OPERAND
        if (p.has_part)
            find_o(args, memory, b, p.head, p.strip, p.slice, p.column0, p.lane);
#endif
        decay_state(s, memory, !b.begins);
        if (p.has_state)
            add_to_state(s, tile(memory, Memory::K), tile(memory, Memory::R), p.warp, p.lane);
        row0 = end;
    }
#ifdef next_OPERAND
    store_state(s, args.operands[next_OPERAND].address, p.head, p.slice, p.warp, p.lane);
#endif
}
