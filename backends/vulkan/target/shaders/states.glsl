// states.glsl: what shaders share that keep a matrix for each head: delta_rule and its gradient.
// Blocks of rows, heads, columns of a matrix.
//
// D_K, D_V: columns of a head; BLOCK: SBP_DELTA_BLOCK; CORRECTS: 1: a row adds what the matrix lacks of it,
// 0: all of it.
// Attributes: ints 0, 1: heads, key_heads.

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

// Where a column of a head's matrix begins in memory that has all heads'; its elements are D_V apart.
uint64_t column_at(uint64_t states, int head, int column) {
    return states + uint64_t(head * STATE + column) * uint64_t(WIDE_BYTES);
}
void copy_column(uint64_t to, uint64_t from) {
    for (int i = 0; i < D_K; i++)
        STORE_WIDE(to, i * D_V, LOAD_WIDE(from, i * D_V));
}
