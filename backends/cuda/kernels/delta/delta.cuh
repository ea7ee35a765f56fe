// delta.cuh: what delta_rule and delta_rule_bwd share: blocks of rows, heads, the scratch memory of the backward pass.
//
// Defined: D_K, D_V (columns of a head), BLOCK (SBP_DELTA_BLOCK). Attributes: ints 0, 1: heads, key_heads.

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

struct Delta {
    const Args &args;
    int rows, heads, group; // group: heads of v of a head of k

    __device__ Delta(const Args &a) : args(a) {
        rows = a.operands[k_OPERAND].rows;
        heads = a.ints[0];
        group = a.ints[0] / a.ints[1];
    }
    // How many rows of its document come before row t.
    __device__ int place(int t) const {
        return args.operands[k_OPERAND].first_row + t -
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
    __device__ REAL k(int t, int head, int i) const {
        return LOAD_k(row_address(args.operands[k_OPERAND], t, k_BYTES), head / group * D_K + i);
    }
#ifdef q_OPERAND
    __device__ REAL q(int t, int head, int i) const {
        return LOAD_q(row_address(args.operands[q_OPERAND], t, q_BYTES), head / group * D_K + i);
    }
#endif
    __device__ REAL v(int t, int head, int i) const {
        return LOAD_v(row_address(args.operands[v_OPERAND], t, v_BYTES), head * D_V + i);
    }
    __device__ REAL decay(int t, int head) const {
        return LOAD_decay(row_address(args.operands[decay_OPERAND], t, decay_BYTES), head);
    }
    __device__ REAL beta(int t, int head) const {
        return LOAD_beta(row_address(args.operands[beta_OPERAND], t, beta_BYTES), head);
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
    // The column behind row t: decays and is corrected; returns v - S^T k, what d has beta times.
    __device__ REAL advance(const Delta &c, int t, int head, REAL value) const {
        bool fresh = c.place(t) == 0;
        REAL factor = fresh ? (REAL)0 : EXP(c.decay(t, head)), sum = 0;
        for (int i = 0; i < D_K; i++) {
            REAL s = fresh ? (REAL)0 : at(i) * factor;
            set(i, s);
            sum += s * c.k(t, head, i);
        }
        REAL error = value - sum, d = c.beta(t, head) * error;
        for (int i = 0; i < D_K; i++)
            set(i, at(i) + c.k(t, head, i) * d);
        return error;
    }
};
