/* test_cuda_target: what the passes know of the CUDA backend, and plans' kernels: the same bytes for the same
 * program, from a cache that may be damaged, shared or not there; and containers that are damaged. */
#include "tests/cuda/target/kernel_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cuda/cuda_attention.h"
#include "backends/cuda/cuda_delta.h"
#include "backends/target.h"

static bool can_compile;
static char cache_folder[] = "/tmp/sbp_cuda_cache_XXXXXX";

static int begin(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return mkdtemp(cache_folder) && setenv("XDG_CACHE_HOME", cache_folder, 1) == 0 ? 0 : 1;
}

static int end(void **state) {
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r '%s'", cache_folder);
    return system(command);
}

static const sbp_target *target(void) {
    const sbp_target *found = sbp_target_find("cuda");
    assert_non_null(found);
    return found;
}

/* ---- describing ------------------------------------------------------------------------------------- */

static void archs(void **state) {
    (void)state;
    static const struct {
        const char *arch, *archs; /* NULL: refused */
    } cases[] = {{NULL, "sm_80,sm_86,sm_90a"},
                 {"sm_90a", "sm_90a"},
                 {"sm_120,sm_86", "sm_86,sm_120"},
                 {"sm_100a,sm_100,sm_100a", "sm_100,sm_100a"},
                 {"", NULL},
                 {"sm_75", NULL},
                 {"sm_80a", NULL},
                 {"sm_92", NULL},
                 {"native", NULL}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        testing t = testing_open(1);
        sbp_target_info info;
        sbp_status status = target()->describe(cases[i].arch, t.diag, &info);
        if (cases[i].archs) {
            testing_check(&t, status);
            assert_string_equal(info.name, "cuda");
            assert_string_equal(info.archs, cases[i].archs);
            assert_null(sbp_throughput_missing(&info.throughput));
            assert_true(info.throughput.attention[SBP_BF16] <= info.throughput.matmul[SBP_BF16]);
            assert_int_equal(info.alignment_bytes, 256);
        } else {
            testing_check_fails(&t, status, SBP_USAGE, "there are: sm_80 sm_86");
        }
        testing_close(&t);
    }
}

/* Throughput are those of a device that the list has. */
static void throughput(void **state) {
    (void)state;
    testing t = testing_open(1);
    sbp_target_info a100, h100, both;
    testing_check(&t, target()->describe("sm_80", t.diag, &a100));
    testing_check(&t, target()->describe("sm_90a", t.diag, &h100));
    testing_check(&t, target()->describe("sm_80,sm_90a", t.diag, &both));
    assert_true(h100.throughput.matmul[SBP_BF16] > 2 * a100.throughput.matmul[SBP_BF16]);
    assert_memory_equal(&both.throughput, &h100.throughput, sizeof both.throughput);
    testing_close(&t);
}

/* The delta rule is counted at the rate of the kernel that runs it: by tensor cores where there is one,
 * else scalars. */
static void delta_rates(void **state) {
    (void)state;
    static const struct {
        int64_t d_k, d_v;
        sbp_dtype dtype;
        bool backward, products;
    } cases[] = {{128, 128, SBP_BF16, false, true}, {128, 128, SBP_BF16, true, true},
                 {128, 128, SBP_F32, false, false}, {128, 128, SBP_F16, false, false},
                 {24, 128, SBP_BF16, false, false}, {256, 128, SBP_BF16, false, false},
                 {16, 16, SBP_BF16, false, true},   {256, 128, SBP_BF16, true, false},
                 {128, 128, SBP_F32, true, false}};
    testing t = testing_open(1);
    sbp_target_info info;
    testing_check(&t, target()->describe(NULL, t.diag, &info));
    for (int measured = 0; measured < 2; measured++) { /* then another machine's */
        const sbp_throughput *r = &info.throughput;
        for (int i = 0; i < SBP_COUNT(cases); i++) {
            const sbp_delta_attrs attrs = {
                .heads = 4, .key_heads = 2, .d_k = cases[i].d_k, .d_v = cases[i].d_v, .corrects = true};
            sbp_delta_attrs uncorrected = attrs;
            uncorrected.corrects = false;
            int times = cases[i].backward ? SBP_CUDA_DELTA_BWD_MMA_TIMES : SBP_CUDA_DELTA_MMA_TIMES;
            double want = cases[i].products ? r->attention[SBP_BF16] / times : r->attention[SBP_F32];
            assert_true(info.delta_rate(&info, &attrs, cases[i].dtype, cases[i].backward) == want);
            assert_true(info.delta_rate(&info, &uncorrected, cases[i].dtype, cases[i].backward) ==
                        sbp_throughput_scalars(r, cases[i].dtype));
        }
        info.throughput.attention[SBP_F32] = 1e9;
        info.throughput.attention[SBP_BF16] = 1e13;
    }
    testing_close(&t);
}

/* ---- images ------------------------------------------------------------------------------------------ */

static sbp_program *small_program(testing *t, const char *name) {
    static const kernel_case c = {.kind = SBP_CMD_COPY, .dtypes = {SBP_F32, SBP_F32}};
    sbp_program *program = kernel_program(t, &c);
    program->target = name;
    return program;
}

typedef struct plan {
    const void *data;
    int64_t bytes;
} plan;

static plan compile(testing *t, const char *archs_text) {
    plan p;
    testing_check(t, target()->compile(t->arena, t->diag, small_program(t, archs_text), &p.data, &p.bytes));
    return p;
}

static void same_plan(plan a, plan b) {
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.data, b.data, (size_t)a.bytes);
}

/* Per architecture a cubin, then its PTX. */
static void images(void **state) {
    (void)state;
    if (!can_compile)
        return;
    testing t = testing_open(1);
    plan p = compile(&t, "cuda:sm_80,sm_90a");
    sbp_gpu_images found;
    testing_check(&t, sbp_gpu_images_read(t.arena, t.diag, &sbp_cuda_format, p.data, p.bytes, &found));
    assert_int_equal(found.count, 4);
    for (int32_t i = 0; i < found.count; i++) {
        const sbp_gpu_image *image = &found.items[i];
        sbp_cuda_arch arch;
        bool ptx;
        char name[32], text[16];
        sbp_cuda_tag_read(image->tag, &arch, &ptx);
        assert_int_equal(ptx, i % 2);
        assert_int_equal(arch.number, i < 2 ? 80 : 90);
        sbp_cuda_arch_text(arch, text);
        snprintf(name, sizeof name, ".target %s\n", text);
        if (ptx) {
            assert_int_equal(((const char *)image->data)[image->bytes - 1], 0);
            assert_non_null(strstr(image->data, name));
            assert_non_null(strstr(image->data, ".visible .entry kernel("));
        } else {
            assert_memory_equal(image->data, "\177ELF", 4);
        }
    }
    testing_close(&t);
}

static void no_compiler(void **state) {
    (void)state;
    testing t = testing_open(1);
    const void *data;
    int64_t bytes;
    setenv("SBP_CUDA_LIBRARIES", "/nonexistent", 1);
    testing_check_fails(&t,
                        target()->compile(t.arena, t.diag, small_program(&t, "cuda:sm_80"), &data, &bytes),
                        SBP_MACHINE, "/nonexistent/libnvrtc.so.13");
    unsetenv("SBP_CUDA_LIBRARIES");
    testing_close(&t);
}

/* ---- the cache --------------------------------------------------------------------------------------- */

/* The one file of the cache, after one kernel was compiled. */
static const char *cache_file(void) {
    static char path[256];
    char command[200];
    snprintf(command, sizeof command, "ls -d %s/streambp/cuda/*.kernel", cache_folder);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(path, sizeof path, pipe));
    assert_int_equal(pclose(pipe), 0);
    path[strcspn(path, "\n")] = 0;
    return path;
}

static void empty_cache(void) {
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s/streambp'", cache_folder);
    assert_int_equal(system(command), 0);
}

static int compiled_now(testing *t, plan *p) {
    kernel_set set = kernels_compile(t, small_program(t, "cuda:sm_80"), "sm_80");
    int compiled = set.compiled;
    kernels_free(&set);
    if (p)
        *p = compile(t, "cuda:sm_80");
    return compiled;
}

static void hits(void **state) {
    (void)state;
    if (!can_compile)
        return;
    testing t = testing_open(1);
    plan one, other;
    empty_cache();
    assert_int_equal(compiled_now(&t, &one), 1);
    assert_int_equal(compiled_now(&t, &other), 0);
    same_plan(one, other);
    /* another architecture is another kernel */
    kernel_set set = kernels_compile(&t, small_program(&t, ""), "sm_80,sm_86");
    assert_int_equal(set.compiled, 1);
    kernels_free(&set);
    testing_close(&t);
}

static void put_file(const char *path, const char *data, size_t bytes) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Cut anywhere, longer, or with a bit changed anywhere: compiled again, to the same bytes. */
static void damaged(void **state) {
    (void)state;
    if (!can_compile)
        return;
    testing t = testing_open(1);
    plan good, again;
    empty_cache();
    assert_int_equal(compiled_now(&t, &good), 1);
    const char *path = cache_file();
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    size_t bytes = (size_t)about.st_size;
    char *data = malloc(bytes + 1), *bent = malloc(bytes + 1);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    fclose(file);
    int tried = 0;
    for (size_t k = 0; k < (size_t)testing_sweep(24, 400); k++, tried++) {
        size_t at = k < 8 ? 8 * k : (size_t)((double)bytes * testing_uniform(&t, 0, 1)), length = bytes;
        memcpy(bent, data, bytes);
        bent[bytes] = 0;
        if (k % 3 == 0)
            length = at < bytes ? at : 0;
        else if (k % 3 == 1)
            bent[at < bytes ? at : 0] ^= (char)(1 << k % 8);
        else
            length = k == 2 ? bytes + 1 : at / 2;
        put_file(path, bent, length);
        assert_int_equal(compiled_now(&t, k % 8 == 0 ? &again : NULL), 1);
        if (k % 8 == 0)
            same_plan(good, again);
    }
    assert_int_equal(compiled_now(&t, &again), 0);
    printf("  %d damaged files\n", tried);
    free(data);
    free(bent);
    testing_close(&t);
}

static void no_place(void **state) {
    (void)state;
    if (!can_compile)
        return;
    testing t = testing_open(1);
    plan p;
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    assert_int_equal(compiled_now(&t, &p), 1);
    assert_int_equal(compiled_now(&t, &p), 1);
    setenv("XDG_CACHE_HOME", cache_folder, 1);
    testing_close(&t);
}

/* Processes that compile the same at once. */
static void together(void **state) {
    (void)state;
    if (!can_compile)
        return;
    enum { PROCESSES = 4 };
    pid_t children[PROCESSES];
    empty_cache();
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            testing t = testing_open(1);
            for (int round = 0; round < 3; round++) {
                kernel_set set = kernels_compile(&t, small_program(&t, ""), "sm_80,sm_86");
                kernels_free(&set);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = 1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    testing t = testing_open(1);
    assert_int_equal(compiled_now(&t, NULL), 0);
    testing_close(&t);
}

/* What was used last stays. */
static void trimmed(void **state) {
    (void)state;
    sbp_cuda_cache cache;
    sbp_cuda_object object = {.cubin_bytes = 1000, .ptx_bytes = 10, .log_bytes = 10}, found;
    char data[1020] = {0};
    const char *texts[] = {"zero", "one", "two", "three"};
    sbp_cuda_source sources[4];
    empty_cache();
    sbp_cuda_cache_open(&cache);
    char foreign[sizeof cache.folder + 8];
    snprintf(foreign, sizeof foreign, "%s/notes", cache.folder);
    FILE *file = fopen(foreign, "we");
    assert_true(file && fclose(file) == 0);
    object.data = data;
    for (int i = 0; i < 4; i++) {
        sources[i] = (sbp_cuda_source){.text = texts[i], .bytes = strlen(texts[i])};
        sbp_cuda_cache_put(&cache, 7, &sources[i], &object);
        usleep(20000);
    }
    assert_true(sbp_cuda_cache_get(&cache, 7, &sources[0], &found)); /* now the newest */
    assert_int_equal(found.cubin_bytes, 1000);
    free(found.data);
    assert_false(sbp_cuda_cache_get(&cache, 8, &sources[0], &found)); /* another compiler */
    sbp_cuda_cache_trim(&cache, 2500);
    assert_int_equal(unlink(foreign), 0); /* the oldest, and no kernel */
    for (int i = 0; i < 4; i++) {
        bool there = sbp_cuda_cache_get(&cache, 7, &sources[i], &found);
        assert_int_equal(there, i == 0 || i == 3);
        free(found.data);
    }
}

/* With everything in the cache, memory that runs out at each allocation in turn. */
static void out_of_memory(void **state) {
    (void)state;
    if (!can_compile)
        return;
    testing t = testing_open(1);
    plan p;
    empty_cache();
    assert_int_equal(compiled_now(&t, &p), 1);
    testing_close(&t);
    int failed = 0;
    for (int64_t n = 1;; n++) {
        testing u = testing_open(1);
        sbp_program *program = small_program(&u, "cuda:sm_80");
        sbp_test_fail_allocation(n);
        sbp_status status = target()->compile(u.arena, u.diag, program, &p.data, &p.bytes);
        bool reached = sbp_test_fail_allocation(0) <= 0;
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        failed += status != SBP_OK;
        testing_close(&u);
        if (!reached)
            break;
    }
    printf("  %d times\n", failed);
    assert_true(failed >= 3);
}

/* ---- the container ----------------------------------------------------------------------------------- */

typedef struct reading {
    testing *t;
    const void *data;
    int64_t bytes;
    sbp_gpu_images out;
} reading;

static sbp_status read_images(void *user) {
    reading *r = user;
    return sbp_gpu_images_read(r->t->arena, r->t->diag, &sbp_cuda_format, r->data, r->bytes, &r->out);
}

static void container(void **state) {
    (void)state;
    testing t = testing_open(1);
    sbp_gpu_image in[6];
    const void *data;
    reading r = {.t = &t};
    for (int i = 0; i < 6; i++) {
        in[i] = (sbp_gpu_image){.key = {.kind = SBP_CMD_ROW, .kernel = i / 2},
                                .tag = sbp_cuda_tag((sbp_cuda_arch){90, true}, i % 2),
                                .data = "0123456789",
                                .bytes = 5 + i};
        memset(in[i].key.dtypes, SBP_DTYPE_COUNT, sizeof in[i].key.dtypes);
    }
    sbp_gpu_images_write(t.arena, &sbp_cuda_format, in, 6, &data, &r.bytes);
    r.data = data;
    testing_check(&t, sbp_guard(t.arena, t.diag, read_images, &r));
    assert_int_equal(r.out.count, 6);
    const int64_t bytes = r.bytes;
    for (r.bytes = 0; r.bytes < bytes; r.bytes++) { /* in memory of exactly that size */
        void *cut = malloc(r.bytes > 0 ? (size_t)r.bytes : 1);
        memcpy(cut, data, (size_t)r.bytes);
        r.data = cut;
        assert_int_equal(sbp_guard(t.arena, NULL, read_images, &r), SBP_INPUT);
        free(cut);
    }
    unsigned char *bent = malloc((size_t)bytes);
    for (int64_t bit = 0; bit < (16 + 6 * ((int64_t)sizeof(sbp_gpu_key) + 20)) * 8; bit++) {
        memcpy(bent, data, (size_t)bytes);
        bent[bit / 8] ^= (unsigned char)(1 << bit % 8);
        r.data = bent;
        r.bytes = bytes;
        sbp_status status = sbp_guard(t.arena, NULL, read_images, &r);
        assert_true(status == SBP_OK || status == SBP_INPUT);
        for (int32_t i = 0; status == SBP_OK && i < r.out.count; i++)
            assert_true(r.out.items[i].bytes > 0 && r.out.items[i].bytes <= bytes);
    }
    free(bent);
    testing_close(&t);
}

/* ---- workspaces ------------------------------------------------------------------------------------- */

/* What plans give attention's backward holds the scratch memory of every variant, whatever the shapes. */
static void workspaces(void **state) {
    (void)state;
    static const char *const archs[] = {"sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"};
    static const sbp_dtype dtypes[] = {SBP_BF16, SBP_F32, SBP_F64, SBP_F16};
    enum { BWD_Q = 3, BWD_K = 4, HEADS = 0 };
    testing t = testing_open(77);
    int32_t variants[SBP_CUDA_VARIANTS] = {0};
    for (int round = 0; round < 20000; round++) {
        sbp_target_info info;
        sbp_cuda_arch list[SBP_CUDA_ARCHS];
        int32_t count;
        const char *name = archs[sbp_rng_below(&t.rng, SBP_COUNT(archs))];
        sbp_dtype dtype = dtypes[sbp_rng_below(&t.rng, SBP_COUNT(dtypes))];
        sbp_dtype wide = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
        int32_t heads = 1 + (int32_t)sbp_rng_below(&t.rng, 128),
                d = 16 * (1 + (int32_t)sbp_rng_below(&t.rng, 16));
        int32_t rows = 1 + (int32_t)sbp_rng_below(&t.rng, sbp_rng_below(&t.rng, 2) ? 300 : 200000);
        sbp_gpu_key key = {.kind = SBP_CMD_ATTN_BWD, .d_qk = d, .d_v = d};
        const sbp_dtype types[12] = {dtype, wide, wide,  dtype,   dtype,   dtype,
                                     dtype, wide, dtype, SBP_I32, SBP_I32, SBP_I32};
        for (int i = 0; i < 12; i++)
            key.dtypes[i] = (uint8_t)types[i];
        sbp_gpu_args args = {.ints = {[HEADS] = heads},
                             .operands = {[BWD_Q] = {.rows = rows}, [BWD_K] = {.rows = rows}}};
        testing_check(&t, target()->describe(name, t.diag, &info));
        assert_true(sbp_cuda_archs_parse(name, list, &count));
        int64_t planned = (rows + info.attention_more_rows) * sbp_target_work_columns(&info, heads, d) *
                          sbp_dtype_bytes(wide);
        for (int v = 0; v < SBP_CUDA_VARIANTS; v++) {
            key.variant = (uint8_t)v;
            if (sbp_cuda_attention_steps(&key, list[0]) == 0)
                continue;
            int64_t bytes = sbp_cuda_attention_scratch(&key, list[0], &args);
            variants[v]++;
            if (bytes > planned || bytes <= 0)
                fail_msg("%s, variant %d, %d rows, %d heads of %d: %lld bytes, %lld are planned", name, v,
                         rows, heads, d, (long long)bytes, (long long)planned);
        }
    }
    printf("  %d, %d and %d workspaces of plain, mma and wgmma\n", variants[SBP_CUDA_PLAIN],
           variants[SBP_CUDA_MMA], variants[SBP_CUDA_WGMMA]);
    assert_true(variants[SBP_CUDA_PLAIN] > 0 && variants[SBP_CUDA_MMA] > 0 && variants[SBP_CUDA_WGMMA] > 0);
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(archs),     cmocka_unit_test(throughput),    cmocka_unit_test(delta_rates),
        cmocka_unit_test(images),    cmocka_unit_test(no_compiler),   cmocka_unit_test(hits),
        cmocka_unit_test(damaged),   cmocka_unit_test(no_place),      cmocka_unit_test(together),
        cmocka_unit_test(trimmed),   cmocka_unit_test(out_of_memory), cmocka_unit_test(container),
        cmocka_unit_test(workspaces)};
    return cmocka_run_group_tests_name("cuda target", tests, begin, end);
}
