// wgmma_sums.cuh: where the sums of dq lie: those of whole tiles in the operand `work` where there is one (fp32, dense, of
// heads D_QK columns or more), else all of them in the scratch memory, behind what mma_bwd.cuh keeps there.
//
// Of a (head, tile of 64 queries), 64 D_QK numbers in the order of registers: group of 64 columns, register, thread. The first
// to add writes. In the scratch memory: counters [heads][tiles] and the ticket, zeros at first, rounded up to 16 bytes; then the
// sums [heads][tiles, or 1 where the last tile alone is there].

struct Sums {
    float *work, *rest;
    unsigned *counters, *ticket;
    int tiles, in_work; // tiles of a head: all, and those in work
    __device__ __forceinline__ long long number(int head, int tile) const { return (long long)head * tiles + tile; }
    __device__ __forceinline__ float *of(int head, int tile) const {
        float *base = tile < in_work ? work : rest;
        int first = tile < in_work ? 0 : in_work, count = tile < in_work ? in_work : tiles - in_work;
        return base + ((long long)head * count + tile - first) * (QUERIES * D_QK);
    }
};

__device__ __forceinline__ Sums sums_of(const Args &args, const Scratch &scratch) {
    const Operand &work = args.operands[WORK];
    int heads = args.ints[0], rows = args.operands[Q].rows;
    bool usable = args.count > WORK && work.rows >= rows && work.stride == work.cols && work.cols >= heads * D_QK;
    Sums at;
    at.tiles = (rows + QUERIES - 1) / QUERIES;
    at.in_work = usable ? rows / QUERIES : 0;
    at.work = (float *)work.address;
    at.counters = (unsigned *)(scratch.bounds + scratch.padded / QUERIES);
    at.ticket = at.counters + (long long)heads * at.tiles;
    at.rest = (float *)(at.counters + ((long long)heads * at.tiles + 4) / 4 * 4);
    return at;
}
