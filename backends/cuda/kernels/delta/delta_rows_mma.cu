// delta_rows_mma.cu: steps 1 and 2 of delta_rule_bwd.cu, of bf16, by mma.sync: what rows of a block give each
// other, and what they have of the states before and behind it. A block of threads has the rows of a block
// and a head of k, whose heads of v come one after the other. Names: ir/program/commands/delta_rule_bwd.c; B
// and C as delta_rule_bwd.cu has them.
//
// Multiply-adds of matmuls for a row of a head, as delta_mma.cu counts them:
//   dO S^T, dR S^T, D dS^T               3 d_k d_v           dO D^T, dR D^T         2 (3/4) L d_v
//                                                            C K, B K, C^T Q, B^T K 4 (5/8) L d_k
// All factors but K, Q and dO are sums of two bf16: 2 products, or 3 where both are; the gradients of decay
// are differences of what they give, with the tolerance of fp32.
//
// Grid: windows of BLOCK rows, of which those blocks are that begin there, times heads of k.

// of columns of k, of a warp: the first part, no less than the other
constexpr int K_PART = (D_K / 16 + 1) / 2 * 16, K_SUMS = K_PART / 8;
constexpr int BLOCK_SUMS = 4;                                       // 32 columns of a matrix of the block

// Tiles in shared memory: X and X_LOW are a sum. C and B stand where S and dS were.
struct Places {
    static constexpr int of_s = 2 * D_K * TileV::PITCH, of_c = 4 * BLOCK * TileBlock::PITCH;
    static constexpr int K = 0, Q = K + BLOCK * TileK::PITCH, O = Q + BLOCK * TileK::PITCH, D = O + BLOCK * TileV::PITCH,
                         D_LOW = D + BLOCK * TileV::PITCH, R = D_LOW + BLOCK * TileV::PITCH, R_LOW = R + BLOCK * TileV::PITCH,
                         S = R_LOW + BLOCK * TileV::PITCH, S_LOW = S + D_K * TileV::PITCH, C = S, C_LOW = C + BLOCK * TileBlock::PITCH,
                         B = C_LOW + BLOCK * TileBlock::PITCH, B_LOW = B + BLOCK * TileBlock::PITCH,
                         NUMBERS = S + (of_s > of_c ? of_s : of_c), SUMS = NUMBERS + (int)sizeof(Numbers),
                         ALL = SUMS + (4 * BLOCK + WARPS) * 4;
};

// What a block of rows gives dc, of two parts of columns: of each row, and of the last one for it; of the
// states together.
struct Sums {
    float dc[2][BLOCK], behind[2][BLOCK], whole[WARPS];
};
static_assert(sizeof(Sums) == (4 * BLOCK + WARPS) * 4, "as Places has it");

// Where a thread stands: a strip of 16 rows, a part of columns; a lane has two rows of it, two
// columns of eight each.
struct PlaceOfRows {
    int key, head, warp, lane, strip, part;
    // The compiler knows nothing of them anew: addresses that follow from them keep no registers meanwhile.
    __device__ __forceinline__ void hide() {
        asm volatile("" : "+r"(lane));
    }
    // How many sums it has of a row of k.
    __device__ __forceinline__ int sums() const {
        return D_K == 2 * K_PART || part == 0 ? K_SUMS : (D_K - K_PART) / 8;
    }
    __device__ __forceinline__ int row(int half) const {
        return 16 * strip + 8 * half + lane / 4;
    }
    __device__ __forceinline__ int column(int n) const {
        return part * K_PART + 8 * n + lane % 4 * 2;
    }
};

// ---- tiles -----------------------------------------------------------------------------------------------

// Four neighbours, as sums.
DEVICE void keep_four(char *memory, int high, int low, int row, int column, float4 x, float factor) {
    Split first(x.x * factor, x.y * factor), second(x.z * factor, x.w * factor);
    *(uint2 *)pair_at<V_COLUMNS>(memory + high, row, column) = make_uint2(first.high, second.high);
    *(uint2 *)pair_at<V_COLUMNS>(memory + low, row, column) = make_uint2(first.low, second.low);
}

DEVICE float4 four_at(u64 row, u64 column) {
    return *(const float4 *)at_element<float>(row, column);
}

// A slice of columns of rows that are kept in fp32, each row times a number.
DEVICE void fill_rows(char *memory, int high, const Delta &c, u64 from, const Rows &b, int head, int slice, const float *factors) {
#pragma unroll 1
    for (int i = threadIdx.x; i < BLOCK * V_COLUMNS / 4; i += THREADS) {
        int row = i / (V_COLUMNS / 4), column = i % (V_COLUMNS / 4) * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (row < b.rows)
            x = four_at(Scratch::row(from, b.row0 + row, (u64)c.heads * D_V), head * D_V + slice * V_COLUMNS + column);
        keep_four(memory, high, high + BLOCK * TileV::PITCH, row, column, x, factors ? factors[row] : 1.0f);
    }
}

// A slice of columns of a head's matrix; beside it, where there is another, the sum of their products.
DEVICE float fill_state(char *memory, u64 of, u64 other, int head, int slice) {
    float sum = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < D_K * V_COLUMNS / 4; i += THREADS) {
        int row = i / (V_COLUMNS / 4), column = i % (V_COLUMNS / 4) * 4;
        u64 at = (u64)head * STATE + (u64)row * D_V + slice * V_COLUMNS + column;
        float4 x = four_at(of, at);
        keep_four(memory, Places::S, Places::S_LOW, row, column, x, 1.0f);
        if (other != 0) {
            float4 y = four_at(other, at);
            sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
        }
    }
    return sum;
}

// ---- products --------------------------------------------------------------------------------------------

// sums += rows row0 .. of tile a times 8 `columns` rows from `column` on of tile b: [16, V_COLUMNS] x [8
// columns, V_COLUMNS]^T
template <int N>
DEVICE void add_scores(float (&sums)[N][4], unsigned a, int row0, unsigned b, int column, int lane, int columns = N) {
    unsigned left_base = left_address<V_COLUMNS>(a + row0 * TileV::PITCH, lane),
             right_base = right_address<V_COLUMNS>(b + column * TileV::PITCH, lane);
#pragma unroll
    for (int step = 0; step < V_COLUMNS / 16; step++) {
        unsigned left[4];
        load_matrices(left, TileV::beside(left_base, 0, step));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            if (n >= columns)
                break;
            unsigned right[4];
            load_matrices(right, TileV::beside(right_base, 8 * n, step));
            multiply(sums[n], left, right[0], right[1]);
            multiply(sums[n + 1], left, right[2], right[3]);
        }
    }
}

// add_scores of two matrices that are each a sum of two parts, a + a_low and b + b_low; the product of both
// low parts is left out.
template <int N>
DEVICE void add_scores_of_sums(float (&sums)[N][4], char *memory, int a, int row0, int b, int b_low, int column, int lane,
                               int columns = N) {
    int a_low = a + BLOCK * TileV::PITCH;
    add_scores(sums, shared_address(memory + a_low), row0, shared_address(memory + b), column, lane, columns);
    add_scores(sums, shared_address(memory + a), row0, shared_address(memory + b_low), column, lane, columns);
    add_scores(sums, shared_address(memory + a), row0, shared_address(memory + b), column, lane, columns);
}

// C, B: of columns that are not right of the diagonal; of B the diagonal is 0.
DEVICE void keep_scores(char *memory, const float (&dp)[BLOCK_SUMS][4], const float (&da)[BLOCK_SUMS][4], const PlaceOfRows &p) {
    const Numbers &of = *(const Numbers *)(memory + Places::NUMBERS);
#pragma unroll
    for (int n = 0; n < BLOCK_SUMS; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = p.row(half), j = 32 * p.part + 8 * n + p.lane % 4 * 2;
            float first = j <= i ? of.between(i, j) : 0.0f, second = j + 1 <= i ? of.between(i, j + 1) : 0.0f, beta = of.beta[i];
            Split c(first * dp[n][2 * half], second * dp[n][2 * half + 1]);
            Split b(j < i ? -beta * first * da[n][2 * half] : 0.0f, j + 1 < i ? -beta * second * da[n][2 * half + 1] : 0.0f);
            *pair_at<BLOCK>(memory + Places::C, i, j) = c.high;
            *pair_at<BLOCK>(memory + Places::C_LOW, i, j) = c.low;
            *pair_at<BLOCK>(memory + Places::B, i, j) = b.high;
            *pair_at<BLOCK>(memory + Places::B_LOW, i, j) = b.low;
        }
}

// to += x; dot += sign times the products of x with columns of rows of a tile of k or q
DEVICE void take(float (&to)[K_SUMS][4], float (&dot)[2], float sign, const float (&x)[K_SUMS][4], const char *rows, const PlaceOfRows &p) {
#pragma unroll
    for (int n = 0; n < K_SUMS; n++) {
        if (n >= p.sums())
            break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned pair = *pair_at<D_K>((char *)rows, p.row(half), p.column(n));
            dot[half] += sign * (x[n][2 * half] * __uint_as_float(pair << 16) + x[n][2 * half + 1] * __uint_as_float(pair & 0xffff0000u));
            to[n][2 * half] += x[n][2 * half];
            to[n][2 * half + 1] += x[n][2 * half + 1];
        }
    }
}

// x times a factor of each row
DEVICE void scale(float (&x)[K_SUMS][4], const float (&factors)[2]) {
#pragma unroll
    for (int n = 0; n < K_SUMS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][i] *= factors[i / 2];
}

// x += left rows, of matrices of the block that are sums; transposed, from the diagonal down
DEVICE void add_by_lower(float (&x)[K_SUMS][4], char *memory, int left, int left_low, int rows, const PlaceOfRows &p) {
    unsigned of = shared_address(memory + rows);
    add_product<BLOCK, D_K>(x, shared_address(memory + left_low), 16 * p.strip, of, p.part * K_PART, p.strip + 1, p.lane, p.sums());
    add_product<BLOCK, D_K>(x, shared_address(memory + left), 16 * p.strip, of, p.part * K_PART, p.strip + 1, p.lane, p.sums());
}
DEVICE void add_by_upper(float (&x)[K_SUMS][4], char *memory, int left, int left_low, int rows, const PlaceOfRows &p) {
    unsigned of = shared_address(memory + rows);
    add_transposed<BLOCK, D_K>(x, shared_address(memory + left_low), 16 * p.strip, of, p.part * K_PART, p.strip, p.lane, p.sums());
    add_transposed<BLOCK, D_K>(x, shared_address(memory + left), 16 * p.strip, of, p.part * K_PART, p.strip, p.lane, p.sums());
}

// ---- a head of v -----------------------------------------------------------------------------------------

// The states before and behind a block; 0: there is none.
struct States {
    u64 before, behind;
    __device__ States(const Delta &c, const Scratch &s, const Rows &b) {
        int end = b.row0 + b.rows;
        before = b.begins ? 0 : b.row0 == 0 ? c.args.operands[state_OPERAND].address : slot_of(c, s.states, b.row0 / BLOCK);
        behind = end == c.rows         ? c.args.operands[dstate_OPERAND].address
                 : c.place(end) == 0 ? 0
                                       : slot_of(c, s.dstates, end / BLOCK);
    }
};

// Sums of a row over the four lanes that have it.
DEVICE void keep_sums(float (&to)[2][BLOCK], const float (&of)[2], const PlaceOfRows &p) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x = of[half];
        x += __shfl_xor_sync(ALL_LANES, x, 1);
        x += __shfl_xor_sync(ALL_LANES, x, 2);
        if (p.lane % 4 == 0)
            to[p.part][p.row(half)] = x;
    }
}

// dc of rows, and what they lose to the decay of the rows behind them.
DEVICE void store_sums(char *memory, const Delta &c, const Scratch &s, const Rows &b, int head) {
    const Numbers &of = *(const Numbers *)(memory + Places::NUMBERS);
    const Sums &sums = *(const Sums *)(memory + Places::SUMS);
    int row = threadIdx.x;
    if (row >= b.rows)
        return;
    float dc = sums.dc[0][row] + sums.dc[1][row], behind = sums.behind[0][row] + sums.behind[1][row], whole = 0;
    if (row == b.rows - 1) {
        for (int i = 0; i < WARPS; i++)
            whole += sums.whole[i];
        dc += of.begin[BLOCK - 1] * whole;
    }
    set_of_row(c, s.dc, b.row0 + row, head, 1, 0, dc);
    set_of_row(c, s.behind, b.row0 + row, head, 1, 0, behind);
}

// What a head adds to dq and dk of its head of k. One of the products that are added there is in
// registers at a time.
DEVICE void add_head(float (&dq)[K_SUMS][4], float (&dk)[K_SUMS][4], char *memory, const Delta &c, const Scratch &s, const Rows &b,
                     PlaceOfRows p) {
    p.hide();
    const Numbers &of = *(const Numbers *)(memory + Places::NUMBERS);
    Sums &sums = *(Sums *)(memory + Places::SUMS);
    const States states(c, s, b);
    bool has_scores = 32 * p.part <= 16 * p.strip;
    float part[K_SUMS][4], dc[2] = {0, 0}, behind[2] = {0, 0}, whole = 0;
    clear(part);
    if (p.warp == 0)
        find_numbers((Numbers *)(memory + Places::NUMBERS), c, b, p.head, p.lane);
    {
        float dp[BLOCK_SUMS][4], da[BLOCK_SUMS][4];
        clear(dp);
        clear(da);
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++) { // dO D^T, dR D^T, dO S^T
            __syncthreads();                           // the slice before is done with
            fill<V_COLUMNS, THREADS>(shared_address(memory + Places::O), c.args.operands[do_OPERAND], b.row0,
                                     p.head * D_V + slice * V_COLUMNS, b.row0 + b.rows);
            copy_commit();
            fill_rows(memory, Places::D, c, s.errors, b, p.head, slice, of.beta);
            fill_rows(memory, Places::R, c, s.dr, b, p.head, slice, 0);
            if (states.before != 0)
                fill_state(memory, states.before, 0, p.head, slice);
            copy_wait();
            __syncthreads();
            unsigned o = shared_address(memory + Places::O);
            p.hide();
            if (has_scores) {
                add_scores(dp, o, 16 * p.strip, shared_address(memory + Places::D_LOW), 32 * p.part, p.lane);
                add_scores(dp, o, 16 * p.strip, shared_address(memory + Places::D), 32 * p.part, p.lane);
                add_scores_of_sums(da, memory, Places::R, 16 * p.strip, Places::D, Places::D_LOW, 32 * p.part, p.lane);
            }
            if (states.before != 0) {
                add_scores(part, o, 16 * p.strip, shared_address(memory + Places::S_LOW), p.part * K_PART, p.lane, p.sums());
                add_scores(part, o, 16 * p.strip, shared_address(memory + Places::S), p.part * K_PART, p.lane, p.sums());
            }
        }
        __syncthreads();
        if (has_scores)
            keep_scores(memory, dp, da, p);
    }
    __syncthreads();
    p.hide();
    const float of_begin[2] = {of.begin[p.row(0)], of.begin[p.row(1)]};
    scale(part, of_begin);
    add_by_lower(part, memory, Places::C, Places::C_LOW, Places::K, p);
    take(dq, dc, 1.0f, part, memory + Places::Q, p);
    clear(part);
    add_by_lower(part, memory, Places::B, Places::B_LOW, Places::K, p);
    take(dk, dc, 1.0f, part, memory + Places::K, p);
    clear(part);
    p.hide();
    add_by_upper(part, memory, Places::C, Places::C_LOW, Places::Q, p);
    add_by_upper(part, memory, Places::B, Places::B_LOW, Places::K, p);
    take(dk, dc, -1.0f, part, memory + Places::K, p);
    clear(part);
#pragma unroll 1
    for (int slice = 0; slice < SLICES && states.before != 0; slice++) { // dR S^T
        __syncthreads();
        fill_rows(memory, Places::R, c, s.dr, b, p.head, slice, 0);
        fill_state(memory, states.before, 0, p.head, slice);
        __syncthreads();
        p.hide();
        add_scores_of_sums(part, memory, Places::R, 16 * p.strip, Places::S, Places::S_LOW, p.part * K_PART, p.lane, p.sums());
    }
    const float of_dr[2] = {-of.beta[p.row(0)] * of_begin[0], -of.beta[p.row(1)] * of_begin[1]};
    scale(part, of_dr);
    take(dk, dc, 1.0f, part, memory + Places::K, p);
    clear(part);
#pragma unroll 1
    for (int slice = 0; slice < SLICES && states.behind != 0; slice++) { // D dS^T
        __syncthreads();
        fill_rows(memory, Places::D, c, s.errors, b, p.head, slice, of.beta);
        whole += fill_state(memory, states.behind, states.before, p.head, slice);
        __syncthreads();
        p.hide();
        add_scores_of_sums(part, memory, Places::D, 16 * p.strip, Places::S, Places::S_LOW, p.part * K_PART, p.lane, p.sums());
    }
    const float of_end[2] = {of.end[p.row(0)], of.end[p.row(1)]};
    scale(part, of_end);
    take(dk, behind, 1.0f, part, memory + Places::K, p);
    dc[0] -= behind[0];
    dc[1] -= behind[1];
    keep_sums(sums.dc, dc, p);
    keep_sums(sums.behind, behind, p);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        whole += __shfl_xor_sync(ALL_LANES, whole, step);
    if (p.lane == 0)
        sums.whole[p.warp] = whole;
    __syncthreads();
    store_sums(memory, c, s, b, p.head);
    __syncthreads(); // numbers and sums are done with
}

// ---- rows ------------------------------------------------------------------------------------------------

DEVICE void store_gradient(const Operand &to, const float (&x)[K_SUMS][4], const Rows &b, const PlaceOfRows &p) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (p.row(half) < b.rows)
#pragma unroll
            for (int n = 0; n < K_SUMS && n < p.sums(); n++)
                *(unsigned *)element_address<TYPE_Q>(to, b.row0 + p.row(half), p.key * D_K + p.column(n)) =
                    pack(x[n][2 * half], x[n][2 * half + 1]);
}

DEVICE void add_rows(char *memory, const Delta &c, const Scratch &s, const Rows &b, PlaceOfRows &p) {
    float dq[K_SUMS][4], dk[K_SUMS][4];
    int end = b.row0 + b.rows;
    clear(dq);
    clear(dk);
    fill<D_K, THREADS>(shared_address(memory + Places::K), c.args.operands[k_OPERAND], b.row0, p.key * D_K, end);
    fill<D_K, THREADS>(shared_address(memory + Places::Q), c.args.operands[q_OPERAND], b.row0, p.key * D_K, end);
    copy_commit(); // who waits for tiles of the first head waits for them
#pragma unroll 1
    for (p.head = p.key * c.group; p.head < (p.key + 1) * c.group; p.head++)
        add_head(dq, dk, memory, c, s, b, p);
#ifdef dq_OPERAND
    store_gradient(c.args.operands[dq_OPERAND], dq, b, p);
#endif
#ifdef dk_OPERAND
    store_gradient(c.args.operands[dk_OPERAND], dk, b, p);
#endif
}

// From row0 on, the first row of a window where a block begins; `end` of it: none does.
DEVICE int first_begin(const Delta &c, int row0, int end, int lane) {
    int first = end;
#pragma unroll 1
    for (int row = row0 + lane; row < end; row += LANES)
        if (row == 0 || c.place(row) % BLOCK == 0)
            first = min(first, row);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        first = min(first, __shfl_xor_sync(ALL_LANES, first, step));
    return first;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char memory[];
    const Delta c(args);
    const Scratch scratch(c);
    PlaceOfRows p;
    p.key = blockIdx.x % c.args.ints[1];
    p.warp = threadIdx.x / LANES;
    p.lane = threadIdx.x % LANES;
    p.strip = p.warp % STRIPS;
    p.part = p.warp / STRIPS;
    int row0 = (int)(blockIdx.x / c.args.ints[1]) * BLOCK, end = min(row0 + BLOCK, c.rows);
#pragma unroll 1
    for (int row = first_begin(c, row0, end, p.lane); row < end;) {
        Rows b = rows_at(c, row, p.lane);
        add_rows(memory, c, scratch, b, p);
        row += b.rows;
    }
}
