// expert_order.cu: pairs and bounds. A block per expert; each of its warps goes through as many slots in
// their order, twice: it counts those of lower experts and its own, then places its own behind those that the
// warps before it have.

enum { WARPS = 8 };
static __shared__ int lower_of[WARPS], own_of[WARPS];

DEVICE int expert_at(const Operand &index, int slot, int slots) {
    return slot < slots ? *at_element<const int>(row_address(index, slot / index.cols, 4), slot % index.cols) : -1;
}
DEVICE void set_pair(const Operand &pairs, int at, int slot) {
    *at_element<int>(row_address(pairs, at / pairs.cols, 4), at % pairs.cols) = slot;
}

KERNEL(32 * WARPS) {
    const Operand &pairs = args.operands[pairs_OPERAND], &index = args.operands[index_OPERAND];
    int slots = index.rows * index.cols, experts = args.operands[bounds_OPERAND].cols - 1;
    int expert = (int)group_number(), warp = LANE / 32, lane = LANE % 32;
    int share = ((slots + WARPS - 1) / WARPS + 31) / 32 * 32, begin = min(warp * share, slots);
    int end = min(begin + share, slots), lower = 0, own = 0;
    for (int slot = begin; slot < end; slot += 32) {
        int e = expert_at(index, slot + lane, end);
        lower += __popc(__ballot_sync(0xffffffffu, e >= 0 && e < expert));
        own += __popc(__ballot_sync(0xffffffffu, e == expert));
    }
    lower_of[warp] = lower;
    own_of[warp] = own;
    __syncthreads();
    int first = 0, all = 0, at = 0; // where this expert's begin, how many it has, those of warps before
    for (int w = 0; w < WARPS; w++) {
        first += lower_of[w];
        at += w < warp ? own_of[w] : 0;
        all += own_of[w];
    }
    at += first;
    for (int slot = begin; slot < end; slot += 32) {
        bool mine = expert_at(index, slot + lane, end) == expert;
        u32 others = __ballot_sync(0xffffffffu, mine);
        if (mine)
            set_pair(pairs, at + __popc(others & ((1u << lane) - 1u)), slot + lane);
        at += __popc(others);
    }
    u64 bounds = args.operands[bounds_OPERAND].address;
    if (LANE == 0)
        *at_element<int>(bounds, expert) = first;
    if (expert + 1 < experts)
        return;
    if (LANE == 0)
        *at_element<int>(bounds, experts) = first + all;
    for (int i = first + all + (int)LANE; i < slots; i += (int)LOCAL) // slots that go nowhere
        set_pair(pairs, i, -1);
}
