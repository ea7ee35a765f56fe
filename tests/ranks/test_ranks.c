/* test_ranks.c: collectives of 1 to 16 processes, started by mpirun, on one host and as on several: every
 * element of every rank bit for bit against the tree written out here, bytes against those counted here,
 * piece by piece; heads for rows and back, beside sums on another thread; a rank that hangs or is gone is
 * named in time.
 *
 * The program is its own worker: `test_ranks worker CASE` is one rank. */
#include "backends/ranks/ranks.h"
#include "ir/program/collective_steps.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/common/sweep.h"
#include "tests/common/traffic.h"
#include <cmocka.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "rank %d: %s:%d: %s\n", (int)info.rank, __FILE__, __LINE__, #condition);         \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* MPI leaves memory behind, in plugins that are gone when AddressSanitizer tells of it. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

static sbp_ranks *ranks;
static sbp_ranks_info info;
static sbp_diag *diag;

/* The first element of a member's share, in the groups that there are now. */
static int64_t share_begins(int64_t elems, int32_t member) {
    sbp_ranks_info now;
    sbp_ranks_info_of(ranks, &now);
    const sbp_process_group pg = sbp_pg_of_neighbours(now.rank, now.group, now.node);
    return sbp_pg_begin(&pg, elems, member);
}

/* What rank p has at i: of many sizes, so that the order of additions shows. */
static double number(int32_t p, int64_t i, uint64_t seed) {
    uint64_t x = (uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)p * 0xBF58476D1CE4E5B9u + seed;
    x ^= x >> 31;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 29;
    return ldexp((double)(int64_t)(x >> 20) / 0x1p43 - 1, (int)(x & 15) - 8);
}

/* Sum of ranks [begin, end) at i, as the tree over rank numbers says: at the largest power of two below. */
static double tree(int32_t begin, int32_t end, int64_t i, uint64_t seed, sbp_dtype dtype) {
    int32_t half = 1;
    if (end - begin == 1)
        return sbp_round_to(dtype, number(begin, i, seed));
    while (half * 2 < end - begin)
        half *= 2;
    double a = tree(begin, begin + half, i, seed, dtype), b = tree(begin + half, end, i, seed, dtype);
    return dtype == SBP_F64 ? a + b : (double)((float)a + (float)b);
}

static void fill(void *data, int64_t elems, sbp_dtype dtype, uint64_t seed) {
    for (int64_t i = 0; i < elems; i++)
        sbp_element_set(data, dtype, i, number(info.rank, i, seed));
}

static sbp_status sum(sbp_collective_op op, void *dst, sbp_dtype to, const void *src, int64_t elems,
                      sbp_dtype from) {
    const sbp_collective_call call = {.op = op, .elems = elems, .to = to, .from = from};
    return sbp_ranks_collective(ranks, &call, dst, src, diag);
}

static sbp_status turn(sbp_ranks *context, sbp_collective_op op, void *dst, const void *src, int64_t rows,
                       const sbp_context_heads *heads, sbp_dtype dtype) {
    const sbp_collective_call call = {.op = op, .to = dtype, .from = dtype, .rows = rows, .heads = *heads};
    return sbp_ranks_collective(context, &call, dst, src, diag);
}

/* ---- bytes ------------------------------------------------------------------------------------------ */

static process_group group_of(int32_t first, int32_t stride, int32_t count) {
    return traffic_group(info.count, info.node, info.rank, first, stride, count);
}

/* Traffic of a sum of shares: over a group, then across groups. */
static traffic traffic_of_sum(int64_t elems, sbp_dtype dtype) {
    process_group own = group_of(info.rank - info.member, 1, info.group),
                  others = group_of(info.member, info.group, info.count / info.group);
    int64_t unit = sbp_dtype_bytes(dtype), wide = dtype == SBP_F64 ? 8 : 4;
    int64_t mine = traffic_share(&own, elems, own.me), rest = mine % others.count;
    traffic out = {0};
    traffic_of_sums(&out, &own, elems, unit, wide);
    traffic_of_sums(&out, &others, mine - rest, wide, wide);
    traffic_of_sums(&out, &others, rest, wide, wide);
    traffic_of_shares(&out, &others, mine - rest, wide);
    traffic_of_shares(&out, &others, rest, wide);
    return out;
}

/* Since `before`. */
static bool has_sent(const sbp_ranks_info *before, const traffic *want) {
    sbp_ranks_info after;
    sbp_ranks_info_of(ranks, &after);
    int64_t sent = after.sent_bytes - before->sent_bytes, away = after.away_bytes - before->away_bytes;
    if (sent == want->sent && away == want->away)
        return true;
    fprintf(stderr, "rank %d of %d, hosts of %d, groups of %d: sent %lld, %lld away; should %lld, %lld\n",
            (int)info.rank, (int)info.count, (int)info.node, (int)info.group, (long long)sent,
            (long long)away, (long long)want->sent, (long long)want->away);
    return false;
}

/* ---- sums ------------------------------------------------------------------------------------------- */

static void try_sums(int64_t elems, sbp_dtype dtype, uint64_t seed) {
    void *data = malloc((size_t)(elems * sbp_dtype_bytes(dtype)) + 1);
    int64_t begin = share_begins(elems, info.rank), end = share_begins(elems, info.rank + 1);
    sbp_ranks_info before, after;
    const process_group all = group_of(0, 1, info.count);
    int64_t unit = sbp_dtype_bytes(dtype), wide = dtype == SBP_F64 ? 8 : 4;
    traffic want = {0};
    CHECK(data && begin >= 0 && begin <= end && end <= elems);
    CHECK(info.rank < info.count - 1 || end == elems);
    fill(data, elems, dtype, seed);
    sbp_ranks_info_of(ranks, &before);
    CHECK(sbp_ranks_all_reduce(ranks, data, elems, dtype, diag) == SBP_OK);
    sbp_ranks_info_of(ranks, &after);
    for (int64_t i = 0; i < elems; i++)
        CHECK(sbp_element_get(data, dtype, i) == sbp_round_to(dtype, tree(0, info.count, i, seed, dtype)));
    traffic_of_sums(&want, &all, elems, unit, wide);
    traffic_of_shares(&want, &all, elems, unit);
    CHECK(has_sent(&before, &want));
    if (unit == wide &&
        elems % info.count == 0) { /* a ring's bytes in all, and between hosts where two's powers */
        int64_t each = elems / info.count * unit;
        CHECK(want.sent == 2 * (info.count - 1) * each);
        CHECK(after.received_bytes - before.received_bytes == want.sent);
        CHECK((info.node & (info.node - 1)) != 0 || want.away == 2 * (info.count / info.node - 1) * each);
    }
    fill(data, elems, dtype, seed + 1);
    void *share = malloc((size_t)((end - begin) * sbp_dtype_bytes(dtype)) + 1);
    CHECK(share && sum(SBP_REDUCE_SCATTER, share, dtype, data, elems, dtype) == SBP_OK);
    for (int64_t i = 0; i < elems; i++) {
        CHECK(sbp_element_get(data, dtype, i) == sbp_round_to(dtype, number(info.rank, i, seed + 1)));
        if (i >= begin && i < end)
            CHECK(sbp_element_get(share, dtype, i - begin) ==
                  sbp_round_to(dtype, tree(0, info.count, i, seed + 1, dtype)));
    }
    free(share);
    want = traffic_of_sum(elems, dtype);
    CHECK(has_sent(&after, &want));
    free(data);
}

/* What moves and is not added: of any type, with every rank as root. */
static void try_moves(int64_t elems, sbp_dtype dtype, uint64_t seed) {
    unsigned char *data = malloc((size_t)(elems * sbp_dtype_bytes(dtype)) + 1);
    int64_t bytes = sbp_dtype_bytes(dtype);
    CHECK(data);
    for (int32_t root = 0; root < info.count; root++) {
        for (int64_t i = 0; i < elems * bytes; i++)
            data[i] = (unsigned char)(i * 7 + info.rank * 31 + (int64_t)seed);
        CHECK(sbp_ranks_broadcast(ranks, data, elems, dtype, root, diag) == SBP_OK);
        for (int64_t i = 0; i < elems * bytes; i++)
            CHECK(data[i] == (unsigned char)(i * 7 + root * 31 + (int64_t)seed));
    }
    for (int64_t i = 0; i < elems * bytes; i++)
        data[i] = (unsigned char)(i * 5 + info.rank * 17);
    int64_t begin = share_begins(elems, info.rank) * bytes,
            size = share_begins(elems, info.rank + 1) * bytes - begin;
    unsigned char *share = malloc((size_t)size + 1); /* where the data have it, and elsewhere */
    CHECK(share);
    memcpy(share, data + begin, (size_t)size);
    if (seed % 2)
        memset(data + begin, 0, (size_t)size);
    sbp_ranks_info before;
    sbp_ranks_info_of(ranks, &before);
    CHECK(sbp_ranks_all_gather(ranks, data, seed % 2 ? share : data + begin, elems, dtype, diag) == SBP_OK);
    traffic want = {0};
    const process_group t = group_of(0, 1, info.count);
    traffic_of_shares(&want, &t, elems, bytes);
    CHECK(has_sent(&before, &want));
    free(share);
    for (int32_t p = 0; p < info.count; p++)
        for (int64_t i = share_begins(elems, p) * bytes; i < share_begins(elems, p + 1) * bytes; i++)
            CHECK(data[i] == (unsigned char)(i * 5 + p * 17));
    free(data);
}

/* Sum of all groups at i, as the tree says: of each group, then of the groups. */
static double group_tree(int32_t begin, int32_t end, int64_t i, uint64_t seed, sbp_dtype dtype) {
    int32_t half = 1, size = info.group;
    if (end - begin == 1)
        return tree(begin * size, end * size, i, seed, dtype);
    while (half * 2 < end - begin)
        half *= 2;
    double a = group_tree(begin, begin + half, i, seed, dtype),
           b = group_tree(begin + half, end, i, seed, dtype);
    return dtype == SBP_F64 ? a + b : (double)((float)a + (float)b);
}

/* The same shares in every group: sums over all ranks, gathers and group_reduce among a group; bytes of rank
 * 0 are those of the formula. */
static void try_groups(int64_t elems, sbp_dtype dtype, uint64_t seed) {
    int64_t begin = share_begins(elems, info.member), count = share_begins(elems, info.member + 1) - begin;
    size_t bytes = (size_t)(elems * sbp_dtype_bytes(dtype)) + 1;
    void *data = malloc(bytes), *all = malloc(bytes);
    double *share = calloc((size_t)count + 1, sizeof *share);
    int32_t first = info.rank - info.member, groups = info.count / info.group;
    sbp_ranks_info before;
    CHECK(data && all && share);
    fill(data, elems, dtype, seed);
    sbp_ranks_info_of(ranks, &before);
    CHECK(sum(SBP_REDUCE_ADD, share, SBP_F64, data, elems, dtype) == SBP_OK);
    traffic want = traffic_of_sum(elems, dtype);
    const sbp_collective_call call = {.op = SBP_REDUCE_ADD,
                                      .world = {info.rank, info.count, info.group, 1, info.node},
                                      .elems = elems,
                                      .to = dtype,
                                      .from = dtype};
    sbp_sent planned = sbp_collective_sent(&call);
    CHECK(has_sent(&before, &want));
    CHECK(planned.bytes == want.sent && planned.away == want.away);
    for (int64_t i = 0; i < count; i++) {
        double sum = group_tree(0, groups, begin + i, seed, dtype);
        CHECK(share[i] == sum);
        if ((info.group & (info.group - 1)) == 0) /* the tree over all ranks */
            CHECK(sum == tree(0, info.count, begin + i, seed, dtype));
    }
    void *own = (char *)data + begin * sbp_dtype_bytes(dtype);
    CHECK(sum(SBP_REDUCE_SCATTER, own, dtype, data, elems, dtype) == SBP_OK);
    CHECK(sbp_ranks_all_gather(ranks, all, own, elems, dtype, diag) == SBP_OK);
    for (int64_t i = 0; i < elems; i++)
        CHECK(sbp_element_get(all, dtype, i) == sbp_round_to(dtype, group_tree(0, groups, i, seed, dtype)));
    fill(data, elems, dtype, seed + 3);
    CHECK(sum(SBP_GROUP_REDUCE, data, dtype, data, elems, dtype) == SBP_OK);
    for (int64_t i = 0; i < elems; i++)
        CHECK(sbp_element_get(data, dtype, i) ==
              sbp_round_to(dtype, tree(first, first + info.group, i, seed + 3, dtype)));
    free(data);
    free(all);
    free(share);
}

/* ---- heads ------------------------------------------------------------------------------------------ */

typedef struct beside {
    int rounds;
    bool good;
} beside;

/* Sums of all ranks, on another thread, while a context exchanges heads. */
static void *sum_beside(void *user) {
    beside *b = user;
    sbp_diag *own = sbp_diag_create();
    b->good = own != NULL;
    for (int k = 0; k < b->rounds && b->good; k++) {
        double x[5] = {k, 1, info.rank, -k, 2};
        b->good = sbp_ranks_all_reduce(ranks, x, 5, SBP_F64, own) == SBP_OK &&
                  x[0] == (double)k * info.count && x[2] == info.count * (info.count - 1) / 2.0;
    }
    sbp_diag_destroy(own);
    return NULL;
}

/* Both ways, of heads that do and do not go into the ranks: every number where ir/base/context.h says, zeros
 * in slots without a head, sums of copies. */
static void try_heads(sbp_ranks *context, int32_t size, int64_t rows, const sbp_context_heads *heads,
                      sbp_dtype dtype, uint64_t seed) {
    int64_t n = sbp_context_count(heads), slots = sbp_context_slots(heads, size), d = heads->dim;
    int32_t me = info.rank % size, first = info.rank - me;
    size_t bytes = (size_t)sbp_dtype_bytes(dtype);
    void *own = malloc((size_t)(rows * n * d) * bytes + 1),
         *all = malloc((size_t)(size * rows * slots * d) * bytes + 1);
    sbp_ranks_info before, after;
    CHECK(own && all);
    fill(own, rows * n * d, dtype, seed);
    sbp_ranks_info_of(context, &before);
    CHECK(turn(context, SBP_TO_HEADS, all, own, rows, heads, dtype) == SBP_OK);
    sbp_ranks_info_of(context, &after);
    CHECK(after.sent_bytes - before.sent_bytes == (size - 1) * rows * slots * d * (int64_t)bytes);
    for (int64_t r = 0; r < size * rows; r++)
        for (int64_t k = 0; k < slots * d; k++) {
            int64_t head = sbp_context_head(heads, size, me * slots + k / d);
            int64_t at = (r % rows * n + head) * d + k % d;
            double want = head < 0 ? 0 : sbp_round_to(dtype, number(first + (int32_t)(r / rows), at, seed));
            CHECK(sbp_element_get(all, dtype, r * slots * d + k) == want);
        }
    for (int64_t i = 0; i < size * rows * slots * d; i++) /* also where there is no head: it goes nowhere */
        sbp_element_set(all, dtype, i, number(info.rank, i, seed + 1));
    CHECK(turn(context, SBP_TO_ROWS, own, all, rows, heads, dtype) == SBP_OK);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < n * d; k++) {
            double sum = 0;
            int copies = 0;
            for (int64_t slot = 0; slot < size * slots; slot++)
                if (sbp_context_head(heads, size, slot) == k / d) {
                    int64_t at = ((me * rows + r) * slots + slot % slots) * d + k % d;
                    double x = sbp_round_to(dtype, number(first + (int32_t)(slot / slots), at, seed + 1));
                    sum = dtype == SBP_F64 ? sum + x : (double)((float)sum + (float)x);
                    copies++;
                }
            CHECK(copies > 0 && (heads->keys || copies == 1));
            CHECK(sbp_element_get(own, dtype, r * n * d + k) == sbp_round_to(dtype, sum));
        }
    free(own);
    free(all);
}

static int work_heads(void) {
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_BF16, SBP_F64};
    static const int64_t shapes[][2] = {{4, 2}, {6, 3}, {3, 1}, {8, 8}, {2, 1}, {5, 5}};
    for (int32_t size = 2; size <= info.count; size++) {
        sbp_ranks *context;
        pthread_t thread;
        beside b = {.rounds = 200};
        if (info.count % size != 0)
            continue;
        CHECK(sbp_ranks_context(ranks, size, diag, &context) == SBP_OK);
        CHECK(pthread_create(&thread, NULL, sum_beside, &b) == 0);
        for (int i = 0; i < SBP_COUNT(shapes) * 2; i++) {
            sbp_context_heads heads = {shapes[i / 2][0], shapes[i / 2][1], 1 + i, i % 2 == 1};
            try_heads(context, size, 1 + i * 3, &heads, dtypes[i % SBP_COUNT(dtypes)], (uint64_t)i);
        }
        sbp_context_heads wide = {8, 4, 128, false}; /* more than the workspace takes at once */
        try_heads(context, size, 700, &wide, SBP_F64, 9);
        CHECK(pthread_join(thread, NULL) == 0 && b.good);
        double x = info.rank;
        CHECK(sbp_ranks_all_gather(context, (double[8]){0}, &x, size, SBP_F64, diag) == SBP_OK);
        sbp_ranks_leave(context);
    }
    return 0;
}

static int divide(int32_t group) {
    CHECK(sbp_ranks_divide(ranks, group, diag) == SBP_OK);
    sbp_ranks_info_of(ranks, &info);
    CHECK(info.group == group && info.member == info.rank % group);
    return 0;
}

static int work_sums(void) {
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_F64, SBP_BF16, SBP_F16};
    uint64_t draw = 12345;
    CHECK(info.local_count == info.count && info.local_rank == info.rank && info.node == info.count);
    for (int i = 0; i < 24; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        int64_t elems = i < 12 ? i : (int64_t)(draw >> 33) % 2000;
        try_sums(elems, dtypes[i % SBP_COUNT(dtypes)], draw);
        try_moves(elems, i % 3 == 0 ? SBP_I32 : i % 3 == 1 ? SBP_BF16 : SBP_F64, draw);
    }
    if (info.count == 3) {
        try_sums(1700007, SBP_F32, 1); /* more than the workspace takes at once */
        try_sums(830003, SBP_F64, 2);
    }
    for (int32_t group = 1; group <= info.count; group++) {
        if (info.count % group != 0) {
            CHECK(sbp_ranks_divide(ranks, group, diag) == SBP_INPUT);
            continue;
        }
        divide(group);
        for (int i = 0; i < 8; i++)
            try_groups(i < 4 ? i * 3 : 997 * i, dtypes[i % SBP_COUNT(dtypes)], draw + (uint64_t)i);
        if (info.count == 4 && group == 2)
            try_groups(1100011, SBP_BF16, draw);
    }
    float x = 1;
    CHECK(sbp_ranks_all_reduce(ranks, &x, 1, SBP_I32, diag) == (info.count > 1 ? SBP_INTERNAL : SBP_OK));
    return 0;
}

/* As on hosts of SBP_TEST_NODE ranks each: drawn sizes of all types in all groups. */
static int work_hosts(void) {
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_BF16, SBP_F64, SBP_F16};
    const int draws = testing_all() ? 40 : 6;
    uint64_t draw = 4711;
    CHECK(info.node == atoi(getenv("SBP_TEST_NODE")));
    for (int32_t group = info.count; group >= 1; group--) {
        if (info.count % group != 0)
            continue;
        divide(group);
        for (int i = 0; i < draws; i++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            int64_t elems = (int64_t)(draw >> 33) % (i % 2 ? 1500 : 2 * info.count);
            sbp_dtype dtype = dtypes[(draw >> 20) % SBP_COUNT(dtypes)];
            try_groups(i == 0 ? 64 * info.count : elems, dtype, draw);
            if (group < info.count)
                continue;
            try_sums(i == 0 ? 64 * info.count : elems, dtype, draw);
            try_moves(elems, dtype, draw);
        }
        /* more than the workspace takes at once */
        if (info.count == 8 && group >= 2)
            try_groups(300011, group == 8 ? SBP_BF16 : group == 4 ? SBP_F32 : SBP_F64, draw);
    }
    return 0;
}

/* Rank 1 does not come; the others say so. */
static int work_hang(void) {
    float x[8] = {0};
    if (info.rank == 1)
        sleep(1000); /* longer than anybody waits */
    CHECK(sbp_ranks_all_reduce(ranks, x, 8, SBP_F32, diag) == SBP_MACHINE);
    if (info.rank == 0)
        fprintf(stderr, "%s", sbp_diag_text(diag, SBP_ERROR));
    CHECK(sbp_ranks_all_reduce(ranks, x, 8, SBP_F32, diag) == SBP_MACHINE); /* at once */
    sbp_ranks_end_all(ranks, 3);
    return 3;
}

/* Rank 1 is gone without a word: the launcher ends the others. */
static int work_die(void) {
    float x[8] = {0};
    if (info.rank == 1)
        _exit(9);
    (void)!sbp_ranks_all_reduce(ranks, x, 8, SBP_F32, diag);
    sleep(1000); /* longer than anybody waits */
    return 0;
}

static int work(const char *name) {
    diag = sbp_diag_create();
    double timeout =
        strcmp(name, "sums") == 0 || strcmp(name, "heads") == 0 || strcmp(name, "hosts") == 0 ? 280 : 8;
    if (!diag || sbp_ranks_join(timeout, NULL, diag, &ranks) != SBP_OK) {
        fprintf(stderr, "%s", diag ? sbp_diag_text(diag, SBP_ERROR) : "out of memory\n");
        return 1;
    }
    sbp_ranks_info_of(ranks, &info);
    int status = strcmp(name, "sums") == 0    ? work_sums()
                 : strcmp(name, "heads") == 0 ? work_heads()
                 : strcmp(name, "hosts") == 0 ? work_hosts()
                 : strcmp(name, "hang") == 0  ? work_hang()
                                              : work_die();
    sbp_ranks_leave(ranks);
    sbp_diag_destroy(diag);
    return status;
}

/* ---- the worlds ------------------------------------------------------------------------------------- */

static char output[1 << 16];
static double seconds;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Exit status of a command, with what it says in `output`. */
static int run(const char *command) {
    double begin = now();
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = '\0';
    int status = pclose(pipe);
    seconds = now() - begin;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int start(int count, const char *name) {
#ifdef SBP_MPIRUN
    char command[5000], self[4000];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    snprintf(
        command, sizeof command,
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 300 '%s' --oversubscribe -n %d "
        "'%s' worker %s 2>&1",
        SBP_MPIRUN, count, self, name);
    return run(command);
#else
    (void)count;
    (void)name;
    (void)run;
    print_message("skipped: MPI is not installed\n");
    skip();
    return 0;
#endif
}

static void test_sums(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 4, 6, 8, 9};
    for (int i = 0; i < SBP_COUNT(counts); i++) {
        int status = start(counts[i], "sums");
        if (status != 0)
            print_error("%d ranks: %s\n", counts[i], output);
        assert_int_equal(status, 0);
    }
}

static void test_sums_of_hosts(void **state) {
    (void)state;
    static const int most[][2] = {{4, 2},  {8, 4}, {12, 6}, {16, 4}, {6, 2},  {12, 4}, {16, 8},
                                  {16, 2}, {8, 2}, {10, 5}, {9, 3},  {14, 2}, {12, 2}, {4, 1}};
    for (int i = 0; i < (testing_all() ? SBP_COUNT(most) : 4); i++) {
        char node[12];
        snprintf(node, sizeof node, "%d", most[i][1]);
        setenv("SBP_TEST_NODE", node, 1);
        int status = start(most[i][0], "hosts");
        unsetenv("SBP_TEST_NODE");
        if (status != 0)
            print_error("%d ranks on hosts of %s: %s\n", most[i][0], node, output);
        assert_int_equal(status, 0);
        print_message("%d ranks on hosts of %s: %.1f s\n", most[i][0], node, seconds);
    }
}

static void test_heads(void **state) {
    (void)state;
    static const int counts[] = {3, 4};
    for (int i = 0; i < SBP_COUNT(counts); i++) {
        int status = start(counts[i], "heads");
        if (status != 0)
            print_error("%d ranks: %s\n", counts[i], output);
        assert_int_equal(status, 0);
    }
}

static void test_a_rank_that_hangs_is_named(void **state) {
    (void)state;
    assert_int_equal(start(3, "hang"), 3);
    assert_non_null(strstr(output, "rank 0: rank 1 does not answer (all_reduce, exchange 1)"));
    assert_true(seconds < 290);
}

static void test_a_rank_that_is_gone_ends_all(void **state) {
    (void)state;
    assert_int_not_equal(start(3, "die"), 0);
    assert_true(seconds < 290);
}

/* One rank needs neither MPI nor the plugin. */
static void test_alone(void **state) {
    (void)state;
    float x[3] = {1, 2, 3};
    diag = sbp_diag_create();
    assert_int_equal(sbp_ranks_join(0, NULL, diag, &ranks), SBP_OK);
    sbp_ranks_info_of(ranks, &info);
    assert_int_equal(info.count, 1);
    assert_string_equal(info.transport, "none");
    assert_int_equal(share_begins(3, 1), 3);
    assert_int_equal(sbp_ranks_all_reduce(ranks, x, 3, SBP_F32, diag), SBP_OK);
    assert_int_equal(sbp_ranks_broadcast(ranks, x, 3, SBP_F32, 0, diag), SBP_OK);
    assert_true(x[0] == 1 && x[1] == 2 && x[2] == 3);
    sbp_ranks_leave(ranks);
    sbp_diag_destroy(diag);
}

/* A launcher's variables without the launcher. */
static void test_what_the_launcher_says_must_be_true(void **state) {
    (void)state;
    diag = sbp_diag_create();
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("LD_LIBRARY_PATH", "/nonexistent", 1);
    assert_int_equal(sbp_ranks_join(0, NULL, diag, &ranks), SBP_MACHINE);
    assert_null(ranks);
    assert_non_null(strstr(sbp_diag_text(diag, SBP_ERROR), "OMPI_COMM_WORLD_SIZE is 2, but "));
    unsetenv("OMPI_COMM_WORLD_SIZE");
    sbp_diag_destroy(diag);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "worker") == 0)
        return work(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_sums_of_hosts),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_a_rank_that_hangs_is_named),
        cmocka_unit_test(test_a_rank_that_is_gone_ends_all),
        cmocka_unit_test(test_what_the_launcher_says_must_be_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
