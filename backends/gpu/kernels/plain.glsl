// plain.glsl: how files of this folder are spelled in GLSL; comes before each. plain.cuh: the same in CUDA C.

#define u32 uint
#define u64 uint64_t
#define KERNEL(threads) void main()
#define IN(type) type
#define WITH_ARGS
#define ARGS
#define SHARED shared
#define BARRIER() barrier()
#define INT_AT(at, i) M_i32(at).v[i]

// What comes behind is done for each element of a matrix: an invocation has one.
#define EACH(row, column, rows, cols)         \
    uint row, column;                         \
    flat_position(uint(cols), row, column);   \
    if (row < uint(rows))

// Groups are launched in rows of 65535.
#define IS_SPARE(condition) (condition)

// A team is one invocation: subgroups have a size of the driver's.
#define TEAM 1
#define TEAMS LOCAL
#define IN_TEAM 0u

uint ballot(bool x) {
    return x ? 1u : 0u;
}
int votes(uint threads) {
    return int(threads);
}
int votes_before(uint threads) {
    return 0;
}
