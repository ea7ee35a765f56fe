// wgmma_sums.cuh: where the sums of dq lie in the scratch memory, behind what mma_bwd.cuh keeps there; all zeros at first.
//
// Of a (head, tile of 64 queries), 64 D_QK numbers in the order of registers: group of 64 columns, register, thread.

struct Sums {
    float *dq;                  // [heads][PADDED / 64][64 D_QK]
    unsigned *counters, *ticket; // [heads][PADDED / 64]; one
    int tiles;
    __device__ __forceinline__ long long number(int head, int tile) const { return (long long)head * tiles + tile; }
};

__device__ __forceinline__ Sums sums_of(const Args &args, const Scratch &scratch) {
    Sums at;
    at.tiles = scratch.padded / QUERIES;
    at.dq = (float *)(scratch.bounds + at.tiles);
    at.counters = (unsigned *)(at.dq + (long long)args.ints[0] * at.tiles * (QUERIES * D_QK));
    at.ticket = at.counters + (long long)args.ints[0] * at.tiles;
    return at;
}
