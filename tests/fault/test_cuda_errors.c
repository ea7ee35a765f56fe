/* test_cuda_errors.c: every call of CUDA's driver and of cuBLASLt that can fail does, one at a time, on the
 * fakes (tests/cuda/fake).
 *
 * Whatever n, with the n-th call failing (or it and all after it, as with a lost device) a command ends with
 * status 3 and a message, or does without what that call was for and writes the same; it leaves no
 * half-written file and gives back everything that it took. SBP_TEST_ALL=1 tries every n. */
#include "tests/common/in_process.h"
#include "tests/common/sweep.h"

#include <dlfcn.h>
#include <inttypes.h>

#include "tests/cuda/fake/fake.h"

#define MODEL "tests/golden/llama_plain/model"
#define ROWS "tests/golden/llama_plain/train.jsonl"
#define COMPILE                                                                                              \
    "sbpc compile " MODEL " -o $D/p --seq-len 94 --chunk 32 --head-chunk 32 --backend cuda --arch sm_90a"

static fake_cuda_reset_function *reset;
static fake_cuda_look_function *look;

typedef struct trial {
    const char *compile, *command;
    const char *whole;  /* names that the command may have written, each complete; a pattern of the shell */
    const char *result; /* what is the same when a command worked all the same */
    int tries;          /* how many n by default */
} trial;

static const char *const errors[] = {"memory", "lost", "other"};

static bool contains_any(const char *text, const char *const *list, int count) {
    for (int i = 0; i < count; i++)
        if (strstr(text, list[i]))
            return true;
    return false;
}

/* One n; whether the command worked all the same. */
static bool attempt(io_fixture *f, const trial *t, int64_t n, const char *error, bool from_then_on) {
    static const char *const reasons[] = {"memory", "ECC", "unknown error", "an error of its own",
                                          "failed before its memory"};
    char what[400], words[100], same[300];
    fake_cuda_report report;
    snprintf(words, sizeof words, "%s=%" PRId64 ",error=%s", from_then_on ? "from" : "fail", n, error);
    in_process_clean(f, "p");
    reset(words);
    outcome o = in_process(f, t->command, NULL, 0, NULL);
    look(&report);
    snprintf(what, sizeof what, "%s: %s (%s)", t->command, words, report.failed ? report.failed : "no call");
    if (o.status != SBP_OK &&
        (o.status != SBP_MACHINE || !contains_any(o.message, reasons, SBP_COUNT(reasons))))
        fail_msg("%s gave status %d: '%s'", what, o.status, o.message);
    if (report.alive != 0 || report.wrong != 0)
        fail_msg("%s: %" PRId64 " objects were not given back, %" PRId64 " wrong uses", what, report.alive,
                 report.wrong);
    in_process_check_files(f, what, "p", t->whole);
    snprintf(same, sizeof same, "cmp -s %s/%s %s.whole/%s", f->directory, t->result, f->directory, t->result);
    if (o.status == SBP_OK && system(same) != 0)
        fail_msg("%s changed the result", what);
    return o.status == SBP_OK;
}

static void run_trial(void **state, const trial *t) {
    io_fixture *f = *state;
    fake_cuda_report report;
    char copy[300];
    int tried = 0, worked = 0;
    in_process_clean(f, "");
    outcome o = in_process(f, t->compile, NULL, 0, NULL);
    if (o.status != SBP_OK) {
        print_message("skipped: errors of CUDA: %s\n", o.message);
        skip();
    }
    reset("");
    o = in_process(f, t->command, NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s: status %d: %s", t->command, o.status, o.message);
    look(&report);
    assert_true(report.calls > 100 && report.launches > 20 && report.matmuls > 20);
    assert_true(report.alive == 0 && report.wrong == 0);
    snprintf(copy, sizeof copy, "rm -rf %s.whole && cp -r %s %s.whole", f->directory, f->directory,
             f->directory);
    assert_int_equal(system(copy), 0);
    uint64_t random = 20261122;
    double step = testing_all() || report.calls < t->tries ? 1 : (double)report.calls / t->tries;
    for (double at = 1; at < (double)report.calls + 1; at += step, tried++) {
        int64_t n = (int64_t)at + (step > 1 ? (int64_t)(io_random(&random) % (uint32_t)step) : 0);
        worked += attempt(f, t, n < report.calls ? n : report.calls, errors[tried % 3], tried % 4 == 3);
    }
    print_message("%.60s: %" PRId64 " calls, %d tried, %d not missed\n", t->command, report.calls, tried,
                  worked);
    assert_true(worked < tried / 2);
}

#define TRIAL(name, ...)                                                                                     \
    static void test_##name(void **state) {                                                                  \
        static const trial t = {__VA_ARGS__};                                                                \
        run_trial(state, &t);                                                                                \
    }

TRIAL(train, .compile = COMPILE,
      .command = "sbprun $D/p --data " ROWS " --out $D/o --steps 2 --batch-size 1 --save-every 1",
      .whole = "o/*.json|o/*.jsonl|o/*.safetensors|o/README.md|o/report.html",
      .result = "o/model.safetensors", .tries = 25)
TRIAL(dump, .compile = COMPILE " --offload host --checkpoint-every 2",
      .command = "sbprun $D/p --data " ROWS " --dump-gradients $D/g.safetensors", .whole = "g.safetensors",
      .result = "g.safetensors", .tries = 25)

TRIAL(tune, .compile = COMPILE, .command = "sbprun $D/p --data " ROWS " --score $D/s --tune $D/t",
      .whole = "s|t", .result = "s", .tries = 12)

/* The first calls, which open and load, each with each error. */
static void test_open(void **state) {
    io_fixture *f = *state;
    static const trial t = {
        .command = "sbprun $D/p --data " ROWS " --score $D/s", .whole = "s", .result = "s"};
    char copy[300];
    in_process_clean(f, "");
    outcome o = in_process(f, COMPILE, NULL, 0, NULL);
    if (o.status != SBP_OK) {
        print_message("skipped: errors of CUDA: %s\n", o.message);
        skip();
    }
    reset("");
    o = in_process(f, t.command, NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s: status %d: %s", t.command, o.status, o.message);
    snprintf(copy, sizeof copy, "rm -rf %s.whole && cp -r %s %s.whole", f->directory, f->directory,
             f->directory);
    assert_int_equal(system(copy), 0);
    for (int n = 1; n <= 24; n++)
        for (int e = 0; e < SBP_COUNT(errors); e++)
            (void)attempt(f, &t, n, errors[e], false);
}

/* ---- messages --------------------------------------------------------------------------------------- */

static void expect(io_fixture *f, const char *words, const char *const *texts) {
    in_process_clean(f, "p");
    reset(words);
    outcome o = in_process(f, "sbprun $D/p --data " ROWS " --dump-gradients $D/g.safetensors", NULL, 0, NULL);
    if (o.status != SBP_MACHINE)
        fail_msg("%s: status %d: '%s'", words, o.status, o.message);
    for (; *texts; texts++)
        if (!strstr(o.message, *texts))
            fail_msg("%s: no '%s' in '%s'", words, *texts, o.message);
    in_process_check_files(f, words, "p", "-");
}

/* Messages say what is needed and what there is. */
static void test_messages(void **state) {
    io_fixture *f = *state;
    in_process_clean(f, "");
    if (in_process(f, COMPILE, NULL, 0, NULL).status != SBP_OK)
        skip();
    expect(f, "devices=0", (const char *const[]){"the driver sees no device", NULL});
    expect(f, "version=11040", (const char *const[]){"is for CUDA 11.4; 12.0 or newer is needed", NULL});
    expect(f, "memory=100000",
           (const char *const[]){"the plan needs ", " of device memory; of the 97.66 KiB of Fake GPU", NULL});
    expect(f, "memory=30000000", (const char *const[]){"a workspace needs 32.00 MiB of device memory", NULL});
    expect(f, "capability=80",
           (const char *const[]){"Fake GPU is of architecture sm_80, which the plan lacks (it has sm_90a)",
                                 "--arch sm_80", NULL});
    expect(f, "version=12040,fail=1,call=cuModuleLoadDataEx,error=other",
           (const char *const[]){"the driver does not take kernel '", "compile the plan by NVRTC 12", NULL});
    expect(f, "fail=1,call=cuLaunchKernel,error=lost",
           (const char *const[]){
               "cuda: Fake GPU: uncorrectable ECC error encountered (214, in cuLaunchKernel)", NULL});
    expect(f, "fail=1,call=cublasLtCreate,error=other",
           (const char *const[]){"cuda: Fake GPU: cuBLASLt: an error of its own", NULL});
}

static int open_fake(void **state) {
    if (io_setup(state) != 0)
        return -1;
#ifdef SBP_FAKE_CUDA_LIBRARY
    void *library = dlopen(SBP_FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        print_message("%s\n", dlerror());
        return -1;
    }
    reset = (fake_cuda_reset_function *)dlsym(library, "fake_cuda_reset");
    look = (fake_cuda_look_function *)dlsym(library, "fake_cuda_look");
    return reset && look ? 0 : -1;
#else
    return -1;
#endif
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages), cmocka_unit_test(test_open),
                                       cmocka_unit_test(test_train), cmocka_unit_test(test_dump),
                                       cmocka_unit_test(test_tune)};
    in_process_choose(argc, argv);
    return cmocka_run_group_tests(tests, open_fake, in_process_teardown);
}
