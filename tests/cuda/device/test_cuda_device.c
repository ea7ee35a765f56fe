/* test_cuda_device.c: copies, fills, matmuls and fences of the CUDA device on the fake driver, and what it
 * says when something is missing. What only the fakes show says nothing of hardware. */
#include "tests/cuda/device/testing.h"

#include "backends/cuda/cuda_device.h"
#include "backends/cuda/cuda_probe.h"
#include "tests/common/dispatch_add.h"
#include "tests/rowkernel_random.h"

#define CHECK_OK(call, diag)                                                                                 \
    do {                                                                                                     \
        if ((call) != SBP_OK)                                                                                \
            fail_msg("%s: %s", #call, sbp_diag_text(diag, SBP_NOTE));                                        \
    } while (0)

enum { ARENA = 1 << 16, COPIES = 60 };

typedef struct opened {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_program *program;
    sbp_device *device;
} opened;

static void begin(opened *o) {
    o->arena = sbp_arena_create();
    o->diag = sbp_diag_create();
    o->program = sbp_program_create(o->arena, "test");
    o->program->arena_bytes[SBP_DEVICE] = o->program->arena_bytes[SBP_HOST] = ARENA;
}

static void load(opened *o) {
    const sbp_device_options options = {.threads = 1};
    CHECK_OK(sbp_cuda_device.create(&options, o->diag, &o->device), o->diag);
    CHECK_OK(sbp_cuda_device.load(o->device, o->program, o->diag), o->diag);
    assert_int_equal(sbp_diag_count(o->diag, SBP_WARNING), 0);
}

static void end(opened *o) {
    sbp_cuda_device.destroy(o->device);
    sbp_diag_destroy(o->diag);
    sbp_arena_destroy(o->arena);
}

/* ---- copies and fills ------------------------------------------------------------------------------- */

static unsigned char memory[2][ARENA]; /* what the arenas should hold */

static const sbp_dtype dtypes[] = {SBP_F64, SBP_F32, SBP_BF16, SBP_F16, SBP_I8, SBP_I16, SBP_I32, SBP_I64};

static sbp_span random_span(sbp_rng *rng, sbp_space space, sbp_dtype dtype, int64_t rows, int64_t cols,
                            int64_t from) {
    int64_t stride = cols + (sbp_rng_below(rng, 2) ? 0 : sbp_rng_below(rng, 9)),
            unit = sbp_dtype_bytes(dtype);
    return (sbp_span){.space = space,
                      .dtype = dtype,
                      .offset = from + sbp_rng_below(rng, 20) * unit,
                      .rows = rows,
                      .cols = cols,
                      .stride = stride};
}

static void simulate(const sbp_command *command, const sbp_span *spans) {
    const sbp_span *to = &spans[0];
    int64_t unit = sbp_dtype_bytes(to->dtype);
    for (int64_t r = 0; r < to->rows; r++)
        for (int64_t c = 0; c < to->cols; c++) {
            unsigned char *at = memory[to->space] + to->offset + (r * to->stride + c) * unit;
            if (command->kind == SBP_CMD_FILL)
                sbp_element_set(at, to->dtype, 0, command->u.fill);
            else
                memcpy(at, memory[spans[1].space] + spans[1].offset + (r * spans[1].stride + c) * unit,
                       (size_t)unit);
        }
}

/* Between everything a fence, so that the order is that of the program. */
static void submit_ordered(opened *o, const sbp_dispatch *dispatch, int32_t before) {
    sbp_command fence = {.kind = SBP_CMD_FENCE, .flushes = -1};
    fence.u.fence.from = before;
    fence.u.fence.to = dispatch->command->queue;
    if (before >= 0)
        CHECK_OK(sbp_cuda_device.submit(o->device, &(sbp_dispatch){.command = &fence}, o->diag), o->diag);
    CHECK_OK(sbp_cuda_device.submit(o->device, dispatch, o->diag), o->diag);
}

static void test_copies(void **state) {
    (void)state;
    sbp_rng rng = {11};
    static unsigned char after[ARENA];
    opened o;
    fake_reset("");
    begin(&o);
    load(&o);
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < ARENA; i++)
            memory[s][i] = (unsigned char)sbp_rng_below(&rng, 256);
        CHECK_OK(sbp_cuda_device.write(o.device, (sbp_space)s, 0, memory[s], ARENA, o.diag), o.diag);
    }
    int32_t before = -1;
    for (int i = 0; i < COPIES; i++) {
        const sbp_dtype dtype = dtypes[sbp_rng_below(&rng, SBP_COUNT(dtypes))];
        int64_t rows = sbp_rng_below(&rng, 9), cols = 1 + sbp_rng_below(&rng, 40);
        sbp_space to = (sbp_space)sbp_rng_below(&rng, 2),
                  from = to == SBP_HOST ? SBP_DEVICE : (sbp_space)sbp_rng_below(&rng, 2);
        bool fills = to == SBP_DEVICE && sbp_rng_below(&rng, 3) == 0;
        sbp_span spans[2] = {random_span(&rng, to, dtype, rows, cols, 0),
                             random_span(&rng, from, dtype, rows, cols, ARENA / 2)};
        sbp_command command = {.kind = fills ? SBP_CMD_FILL : SBP_CMD_COPY, .flushes = -1};
        command.queue = fills ? SBP_QUEUE_COMPUTE : (int32_t)sbp_queue_of_copy(to, from);
        command.u.fill = sbp_dtype_bytes(dtype) == 8 || sbp_rng_below(&rng, 2) ? 0 : 3; /* else by a kernel */
        const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = fills ? 1 : 2};
        simulate(&command, spans);
        submit_ordered(&o, &dispatch, before);
        before = command.queue;
    }
    for (int s = 0; s < 2; s++) {
        CHECK_OK(sbp_cuda_device.read(o.device, (sbp_space)s, 0, after, ARENA, o.diag), o.diag);
        assert_memory_equal(memory[s], after, ARENA);
    }
    end(&o);
    fake_is_clean();
}

/* ---- fences ----------------------------------------------------------------------------------------- */

enum { NUMBERS = 8, STEPS = 12, QUEUES = 3 };

/* Copies between three numbers on the device and three on the host, on the queues that lead there. */
typedef struct step {
    sbp_space to, from;
    int a, b; /* numbers */
} step;

static int queue_of(const step *x) {
    return (int)sbp_queue_of_copy(x->to, x->from);
}

static bool conflict(const step *x, const step *y) {
    bool same_to = x->to == y->to && x->a == y->a, reads = x->to == y->from && x->a == y->b;
    return same_to || reads || (x->from == y->to && x->b == y->a);
}

static sbp_span number_span(sbp_space space, int number) {
    return (sbp_span){
        .space = space, .dtype = SBP_I32, .offset = 64 * number, .rows = 1, .cols = 1, .stride = 1};
}

/* Per queue, up to which step each queue is done before its next one. */
typedef struct ordered {
    int steps[QUEUES][QUEUES];
} ordered;

static bool is_needed(const step *steps, int i, int from, const ordered *known) {
    for (int j = known->steps[queue_of(&steps[i])][from]; j < i; j++)
        if (queue_of(&steps[j]) == from && conflict(&steps[j], &steps[i]))
            return true;
    return false;
}

static void learn(ordered *known, int from, int to) {
    for (int q = 0; q < QUEUES; q++)
        if (known->steps[to][q] < known->steps[from][q])
            known->steps[to][q] = known->steps[from][q];
}

/* Runs them with a fence before each that needs one, but for fence number `skip`; returns the fences. */
static int run_steps(const step *steps, int skip, uint64_t seed, int32_t out[2][NUMBERS]) {
    char words[40];
    int fences = 0;
    ordered known = {0};
    opened o;
    snprintf(words, sizeof words, "seed=%llu", (unsigned long long)seed);
    fake_reset(words);
    begin(&o);
    load(&o);
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < NUMBERS; i++) {
            int32_t value = 10 * s + i;
            CHECK_OK(sbp_cuda_device.write(o.device, (sbp_space)s, 64 * i, &value, 4, o.diag), o.diag);
        }
    for (int i = 0; i < STEPS; i++) {
        sbp_command command = {.kind = SBP_CMD_COPY, .queue = queue_of(&steps[i]), .flushes = -1};
        sbp_span spans[2] = {number_span(steps[i].to, steps[i].a), number_span(steps[i].from, steps[i].b)};
        for (int from = 0; from < QUEUES; from++) {
            if (!is_needed(steps, i, from, &known) || (learn(&known, from, command.queue), fences++ == skip))
                continue;
            sbp_command fence = {.kind = SBP_CMD_FENCE, .flushes = -1};
            fence.u.fence.from = from;
            fence.u.fence.to = command.queue;
            CHECK_OK(sbp_cuda_device.submit(o.device, &(sbp_dispatch){.command = &fence}, o.diag), o.diag);
        }
        known.steps[command.queue][command.queue] = i + 1;
        const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = 2};
        CHECK_OK(sbp_cuda_device.submit(o.device, &dispatch, o.diag), o.diag);
    }
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < NUMBERS; i++)
            CHECK_OK(sbp_cuda_device.read(o.device, (sbp_space)s, 64 * i, &out[s][i], 4, o.diag), o.diag);
    end(&o);
    fake_is_clean();
    return fences;
}

/* The fences suffice in every order that the fake driver takes, and it shows it when one is missing. */
static void test_fences(void **state) {
    (void)state;
    sbp_rng rng = {5};
    int left_out = 0, noticed = 0;
    for (int i = 0; i < 8; i++) {
        step steps[STEPS];
        int32_t expected[2][NUMBERS], out[2][NUMBERS];
        for (int s = 0; s < 2; s++)
            for (int n = 0; n < NUMBERS; n++)
                expected[s][n] = 10 * s + n;
        for (int k = 0; k < STEPS; k++) {
            step *x = &steps[k];
            x->to = (sbp_space)sbp_rng_below(&rng, 2);
            x->from = x->to == SBP_HOST ? SBP_DEVICE : (sbp_space)sbp_rng_below(&rng, 2);
            x->a = (int)sbp_rng_below(&rng, NUMBERS);
            x->b = (x->a + 1 + (int)sbp_rng_below(&rng, NUMBERS - 1)) % NUMBERS;
            expected[x->to][x->a] = expected[x->from][x->b];
        }
        int fences = 0;
        for (uint64_t seed = 1; seed < 20; seed++) {
            fences = run_steps(steps, -1, seed, out);
            assert_memory_equal(expected, out, sizeof out);
        }
        for (int skip = 0; skip < fences; skip++, left_out++) {
            bool differs = false;
            for (uint64_t seed = 1; seed < 20 && !differs; seed++) {
                (void)run_steps(steps, skip, seed, out);
                differs = memcmp(expected, out, sizeof out) != 0;
            }
            noticed += differs;
        }
    }
    print_message("%d of %d missing fences noticed\n", noticed,
                  left_out); /* results may be overwritten unread */
    assert_true(left_out > 20 && noticed * 2 > left_out);
}

/* ---- messages --------------------------------------------------------------------------------------- */

/* Opening and loading ends with status 3 and this text. */
static void expect(const char *words, const char *text) {
    const sbp_device_options options = {.threads = 1};
    opened o;
    fake_reset(words);
    begin(&o);
    o.device = NULL;
    sbp_status status = sbp_cuda_device.create(&options, o.diag, &o.device);
    if (status == SBP_OK)
        status = sbp_cuda_device.load(o.device, o.program, o.diag);
    const char *said = sbp_diag_text(o.diag, SBP_ERROR);
    if (status != SBP_MACHINE || !strstr(said, text))
        fail_msg("%s: status %d, '%s', not '%s'", words, status, said, text);
    if (o.device)
        sbp_cuda_device.destroy(o.device);
    sbp_diag_destroy(o.diag);
    sbp_arena_destroy(o.arena);
    fake_is_clean();
}

static void test_messages(void **state) {
    (void)state;
    expect("devices=0",
           "the driver does not start: the driver sees no device (CUDA_VISIBLE_DEVICES may hide them)");
    expect("version=11080", "the driver is for CUDA 11.8; 12.0 or newer is needed, 13.0 (version 580)");
    expect("memory=60000",
           "the plan needs 64.00 KiB of device memory; of the 58.59 KiB of Fake GPU, 58.59 KiB are free");
    expect("memory=1000000,taken=990000", "of the 976.56 KiB of Fake GPU, 9.77 KiB are free");
    expect("fail=1,call=cuDevicePrimaryCtxRetain,error=lost", "cuda: Fake GPU: uncorrectable ECC error");
    expect("fail=2,call=cuStreamCreate", "out of memory (in cuStreamCreate); it has 8.00 GiB");
    opened o;
    fake_reset("devices=2");
    begin(&o);
    const sbp_device_options second = {.index = 2};
    assert_int_equal(sbp_cuda_device.create(&second, o.diag, &o.device), SBP_MACHINE);
    assert_non_null(strstr(sbp_diag_text(o.diag, SBP_ERROR), "there is no device 2: this machine has 2"));
    sbp_diag_destroy(o.diag);
    sbp_arena_destroy(o.arena);
    fake_is_clean();
}

/* Bytes on both sides of the border of two pieces reach the device. says: a warning, or NULL for none. */
static void check_pinned(const char *words, const char *piece, const char *says) {
    const sbp_device_options options = {.threads = 1};
    const int64_t offset = 4092;
    unsigned char out[8];
    opened o;
    fake_reset(words);
    piece ? setenv("SBP_CUDA_PIN", piece, 1) : unsetenv("SBP_CUDA_PIN");
    begin(&o);
    CHECK_OK(sbp_cuda_device.create(&options, o.diag, &o.device), o.diag);
    CHECK_OK(sbp_cuda_device.load(o.device, o.program, o.diag), o.diag);
    const char *said = sbp_diag_text(o.diag, SBP_WARNING);
    if (says ? !strstr(said, says) : strstr(said, "pinned") != NULL)
        fail_msg("%s, pieces of %s: '%s'", words, piece ? piece : "a GiB", said);
    CHECK_OK(sbp_cuda_device.write(o.device, SBP_HOST, offset, "abcdefg", 8, o.diag), o.diag);
    sbp_command command = {.kind = SBP_CMD_COPY, .queue = SBP_QUEUE_IN, .flushes = -1};
    sbp_span spans[2] = {{.space = SBP_DEVICE, .dtype = SBP_I8, .rows = 1, .cols = 8, .stride = 8}};
    spans[1] = spans[0];
    spans[1].space = SBP_HOST;
    spans[1].offset = offset;
    const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = 2};
    CHECK_OK(sbp_cuda_device.submit(o.device, &dispatch, o.diag), o.diag);
    CHECK_OK(sbp_cuda_device.read(o.device, SBP_DEVICE, 0, out, 8, o.diag), o.diag);
    assert_memory_equal(out, "abcdefg", 8);
    end(&o);
    fake_is_clean();
    unsetenv("SBP_CUDA_PIN");
}

/* Memory that cannot be pinned is done without; pieces are pinned all or none. */
static void test_pinned(void **state) {
    (void)state;
    check_pinned("", NULL, NULL);
    check_pinned("pinned=100", NULL, "cannot be pinned (out of memory): copies");
    check_pinned("", "4096", NULL);
    check_pinned("", "20480", NULL); /* the last is shorter */
    check_pinned("pinned=100", "4096", "cannot be pinned (out of memory): copies");
    check_pinned("pinned=20000", "4096", "cannot be pinned (out of memory, after 16.00 KiB): copies");
    /* where registering is not let through, the other way serves */
    check_pinned("fail=1,call=cuMemHostRegister", "4096", NULL);
}

/* What has failed stays failed. */
static void test_broken(void **state) {
    (void)state;
    opened o;
    int32_t value = 0;
    fake_reset("fail=1,call=cuMemsetD8Async,error=lost");
    begin(&o);
    load(&o);
    sbp_command command = {.kind = SBP_CMD_FILL, .flushes = -1};
    sbp_span span = number_span(SBP_DEVICE, 0);
    const sbp_dispatch dispatch = {.command = &command, .spans = &span, .span_count = 1};
    assert_int_equal(sbp_cuda_device.submit(o.device, &dispatch, o.diag), SBP_MACHINE);
    assert_int_equal(sbp_cuda_device.submit(o.device, &dispatch, o.diag), SBP_MACHINE);
    assert_int_equal(sbp_cuda_device.wait(o.device, o.diag), SBP_MACHINE);
    assert_int_equal(sbp_cuda_device.read(o.device, SBP_DEVICE, 0, &value, 4, o.diag), SBP_MACHINE);
    assert_null(sbp_cuda_device.map(o.device, SBP_HOST, 0));
    assert_non_null(strstr(sbp_diag_text(o.diag, SBP_ERROR), "(214, in an earlier call)"));
    end(&o);
    fake_is_clean();
}

static void test_info(void **state) {
    (void)state;
    sbp_candidate *found;
    sbp_device_info info;
    int32_t count = 0;
    opened o;
    fake_reset("devices=2,memory=100000000,taken=30000000,capability=86");
    begin(&o);
    CHECK_OK(sbp_cuda_device.count(o.diag, &count), o.diag);
    assert_int_equal(count, 2);
    load(&o);
    sbp_cuda_device.info(o.device, &info);
    assert_string_equal(info.name, "Fake GPU (sm_86, CUDA 13.0)");
    assert_int_equal(info.memory_bytes, 100000000);
    assert_int_equal(info.used_bytes, ARENA + (32 << 20)); /* all there is beside the context */
    assert_int_equal(info.available_bytes, 70000000 - ARENA - (32 << 20));
    assert_false(info.software);
    end(&o);
    fake_is_clean();
    fake_reset("devices=2,memory=8000000000,taken=3000000000,broken_up=100000000,capability=86");
    o.diag = sbp_diag_create();
    CHECK_OK(sbp_cuda_candidates(o.diag, &found, &count), o.diag);
    assert_int_equal(count, 2);
    assert_string_equal(found[1].name, "Fake GPU");
    assert_string_equal(found[1].missing, "");
    assert_string_equal(found[1].arch, "sm_86");
    /* 5.1 GB are said to be free; tried are 128ths less of it; and the context that plans count is there */
    assert_int_equal(found[1].free_bytes, 5100000000 - 3 * (5100000000 / 128) + (500 << 20));
    free(found);
    sbp_diag_destroy(o.diag);
    fake_is_clean();
}

/* ---- what the driver is asked ----------------------------------------------------------------------- */

/* A layer's input comes, is multiplied, and the result goes: each call, with nothing that varies. */
static const char *const expected_calls =
    "cuDevicePrimaryCtxRetain device 0\n"
    "cuStreamCreate -> s1, flags 1\n"
    "cuEventCreate -> e2, flags 2\n"
    "cuStreamCreate -> s3, flags 1\n"
    "cuEventCreate -> e4, flags 2\n"
    "cuStreamCreate -> s5, flags 1\n"
    "cuEventCreate -> e6, flags 2\n"
    "cuMemAlloc 65536 -> d1\n"
    "cuMemHostAlloc 65536, flags 1 -> h2\n"
    "cuMemAlloc 33554432 -> d3\n"
    "cuStreamSynchronize s1\n" /* before the host's arena is mapped */
    "cuStreamSynchronize s3\n"
    "cuStreamSynchronize s5\n"
    "cuMemcpyHtoDAsync d1+0 <- h2+0, 1 x 512, s3\n" /* on queue in */
    "cuMemsetD8Async d1+4096, 1 x 256, 0x0, s1\n"
    "cuEventRecord e4, s3\n" /* a fence from in to compute */
    "cuStreamWaitEvent s1, e4\n"
    "cublasLtMatmul d1+4096 = 2 d1+1024' d1+0 + 1 d1+4096, types 14 0, 8 x 8 x 32, s1\n"
    "cuEventRecord e2, s1\n" /* from compute to out */
    "cuStreamWaitEvent s5, e2\n"
    "cuMemcpy2DAsync h2+0 <- d1+4096, 8 x 16, s5\n" /* half of each row */
    "cuStreamSynchronize s1\n"
    "cuStreamSynchronize s3\n"
    "cuStreamSynchronize s5\n"
    "cuStreamSynchronize s1\n"
    "cuStreamSynchronize s3\n"
    "cuStreamSynchronize s5\n"
    "cuMemFree d1\n"
    "cuMemFree d3\n"
    "cuMemFreeHost h2\n"
    "cuEventDestroy e2\n"
    "cuStreamDestroy s1\n"
    "cuEventDestroy e4\n"
    "cuStreamDestroy s3\n"
    "cuEventDestroy e6\n"
    "cuStreamDestroy s5\n"
    "cuDevicePrimaryCtxRelease device 0\n";

static void test_calls(void **state) {
    (void)state;
    static char log[8000];
    static const char path[] = "fake_cuda_calls.txt";
    const sbp_span absent = {.space = SBP_SPACE_COUNT}, x = {SBP_DEVICE, SBP_BF16, 0, 8, 32, 32, 0},
                   w = {SBP_DEVICE, SBP_BF16, 1024, 8, 32, 32, 0},
                   y = {SBP_DEVICE, SBP_F32, 4096, 8, 8, 8, 0},
                   half = {SBP_DEVICE, SBP_F32, 4096, 8, 4, 8, 0}, home = {SBP_HOST, SBP_F32, 0, 8, 4, 4, 0};
    sbp_span host_x = x;
    host_x.space = SBP_HOST;
    sbp_command commands[] = {{.kind = SBP_CMD_COPY, .queue = SBP_QUEUE_IN, .flushes = -1},
                              {.kind = SBP_CMD_FILL, .flushes = -1},
                              {.kind = SBP_CMD_FENCE, .flushes = -1},
                              {.kind = SBP_CMD_GEMM, .flushes = -1},
                              {.kind = SBP_CMD_FENCE, .flushes = -1},
                              {.kind = SBP_CMD_COPY, .queue = SBP_QUEUE_OUT, .flushes = -1}};
    const sbp_span spans[6][5] = {{x, host_x}, {y}, {absent}, {y, x, w, y, absent}, {absent}, {home, half}};
    static const int counts[] = {2, 1, 0, 5, 0, 2};
    commands[2].u.fence.from = SBP_QUEUE_IN;
    commands[3].u.gemm.alpha = 2;
    commands[3].u.gemm.beta = 1;
    commands[3].u.gemm.tb = true;
    commands[4].u.fence.to = SBP_QUEUE_OUT;
    opened o;
    remove(path);
    setenv("SBP_FAKE_CUDA_LOG", path, 1);
    fake_reset("");
    begin(&o);
    const sbp_dispatch matmul = {.command = &commands[3], .spans = spans[3], .span_count = 5};
    dispatch_add(o.arena, o.program, &matmul);
    load(&o);
    for (int i = 0; i < SBP_COUNT(commands); i++) {
        const sbp_dispatch d = {.command = &commands[i], .spans = spans[i], .span_count = counts[i]};
        CHECK_OK(sbp_cuda_device.submit(o.device, &d, o.diag), o.diag);
    }
    CHECK_OK(sbp_cuda_device.wait(o.device, o.diag), o.diag);
    end(&o);
    unsetenv("SBP_FAKE_CUDA_LOG");
    fake_reset("");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    log[fread(log, 1, sizeof log - 1, file)] = 0;
    fclose(file);
    remove(path);
    assert_string_equal(log, expected_calls);
}

/* The driver's threads may live longer than the devices. The last test: the library is closed. */
static void test_driver_stays_loaded(void **state) {
    (void)state;
    assert_int_equal(dlclose(fake_library), 0);
    assert_non_null(dlopen(SBP_FAKE_CUDA_FOLDER "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies),   cmocka_unit_test(test_fences),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_broken),   cmocka_unit_test(test_info),
        cmocka_unit_test(test_calls),    cmocka_unit_test(test_driver_stays_loaded)};
    return cmocka_run_group_tests(tests, fake_open, NULL);
}
