// expert_order.comp: pairs and bounds. A workgroup per expert; each of its invocations goes through as many
// slots in their order, twice: it counts those of lower experts and its own, then places its own behind those
// of the invocations before it.

shared int lower_of[LOCAL], own_of[LOCAL];

int expert_at(Operand index, int slot) {
    return M_i32(row_address(index, slot / index.cols, index_BYTES)).v[slot % index.cols];
}
void set_pair(Operand pairs, int at, int slot) {
    M_i32(row_address(pairs, at / pairs.cols, pairs_BYTES)).v[at % pairs.cols] = slot;
}

void main() {
    Operand pairs = args.operands[pairs_OPERAND], index = args.operands[index_OPERAND];
    int slots = index.rows * index.cols, experts = args.operands[bounds_OPERAND].cols - 1;
    int expert = int(group_number()), lane = int(LANE), share = (slots + int(LOCAL) - 1) / int(LOCAL);
    if (expert >= experts)
        return;
    int begin = min(lane * share, slots), end = min(begin + share, slots), lower = 0, own = 0;
    for (int slot = begin; slot < end; slot++) {
        int e = expert_at(index, slot);
        lower += e >= 0 && e < expert ? 1 : 0;
        own += e == expert ? 1 : 0;
    }
    lower_of[lane] = lower;
    own_of[lane] = own;
    barrier();
    int first = 0, all = 0, at = 0; // where this expert's begin, how many it has, those of invocations before
    for (int i = 0; i < int(LOCAL); i++) {
        first += lower_of[i];
        at += i < lane ? own_of[i] : 0;
        all += own_of[i];
    }
    at += first;
    for (int slot = begin; slot < end; slot++)
        if (expert_at(index, slot) == expert)
            set_pair(pairs, at++, slot);
    M_i32 bounds = M_i32(args.operands[bounds_OPERAND].address);
    if (lane == 0)
        bounds.v[expert] = first;
    if (expert + 1 < experts)
        return;
    if (lane == 0)
        bounds.v[experts] = first + all;
    for (int i = first + all + lane; i < slots; i += int(LOCAL)) // slots that go nowhere
        set_pair(pairs, i, -1);
}
