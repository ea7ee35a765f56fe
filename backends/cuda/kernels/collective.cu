// collective.cu: a slice of a rank's share becomes the sum of that slice over all ranks, or has it added
// (ADDS): what this rank has, and what arrived of the others, theirs in the order of their numbers, one slice
// behind the other (scratch). Added along a tree over rank numbers that is always the same
// (backends/ranks/ranks.h): eight at a time, which are loaded at once, then these sums as a binary counter
// counts. ints: this rank, how many there are.

enum { GROUP_RANKS = 8, LEVELS = 20 };

KERNEL(256) {
    const Operand &dst = args.operands[dst_OPERAND], &src = args.operands[src_OPERAND];
    const int me = args.ints[0], count = args.ints[1];
    const u64 elems = (u64)dst.rows * (u64)dst.cols;
    for (u64 at = (u64)group_number() * LOCAL + LANE; at < elems; at += (u64)gridDim.x * LOCAL) {
        const int row = dst.rows > 1 ? (int)(at / (u64)dst.cols) : 0;
        const int column = (int)(at - (u64)row * (u64)dst.cols);
        const u64 to = row_address(dst, row, dst_BYTES), own = row_address(src, row, src_BYTES);
        REAL sums[LEVELS];
#pragma unroll
        for (int level = 0; level < LEVELS; level++)
            sums[level] = (REAL)0.0;
        for (int first = 0, group = 0; first < count; first += GROUP_RANKS, group++) {
            REAL x[GROUP_RANKS];
#pragma unroll
            for (int i = 0; i < GROUP_RANKS; i++) {
                int rank = first + i;
                u64 from = args.scratch + (u64)(rank - (rank > me)) * (u64)args.row0 * (u64)src_BYTES;
                x[i] = (REAL)0.0;
                if (rank < count)
                    x[i] = rank == me ? LOAD_src(own, column) : LOAD_src(from, (int)at);
            }
#pragma unroll
            for (int step = 1; step < GROUP_RANKS; step *= 2)
#pragma unroll
                for (int i = 0; i + step < GROUP_RANKS; i += 2 * step)
                    if (first + i + step < count)
                        x[i] += x[i + step];
            bool carry = true;
#pragma unroll
            for (int level = 0; level < LEVELS; level++) {
                bool full = group >> level & 1;
                if (carry && full)
                    x[0] = sums[level] + x[0];
                else if (carry)
                    sums[level] = x[0];
                carry = carry && full;
            }
        }
        int groups = (count + GROUP_RANKS - 1) / GROUP_RANKS;
        bool some = false;
        REAL sum = (REAL)0.0;
#pragma unroll
        for (int level = 0; level < LEVELS; level++)
            if (groups >> level & 1) {
                sum = some ? sums[level] + sum : sums[level];
                some = true;
            }
#ifdef ADDS
        sum = LOAD_dst(to, column) + sum;
#endif
        STORE_dst(to, column, sum);
    }
}
