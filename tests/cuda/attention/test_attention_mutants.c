/* test_attention_mutants.c: the proof of the proof. Each mutant of mutants.def must be reported by the PTX
 * machine, or give numbers that are off. Prints what caught which. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/common/sweep.h"
#include "tests/cuda/attention/run.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mutant {
    const char *name;
    bool backward;
    sbp_cuda_variant variant;
    int step;
    const char *from, *to;
    bool always;
    const char *from2, *to2; /* a second edit; NULL: none */
    sbp_dtype dtype;
    bool parts;
} mutant;

static const mutant mutants[] = {
#define MUTANT(name, backward, variant, step, from, to)                                                      \
    {name, backward, SBP_CUDA_##variant, step, from, to, false, NULL, NULL, SBP_BF16, false},
#define ALWAYS(name, backward, variant, step, from, to)                                                      \
    {name, backward, SBP_CUDA_##variant, step, from, to, true, NULL, NULL, SBP_BF16, false},
#define BOTH(name, backward, variant, step, from, to, from2, to2)                                            \
    {name, backward, SBP_CUDA_##variant, step, from, to, false, from2, to2, SBP_BF16, false},
#define HALVES(name, backward, variant, step, from, to)                                                      \
    {name, backward, SBP_CUDA_##variant, step, from, to, false, NULL, NULL, SBP_F16, false},
#define PARTS(name, backward, variant, step, from, to)                                                       \
    {name, backward, SBP_CUDA_##variant, step, from, to, false, NULL, NULL, SBP_BF16, true},
#include "tests/cuda/attention/mutants.def"
#undef PARTS
#undef HALVES
#undef BOTH
#undef MUTANT
#undef ALWAYS
};

static const mutant *current;

/* The text, which it frees, with the first `from` as `to`. */
static char *replace(char *text, const char *from, const char *to) {
    char *at = strstr(text, from);
    if (!at)
        fail_msg("mutant '%s': the text is not in the kernel", current->name);
    char *edited = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(edited);
    memcpy(edited, text, (size_t)(at - text));
    sprintf(edited + (at - text), "%s%s", to, at + strlen(from));
    free(text);
    return edited;
}

static char *edit(const sbp_gpu_key *key, char *text) {
    if (key->step != current->step)
        return text;
    text = replace(text, current->from, current->to);
    return current->from2 ? replace(text, current->from2, current->to2) : text;
}

#define HEADS(h, k, d) .attrs.heads = h, .attrs.kv_heads = k, .attrs.d_qk = d, .attrs.d_v = d

/* What no mutant survives all of. The first is causal over several tiles, with a tile of its own at the end;
 * the second has documents with shared prompts, a window and a softcap, and rows that are not there. */
static const attention_case cases[] = {
    {HEADS(2, 1, 128), .attrs.scale = 0.08, .total = 450, .rows = 200, .wide = true, .index = SBP_I32},
    {HEADS(2, 1, 64), .attrs.scale = 0.12, .attrs.window = 90, .attrs.softcap = 4, .total = 500, .rows = 330,
     .documents = true, .wide = true, .index = SBP_I32, .layout = CASE_FUSED, .all_keys = true},
};

/* Heads that are summed in parts, which take a kernel's longest. */
static const attention_case parted[] = {
    {HEADS(2, 1, 512), .attrs.scale = 0.04, .total = 90, .rows = 70, .wide = true, .index = SBP_I32},
};

enum { SEEDS = 5 };

/* What caught it, in run->text; false: nothing did. */
static bool is_caught(const mutant *m, attention_run *run) {
    current = m;
    const attention_case *of = m->parts ? parted : cases;
    int count = m->parts ? SBP_COUNT(parted) : SBP_COUNT(cases);
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        for (int i = 0; i < count; i++) {
            attention_case c = of[i];
            *run = (attention_run){.variant = m->variant,
                                   .arch = kernel_arch(m->variant == SBP_CUDA_WGMMA ? "sm_90a" : "sm_80"),
                                   .options.seed = seed,
                                   .options.resident = seed % 2 ? 0 : 1,
                                   .edit = edit};
            c.backward = m->backward;
            c.dtype = m->dtype;
            c.seed = seed;
            attention_case_make(&c);
            bool right = attention_run_case(run, &c);
            attention_case_free(&c);
            if (!right)
                return true;
        }
    return false;
}

static void test_mutants(void **state) {
    (void)state;
    const char *only = getenv("SBP_MUTANT");
    int caught = 0, count = 0;
    if (!kernels_open())
        skip();
    for (int i = 0; i < SBP_COUNT(mutants); i++) {
        attention_run run;
        if (only ? !strstr(mutants[i].name, only) : !mutants[i].always && !testing_all())
            continue;
        count++;
        bool found = is_caught(&mutants[i], &run);
        caught += found;
        print_message("%s: %s: %.*s\n", mutants[i].name,
                      !found                          ? "NOT CAUGHT"
                      : run.status == SBP_PTX_FAULT   ? "reported"
                      : run.status == SBP_PTX_REFUSED ? "refused"
                                                      : "wrong",
                      found ? (int)strcspn(run.text, "\n") : 0, run.text);
        attention_run_end();
    }
    print_message("%d of %d caught\n", caught, count);
    assert_int_equal(caught, count);
}

/* Every mutant has its place, those too that only SBP_TEST_ALL=1 runs. */
static void test_texts(void **state) {
    (void)state;
    static const char folder[] = "backends/cuda/kernels/attention";
    char *all = NULL, path[512];
    size_t length = 0;
    DIR *dir = opendir(folder);
    FILE *out = open_memstream(&all, &length);
    assert_non_null(dir);
    assert_non_null(out);
    for (struct dirent *entry; (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *in = strstr(entry->d_name, ".cu") ? fopen(path, "r") : NULL;
        for (int c; in && (c = fgetc(in)) != EOF;)
            fputc(c, out);
        if (in)
            fclose(in);
    }
    closedir(dir);
    fclose(out);
    for (int i = 0; i < SBP_COUNT(mutants); i++) {
        const mutant *m = &mutants[i];
        if (!strstr(all, m->from) || (m->from2 && !strstr(all, m->from2)))
            fail_msg("mutant '%s': the text is in none of the kernels", m->name);
    }
    free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_mutants)};
    return cmocka_run_group_tests_name("mutants of attention's kernels", tests, NULL, NULL);
}
