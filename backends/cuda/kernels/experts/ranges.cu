// ranges.cu: step 0 of the products of experts: which pairs an expert has, and tiles of TILE of them
// (experts.cuh). One block. An expert whose bounds or pairs are not in range has none. That pairs are in
// range is looked at for all at once; only where one is not, each expert's are.

enum { WARPS = 32 };
static __shared__ int tiles_of[WARPS];

KERNEL(32 * WARPS) {
    const Operand &pairs = args.operands[pairs_OPERAND];
    const int *bounds = at_element<const int>(args.operands[bounds_OPERAND].address, 0);
    const Ranges ranges(args);
    int slots = pairs.rows * pairs.cols, lane = LANE % 32, before = 0;
    bool any_bad = false;
    for (int i = (int)LANE; i < slots; i += (int)LOCAL)
        any_bad |= (u32)pair_at(pairs, i) >= (u32)slots;
    any_bad = __syncthreads_or(any_bad);
    for (int first = 0; first < ranges.experts; first += (int)LOCAL) {
        int expert = first + (int)LANE, begin = 0, end = 0;
        if (expert < ranges.experts) {
            begin = bounds[expert];
            end = bounds[expert + 1];
        }
        bool bad = begin < 0 || end > slots || end < begin;
        for (int i = begin; any_bad && i < end && !bad; i++)
            bad = (u32)pair_at(pairs, i) >= (u32)slots;
        int count = bad ? 0 : end - begin, tiles = (count + TILE - 1) / TILE, sum = tiles;
        for (int distance = 1; distance < 32; distance *= 2) {
            int more = __shfl_up_sync(0xffffffffu, sum, distance);
            sum += lane >= distance ? more : 0;
        }
        if (lane == 31)
            tiles_of[LANE / 32] = sum;
        __syncthreads();
        int all = 0;
        for (u32 warp = 0; warp < WARPS; warp++) {
            sum += warp < LANE / 32 ? tiles_of[warp] : 0;
            all += tiles_of[warp];
        }
        if (expert < ranges.experts) {
            ranges.begin[expert] = begin;
            ranges.count[expert] = count;
            ranges.tiles[expert] = before + sum - tiles;
        }
        before += all;
        __syncthreads(); // tiles_of is read
    }
    if (LANE == 0)
        ranges.tiles[ranges.experts] = before;
}
