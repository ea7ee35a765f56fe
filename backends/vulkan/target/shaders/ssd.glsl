// ssd.glsl: what ssd and ssd_bwd share: blocks of rows, heads, columns of states.
//
// D_K, D_V: columns of a head of c and b, of x; BLOCK: SBP_DELTA_BLOCK. Attributes: ints 0, 1: heads, groups.

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
    return args.operands[b_OPERAND].rows;
}
int group_of(int head) {
    return head / (args.ints[0] / args.ints[1]);
}
// How many rows of its document come before row t.
int place(int t) {
    return args.operands[b_OPERAND].first_row + t -
           INDEX_first(row_address(args.operands[first_OPERAND], t, first_BYTES));
}
// Whether a block begins at row t of those that are there.
bool is_begin(int t) {
    return t == 0 || place(t) % BLOCK == 0;
}
REAL decay_of(int t, int head) {
    return LOAD_decay(row_address(args.operands[decay_OPERAND], t, decay_BYTES), head);
}
REAL dt_of(int t, int head) {
    return LOAD_dt(row_address(args.operands[dt_OPERAND], t, dt_BYTES), head);
}
uint64_t b_row(int t, int head) {
    return row_address(args.operands[b_OPERAND], t, b_BYTES) + uint64_t(group_of(head) * D_K * b_BYTES);
}
#ifdef c_OPERAND
uint64_t c_row(int t, int head) {
    return row_address(args.operands[c_OPERAND], t, c_BYTES) + uint64_t(group_of(head) * D_K * c_BYTES);
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
REAL x_of(int t, int head, int column) {
    return LOAD_x(row_address(args.operands[x_OPERAND], t, x_BYTES), head * D_V + column);
}
// The column behind row t: decays, and the row is added.
void advance_column(uint64_t state, int t, int head, int column) {
    uint64_t b = b_row(t, head);
    bool fresh = place(t) == 0;
    REAL factor = fresh ? REAL(0.0) : EXP(decay_of(t, head)), added = dt_of(t, head) * x_of(t, head, column);
    for (int i = 0; i < D_K; i++)
        STORE_WIDE(state, i * D_V, (fresh ? REAL(0.0) : LOAD_WIDE(state, i * D_V) * factor) + LOAD_b(b, i) * added);
}
