// states.cuh: what kernels share that keep a matrix for each head: delta_rule and its gradient.
// Blocks of rows, heads, columns of a matrix, scratch memory.
//
// Defined: D_K, D_V (columns of a head), BLOCK (SBP_DELTA_BLOCK), CORRECTS (1: a row adds what the matrix
// lacks of it, 0: all of it). Attributes: ints 0, 1: heads, key_heads.

#ifdef REAL_F64
#define EXP sbp_exp_f64
#define WIDE_BYTES 8
#define LOAD_WIDE load_f64
#define STORE_WIDE store_f64
#else
#define EXP sbp_exp_f32
#define WIDE_BYTES 4
#define LOAD_WIDE load_f32
#define STORE_WIDE store_f32
#endif

constexpr int STATE = D_K * D_V; // elements of a head's

struct Heads {
    const Args &args;
    int rows, heads, group; // group: heads of v of a head of k

    __device__ Heads(const Args &a) : args(a) {
        rows = a.operands[k_OPERAND].rows;
        heads = a.ints[0];
        group = a.ints[0] / a.ints[1];
    }
    // How many rows of its document come before row t.
    __device__ int place(int t) const {
        return args.operands[k_OPERAND].first_row + t -
               INDEX_first(row_address(args.operands[first_OPERAND], t, first_BYTES));
    }
    // The first row that is there in the block of row t; and the row behind the block's last.
    __device__ int begin(int t) const {
        return max(0, t - place(t) % BLOCK);
    }
    __device__ int end(int t) const {
        for (t++; t < rows && place(t) % BLOCK != 0;)
            t++;
        return t;
    }
    __device__ REAL decay(int t, int head) const {
        return LOAD_decay(row_address(args.operands[decay_OPERAND], t, decay_BYTES), head);
    }
};

// Column `column` of a head's matrix in memory, from the state's first element on.
struct Column {
    u64 memory;
    u64 from;
    __device__ Column(u64 at, int head, int column) : memory(at), from((u64)head * STATE + column) {}
    __device__ REAL at(int i) const {
        return LOAD_WIDE(memory, from + (u64)i * D_V);
    }
    __device__ void set(int i, REAL x) const {
        STORE_WIDE(memory, from + (u64)i * D_V, x);
    }
    __device__ void copy(const Column &other) const {
        for (int i = 0; i < D_K; i++)
            set(i, other.at(i));
    }
};

// Memory of numbers in the type of sums, in rows.
struct WideMemory {
    static __device__ u64 take(u64 &at, u64 elements) {
        u64 from = at;
        at += elements * WIDE_BYTES;
        return from;
    }
    static __device__ u64 row(u64 of, u64 number, u64 columns) {
        return of + number * columns * WIDE_BYTES;
    }
};

DEVICE u64 slot_of(const Heads &c, u64 of, int slot) {
    return WideMemory::row(of, slot, (u64)c.heads * STATE);
}
DEVICE REAL of_row(const Heads &c, u64 of, int t, int head, int columns, int i) {
    return LOAD_WIDE(WideMemory::row(of, t, (u64)c.heads * columns), head * columns + i);
}
DEVICE void set_of_row(const Heads &c, u64 of, int t, int head, int columns, int i, REAL x) {
    STORE_WIDE(WideMemory::row(of, t, (u64)c.heads * columns), head * columns + i, x);
}
