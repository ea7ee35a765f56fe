/* test_queues.c: a program whose states are placed on disk and whose update runs on the host's cores:
 * the same bits as with everything on the device, in every order that the fences allow; what it says when the
 * disk has no room, or takes no more; that the file leaves nothing behind. */
#include "backends/composite/disk.h"
#include "backends/cpu/cpu_device.h"
#include "passes/lower/passes.h"
#include "runtime/run/executor.h"
#include "tests/common/expect.h"
#include "tests/unit/place.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

/* A state is larger than what goes around the page cache at once, and no multiple of a block. */
enum { ROWS = 1031, COLS = 521, ELEMS = ROWS * COLS, STEPS = 4 };

#define SHAPE "f32[1031, 521]"
#define KERNELS                                                                                              \
    "kernel @twice f32 heads 1 n 521 { in x : f32 [row elem] length 521 out y : f32 [row elem] length 521 "  \
    "%0 = load x %1 = add %0, %0 store y, %1 }\n"                                                            \
    "kernel @momentum f32 heads 1 n 521 { in w : f32 [row elem] length 521 "                                 \
    "in g : f32 [row elem] length 521 in m : f32 [row elem] length 521 "                                     \
    "out v : f32 [row elem] length 521 out n : f32 [row elem] length 521 scalar lr "                         \
    "%0 = load w %1 = load g %2 = load m %3 = add %2, %1 %4 = scalar lr %5 = mul %3, %4 %6 = sub %0, %5 "    \
    "store v, %6 store n, %3 }\n"
#define HEADER                                                                                               \
    "program queues\ntarget cpu\nsizes t_max 1, s_max 0, chunk 1, head_chunk 1\n"                            \
    "arena device 0, host 0\nscalars T, S, lr\n"                                                             \
    "buffer W param device " SHAPE "\nbuffer dW accum device " SHAPE "\n"

static const char on_device[] =
    HEADER "buffer M state device " SHAPE "\n" KERNELS "entry step {\n  row @twice(x = W, y := dW)\n"
           "  row @momentum(w = W, g = dW, m = M, v := W, n := M) with lr = lr "
           "{flushes = W, gradient = g}\n}\n";

/* The state in two slots in turn: rows below 512 and the others; of the second slot columns move apart. */
static const char elsewhere[] = HEADER
    "buffer M state disk " SHAPE "\nbuffer low workspace host f32[512, 521]\n"
    "buffer high workspace host f32[519, 521]\nbuffer g workspace host " SHAPE "\n"
    "buffer w workspace host " SHAPE "\n" KERNELS "entry step {\n  row @twice(x = W, y := dW)\n"
    "  copy(dst := w, src = W) {queue = out}\n"
    "  copy(dst := g, src = dW) {queue = out}\n"
    "  copy(dst := low, src = M[0 for 512]) {queue = disk}\n"
    "  copy(dst := high[*, 0 for 200], src = M[512 for 519, 0 for 200]) {queue = disk}\n"
    "  copy(dst := high[*, 200 for 321], src = M[512 for 519, 200 for 321]) {queue = disk}\n"
    "  row @momentum(w = w[0 for 512], g = g[0 for 512], m = low, v := w[0 for 512], n := low) with lr = lr "
    "{queue = host}\n"
    "  row @momentum(w = w[512 for 519], g = g[512 for 519], m = high, v := w[512 for 519], n := high) with "
    "lr = lr {queue = host}\n"
    "  copy(dst := M[0 for 512], src = low) {queue = disk}\n"
    "  copy(dst := M[512 for 519, 0 for 200], src = high[*, 0 for 200]) {queue = disk}\n"
    "  copy(dst := M[512 for 519, 200 for 321], src = high[*, 200 for 321]) {queue = disk}\n"
    "  copy(dst := W, src = w) {queue = in}\n}\n";

/* The gradient is read where it lies when the update runs. */
static const char hooked[] =
    HEADER "buffer M state host " SHAPE "\nbuffer g workspace host " SHAPE "\nbuffer w workspace host " SHAPE
           "\n" KERNELS "entry step {\n  row @twice(x = W, y := dW)\n"
           "  copy(dst := w, src = W) {queue = out}\n  copy(dst := g, src = dW) {queue = out}\n"
           "  row @momentum(w = w, g = g, m = M, v := w, n := M) with lr = lr {flushes = W, gradient = g, "
           "queue = host}\n"
           "  copy(dst := W, src = w) {queue = in}\n}\n";

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_program *program;
    sbp_executor *executor;
} bench;

static sbp_status add_fences(void *user) {
    const bench *b = user;
    return sbp_pass_fence(&(sbp_pass_input){.arena = b->arena, .diag = b->diag}, b->program);
}

/* Parsed, placed, fenced and verified; no device. */
static bench prepare(const char *text) {
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
    expect_ok(b.diag, sbp_program_parse(b.arena, b.diag, "queues", text, strlen(text), &b.program));
    place(b.program);
    expect_ok(b.diag, sbp_guard(b.arena, b.diag, add_fences, &b));
    expect_ok(b.diag, sbp_program_verify(b.program, b.diag));
    return b;
}

static sbp_status open_on(bench *b, const sbp_device_class *class, uint64_t seed, const char *directory) {
    sbp_device_options options = {.threads = 2, .shuffle_seed = seed, .offload_dir = directory};
    return sbp_executor_create(b->diag, class, &options, b->program, &b->executor);
}

static void close_bench(bench *b) {
    sbp_executor_destroy(b->executor);
    sbp_diag_destroy(b->diag);
    sbp_arena_destroy(b->arena);
}

static int32_t buffer(const bench *b, const char *name) {
    return sbp_program_find_buffer(b->program, name);
}

static void start(bench *b, const float *weights) {
    expect_ok(b->diag,
              sbp_executor_write(b->executor, buffer(b, "W"), 0, 0, ELEMS, SBP_F32, weights, b->diag));
    expect_ok(b->diag, sbp_executor_fill_role(b->executor, SBP_ROLE_STATE, 0.5, b->diag));
    expect_ok(b->diag, sbp_executor_bind(b->executor, 1, 0, NULL, 0, b->diag));
    assert_true(sbp_executor_set_scalar(b->executor, "lr", 0.125));
}

static void run(const char *text, const sbp_device_class *class, uint64_t seed, const float *weights,
                float *w, double *m) {
    bench b = prepare(text);
    expect_ok(b.diag, open_on(&b, class, seed, "."));
    start(&b, weights);
    for (int k = 0; k < STEPS; k++)
        expect_ok(b.diag, sbp_executor_run(b.executor, "step", b.diag));
    expect_ok(b.diag, sbp_executor_read(b.executor, buffer(&b, "W"), 0, 0, ELEMS, SBP_F32, w, b.diag));
    expect_ok(b.diag, sbp_executor_read(b.executor, buffer(&b, "M"), 0, 0, ELEMS, SBP_F64, m, b.diag));
    sbp_device_info info;
    class->info(sbp_executor_device(b.executor), &info);
    if (b.program->arena_bytes[SBP_DISK] > 0) { /* filled, then read and written once a step, then read */
        assert_int_equal(info.disk_written_bytes, (STEPS + 1) * (int64_t)ELEMS * 4);
        assert_int_equal(info.disk_read_bytes, (STEPS + 1) * (int64_t)ELEMS * 4);
    } else {
        assert_int_equal(info.disk_written_bytes, 0);
    }
    close_bench(&b);
}

static float *make_weights(void) {
    float *weights = malloc(ELEMS * sizeof *weights);
    uint64_t state = 5;
    for (int k = 0; k < ELEMS; k++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        weights[k] = (float)(state >> 40) / (1 << 24) - 0.5f;
    }
    return weights;
}

static void same_bits_wherever_it_runs(void **unused) {
    (void)unused;
    float *weights = make_weights(), *want = malloc(ELEMS * sizeof *want), *got = malloc(ELEMS * sizeof *got);
    double *m = malloc(ELEMS * sizeof *m), *other = malloc(ELEMS * sizeof *other);
    run(on_device, &sbp_cpu_device, 0, weights, want, m);
    assert_true(want[7] != weights[7] && m[7] != 0.5);
    for (uint64_t seed = 0; seed < 7; seed++) {
        run(elsewhere, seed < 2 ? &sbp_cpu_device : &sbp_cpu_shuffle_device, seed, weights, got, other);
        assert_memory_equal(want, got, ELEMS * sizeof *got);
        assert_memory_equal(m, other, ELEMS * sizeof *m);
    }
    free(weights);
    free(want);
    free(got);
    free(m);
    free(other);
}

/* Without any one of the fences some order gives other results: or the fence was not needed. */
static void each_fence_is_needed(void **unused) {
    (void)unused;
    float *weights = make_weights(), *want = malloc(ELEMS * sizeof *want), *got = malloc(ELEMS * sizeof *got);
    double *m = malloc(ELEMS * sizeof *m), *other = malloc(ELEMS * sizeof *other);
    run(on_device, &sbp_cpu_device, 0, weights, want, m);
    int fences = 0, missed = 0;
    for (int left_out = 0;; left_out++) {
        bench b = prepare(elsewhere);
        sbp_body *body = &b.program->entries[0].body;
        int number = -1, at = 0;
        while (at < body->count && number < left_out)
            number += body->nodes[at++].u.command->kind == SBP_CMD_FENCE;
        if (number < left_out) {
            close_bench(&b);
            break;
        }
        memmove(&body->nodes[at - 1], &body->nodes[at], (size_t)(body->count - at) * sizeof *body->nodes);
        body->count--;
        fences++;
        bool differs = false;
        for (uint64_t seed = 1; seed < 40 && !differs; seed++) {
            expect_ok(b.diag, open_on(&b, &sbp_cpu_shuffle_device, seed, "."));
            start(&b, weights);
            for (int k = 0; k < 2; k++) { /* all that was submitted is shuffled */
                expect_ok(b.diag, sbp_executor_run(b.executor, "step", b.diag));
                expect_ok(b.diag, sbp_executor_run(b.executor, "step", b.diag));
            }
            expect_ok(b.diag,
                      sbp_executor_read(b.executor, buffer(&b, "W"), 0, 0, ELEMS, SBP_F32, got, b.diag));
            expect_ok(b.diag,
                      sbp_executor_read(b.executor, buffer(&b, "M"), 0, 0, ELEMS, SBP_F64, other, b.diag));
            differs = memcmp(want, got, ELEMS * sizeof *got) != 0 || memcmp(m, other, ELEMS * sizeof *m) != 0;
            sbp_executor_destroy(b.executor);
            b.executor = NULL;
        }
        missed += differs;
        close_bench(&b);
    }
    print_message("%d of %d fences are missed\n", missed, fences);
    assert_true(fences > 8);
    assert_int_equal(missed, fences);
    free(weights);
    free(want);
    free(got);
    free(m);
    free(other);
}

static sbp_status look_at_gradient(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag) {
    float *out = user;
    assert_int_equal(gradient->span.space, SBP_HOST);
    *skip = true;
    return sbp_gradient_read(gradient, 0, ELEMS, SBP_F32, out, diag);
}

static void hook_sees_gradients_on_the_host(void **unused) {
    (void)unused;
    float *weights = make_weights(), *got = malloc(ELEMS * sizeof *got);
    bench b = prepare(hooked);
    expect_ok(b.diag, open_on(&b, &sbp_cpu_device, 0, NULL));
    start(&b, weights);
    sbp_executor_set_flush_hook(b.executor, look_at_gradient, got);
    expect_ok(b.diag, sbp_executor_run(b.executor, "step", b.diag));
    for (int k = 0; k < ELEMS; k++)
        assert_true(got[k] == 2 * weights[k]);
    expect_ok(b.diag, sbp_executor_read(b.executor, buffer(&b, "W"), 0, 0, ELEMS, SBP_F32, got, b.diag));
    assert_memory_equal(weights, got, ELEMS * sizeof *got); /* it was skipped */
    close_bench(&b);
    free(weights);
    free(got);
}

/* ---- the disk --------------------------------------------------------------------------------------- */

static void expect_failure(bench *b, sbp_status status, sbp_status want, const char *text) {
    if (status != want || !strstr(sbp_diag_text(b->diag, SBP_ERROR), text))
        fail_msg("status %d, wanted %d with '%s': %s", (int)status, (int)want, text,
                 sbp_diag_text(b->diag, SBP_ERROR));
    close_bench(b);
}

static void room_is_there_before_anything_runs(void **unused) {
    (void)unused;
    bench b = prepare(elsewhere);
    expect_failure(&b, open_on(&b, &sbp_cpu_device, 0, NULL), SBP_USAGE, "--offload-dir");
    b = prepare(elsewhere);
    expect_failure(&b, open_on(&b, &sbp_cpu_device, 0, "/no such directory"), SBP_IO, "/no such directory");
    b = prepare(elsewhere);
    b.program->arena_bytes[SBP_DISK] = INT64_C(1) << 60;
    expect_failure(&b, open_on(&b, &sbp_cpu_device, 0, "."), SBP_MACHINE, "in . ");
}

static void files_that_may_not_grow(void **unused) {
    (void)unused;
    struct rlimit before, little = {.rlim_cur = 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN); /* as sbprun does */
    bench b = prepare(elsewhere);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    sbp_status status = open_on(&b, &sbp_cpu_device, 0, ".");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_failure(&b, status, SBP_MACHINE, "a file may not be that large");

    b = prepare(elsewhere);
    float *weights = make_weights();
    expect_ok(b.diag, open_on(&b, &sbp_cpu_device, 0, "."));
    start(&b, weights);
    free(weights);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    expect_ok(b.diag, sbp_executor_run(b.executor, "step", b.diag)); /* fails where nobody waits for it */
    status = sbp_executor_wait(b.executor, b.diag);
    sbp_status again = sbp_executor_run(b.executor, "step", NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(again, SBP_IO);
    expect_failure(&b, status, SBP_IO, "cannot write the file of offloaded data in .");
}

static int count_files(const char *directory) {
    int count = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 2;
}

static void file_has_no_name(void **unused) {
    (void)unused;
    char directory[] = "/tmp/sbp-queues-XXXXXX";
    assert_non_null(mkdtemp(directory));
    bench b = prepare(elsewhere);
    expect_ok(b.diag, open_on(&b, &sbp_cpu_device, 0, directory));
    assert_int_equal(count_files(directory), 0);
    close_bench(&b);
    assert_int_equal(rmdir(directory), 0);
}

/* More than a mebibyte, from and to memory that begins at a block border or not, from blocks of the file or
 * between them: each byte is where it was written, and none beside it. */
static void bytes_go_around_the_cache_in_pieces(void **unused) {
    enum { BYTES = (5 << 19) + 777, FILE_BYTES = BYTES + 3 * 4096, BORDER = 2 * 4096 };
    (void)unused;
    sbp_diag *diag = sbp_diag_create();
    unsigned char *block = aligned_alloc(4096, 4 << 20), *got = aligned_alloc(4096, 4 << 20);
    for (int apart = 0; apart < 4; apart++) {
        int64_t offset = apart & 2 ? BORDER + 512 : BORDER;
        unsigned char *from = block + (apart & 1 ? 64 : 0), *to = got + (apart & 1 ? 0 : 192);
        composite_disk *disk;
        expect_ok(diag, composite_disk_create(".", FILE_BYTES, diag, &disk));
        memset(block, 0x5a, FILE_BYTES);
        expect_ok(diag, composite_disk_write(disk, 0, block, FILE_BYTES, diag));
        for (int64_t k = 0; k < BYTES; k++)
            from[k] = (unsigned char)(k * k / 4099 + k);
        expect_ok(diag, composite_disk_write(disk, offset, from, BYTES, diag));
        expect_ok(diag, composite_disk_read(disk, 0, to, FILE_BYTES, diag));
        for (int64_t k = 0; k < FILE_BYTES; k++)
            if (to[k] != (k >= offset && k < offset + BYTES ? from[k - offset] : 0x5a))
                fail_msg("%d: byte %lld", apart, (long long)k);
        composite_disk_destroy(disk);
    }
    free(block);
    free(got);
    sbp_diag_destroy(diag);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_wherever_it_runs),
                                       cmocka_unit_test(each_fence_is_needed),
                                       cmocka_unit_test(hook_sees_gradients_on_the_host),
                                       cmocka_unit_test(room_is_there_before_anything_runs),
                                       cmocka_unit_test(files_that_may_not_grow),
                                       cmocka_unit_test(bytes_go_around_the_cache_in_pieces),
                                       cmocka_unit_test(file_has_no_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
