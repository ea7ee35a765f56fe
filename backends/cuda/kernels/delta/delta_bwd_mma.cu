// delta_bwd_mma.cu: step 0 of delta_rule_bwd.cu, of bf16, by mma.sync: what goes from block to block. A block
// of threads has V_COLUMNS columns of a head's S and dS: forward, keeping S before each block of rows and V -
// .. of each row (E, which D is beta times), then backward, keeping dS behind each block and dR; dv. Names:
// ir/program/commands/delta_rule_bwd.c.
//
// Multiply-adds of matmuls for a row of a head, as delta_mma.cu counts them:
//   K S, K^T D; K dS, K^T Y, Q^T dO   5 d_k d_v
//   K K^T twice, Q K^T                3 (3/4) L d_k in every block of threads; there are d_v / V_COLUMNS
//   E; P^T dO, dR                     3 (5/8) L d_v
//   (I + A)^-1 twice                  by scalars
// All factors but K, Q and what is stored of dO are sums of two bf16: 2 products for K^T D, K^T Y, Q^T dO and
// P^T dO, 3 for E and dR, and for K S and K dS, of whose states there are sums of three; dR and dS have the
// tolerance of fp32.
//
// Grid: heads times d_v / V_COLUMNS.

// A row of sums for each row that is there, in fp32.
DEVICE void store_rows(const float (&sums)[PART / 8][4], const Delta &c, u64 of, const Rows &b, const Place &p) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (p.row(half) < b.rows) {
            u64 row = Scratch::row(of, b.row0 + p.row(half), (u64)c.heads * D_V);
#pragma unroll
            for (int n = 0; n < PART / 8; n++)
                *(float2 *)at_element<float>(row, p.head * D_V + p.column_of_head(n)) =
                    make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
        }
}

// ---- forward ---------------------------------------------------------------------------------------------

DEVICE void forward(const Delta &c, const Scratch &scratch, char *memory, const Place &p) {
    State s;
    load_state(s, c.args.operands[state_OPERAND].address, p.head, p.slice, p.warp, p.lane);
#pragma unroll 1
    for (int row0 = 0; row0 < c.rows;) {
        Rows b = rows_at(c, row0, p.lane);
        int end = b.row0 + b.rows;
        __syncthreads(); // tiles of the block before are done with
        fill<D_K, THREADS>(tile(memory, Memory::K), c.args.operands[k_OPERAND], b.row0, p.head / c.group * D_K, end);
        fill<V_COLUMNS, THREADS>(tile(memory, Memory::V), c.args.operands[v_OPERAND], b.row0,
                                 p.head * D_V + p.slice * V_COLUMNS, end);
        copy_commit();
        if (p.warp == 0)
            find_numbers((Numbers *)(memory + Memory::NUMBERS), c, b, p.head, p.lane);
        if (p.has_state)
            keep_state(s, memory, p.warp, p.lane);
        if (b.row0 > 0 && !b.begins)
            store_state(s, Scratch::row(scratch.states, b.row0 / BLOCK, (u64)c.heads * STATE), p.head, p.slice, p.warp, p.lane);
        copy_wait();
        __syncthreads();
        find_a(memory, true, p.strip, p.part, p.lane);
        float e[PART / 8][4];
        if (p.has_part)
            find_rest(e, memory, b.begins, p);
        __syncthreads();
        invert(memory);
        if (p.has_part) {
            solve<false>(e, memory, p);
            store_rows(e, c, scratch.errors, b, p);
        }
        __syncthreads();
        if (p.has_part)
            keep_for_state(e, memory, p);
        __syncthreads();
        decay_state(s, memory, !b.begins);
        if (p.has_state)
            add_to_state(s, tile(memory, Memory::K), tile(memory, Memory::R), p.warp, p.lane);
        row0 = end;
    }
}

// ---- backward --------------------------------------------------------------------------------------------

// P, in the place of A, a sum of two.
DEVICE void find_p(char *memory, const Place &p) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float sums[4][4];
    int column0 = 32 * p.part;
    if (column0 > 16 * p.strip)
        return;
    scores(sums, tile(memory, Memory::Q), 16 * p.strip, tile(memory, Memory::K), column0, p.lane);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = p.row(half), j = column0 + 8 * n + p.lane % 4 * 2;
            Split x(j <= i ? of.between(i, j) * sums[n][2 * half] : 0.0f,
                    j + 1 <= i ? of.between(i, j + 1) * sums[n][2 * half + 1] : 0.0f);
            *pair_at<BLOCK>(memory + Memory::A, i, j) = x.high;
            *pair_at<BLOCK>(memory + Memory::A + BLOCK * TileBlock::PITCH, i, j) = x.low;
        }
}

// diag(e^c) dO
DEVICE void find_do(char *memory, const Place &p) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    const float factors[2] = {of.begin[p.row(0)], of.begin[p.row(1)]};
    float sums[PART / 8][4];
#pragma unroll
    for (int n = 0; n < PART / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned x = *pair_at<V_COLUMNS>(memory + Memory::V, p.row(half), p.column(n));
            sums[n][2 * half] = __uint_as_float(x << 16);
            sums[n][2 * half + 1] = __uint_as_float(x & 0xffff0000u);
        }
    keep(sums, memory, Memory::D, Memory::D + BLOCK * TileV::PITCH, factors, p);
}

// diag(e^(c_L - c)) K dS
DEVICE void find_kds(float (&sums)[PART / 8][4], char *memory, const Place &p) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    clear(sums);
    add_state_rows(sums, memory, p);
#pragma unroll
    for (int n = 0; n < PART / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[n][i] *= of.end[p.row(i / 2)];
}

// dD = diag(e^(c_L - c)) K dS, which sums are, + P^T dO
DEVICE void find_dd(float (&sums)[PART / 8][4], char *memory, const Place &p) {
    const float ones[2] = {1.0f, 1.0f};
    unsigned high = tile(memory, Memory::A), low = high + BLOCK * TileBlock::PITCH, from = tile(memory, Memory::V);
    add_transposed<BLOCK, V_COLUMNS>(sums, low, 16 * p.strip, from, p.column0, p.strip, p.lane);
    add_transposed<BLOCK, V_COLUMNS>(sums, high, 16 * p.strip, from, p.column0, p.strip, p.lane);
    keep(sums, memory, Memory::R, Memory::R_LOW, ones, p);
}

DEVICE void store_dv(const float (&dr)[PART / 8][4], char *memory, const Args &args, const Rows &b, const Place &p) {
#ifdef dv_OPERAND
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (p.row(half) < b.rows)
#pragma unroll
            for (int n = 0; n < PART / 8; n++)
                *(unsigned *)element_address<TYPE_Q>(args.operands[dv_OPERAND], b.row0 + p.row(half),
                                                     p.head * D_V + p.column_of_head(n)) =
                    pack(of.beta[p.row(half)] * dr[n][2 * half], of.beta[p.row(half)] * dr[n][2 * half + 1]);
#endif
}

DEVICE void backward(const Delta &c, const Scratch &scratch, char *memory, const Place &p) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    State s; // dS
    load_state(s, c.args.operands[dstate_OPERAND].address, p.head, p.slice, p.warp, p.lane);
#pragma unroll 1
    for (int end = c.rows; end > 0;) {
        int row0 = c.begin(end - 1);
        Rows b = {row0, end - row0, c.place(row0) == 0};
        __syncthreads(); // tiles of the block behind are done with
        fill<D_K, THREADS>(tile(memory, Memory::K), c.args.operands[k_OPERAND], b.row0, p.head / c.group * D_K, end);
        fill<D_K, THREADS>(tile(memory, Memory::Q), c.args.operands[q_OPERAND], b.row0, p.head / c.group * D_K, end);
        fill<V_COLUMNS, THREADS>(tile(memory, Memory::V), c.args.operands[do_OPERAND], b.row0,
                                 p.head * D_V + p.slice * V_COLUMNS, end);
        copy_commit();
        if (p.warp == 0)
            find_numbers((Numbers *)(memory + Memory::NUMBERS), c, b, p.head, p.lane);
        if (p.has_state)
            keep_state(s, memory, p.warp, p.lane);
        copy_wait();
        __syncthreads();
        find_a(memory, false, p.strip, p.part, p.lane);
        float dr[PART / 8][4];
        if (p.has_part) {
            find_do(memory, p);
            find_kds(dr, memory, p);
        }
        __syncthreads();
        invert(memory);
        find_p(memory, p);
        __syncthreads();
        if (p.has_part)
            find_dd(dr, memory, p);
        __syncthreads();
        if (p.has_part) {
            solve<true>(dr, memory, p);
            store_rows(dr, c, scratch.dr, b, p);
            store_dv(dr, memory, c.args, b, p);
        }
        __syncthreads();
        if (p.has_part) { // Y
            const float factors[2] = {-of.beta[p.row(0)] * of.begin[p.row(0)], -of.beta[p.row(1)] * of.begin[p.row(1)]};
            keep(dr, memory, Memory::R, Memory::R_LOW, factors, p);
        }
        __syncthreads();
        decay_state(s, memory, !b.begins);
        if (p.has_state && !b.begins) {
            add_to_state(s, tile(memory, Memory::K), tile(memory, Memory::R), p.warp, p.lane);
            add_to_state(s, tile(memory, Memory::Q), tile(memory, Memory::D), p.warp, p.lane);
        }
        if (b.row0 > 0 && !b.begins)
            store_state(s, Scratch::row(scratch.dstates, b.row0 / BLOCK, (u64)c.heads * STATE), p.head, p.slice, p.warp, p.lane);
        end = b.row0;
    }
    store_state(s, Scratch::row(scratch.dstates, scratch.slots, (u64)c.heads * STATE), p.head, p.slice, p.warp, p.lane);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char memory[];
    const Delta c(args);
    const Scratch scratch(c);
    const Place p(blockIdx.x);
    forward(c, scratch, memory, p);
    backward(c, scratch, memory, p);
}
