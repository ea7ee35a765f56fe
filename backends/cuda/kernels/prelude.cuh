// prelude.cuh: begins every kernel: the argument record of backends/gpu/gpu.h in CUDA C, and where
// a thread stands.
//
// Comes after these definitions, made from the record of the host (target/text.c), so that a difference does
// not compile: ARGS_BYTES, ARGS_OPERANDS, ARGS_INTS, ARGS_FLOATS, ARGS_DOUBLES, ARGS_KEYS, OPERAND_BYTES. No
// header is included: NVRTC finds none.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct Operand {
    u64 address; // of element (0, 0); 0 when absent
    int rows, cols, stride, first_row;
};

struct Args {
    u64 scratch;
    i64 row0;
    int rows, count;
    int ints[10];
    float floats[16];
    double doubles[16];
    u32 keys[32];
    Operand operands[24];
};

static_assert(sizeof(Args) == ARGS_BYTES && sizeof(Operand) == OPERAND_BYTES, "the record has its size");
#define OFFSET(member) __INTADDR__(&((Args *)0)->member) // offsetof, as CUDA's own header has it
static_assert(OFFSET(ints) == ARGS_INTS && OFFSET(floats) == ARGS_FLOATS && OFFSET(doubles) == ARGS_DOUBLES &&
                  OFFSET(keys) == ARGS_KEYS && OFFSET(operands) == ARGS_OPERANDS,
              "the record has its layout");

// A kernel with blocks of `threads` threads. `blocks`: how many of them share a processor at least, which
// decides how many registers there are.
#define KERNEL_OF(threads, blocks)                                                                                          \
    extern "C" __global__ void __launch_bounds__(threads, blocks) kernel(const __grid_constant__ Args args)
#define KERNEL(threads) KERNEL_OF(threads, 1)
#define DEVICE __device__ __forceinline__
#define INOUT(type) type &

// Number of this thread in its block, threads of the block, number of the block: one dimension each.
#define LANE threadIdx.x
#define LOCAL blockDim.x

DEVICE u32 group_number() {
    return blockIdx.x;
}

DEVICE u64 row_address(const Operand &o, int row, int bytes) {
    return o.address + (u64)row * (u64)o.stride * (u64)bytes;
}
