/* test_choice.c: which backend --backend auto means, from lists of devices that this machine does not have;
 * and what control groups allow, of machines whose files lie in a directory. */
#include "backends/backends.h"
#include "backends/choice.h"
#include "backends/devices.h"
#include "backends/target.h"
#include "ir/base/cgroup.h"
#include "passes/lower/passes.h"
#include "runtime/options/options.h"
#include "tests/unit/io_testing.h"

#include <errno.h>
#include <sys/stat.h>

#define GIB ((int64_t)1 << 30)

static const sbp_candidate llvmpipe = {
    .name = "llvmpipe", .software = true, .fp64 = true, .free_bytes = 2 * GIB};
static const sbp_candidate big = {.name = "Big GPU", .fp64 = true, .free_bytes = 80 * GIB};
static const sbp_candidate small = {.name = "Small GPU", .free_bytes = 8 * GIB};
static const sbp_candidate old = {
    .name = "Old GPU", .missing = "which lacks scalarBlockLayout", .free_bytes = GIB};

typedef struct expectation {
    sbp_choice_request request;
    const sbp_candidate *devices[3];
    const char *none;
    bool cannot_compile;
    const char *backend;
    int64_t memory_bytes;
    const char *reason;
} expectation;

static void test_choices(void **state) {
    static const sbp_choice_request automatic = {.backend = "auto"}, fp64 = {.backend = "auto", .fp64 = true};
    const expectation list[] = {
        {automatic, {&big}, .backend = "vulkan", .memory_bytes = 80 * GIB, .reason = "Big GPU"},
        {automatic, {&small, &llvmpipe}, .backend = "vulkan", .memory_bytes = 8 * GIB, .reason = "Small GPU"},
        {automatic, {&llvmpipe, &small}, .backend = "vulkan", .memory_bytes = 8 * GIB, .reason = "Small GPU"},
        {automatic, {&old, &small}, .backend = "vulkan", .memory_bytes = 8 * GIB, .reason = "Small GPU"},
        {automatic,
         {&llvmpipe},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: only llvmpipe, which is software"},
        {automatic,
         {&old, &llvmpipe},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: Old GPU, which lacks scalarBlockLayout; llvmpipe, which is software"},
        {automatic,
         {NULL},
         .none = "the loader is not installed",
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: the loader is not installed"},
        {automatic,
         {&big},
         .cannot_compile = true,
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "this build compiles for no GPU"},
        {fp64, {&small, &big}, .backend = "vulkan", .memory_bytes = 80 * GIB, .reason = "Big GPU"},
        {fp64,
         {&small},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: only Small GPU, which does not compute in fp64"},
        {{.backend = "auto", .device = 1},
         {&big, &small},
         .backend = "vulkan",
         .memory_bytes = 8 * GIB,
         .reason = "Small GPU"},
        {{.backend = "auto", .device = 1},
         {&big, &llvmpipe},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: Big GPU, which comes before --device; llvmpipe, which is software"},
        {{.backend = "vulkan"},
         {&llvmpipe},
         .backend = "vulkan",
         .memory_bytes = 2 * GIB,
         .reason = "asked for"},
        {{.backend = "vulkan", .device = 1},
         {&big, &small},
         .backend = "vulkan",
         .memory_bytes = 8 * GIB,
         .reason = "asked for"},
        {{.backend = "vulkan", .device = 7},
         {&big},
         .backend = "vulkan",
         .memory_bytes = 0,
         .reason = "asked for"},
        {{.backend = "cpu"}, {&big}, .backend = "cpu", .memory_bytes = 5, .reason = "asked for"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const expectation *e = &list[i];
        sbp_candidate devices[3];
        sbp_choice choice;
        int32_t count = 0;
        while (count < 3 && e->devices[count]) {
            devices[count] = *e->devices[count];
            count++;
        }
        const sbp_choice_backend vulkan = {.name = "vulkan",
                                           .title = "Vulkan",
                                           .compiles = !e->cannot_compile,
                                           .devices = devices,
                                           .count = count,
                                           .none = e->none};
        sbp_choice_make(&e->request, &vulkan, 1, 5, &choice);
        if (strcmp(choice.backend, e->backend) != 0 || choice.memory_bytes != e->memory_bytes ||
            strcmp(choice.reason, e->reason) != 0)
            fail_msg("choice %zu: %s, %lld bytes, '%s'; expected %s, %lld, '%s'", i, choice.backend,
                     (long long)choice.memory_bytes, choice.reason, e->backend, (long long)e->memory_bytes,
                     e->reason);
    }
}

/* Names are as long as their drivers make them. */
static void test_long_names(void **state) {
    sbp_candidate devices[16];
    sbp_choice choice;
    (void)state;
    for (int i = 0; i < 16; i++) {
        devices[i] = llvmpipe;
        memset(devices[i].name, 'x', sizeof devices[i].name - 1);
    }
    const sbp_choice_request request = {.backend = "auto"};
    const sbp_choice_backend vulkan = {
        .name = "vulkan", .title = "Vulkan", .compiles = true, .devices = devices, .count = 16};
    sbp_choice_make(&request, &vulkan, 1, 5, &choice);
    assert_string_equal(choice.backend, "cpu");
    assert_int_equal(strlen(choice.reason), sizeof choice.reason - 1);
}

/* Two backends: the better one first, and what is said when neither has a device. */
static void test_two_backends(void **state) {
    static const sbp_candidate hopper = {.name = "H", .arch = "sm_90a", .fp64 = true, .free_bytes = 80 * GIB};
    static const sbp_candidate bare = {
        .name = "H", .arch = "sm_90a", .fp64 = true, .missing = "without a compiler"};
    const sbp_choice_backend vulkan = {
        .name = "vulkan", .title = "Vulkan", .compiles = true, .devices = &big, .count = 1};
    const sbp_choice_backend software = {
        .name = "vulkan", .title = "Vulkan", .compiles = true, .devices = &llvmpipe, .count = 1};
    const sbp_choice_backend cuda = {
        .name = "cuda", .title = "CUDA", .compiles = true, .devices = &hopper, .count = 1};
    const sbp_choice_backend lacks = {
        .name = "cuda", .title = "CUDA", .compiles = true, .devices = &bare, .count = 1};
    const sbp_choice_backend absent = {
        .name = "cuda", .title = "CUDA", .compiles = true, .absent = true, .none = "no driver"};
    const sbp_choice_backend silent = {.name = "vulkan", .title = "Vulkan", .none = "nothing"};
    const struct {
        sbp_choice_request request;
        sbp_choice_backend backends[2];
        const char *backend, *arch, *reason;
        int64_t memory_bytes;
    } list[] = {
        {{.backend = "auto"}, {cuda, vulkan}, "cuda", "sm_90a", "H", 80 * GIB},
        {{.backend = "auto"}, {absent, vulkan}, "vulkan", "", "Big GPU", 80 * GIB},
        {{.backend = "auto"}, {lacks, vulkan}, "vulkan", "", "Big GPU", 80 * GIB},
        {{.backend = "auto"},
         {lacks, software},
         "cpu",
         "",
         "no CUDA GPU: only H, without a compiler; no Vulkan GPU: only llvmpipe, which is software",
         5},
        {{.backend = "auto"},
         {absent, software},
         "cpu",
         "",
         "no Vulkan GPU: only llvmpipe, which is software",
         5},
        {{.backend = "auto"}, {absent, silent}, "cpu", "", "no CUDA GPU: no driver", 5},
        {{.backend = "vulkan"}, {cuda, vulkan}, "vulkan", "", "asked for", 80 * GIB},
        {{.backend = "cuda"}, {cuda, vulkan}, "cuda", "sm_90a", "asked for", 80 * GIB},
        {{.backend = "cuda"}, {absent, vulkan}, "cuda", "", "asked for", 0},
        {{.backend = "cpu"}, {cuda, vulkan}, "cpu", "", "asked for", 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        sbp_choice choice;
        sbp_choice_make(&list[i].request, list[i].backends, 2, 5, &choice);
        assert_string_equal(choice.backend, list[i].backend);
        assert_string_equal(choice.arch, list[i].arch);
        assert_string_equal(choice.reason, list[i].reason);
        assert_int_equal(choice.memory_bytes, list[i].memory_bytes);
    }
}

/* ---- lists ------------------------------------------------------------------------------------------- */

/* --backend takes the names of the list, targets and devices have no others, and one is the host's. */
static void test_backend_list(void **state) {
    io_fixture *f = *state;
    const sbp_option *option = sbp_option_find("backend");
    const sbp_backend *backend;
    int32_t count = 0, hosts = 0;
    assert_string_equal(sbp_option_word(f->arena, option, 0), "auto");
    for (; (backend = sbp_backend_at(count)); count++) {
        assert_string_equal(sbp_option_word(f->arena, option, count + 1), backend->name);
        assert_ptr_equal(sbp_backend_find(backend->name), backend);
        hosts += (backend->is & SBP_BACKEND_HOST) != 0;
    }
    assert_null(sbp_option_word(f->arena, option, count + 1));
    assert_int_equal(hosts, 1);
    assert_true(sbp_backend_is_a(sbp_backend_of_host()->name, SBP_BACKEND_HOST));
    assert_false(sbp_backend_is_a("h200", 0));
    assert_false(sbp_backend_is_a(sbp_backend_of_host()->name, SBP_BACKEND_HOST | SBP_BACKEND_TUNES));
    for (int32_t i = 0; i < count; i++) {
        const sbp_target *target = sbp_target_find(sbp_backend_at(i)->name);
        sbp_target_info info;
        if (!target) /* not in this build */
            continue;
        assert_string_equal(target->name, sbp_backend_at(i)->name);
        assert_ok(f, target->describe(NULL, f->diag, &info));
        assert_null(sbp_throughput_missing(&info.throughput));
    }
    assert_non_null(sbp_target_find(sbp_backend_of_host()->name));
    for (int32_t i = 0; sbp_device_at(i); i++) { /* the host's processor last */
        assert_non_null(sbp_backend_find(sbp_device_at(i)->name));
        assert_int_equal(sbp_backend_is_a(sbp_device_at(i)->name, SBP_BACKEND_HOST), !sbp_device_at(i + 1));
    }
}

/* One that trains nothing is found by its name, and by nothing else. */
static void test_unlisted_backend(void **state) {
    io_fixture *f = *state;
    const sbp_choice_request request = {.backend = "auto"};
    sbp_choice choice;
    assert_true(sbp_backend_is_a("null", SBP_BACKEND_UNLISTED));
    assert_string_equal(sbp_device_find("null")->name, "null");
    assert_string_equal(sbp_target_find("null")->name, "null");
    for (int32_t i = 0; sbp_device_at(i); i++)
        assert_false(sbp_backend_is_a(sbp_device_at(i)->name, SBP_BACKEND_UNLISTED));
    assert_ok(f, sbp_choice_find(&request, f->diag, &choice));
    assert_null(strstr(choice.reason, "null"));
}

/* Those that are all of that, as a sentence has them; and cut where there is no room. */
static void test_backend_names(void **state) {
    static const unsigned is[] = {0, SBP_BACKEND_TUNES, SBP_BACKEND_HOST,
                                  SBP_BACKEND_TUNES | SBP_BACKEND_HOST | 1u << 31};
    char text[200], little[6];
    (void)state;
    for (int k = 0; k < SBP_COUNT(is); k++) {
        const sbp_backend *backend;
        char expected[200] = "";
        int32_t count = 0, seen = 0;
        for (int32_t i = 0; (backend = sbp_backend_at(i)); i++)
            count += (backend->is & is[k]) == is[k];
        for (int32_t i = 0; (backend = sbp_backend_at(i)); i++)
            if ((backend->is & is[k]) == is[k]) {
                strcat(strcat(expected, seen == 0 ? "" : seen + 1 == count ? " or " : ", "), backend->name);
                seen++;
            }
        assert_string_equal(sbp_backend_names(is[k], text, sizeof text), expected);
        assert_int_equal(strlen(sbp_backend_names(is[k], little, sizeof little)),
                         strlen(expected) < sizeof little ? strlen(expected) : sizeof little - 1);
        assert_memory_equal(little, expected, strlen(little));
    }
}

/* Likewise --optimizer, which can also be none. */
static void test_optimizer_list(void **state) {
    io_fixture *f = *state;
    const sbp_option *option = sbp_option_find("optimizer");
    for (int32_t i = 1; i < SBP_OPTIMIZER_COUNT; i++)
        assert_string_equal(sbp_option_word(f->arena, option, i - 1), sbp_optimizer_names[i]);
    assert_string_equal(sbp_option_word(f->arena, option, SBP_OPTIMIZER_COUNT - 1), "none");
    assert_null(sbp_option_word(f->arena, option, SBP_OPTIMIZER_COUNT));
}

/* ---- control groups ---------------------------------------------------------------------------------- */

#define V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1(controller, number)                                                                               \
#number " 24 0:" #number " / /sys/fs/cgroup/" controller " rw shared:9 - cgroup cgroup rw," controller   \
            "\n"

/* Files of a machine: pairs of a name and a text, NULL at the end. */
typedef struct machine {
    const char *groups, *mounts; /* /proc/self/cgroup, /proc/self/mountinfo; NULL: not there */
    const char *files[18];
    const char *limits; /* "BYTES-USED" of each, from this group up */
    int64_t cores;
} machine;

static const machine machines[] = {
    /* version 2, a step of Slurm below groups with limits of their own; 200 of its files can go */
    {"0::/system.slice/job_7/step_0\n",
     "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" V2,
     {"sys/fs/cgroup/system.slice/job_7/step_0/memory.max", "max\n",
      "sys/fs/cgroup/system.slice/job_7/step_0/cpu.max", "max 100000\n",
      "sys/fs/cgroup/system.slice/job_7/memory.max", "4000\n", "sys/fs/cgroup/system.slice/job_7/memory.high",
      "3000\n", "sys/fs/cgroup/system.slice/job_7/memory.current", "1500\n",
      "sys/fs/cgroup/system.slice/job_7/memory.stat", "anon 1300\ninactive_file 150\nactive_file 50\n",
      "sys/fs/cgroup/system.slice/job_7/cpu.max", "150000 100000\n", "sys/fs/cgroup/system.slice/memory.max",
      "9000\n"},
     "4000-1300 3000-1300 9000-0 ",
     2},
    /* a container with a name space of its own: its group is the one that is mounted */
    {"0::/\n",
     V2,
     {"sys/fs/cgroup/memory.max", "5000\n", "sys/fs/cgroup/memory.current", "5\n"},
     "5000-5 ",
     0},
    /* version 1, a job of Slurm: 9223372036854771712 is no limit */
    {"9:memory:/slurm/uid_0/job_1/step_0\n4:cpu,cpuacct:/batch\n1:name=systemd:/x\n0::/x\n",
     V1("cpu,cpuacct", 33) V1("memory", 35),
     {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n",
      "sys/fs/cgroup/memory/memory.use_hierarchy", "1\n", "sys/fs/cgroup/memory/slurm/memory.use_hierarchy",
      "1\n", "sys/fs/cgroup/memory/slurm/uid_0/memory.use_hierarchy", "1\n",
      "sys/fs/cgroup/memory/slurm/uid_0/job_1/memory.limit_in_bytes", "7000\n",
      "sys/fs/cgroup/memory/slurm/uid_0/job_1/memory.usage_in_bytes", "900\n",
      "sys/fs/cgroup/memory/slurm/uid_0/job_1/memory.use_hierarchy", "1\n",
      "sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_quota_us", "300000\n"},
     "7000-900 ",
     0},
    /* version 1: a group above that does not count what is below has no say */
    {"3:cpuset:/c\n2:memory:/a/b\n",
     V1("memory", 35),
     {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "800\n", "sys/fs/cgroup/memory/a/b/memory.stat",
      "inactive_file 9\ntotal_inactive_file 20\n", "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "50\n",
      "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "300\n", "sys/fs/cgroup/memory/a/memory.use_hierarchy",
      "0\n"},
     "800-30 ",
     0},
    /* a container that sees its part of a hierarchy under the whole path, at a place with a space; the part
     * of another, whose name begins alike, is not it */
    {"5:memory:/docker/ab/child\n4:cpu:/docker/ab/child\n",
     "7 6 0:3 /docker/ab /my\\040groups/memory ro - cgroup cgroup rw,memory\n"
     "8 6 0:3 /docker/a /sys/fs/cgroup/cpu ro master:3 - cgroup cpu rw,cpu\n",
     {"my groups/memory/child/memory.limit_in_bytes", "600\n", "my groups/memory/memory.limit_in_bytes",
      "500\n", "my groups/memory/memory.use_hierarchy", "1\n", "my groups/memory.limit_in_bytes", "1\n",
      "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
     "600-0 500-0 ",
     3},
    /* moved out of its name space: what is mounted, and nothing above that */
    {"0::/../other\n", V2, {"sys/fs/cgroup/memory.max", "10\n", "sys/fs/memory.max", "1\n"}, "10-0 ", 0},
    /* nothing can be read of groups */
    {NULL,
     NULL,
     {"sys/fs/cgroup/memory.max", "77\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "66\n"},
     "77-0 66-0 ",
     0},
    {"", "", {NULL}, "", 0},
};

static void put_file(const char *root, const char *name, const char *text) {
    char path[200];
    assert_true(snprintf(path, sizeof path, "%s/%s", root, name) < (int)sizeof path);
    for (char *at = path + strlen(root); (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    }
    io_put(path, text, strlen(text));
}

static void add_limit(void *user, int64_t bytes, int64_t used) {
    char *text = user;
    sprintf(text + strlen(text), "%lld-%lld ", (long long)bytes, (long long)used);
}

static void test_control_groups(void **state) {
    io_fixture *f = *state;
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        const machine *m = &machines[i];
        char found[200] = "";
        const char *root = sbp_arena_printf(f->arena, "%s/%zu", f->directory, i);
        put_file(root, "x", "");
        if (m->groups)
            put_file(root, "proc/self/cgroup", m->groups);
        if (m->mounts)
            put_file(root, "proc/self/mountinfo", m->mounts);
        for (int k = 0; m->files[k]; k += 2)
            put_file(root, m->files[k], m->files[k + 1]);
        sbp_cgroup_memory(root, add_limit, found);
        assert_string_equal(found, m->limits);
        assert_int_equal(sbp_cgroup_cores(root), m->cores);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_two_backends),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_backend_names),
        cmocka_unit_test_setup_teardown(test_unlisted_backend, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_backend_list, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_optimizer_list, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_control_groups, io_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
