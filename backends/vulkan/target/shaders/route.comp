// route.comp: index[r, :] = the columns of the k largest of scores[r, :], the largest first. An invocation
// per row: each choice is the best of what comes behind the choice before it, so that nothing need be marked.

// Whether score a of column i comes before b of j: larger, what is no number last; of equal ones
// the lower column.
bool is_before(REAL a, int i, REAL b, int j) {
    bool a_is_nan = is_nan(a), b_is_nan = is_nan(b);
    if (a_is_nan || b_is_nan)
        return a_is_nan && b_is_nan ? i < j : b_is_nan;
    return a == b ? i < j : a > b;
}

void main() {
    Operand index = args.operands[index_OPERAND], scores = args.operands[scores_OPERAND];
    uint row, column;
    flat_position(1u, row, column);
    if (row >= uint(index.rows))
        return;
    uint64_t from = row_address(scores, int(row), scores_BYTES), to = row_address(index, int(row), index_BYTES);
    REAL last = REAL(0.0);
    int last_column = -1;
    for (int j = 0; j < index.cols; j++) {
        REAL best = REAL(0.0);
        int best_column = -1;
        for (int i = 0; i < scores.cols; i++) {
            REAL score = LOAD_scores(from, i);
            bool free = last_column < 0 || is_before(last, last_column, score, i);
            if (free && (best_column < 0 || is_before(score, i, best, best_column))) {
                best = score;
                best_column = i;
            }
        }
        M_i32(to).v[j] = best_column;
        last = best;
        last_column = best_column;
    }
}
