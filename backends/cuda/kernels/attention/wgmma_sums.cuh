// wgmma_sums.cuh: where the sums of dq lie: in the scratch memory, behind what mma_bwd.cuh keeps there.
//
// Each (head, tile of 64 queries) has 64 D_QK numbers in the order of registers: group of 64 columns,
// register, thread. The first to add writes. Before them counters [heads][tiles] and the ticket, zeros at
// first, rounded up to 16 bytes.

struct Sums {
    float *sums;
    unsigned *counters, *ticket;
    int tiles; // of a head
    __device__ __forceinline__ long long number(int head, int tile) const { return (long long)head * tiles + tile; }
    __device__ __forceinline__ float *of(int head, int tile) const { return sums + number(head, tile) * (QUERIES * D_QK); }
};

__device__ __forceinline__ Sums sums_of(const Args &args, const Scratch &scratch) {
    int heads = args.ints[0];
    Sums at;
    at.tiles = (args.operands[Q].rows + QUERIES - 1) / QUERIES;
    at.counters = (unsigned *)(scratch.bounds + scratch.padded / QUERIES);
    at.ticket = at.counters + (long long)heads * at.tiles;
    at.sums = (float *)(at.counters + ((long long)heads * at.tiles + 4) / 4 * 4);
    return at;
}
