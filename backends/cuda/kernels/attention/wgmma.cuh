// wgmma.cuh: what the kernels of sm_90a are made of: boxes of global memory that TMA brings, barriers in
// shared memory that count their bytes, and products of a warpgroup (128 threads) by wgmma, whose operands
// lie in shared memory.
//
// A tile in shared memory is SLABS slabs of 64 columns, each rows of 128 bytes with the 128-byte swizzle;
// where a head is no multiple of 64, the columns behind it are zeros, and no product reads them. In a product
// of 64 rows each warp of the warpgroup has 16, as in mma.cuh.

struct __align__(128) TensorMap { // CUtensorMap; CUDA 13's guide asks for 128 bytes, its header for 64
    unsigned long long opaque[16];
};

// ---- barriers --------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(unsigned at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

// To be seen by TMA, after the barriers were made.
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned at) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(at) : "memory");
}

// One arrival for all of a warp.
__device__ __forceinline__ void barrier_arrive_warp(unsigned at, int lane) {
    __syncwarp();
    if (lane == 0)
        barrier_arrive(at);
}

// Arrives, and lets the phase last until `bytes` bytes have come.
__device__ __forceinline__ void barrier_expect(unsigned at, int bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(at), "r"(bytes)
                 : "memory");
}

// A wait of millions of tries, seconds, is a bug: with BOUNDED_WAITS (SBP_CUDA_DEBUG=waits) it ends the
// kernel, which the device then names; without, the kernel hangs (but for the warp that adds dq, which has
// registers for a bound). Tries and no clock, as that would cost registers that are not there.
#ifdef BOUNDED_WAITS
#define MOST_TRIES 4194304
__device__ __forceinline__ void barrier_wait(unsigned at, int parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 ".reg .u32 tries;\n"
                 "mov.u32 tries, 0;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "add.u32 tries, tries, 1;\n"
                 "setp.lt.u32 done, tries, %2;\n"
                 "@done bra again;\n"
                 "trap;\n"
                 "over:\n"
                 "}" ::"r"(at),
                 "r"(parity), "n"(MOST_TRIES)
                 : "memory");
}
#else
__device__ __forceinline__ void barrier_wait(unsigned at, int parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}
#endif

// Barriers of the block's own, by number: `threads` of those that arrive and those that wait.
__device__ __forceinline__ void turn_wait(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ void turn_pass(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- tiles -----------------------------------------------------------------------------------------------

// Maps of q, k, v and do have three dimensions: columns of a head, heads, rows; the box is 64 x 1
// x rows of a tile.
__device__ __forceinline__ void fetch_box(unsigned to, const TensorMap &map, int column, int head, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
                 "[%5];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(head), "r"(row), "r"(barrier)
                 : "memory");
}

template <int SIZE, int ROWS> struct Slabs {
    static constexpr int COUNT = (SIZE + 63) / 64, BYTES = COUNT * ROWS * 128;
    // By one thread; the barrier gets BYTES.
    static __device__ __forceinline__ void fetch(unsigned to, const TensorMap &map, int head, int row, unsigned barrier) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            fetch_box(to + i * ROWS * 128, map, 64 * i, head, row, barrier);
    }
};

// `bytes` in a row, both ends at multiples of 16.
__device__ __forceinline__ void fetch_bytes(unsigned to, const void *from, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

// How wgmma finds an operand. lead: bytes from 64 columns to the next, where columns are the outer dimension.
__device__ __forceinline__ unsigned long long descriptor(unsigned at, int lead) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(lead >> 4) << 16 | (unsigned long long)(1024 >> 4) << 32 |
           1ull << 62;
}

// The descriptor of step `step` (16 deep) of a tile whose columns are multiplied.
template <int ROWS> __device__ __forceinline__ unsigned long long columns_at(unsigned tile, int row, int step) {
    return descriptor(tile + step / 4 * (ROWS * 128) + row * 128 + step % 4 * 32, 16);
}

// The descriptor of step `step` (16 rows) of a tile whose rows are multiplied.
template <int ROWS> __device__ __forceinline__ unsigned long long rows_at(unsigned tile, int step) {
    return descriptor(tile + step * 2048, ROWS * 128);
}

// ---- products --------------------------------------------------------------------------------------------

// Before a product that reads or adds to registers written since the last one.
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most LEFT groups are still computed.
template <int LEFT> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define S1(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define S4(n) S1(n), S1(n + 1), S1(n + 2), S1(n + 3)

// d[64 x 8 N] (+)= a b^T: both in shared memory, columns multiplied. Without `add` what d held
// does not matter.
template <int N> __device__ __forceinline__ void product(float (&d)[N][4], unsigned long long a, unsigned long long b, int add);
// d[64 x 8 N] (+)= a^T b: both in shared memory, rows multiplied.
template <int N> __device__ __forceinline__ void product_rows(float (&d)[N][4], unsigned long long a, unsigned long long b, int add);
// d[64 x 8 N] += a b: a in registers, b in shared memory, its rows multiplied.
template <int N> __device__ __forceinline__ void product_packed(float (&d)[N][4], const unsigned (&a)[4], unsigned long long b);

template <> __device__ __forceinline__ void product<8>(float (&d)[8][4], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
         "%24, %25, %26, %27, %28, %29, %30, %31"
         "}, %32, %33, add, 1, 1, 0, 0; }"
         : S4(0), S4(4)
         : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void product_packed<8>(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
         "%24, %25, %26, %27, %28, %29, %30, %31"
         "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
         : S4(0), S4(4)
         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <> __device__ __forceinline__ void product_packed<10>(float (&d)[10][4], const unsigned (&a)[4], unsigned long long b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n80k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
         "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
         "}, {%40, %41, %42, %43}, %44, 1, 1, 1, 1;"
         : S4(0), S4(4), S1(8), S1(9)
         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <> __device__ __forceinline__ void product_packed<12>(float (&d)[12][4], const unsigned (&a)[4], unsigned long long b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
         "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
         "%46, %47"
         "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 1;"
         : S4(0), S4(4), S4(8)
         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <> __device__ __forceinline__ void product<16>(float (&d)[16][4], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
         "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
         "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
         "}, %64, %65, add, 1, 1, 0, 0; }"
         : S4(0), S4(4), S4(8), S4(12)
         : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void product_packed<16>(float (&d)[16][4], const unsigned (&a)[4], unsigned long long b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
         "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
         "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
         "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
         : S4(0), S4(4), S4(8), S4(12)
         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ __forceinline__ void product_rows<2>(float (&d)[2][4], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7"
         "}, %8, %9, add, 1, 1, 1, 1; }"
         : S1(0), S1(1)
         : "l"(a), "l"(b), "r"(add));
}

template <>
__device__ __forceinline__ void product_rows<4>(float (&d)[4][4], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
         "}, %16, %17, add, 1, 1, 1, 1; }"
         : S4(0)
         : "l"(a), "l"(b), "r"(add));
}

template <>
__device__ __forceinline__ void product_rows<8>(float (&d)[8][4], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." HALF "." HALF " {"
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
         "%24, %25, %26, %27, %28, %29, %30, %31"
         "}, %32, %33, add, 1, 1, 1, 1; }"
         : S4(0), S4(4)
         : "l"(a), "l"(b), "r"(add));
}
