// route.cu: index[r, :] = the columns of the k largest of scores[r, :], the largest first. A warp per row:
// each choice is the best of what comes behind the choice before it, so that nothing need be marked. What
// comes first is told by score and column alone: no two are equal, and the same ones are chosen in any order
// of work.

struct Choice {
    REAL score;
    int column; // -1: none
};

// Whether a comes before b: larger, what is no number last; of equal ones the lower column.
DEVICE bool is_before(const Choice &a, const Choice &b) {
    if (is_nan(a.score) || is_nan(b.score))
        return is_nan(a.score) && is_nan(b.score) ? a.column < b.column : is_nan(b.score);
    return a.score == b.score ? a.column < b.column : a.score > b.score;
}

KERNEL(256) {
    const Operand &index = args.operands[index_OPERAND], &scores = args.operands[scores_OPERAND];
    u32 row = group_number() * (LOCAL / 32) + LANE / 32;
    if (row >= (u32)index.rows)
        return;
    u64 from = row_address(scores, row, scores_BYTES);
    Choice last = {0, -1};
    for (int j = 0; j < index.cols; j++) {
        Choice best = {0, -1};
        for (int column = LANE % 32; column < scores.cols; column += 32) {
            Choice next = {LOAD_scores(from, column), column};
            if ((last.column < 0 || is_before(last, next)) && (best.column < 0 || is_before(next, best)))
                best = next;
        }
        for (int distance = 16; distance > 0; distance /= 2) {
            Choice other = {__shfl_xor_sync(0xffffffffu, best.score, distance),
                            __shfl_xor_sync(0xffffffffu, best.column, distance)};
            if (other.column >= 0 && (best.column < 0 || is_before(other, best)))
                best = other;
        }
        if (LANE % 32 == 0)
            *at_element<int>(row_address(index, row, index_BYTES), j) = best.column;
        last = best;
    }
}
