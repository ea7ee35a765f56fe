// delta.glsl: what delta_rule and delta_rule_bwd share: blocks of rows, heads, columns of states.
//
// D_K, D_V: columns of a head; BLOCK: SBP_DELTA_BLOCK. Attributes: ints 0, 1: heads, key_heads.

#ifdef SBP_REAL_F64
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

const int STATE = D_K * D_V; // elements of a head's

int heads() {
    return args.ints[0];
}
int head_rows() {
    return args.operands[k_OPERAND].rows;
}
// The head of k that a head of v has.
int key_of(int head) {
    return head / (args.ints[0] / args.ints[1]);
}
// How many rows of its document come before row t.
int place(int t) {
    return args.operands[k_OPERAND].first_row + t -
           INDEX_first(row_address(args.operands[first_OPERAND], t, first_BYTES));
}
// Whether a block begins at row t of those that are there.
bool is_begin(int t) {
    return t == 0 || place(t) % BLOCK == 0;
}
REAL decay_of(int t, int head) {
    return LOAD_decay(row_address(args.operands[decay_OPERAND], t, decay_BYTES), head);
}
REAL beta_of(int t, int head) {
    return LOAD_beta(row_address(args.operands[beta_OPERAND], t, beta_BYTES), head);
}
uint64_t k_row(int t, int head) {
    return row_address(args.operands[k_OPERAND], t, k_BYTES) + uint64_t(key_of(head) * D_K * k_BYTES);
}
#ifdef q_OPERAND
uint64_t q_row(int t, int head) {
    return row_address(args.operands[q_OPERAND], t, q_BYTES) + uint64_t(key_of(head) * D_K * q_BYTES);
}
#endif

// Where a column of a head's matrix begins in memory that has all heads'; its elements are D_V apart.
uint64_t column_at(uint64_t states, int head, int column) {
    return states + uint64_t(head * STATE + column) * uint64_t(WIDE_BYTES);
}
void copy_column(uint64_t to, uint64_t from) {
    for (int i = 0; i < D_K; i++)
        STORE_WIDE(to, i * D_V, LOAD_WIDE(from, i * D_V));
}
// The column behind row t: decays and is corrected; returns v - S^T k, what d has beta times.
REAL advance_column(uint64_t state, int t, int head, int column) {
    uint64_t k = k_row(t, head);
    bool fresh = place(t) == 0;
    REAL factor = fresh ? REAL(0.0) : EXP(decay_of(t, head)), sum = REAL(0.0);
    for (int i = 0; i < D_K; i++) {
        REAL s = fresh ? REAL(0.0) : LOAD_WIDE(state, i * D_V) * factor;
        STORE_WIDE(state, i * D_V, s);
        sum += s * LOAD_k(k, i);
    }
    REAL error = LOAD_v(row_address(args.operands[v_OPERAND], t, v_BYTES), head * D_V + column) - sum;
    REAL d = beta_of(t, head) * error;
    for (int i = 0; i < D_K; i++)
        STORE_WIDE(state, i * D_V, LOAD_WIDE(state, i * D_V) + LOAD_k(k, i) * d);
    return error;
}
