// experts.cuh: what the products of experts share: which slots an expert has. Step 0 (ranges.cu) leaves that
// in scratch memory.

// Numbers of one per expert each: where its pairs begin, how many it has, how many tiles of rows the experts
// before it have; behind the last of those, how many all have.
struct Ranges {
    int *begin, *count, *tiles;
    int experts;

    __device__ explicit Ranges(const Args &args) {
        experts = args.operands[bounds_OPERAND].cols - 1;
        begin = at_element<int>(args.scratch, 0);
        count = begin + experts;
        tiles = count + experts;
    }
    // The expert that has this tile of rows: the last of those before which there are no more.
    DEVICE int expert_of(int tile) const {
        int low = 0, high = experts;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (tiles[middle] <= tile)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};

DEVICE int pair_at(const Operand &pairs, int i) {
    return *at_element<const int>(row_address(pairs, i / pairs.cols, 4), i % pairs.cols);
}
