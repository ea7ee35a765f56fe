// plain.cuh: how files of this folder are spelled in CUDA C; comes before each. plain.glsl: the same in GLSL.
#include "own.cuh"

#define IN(type) const type &
#define SHARED static __shared__
#define BARRIER() __syncthreads()
#define INT_AT(at, i) (*at_element<int>(at, i)) // element i of the integers at an address

// The argument record, in a function that is not the kernel: first of what it takes, and of what it is given.
#define WITH_ARGS const Args &args,
#define ARGS args,

// What comes behind is done for each element of a matrix.
#define EACH(row, column, rows, cols) FOR_OWN(row, column, rows, cols, 1)

// Whether a group is beyond the last that there is work for: launches have none.
#define IS_SPARE(condition) false

// A team: threads that find something together. TEAMS: those of a block of 256 threads.
#define TEAM 32
#define TEAMS 8
#define IN_TEAM (LANE % TEAM)

// The threads of the team for which x holds; how many threads that is, how many of them are before this one.
DEVICE u32 ballot(bool x) {
    return __ballot_sync(0xffffffffu, x);
}
DEVICE int votes(u32 threads) {
    return __popc(threads);
}
DEVICE int votes_before(u32 threads) {
    return __popc(threads & ((1u << IN_TEAM) - 1u));
}
