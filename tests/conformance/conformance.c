/* conformance.c: the suite's main program and what conformance.h promises.
 *
 *     conformance [DEVICE [TEST]]     DEVICE: cpu (default), cpu-shuffle, or a name of backends.def
 *
 * At its end it lists the commands for which the device has no kernel, and fails: what a new backend lacks.
 */
#include "tests/conformance/conformance.h"
#include "tests/common/sweep.h"

#include "backends/backends.h"
#include "backends/cpu/cpu_device.h"
#include "backends/devices.h"
#include "backends/target.h"
#include "ir/base/census.h"
#include "tests/common/dispatch_add.h"
#ifdef SBP_HAVE_VULKAN_TARGET
#include "backends/vulkan/target/shaders.h"
#endif
#ifdef SBP_HAS_VULKAN
#include "backends/vulkan/abi.h"
#include "backends/vulkan/vulkan_device.h"
#endif

#include <math.h>
#include <stdlib.h>

static const sbp_device_class *under_test;

const sbp_device_class *suite_device(void) {
    return under_test;
}

const sbp_device_class *suite_find_device(const char *name) {
    return strcmp(sbp_cpu_shuffle_device.name, name) == 0 ? &sbp_cpu_shuffle_device : sbp_device_find(name);
}

/* ---- cases ---------------------------------------------------------------------------------------- */

suite_case *suite_begin(const char *name, uint64_t seed) {
    sbp_arena *arena = sbp_arena_create();
    suite_case *c = SBP_NEW(arena, suite_case);
    c->arena = arena;
    c->rng.state = seed;
    c->name = name;
    c->layout = (suite_layout)(seed % SUITE_LAYOUTS);
    c->command.flushes = -1;
    return c;
}

void suite_end(suite_case *c) {
    sbp_arena_destroy(c->arena);
}

void *suite_alloc(suite_case *c, int64_t count, int64_t size) {
    return sbp_arena_array(c->arena, (size_t)count, (size_t)size);
}

suite_tensor *suite_add(suite_case *c, sbp_dtype dtype, int64_t rows, int64_t cols) {
    suite_tensor *t = &c->tensors[c->tensor_count++];
    *t = (suite_tensor){.dtype = dtype, .rows = rows, .cols = cols, .same_as = -1};
    t->values = suite_alloc(c, rows * cols, sizeof(double));
    for (int64_t i = 0; i < rows * cols; i++)
        t->values[i] = sbp_dtype_is_float(dtype) || sbp_dtype_is_dynamic(dtype)
                           ? sbp_round_to(dtype, sbp_rng_unit(&c->rng))
                           : 0;
    return t;
}

suite_tensor *suite_add_absent(suite_case *c) {
    suite_tensor *t = &c->tensors[c->tensor_count++];
    *t = (suite_tensor){.absent = true, .same_as = -1};
    return t;
}

void suite_expect(suite_case *c, suite_tensor *t) {
    t->expected = suite_alloc(c, t->rows * t->cols, sizeof(double));
    memcpy(t->expected, t->values, (size_t)(t->rows * t->cols) * sizeof(double));
}

void suite_doubt_add(suite_case *c, suite_tensor *t, suite_doubt doubt) {
    SBP_PUSH(c->arena, t->doubts, t->doubt_count, t->doubt_capacity, doubt);
}

/* ---- running -------------------------------------------------------------------------------------- */

/* Places the tensors; returns the bytes of the arena. */
static int64_t lay_out(suite_case *c) {
    int64_t at = 256;
    for (int32_t i = 0; i < c->tensor_count; i++) {
        suite_tensor *t = &c->tensors[i];
        if (t->absent)
            continue;
        if (t->same_as >= 0) {
            t->offset = c->tensors[t->same_as].offset;
            t->stride = c->tensors[t->same_as].stride;
            continue;
        }
        int64_t bytes = sbp_dtype_bytes(t->dtype);
        bool strided = c->layout == SUITE_STRIDED;
        t->stride = strided ? t->cols + 7 : t->cols;
        t->offset = at + (strided ? bytes * (t->stride + 3) : 0);
        at = sbp_round_up(at + bytes * t->stride * (t->rows + (strided ? 2 : 0)), 256) + 256;
    }
    return at;
}

static int64_t element_offset(const suite_tensor *t, int64_t row, int64_t col) {
    return t->offset + (row * t->stride + col) * sbp_dtype_bytes(t->dtype);
}

/* All bytes 0xff: NaN in every float type, -1 in integers. */
static void fill_arena(const suite_case *c, unsigned char *bytes, int64_t count) {
    memset(bytes, 0xff, (size_t)count);
    for (int32_t i = 0; i < c->tensor_count; i++) {
        const suite_tensor *t = &c->tensors[i];
        if (!t->absent && t->same_as < 0)
            for (int64_t r = 0; r < t->rows; r++)
                for (int64_t j = 0; j < t->cols; j++)
                    sbp_element_set(bytes + element_offset(t, r, j), t->dtype, 0, t->values[r * t->cols + j]);
    }
}

static int warnings; /* of devices that loaded a program */

static bool wants_warnings(void) {
    const char *text = getenv("SBP_VULKAN_TEST");
    return text && strstr(text, "distrust");
}

sbp_device *suite_open(const sbp_device_class *class, const sbp_device_options *options, sbp_arena *arena,
                       sbp_program *program, const sbp_dispatch *dispatches, int32_t count, sbp_diag *diag) {
    const sbp_target *target = sbp_target_find(class->name);
    sbp_device_options all = *options;
    sbp_device *device;
    if (target && target->compile) {
        bool whole = program->entry_count > 0; /* it brings its commands */
        for (int32_t i = 0; i < count && !whole; i++)
            dispatch_add(arena, program, &dispatches[i]);
        CHECK_OK(target->compile(arena, diag, program, &all.code, &all.code_bytes), diag);
    }
    CHECK_OK(class->create(&all, diag, &device), diag);
    CHECK_OK(class->load(device, program, diag), diag);
    /* a device that warns does without what it should be tested with */
    int count_now = sbp_diag_count(diag, SBP_WARNING);
    warnings += count_now;
    if (count_now > 0 && !wants_warnings())
        fail_msg("%s", sbp_diag_text(diag, SBP_WARNING));
    return device;
}

/* ---- samples ----
 *
 * GPU-assisted validation compiles every shader anew, with a search through the list of buffers before each
 * access: so a sample is run, one case of 17, and with SBP_TEST_ALL=1 all. And llvmpipe counts the iterations
 * of that search among the 65535 after which it leaves all loops; the layer then objects to addresses that
 * are in order (products of bf16 with 517 iterations of their own: now and then). Cases that may come near
 * are left out. */

enum {
    SAMPLE = 17, /* samples are divided neither by 2 nor by 3: cases alternate by 2, 3 or 4 */
    SLOW_SAMPLE = 127,
    EXPERT_SAMPLE = 11,
    SEARCHES = 16,
    MANY_SEARCHES = 160,
    LLVMPIPE_ITERATIONS = 65535
};

static struct { int seen, run, too_long, refused, of_command[SBP_CMD_COUNT]; } validated;

#ifdef SBP_HAS_VULKAN
static const sbp_vulkan_machine lavapipe = {
    .software = true, .max_local_size = 1024, .shared_bytes = 1 << 15};
#endif
static bool is_software; /* the driver of the device under test */

static bool is_everything(void) {
    return testing_all();
}

static const char *validation(void) {
    const char *text = getenv("SBP_VULKAN_VALIDATION");
    return text && strcmp(under_test->name, "vulkan") == 0 ? text : "";
}

/* CUDA without a GPU: every case is compiled by NVRTC and run by the PTX machine. Products take no less. */
static bool is_slow(void) {
    return strcmp(under_test->name, "cuda") == 0;
}

/* SBP_TEST_SAMPLE=[I/]N: of each command one case of N, from case I on, so that several processes can have a
 * part each. Without it devices that others stand for have a sample of their own. */
typedef struct sample {
    int first, of;
} sample;

static sample wanted_sample(void) {
    const char *text = getenv("SBP_TEST_SAMPLE");
    sample s = {.of = is_slow() ? SLOW_SAMPLE : *validation() ? SAMPLE : 1};
    if (is_everything())
        return (sample){.of = 1};
    if (text &&
        !(strchr(text, '/') ? sscanf(text, "%d/%d", &s.first, &s.of) == 2 : sscanf(text, "%d", &s.of) == 1))
        s.of = 0;
    if (s.first < 0 || s.of <= s.first) {
        fprintf(stderr, "SBP_TEST_SAMPLE is '%s'; expected N or I/N, I below N\n", text);
        exit(2);
    }
    return s;
}

static bool is_sampled(void) {
    return *validation() || is_slow() || getenv("SBP_TEST_SAMPLE");
}

/* Commands of experts, of which there are few cases, and none is large. */
static bool is_of_experts(sbp_command_kind kind) {
    return kind == SBP_CMD_ROUTE || kind == SBP_CMD_EXPERT_ORDER || kind == SBP_CMD_EXPERT_GEMM ||
           kind == SBP_CMD_EXPERT_GEMM_DW;
}

bool suite_searches_addresses(void) {
    return strcmp(validation(), "gpu") == 0;
}

static bool is_left_out(const sbp_dispatch *dispatch) {
    bool gpu = suite_searches_addresses();
    if (!is_sampled())
        return false;
    sample s = wanted_sample();
    if (is_slow() && is_of_experts(dispatch->command->kind) && s.of == SLOW_SAMPLE)
        s.of = EXPERT_SAMPLE;
    validated.seen++;
    if (validated.of_command[dispatch->command->kind]++ % s.of != s.first)
        return true;
    if (!*validation()) {
        validated.run++;
        return false;
    }
#ifdef SBP_HAS_VULKAN
    bool many = dispatch->command->kind == SBP_CMD_ROW || dispatch->command->kind == SBP_CMD_GEMM ||
                is_of_experts(dispatch->command->kind);
    if (gpu && (many ? MANY_SEARCHES : SEARCHES) * sbp_vulkan_iterations(dispatch, &lavapipe) >
                   LLVMPIPE_ITERATIONS) {
        validated.too_long++;
        return true;
    }
#else
    (void)dispatch, (void)gpu;
#endif
    validated.run++;
    return false;
}

/* Whether a software driver would stop the loops of a case before their end: the device refuses it then. */
static bool is_refused(const sbp_dispatch *dispatch) {
#ifdef SBP_HAS_VULKAN
    return is_software && sbp_vulkan_too_long(dispatch, &lavapipe);
#else
    (void)dispatch;
    return false;
#endif
}

/* What the device is given; `spans` has SUITE_MOST_TENSORS. */
static sbp_dispatch dispatch_of(const suite_case *c, sbp_space space, sbp_span *spans) {
    for (int32_t i = 0; i < c->tensor_count; i++) {
        const suite_tensor *t = &c->tensors[i];
        spans[i] = (sbp_span){.space = t->absent ? SBP_SPACE_COUNT : space,
                              .dtype = t->dtype,
                              .offset = t->offset,
                              .rows = t->rows,
                              .cols = t->cols,
                              .stride = t->stride,
                              .first_row = t->first_row};
    }
    return (sbp_dispatch){.command = &c->command,
                          .kernel = c->kernel,
                          .rows = c->rows,
                          .row0 = c->row0,
                          .spans = spans,
                          .span_count = c->tensor_count,
                          .scalars = c->scalars};
}

/* Commands for which the device has no kernel, and cases that were not run for that. */
static bool missing[SBP_CMD_COUNT];
static int cases_without_kernel;

bool suite_lacks(sbp_command_kind kind) {
    return missing[kind];
}

/* To its end. False: there is no kernel for it. */
static bool run_command(sbp_device *device, const sbp_dispatch *dispatch, sbp_diag *diag) {
    sbp_status status = under_test->submit(device, dispatch, diag);
    if (status == SBP_OK)
        status = under_test->wait(device, diag);
    if (status == SBP_USAGE) {
        missing[dispatch->command->kind] = true;
        cases_without_kernel++;
        return false;
    }
    CHECK_OK(status, diag);
    return true;
}

/* On queue host, everything lies in the host's arena. False: the device has no kernel for the command. */
static bool run_on(suite_case *c, sbp_program *program, sbp_queue queue, int threads,
                   const unsigned char *before, unsigned char *after, int runs) {
    sbp_space space = queue == SBP_QUEUE_HOST ? SBP_HOST : SBP_DEVICE;
    sbp_diag *diag = sbp_diag_create();
    sbp_device_options options = {.threads = threads, .shuffle_seed = 1};
    int64_t bytes = program->arena_bytes[space];
    sbp_span spans[SUITE_MOST_TENSORS];
    c->command.queue = (int32_t)queue;
    sbp_dispatch dispatch = dispatch_of(c, space, spans);
    sbp_device *device = suite_open(under_test, &options, c->arena, program, &dispatch, 1, diag);
    bool runs_it = true;
    for (int run = 0; run < runs && runs_it; run++) {
        CHECK_OK(under_test->write(device, space, 0, before, bytes, diag), diag);
        runs_it = run_command(device, &dispatch, diag);
        CHECK_OK(under_test->read(device, space, 0, after + run * bytes, bytes, diag), diag);
    }
    under_test->destroy(device);
    sbp_diag_destroy(diag);
    return runs_it;
}

static bool is_written(const suite_tensor *t, int64_t i) {
    return t->expected && (!t->written || t->written[i]);
}

/* Takes of each doubt what is nearer to the result, until nothing comes nearer; what is left is compared. */
static void settle_doubts(suite_tensor *t, const unsigned char *after) {
    for (int32_t n = 0; n < t->doubt_count;) {
        const suite_doubt *doubt = &t->doubts[n];
        double without = 0, with = 0;
        for (int64_t i = 0; i < doubt->count; i++) {
            int64_t at = doubt->at + i;
            double left =
                sbp_element_get(after + element_offset(t, at / t->cols, at % t->cols), t->dtype, 0) -
                t->expected[at];
            without += left * left;
            left -= doubt->step * doubt->vector[i];
            with += left * left;
        }
        if (!(with < without)) {
            n++;
            continue;
        }
        for (int64_t i = 0; i < doubt->count; i++)
            t->expected[doubt->at + i] += doubt->step * doubt->vector[i];
        t->doubts[n] = t->doubts[--t->doubt_count]; /* each once */
        n = 0;
    }
}

/* Values of what is written; marks its bytes in `owned`. */
static void check_tensor(const suite_case *c, int32_t index, const unsigned char *after,
                         unsigned char *owned) {
    const suite_tensor *t = &c->tensors[index];
    double error = 0, norm = 0, worst = 0, worst_value = 0;
    int64_t worst_at = -1;
    for (int64_t i = 0; i < t->rows * t->cols; i++) {
        if (!is_written(t, i))
            continue;
        int64_t at = element_offset(t, i / t->cols, i % t->cols);
        memset(owned + at, 1, (size_t)sbp_dtype_bytes(t->dtype));
        if (isinf(t->tolerance)) /* a workspace: whatever it holds */
            continue;
        double value = sbp_element_get(after + at, t->dtype, 0), expected = t->expected[i];
        if (isnan(value) != isnan(expected) || isinf(value) != isinf(expected) ||
            (isinf(value) && value != expected))
            fail_msg("%s: tensor %d [%lld, %lld] is %g, expected %g", c->name, index,
                     (long long)(i / t->cols), (long long)(i % t->cols), value, expected);
        if (!isfinite(expected))
            continue;
        double difference = fabs(value - expected);
        error += difference * difference;
        norm += expected * expected + t->terms * t->terms;
        if (difference > worst) {
            worst = difference;
            worst_at = i;
            worst_value = value;
        }
    }
    double tolerance = t->tolerance > 0 ? t->tolerance : sbp_tolerance(t->dtype);
    if (!isinf(tolerance) && !(sqrt(error) <= tolerance * sqrt(norm)))
        fail_msg("%s: tensor %d: relative error %.3g above %.3g; worst at [%lld, %lld]: %.9g, expected %.9g",
                 c->name, index, sqrt(error / norm), tolerance, (long long)(worst_at / t->cols),
                 (long long)(worst_at % t->cols), worst_value, t->expected[worst_at]);
}

/* What the narrower instruction sets give, against `after`. */
static void check_instruction_sets(suite_case *c, sbp_program *program, int64_t bytes,
                                   const unsigned char *before, const unsigned char *after,
                                   unsigned char *other) {
    static const char *const sets[] = {"v4", "v3", "base"};
    const char *set = getenv("SBP_CPU_ISA");
    char *kept = set ? strdup(set) : NULL;
    for (int i = 0; i < SBP_COUNT(sets); i++) {
        setenv("SBP_CPU_ISA", sets[i], 1);
        run_on(c, program, SBP_QUEUE_COMPUTE, 2, before, other, 1);
        if (memcmp(after, other, (size_t)bytes) != 0)
            fail_msg("%s: results in %s differ", c->name, sets[i]);
    }
    unsetenv("SBP_CPU_ISA");
    if (kept)
        setenv("SBP_CPU_ISA", kept, 1);
    free(kept);
}

static bool runs_on_host(const suite_case *c) {
    switch (c->command.kind) {
    case SBP_CMD_FILL:
    case SBP_CMD_COPY:
    case SBP_CMD_ROW:
    case SBP_CMD_COLSUM:
    case SBP_CMD_REDUCE:
        return true;
    default:
        return false;
    }
}

/* The instruction sets that a machine would never choose share the cases: each runs in one of them. So does
 * the shuffle device, whose queues test_order.c tries. What must have the same bits in all is tried in all.
 */
static bool is_for_another(void) {
    static const char *const sets[] = {"base", "v3", "v4"};
    static int seen;
    const char *set = getenv("SBP_CPU_ISA");
    bool shuffled = strcmp(under_test->name, "cpu-shuffle") == 0;
    int turn = 0;
    if ((!set && !shuffled) || is_everything())
        return false;
    for (int i = 0; set && i < SBP_COUNT(sets); i++)
        turn = strcmp(set, sets[i]) == 0 ? i : turn;
    return seen++ % SBP_COUNT(sets) != turn;
}

/* Whether the device is among those of the case. */
static bool is_on(uint32_t these) {
    uint32_t own = strcmp(under_test->name, "cuda") == 0     ? SUITE_ON_CUDA
                   : strcmp(under_test->name, "vulkan") == 0 ? SUITE_ON_VULKAN
                                                             : SUITE_ON_CPU;
    return these == 0 || (these & own);
}

bool suite_wants(suite_case *c) {
    sbp_span spans[SUITE_MOST_TENSORS];
    if (c->asked)
        return c->wanted;
    lay_out(c);
    c->asked = true;
    sbp_dispatch dispatch = dispatch_of(c, SBP_DEVICE, spans);
    bool always = c->only_on && getenv("SBP_TEST_EDGES");
    if (missing[c->command.kind]) {
        cases_without_kernel++;
        return c->wanted = false;
    }
    c->wanted = is_on(c->only_on) && (always || (!is_for_another() && !is_left_out(&dispatch)));
    if (c->wanted && is_refused(&dispatch)) {
        validated.refused++;
        c->wanted = false;
    }
    return c->wanted;
}

void suite_check(suite_case *c) {
    static const int threads[] = {2, 3, 5};
    static int seen;
    if (!suite_wants(c))
        return;
    int64_t bytes = lay_out(c);
    sbp_program *program = sbp_program_create(c->arena, "conformance");
    program->arena_bytes[SBP_DEVICE] = program->arena_bytes[SBP_HOST] = bytes;
    if (c->kernel)
        c->command.kernel = sbp_program_add_kernel(c->arena, program, c->kernel);
    c->command.view_count = c->tensor_count;
    unsigned char *before = suite_alloc(c, bytes, 1), *after = suite_alloc(c, 2 * bytes, 1);
    unsigned char *other = suite_alloc(c, 2 * bytes, 1), *owned = suite_alloc(c, bytes, 1);
    fill_arena(c, before, bytes);
    if (!run_on(c, program, SBP_QUEUE_COMPUTE, 1, before, after, 2))
        return;
    if (memcmp(after, after + bytes, (size_t)bytes) != 0)
        fail_msg("%s: two runs differ", c->name);
    for (int32_t i = 0; i < c->tensor_count; i++) {
        settle_doubts(&c->tensors[i], after);
        check_tensor(c, i, after, owned);
    }
    for (int64_t i = 0; i < bytes; i++)
        if (!owned[i] && after[i] != before[i])
            fail_msg("%s: byte %lld, which is no output, was overwritten", c->name, (long long)i);
    bool threaded = strncmp(under_test->name, "cpu", 3) == 0;
    int turn = seen++ % SBP_COUNT(threads); /* one of them for each case, with SBP_TEST_ALL=1 all */
    for (int i = 0; i < SBP_COUNT(threads) && threaded; i++) {
        if (i != turn && !is_everything())
            continue;
        run_on(c, program, SBP_QUEUE_COMPUTE, threads[i], before, other, 1);
        if (memcmp(after, other, (size_t)bytes) != 0)
            fail_msg("%s: results with %d threads differ", c->name, threads[i]);
    }
    if (threaded && runs_on_host(c)) {
        run_on(c, program, SBP_QUEUE_HOST, 2, before, other, 1);
        if (memcmp(after, other, (size_t)bytes) != 0)
            fail_msg("%s: results of queue host differ", c->name);
    }
    if (threaded && c->same_bits)
        check_instruction_sets(c, program, bytes, before, after, other);
    sbp_census_write(); /* a line for each case that passes */
}

/* ---- the program ---------------------------------------------------------------------------------- */

/* One deliberate failure, expected: proves that the suite can fail. */
static void test_suite_can_fail(void **state) {
    (void)state;
    suite_case *c = suite_begin("deliberately wrong", 0);
    suite_tensor *t = suite_add(c, SBP_F32, 1, 3);
    suite_expect(c, t);
    t->expected[1] = 2;
    unsigned char *bytes = suite_alloc(c, lay_out(c), 1);
    fill_arena(c, bytes, lay_out(c));
    double error = 0;
    for (int i = 0; i < 3; i++)
        error += fabs(sbp_element_get(bytes + element_offset(t, 0, i), t->dtype, 0) - t->expected[i]);
    assert_true(error > 1);
    suite_end(c);
}

/* Whether the variant of products that SBP_VULKAN_GEMM asks for would run: without it, something else would
 * pass. */
static bool has_variant(void) {
#ifdef SBP_HAS_VULKAN
    const char *variant = getenv("SBP_VULKAN_GEMM");
    bool matrix = variant && strncmp(variant, "matrix", 6) == 0 && strcmp(under_test->name, "vulkan") == 0;
    if (matrix && !sbp_vulkan_device_has_matrix(0, SBP_BF16))
        printf("skipped: products of bf16 by cooperative matrices: the driver has none\n");
    if (!matrix || sbp_vulkan_device_has_matrix(0, SBP_F16))
        return true;
    printf("skipped: conformance of vulkan, products by cooperative matrices: the driver has none of f16\n");
    return false;
#else
    return true;
#endif
}

/* lavapipe's cache of shaders does not know the width of vectors it was made for: a process of another width
 * would be given this one's code and this one the other's, which sums in another order. */
static bool shares_other_code(void) {
    if (!getenv("LP_NATIVE_VECTOR_WIDTH") || getenv("MESA_SHADER_CACHE_DIR") ||
        getenv("MESA_SHADER_CACHE_DISABLE"))
        return false;
    fprintf(stderr, "LP_NATIVE_VECTOR_WIDTH is set, and the driver's cache of shaders does not know it; set "
                    "MESA_SHADER_CACHE_DIR to a folder of this width\n");
    return true;
}

/* Whether this machine and this build can run the device at all. */
static bool can_run(void) {
    sbp_diag *diag = sbp_diag_create();
    int32_t count = 1;
    bool device = !under_test->count || under_test->count(diag, &count) == SBP_OK;
    if (device && *validation()) { /* the layer */
        const sbp_device_options none = {0};
        sbp_device *opened;
        device = under_test->create(&none, diag, &opened) == SBP_OK;
        if (device)
            under_test->destroy(opened);
    }
    bool target = !under_test->count || sbp_target_find(under_test->name);
    if (!device)
        printf("skipped: conformance of %s: %s\n", under_test->name, sbp_diag_text(diag, SBP_ERROR));
    else if (!target)
        printf("skipped: conformance of %s: this build cannot compile for it\n", under_test->name);
    sbp_diag_destroy(diag);
    return device && target;
}

/* A device that stays: on a GPU the driver's context then lives as long as the program, where else each case
 * would make and destroy one, half a second each. NULL: not needed, or it cannot be had, which cases will
 * say.
 */
static sbp_device *keep_context(void) {
    const sbp_device_options none = {0};
    sbp_device *kept = NULL;
    sbp_diag *diag = sbp_diag_create();
    if (is_slow() && diag && under_test->create(&none, diag, &kept) != SBP_OK)
        kept = NULL;
    sbp_diag_destroy(diag);
    return kept;
}

static bool has_software_driver(void) {
    const sbp_device_options none = {0};
    sbp_device_info info = {0};
    sbp_device *device;
    sbp_diag *diag = sbp_diag_create();
    if (under_test->create(&none, diag, &device) == SBP_OK) {
        under_test->info(device, &info);
        under_test->destroy(device);
    }
    sbp_diag_destroy(diag);
    return info.software;
}

/* What an author has before him. */
static int list_missing(void) {
    int count = 0;
    for (int kind = 0; kind < SBP_CMD_COUNT; kind++)
        if (missing[kind]) {
            printf("missing  %-14s %s\n", sbp_command_name((sbp_command_kind)kind),
                   sbp_command_synopsis((sbp_command_kind)kind));
            count++;
        }
    if (count > 0)
        printf("%s has no kernel for %d of %d commands: of their cases %d were not run\n", under_test->name,
               count, SBP_CMD_COUNT, cases_without_kernel);
    return count;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "cpu";
    under_test = suite_find_device(name);
    if (!under_test) {
        fprintf(stderr, "no device '%s'; there are:", name);
        for (int i = 0; sbp_backend_at(i); i++)
            if (sbp_device_find(sbp_backend_at(i)->name))
                fprintf(stderr, " %s", sbp_backend_at(i)->name);
        fprintf(stderr, " %s\n", sbp_cpu_shuffle_device.name);
        return 2;
    }
    if (shares_other_code())
        return 2;
    if (!can_run() || !has_variant())
        return 0;
    setenv("SBP_TEST_SCRATCH", "1", 1); /* cpu: scratch memory begins as NaN */
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    static const struct {
        const struct CMUnitTest *tests;
        const int *count;
    } groups[] = {{suite_simple_tests, &suite_simple_count}, {suite_gemm_tests, &suite_gemm_count},
                  {suite_row_tests, &suite_row_count},       {suite_form_tests, &suite_form_count},
                  {suite_number_tests, &suite_number_count}, {suite_attention_tests, &suite_attention_count},
                  {suite_conv_tests, &suite_conv_count},     {suite_delta_tests, &suite_delta_count},
                  {suite_expert_tests, &suite_expert_count}, {suite_order_tests, &suite_order_count}};
    struct CMUnitTest all[64] = {cmocka_unit_test(test_suite_can_fail)};
    size_t count = 1;
    for (int g = 0; g < SBP_COUNT(groups); g++)
        for (int i = 0; i < *groups[g].count; i++)
            all[count++] = groups[g].tests[i];
#ifdef SBP_HAVE_VULKAN_TARGET
    /* glslang keeps its tables while a compiler lives; building them takes longer than most cases */
    sbp_vulkan_compiler *kept = strcmp(name, "vulkan") == 0 ? sbp_vulkan_compiler_create() : NULL;
#endif
    sbp_device *context = keep_context();
    is_software = strcmp(name, "vulkan") == 0 && has_software_driver();
    int failed = _cmocka_run_group_tests(name, all, count, NULL, NULL);
    if (context)
        under_test->destroy(context);
#ifdef SBP_HAVE_VULKAN_TARGET
    sbp_vulkan_compiler_destroy(kept);
#endif
    if (is_sampled() && !*validation())
        printf("%d of %d cases run%s\n", validated.run, validated.seen,
               validated.run < validated.seen ? " (SBP_TEST_ALL=1 runs all)" : "");
    if (validated.refused > 0)
        printf("skipped: %d cases of conformance of %s: software drivers stop their loops too early\n",
               validated.refused, name);
    if (*validation())
        printf("validation %s: %d of %d cases run, %d left out since llvmpipe stops the layer's loops\n",
               validation(), validated.run, validated.seen, validated.too_long);
    if (list_missing() > 0)
        failed = 1;
    if (wants_warnings() && warnings == 0) {
        printf("no device said what it does without\n");
        failed = 1;
    }
    return failed;
}
