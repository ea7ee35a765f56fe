// expert_ranges.comp: step 0 of the products of experts: which pairs an expert has. A workgroup per expert.
// One whose bounds or pairs are not in range has none.
#include "experts.glsl"

shared int bad_of[LOCAL];

void main() {
    Operand pairs = args.operands[pairs_OPERAND];
    M_i32 bounds = M_i32(args.operands[bounds_OPERAND].address);
    int expert = int(group_number()), slots = pairs.rows * pairs.cols;
    if (expert >= experts())
        return;
    int begin = bounds.v[expert], end = bounds.v[expert + 1], bad = 0;
    if (begin < 0 || end > slots || end < begin)
        end = begin;
    for (int i = begin + int(LANE); i < end; i += int(LOCAL)) {
        int pair = pair_at(i);
        bad |= pair < 0 || pair >= slots ? 1 : 0;
    }
    bad_of[LANE] = bad;
    barrier();
    if (LANE != 0u)
        return;
    for (uint i = 0u; i < LOCAL; i++)
        bad |= bad_of[i];
    M_i32(args.scratch).v[expert] = begin;
    M_i32(args.scratch).v[experts() + expert] = bad != 0 ? 0 : end - begin;
}
