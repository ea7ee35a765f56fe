/* test_vulkan_errors.c: every call of Vulkan that can fail does, one at a time (tests/common/vulkan_proxy.h).
 *
 * Whatever n, with the n-th call failing (or it and all after it, as with a lost device) a command ends with
 * status 3 and a message, or does without what that call was for and writes the same; it leaves no
 * half-written file and destroys every object of Vulkan that it created. SBP_TEST_ALL=1 tries every n. */
#include "tests/common/in_process.h"
#include "tests/common/sweep.h"

#include <dlfcn.h>
#include <inttypes.h>

#include "tests/common/vulkan_proxy.h"

#define MODEL "tests/golden/llama_plain/model"
#define ROWS "tests/golden/llama_plain/train.jsonl"
#define COMPILE "sbpc compile " MODEL " -o $D/p --seq-len 94 --chunk 32 --head-chunk 32 --backend vulkan"

static vulkan_proxy_reset_function *reset;
static vulkan_proxy_look_function *look;

typedef struct trial {
    const char *compile, *command;
    const char *whole;  /* names that the command may have written, each complete; a pattern of the shell */
    const char *result; /* what is the same when a command worked all the same; NULL: nothing */
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
    static const char *const reasons[] = {"memory", "lost", "initialization", "mapped",
                                          "too many allocations"};
    char what[400], words[100];
    vulkan_proxy_report report;
    snprintf(words, sizeof words, "%s=%" PRId64 ",error=%s", from_then_on ? "from" : "fail", n, error);
    in_process_clean(f, "p");
    reset(words);
    outcome o = in_process(f, t->command, NULL, 0, NULL);
    look(&report);
    snprintf(what, sizeof what, "%s: %s (%s)", t->command, words, report.failed ? report.failed : "no call");
    if (o.status != SBP_OK &&
        (o.status != SBP_MACHINE || !contains_any(o.message, reasons, SBP_COUNT(reasons))))
        fail_msg("%s gave status %d: '%s'", what, o.status, o.message);
    if (report.alive != 0)
        fail_msg("%s: %" PRId64 " objects were not destroyed", what, report.alive);
    in_process_check_files(f, what, "p", t->whole);
    char same[300];
    snprintf(same, sizeof same, "cmp -s %s/%s %s.whole/%s", f->directory, t->result ? t->result : "p",
             f->directory, t->result ? t->result : "p");
    if (o.status == SBP_OK && system(same) != 0)
        fail_msg("%s changed the result", what);
    return o.status == SBP_OK;
}

static void run_trial(void **state, const trial *t) {
    io_fixture *f = *state;
    vulkan_proxy_report report;
    char copy[300];
    int tried = 0, worked = 0;
    if (!reset)
        skip();
    in_process_clean(f, "");
    outcome o = in_process(f, t->compile, NULL, 0, NULL);
    if (o.status != SBP_OK) {
        print_message("skipped: errors of Vulkan: %s\n", o.message);
        skip();
    }
    reset("");
    o = in_process(f, t->command, NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s: status %d: %s", t->command, o.status, o.message);
    look(&report);
    assert_true(report.calls > 20 && report.alive == 0);
    snprintf(copy, sizeof copy, "rm -rf %s.whole && cp -r %s %s.whole", f->directory, f->directory,
             f->directory);
    assert_int_equal(system(copy), 0);
    uint64_t random = 20261121;
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
      .command = "sbprun $D/p --data " ROWS " --eval " ROWS
                 " --out $D/o --steps 2 --batch-size 3 --save-every 1",
      .whole = "o/*.json|o/*.jsonl|o/*.safetensors|o/README.md|o/report.html",
      .result = "o/model.safetensors", .tries = 40)
TRIAL(dump, .compile = COMPILE " --offload host --checkpoint-every 2",
      .command = "sbprun $D/p --data " ROWS " --dump-gradients $D/g.safetensors", .whole = "g.safetensors",
      .result = "g.safetensors", .tries = 30)
TRIAL(score, .compile = COMPILE, .command = "sbprun $D/p --data " ROWS " --score $D/s", .whole = "s",
      .result = "s", .tries = 20)

/* The same with what other hardware makes the device do. */
static void test_dump_staged(void **state) {
    setenv("SBP_VULKAN_TEST", "staging,streams,blocks", 1);
    test_dump(state);
    unsetenv("SBP_VULKAN_TEST");
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
    if (!reset)
        skip();
    in_process_clean(f, "");
    if (in_process(f, COMPILE, NULL, 0, NULL).status != SBP_OK)
        skip();
    expect(f, "hide=scalarBlockLayout,hide=shaderInt64",
           (const char *const[]){"lacks scalarBlockLayout, shaderInt64", "which every plan needs", NULL});
    expect(
        f, "gpu,heap=100000",
        (const char *const[]){"the plan needs ", " of device memory", "Pretended GPU has 97.66 KiB", NULL});
    expect(f, "gpu,heap=3000000,budget,driver=2500000",
           (const char *const[]){"the plan needs ", "of the 2.86 MiB of Pretended GPU",
                                 "are free for this process", NULL});
    expect(f, "fail=1,call=AllocateMemory",
           (const char *const[]){"allocating ", ": out of device memory; its memory has ", NULL});
    expect(f, "fail=1,call=CreateComputePipelines",
           (const char *const[]){"out of device memory (in ", "; the plan needs ",
                                 " for its buffers, its memory has ", " are taken for this plan", NULL});
    expect(f, "fail=2,call=QueueSubmit2,error=lost",
           (const char *const[]){"the device was lost (a reset of the driver", "in QueueSubmit2)", NULL});
    expect(f, "fail=1,call=MapMemory,error=other", (const char *const[]){"memory could not be mapped", NULL});
    expect(f, "fail=1,call=CreateDevice,error=lost", (const char *const[]){"the device was lost", NULL});
    expect(f, "fail=1,call=EnumeratePhysicalDevices",
           (const char *const[]){"devices cannot be listed: out of device memory", NULL});
}

static int open_proxy(void **state) {
    char path[200];
    if (io_setup(state) != 0)
        return -1;
    const io_fixture *f = *state;
    snprintf(path, sizeof path, "%s.cache", f->directory);
    setenv("XDG_CACHE_HOME", path, 1);
#ifdef SBP_VULKAN_PROXY
    void *library = dlopen(SBP_VULKAN_PROXY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        print_message("%s\n", dlerror());
        return -1;
    }
    reset = (vulkan_proxy_reset_function *)dlsym(library, "vulkan_proxy_reset");
    look = (vulkan_proxy_look_function *)dlsym(library, "vulkan_proxy_look");
    reset("");
    outcome o = in_process(f, "sbprun --devices", NULL, 0, NULL);
    char out[2000];
    in_process_output(f, "out", out, sizeof out);
    if (o.status == SBP_OK && strstr(out, "vulkan 0: "))
        return 0;
    print_message("skipped: errors of Vulkan: %.*s\n", (int)strcspn(out, "\n"), out);
#else
    print_message("skipped: errors of Vulkan: built without Vulkan\n");
#endif
    reset = NULL;
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages), cmocka_unit_test(test_train),       cmocka_unit_test(test_dump),
        cmocka_unit_test(test_score),    cmocka_unit_test(test_dump_staged),
    };
    in_process_choose(argc, argv);
    return cmocka_run_group_tests(tests, open_proxy, in_process_teardown);
}
