// ssd.cuh: what ssd and ssd_bwd share: blocks of rows, heads, columns of states.
//
// Defined: D_K, D_V (columns of a head of c and b, of x), BLOCK (SBP_DELTA_BLOCK). Attributes: ints 0, 1: heads, groups.

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

struct Ssd {
    const Args &args;
    int rows, heads, group; // group: heads of one

    __device__ Ssd(const Args &a) : args(a) {
        rows = a.operands[b_OPERAND].rows;
        heads = a.ints[0];
        group = a.ints[0] / a.ints[1];
    }
    // How many rows of its document come before row t.
    __device__ int place(int t) const {
        return args.operands[b_OPERAND].first_row + t -
               INDEX_first(row_address(args.operands[first_OPERAND], t, first_BYTES));
    }
    // Of its block, the first row that is there, and the row behind the last.
    __device__ int begin(int t) const {
        return max(0, t - place(t) % BLOCK);
    }
    __device__ int end(int t) const {
        for (t++; t < rows && place(t) % BLOCK != 0;)
            t++;
        return t;
    }
    __device__ REAL b(int t, int head, int i) const {
        return LOAD_b(row_address(args.operands[b_OPERAND], t, b_BYTES), head / group * D_K + i);
    }
#ifdef c_OPERAND
    __device__ REAL c(int t, int head, int i) const {
        return LOAD_c(row_address(args.operands[c_OPERAND], t, c_BYTES), head / group * D_K + i);
    }
#endif
    __device__ REAL x(int t, int head, int i) const {
        return LOAD_x(row_address(args.operands[x_OPERAND], t, x_BYTES), head * D_V + i);
    }
    __device__ REAL decay(int t, int head) const {
        return LOAD_decay(row_address(args.operands[decay_OPERAND], t, decay_BYTES), head);
    }
    __device__ REAL dt(int t, int head) const {
        return LOAD_dt(row_address(args.operands[dt_OPERAND], t, dt_BYTES), head);
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
    // The column behind row t: decays, and the row is added.
    __device__ void advance(const Ssd &s, int t, int head, int column) const {
        bool fresh = s.place(t) == 0;
        REAL factor = fresh ? (REAL)0 : EXP(s.decay(t, head)), added = s.dt(t, head) * s.x(t, head, column);
        for (int i = 0; i < D_K; i++)
            set(i, (fresh ? (REAL)0 : at(i) * factor) + s.b(t, head, i) * added);
    }
};
