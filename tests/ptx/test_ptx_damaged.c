/* Damaged PTX: texts that are cut off, or of which characters, lines and words were changed, are refused,
 * reported or executed, and nothing else happens (ASan and UBSan watch in the asan build). */
#include "tests/ptx/ptx.h"
#include "tests/ptx/tensor/tma.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <glob.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 20, BUFFER = 1 << 16, MAX_PARAMS = 64, ROUNDS = 12, LIMIT = 20000 };

static uint64_t state = 0x2545f4914f6cdd1du;
static int outcomes[3];

static size_t below(size_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % n);
}

// The beginning of a line somewhere, and in *end where the next one begins.
static size_t some_line(const char *text, size_t bytes, size_t *end) {
    size_t at = below(bytes);
    while (at > 0 && text[at - 1] != '\n') {
        at--;
    }
    *end = at;
    while (*end < bytes && text[(*end)++] != '\n') {
    }
    return at;
}

// One edit; returns the new length, at most MAX_TEXT.
static size_t damage(char *text, size_t bytes) {
    static const char characters[] = "0123456789abcdefxr%$_.,;:{}[]()<>@!|+-\"/ \n";
    static const char *const words[] = {"4294967296",
                                        "-1",
                                        "0x",
                                        "0fzz",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "%r1",
                                        "%p0",
                                        "%rd99",
                                        "@!",
                                        ".reg .b32 %r<99999999>;",
                                        ".shared .b8 q[999999999];",
                                        "bra $L",
                                        "ret;",
                                        ".v4",
                                        ".f64",
                                        ".sync",
                                        "WARP_SZ",
                                        "18446744073709551615",
                                        "65536",
                                        "1",
                                        "-2147483648"};
    size_t end, at = below(bytes);
    switch (below(6)) {
    case 0: // cut off
        return at;
    case 1: // a character
        text[at] = characters[below(sizeof characters - 1)];
        return bytes;
    case 2: // a line goes
        at = some_line(text, bytes, &end);
        memmove(text + at, text + end, bytes - end);
        return bytes - (end - at);
    case 3: { // a line twice
        at = some_line(text, bytes, &end);
        const size_t n = end - at;
        if (bytes + n > MAX_TEXT) {
            return bytes;
        }
        memmove(text + end, text + at, bytes - at);
        return bytes + n;
    }
    case 4: { // a word somewhere
        const char *word = words[below(sizeof words / sizeof words[0])];
        const size_t n = strlen(word) < bytes - at ? strlen(word) : bytes - at;
        memcpy(text + at, word, n);
        return bytes;
    }
    default: { // part of a line over part of another
        const size_t from = below(bytes), n = below(24);
        if (from + n < bytes && at + n < bytes) {
            memmove(text + at, text + from, n);
        }
        return bytes;
    }
    }
}

static sbp_ptx_status run_entry(sbp_ptx_memory *memory, const sbp_ptx_entry *entry) {
    static _Alignas(64) uint8_t values[MAX_PARAMS][4352];
    void *params[MAX_PARAMS];
    const uint64_t buffer = sbp_ptx_memory_alloc(memory, BUFFER);
    assert_true(buffer && sbp_ptx_memory_fill(memory, buffer, 1, 4, BUFFER / 4));
    if (sbp_ptx_entry_params(entry) > MAX_PARAMS) {
        return SBP_PTX_REFUSED;
    }
    for (int k = 0; k < sbp_ptx_entry_params(entry); k++) {
        const size_t bytes = sbp_ptx_entry_param(entry, k).bytes;
        params[k] = values[k];
        if (bytes > sizeof values[k]) {
            return SBP_PTX_REFUSED;
        }
        memset(values[k], 0, sizeof values[k]);
        const uint32_t number = 64;
        memcpy(values[k], bytes == 8 ? (const void *)&buffer : &number, bytes == 8 ? 8 : 4);
        if (bytes == 128) {
            const uint64_t dims[2] = {64, 64}, strides[1] = {128};
            const uint32_t box[2] = {64, 64};
            assert_null(sbp_ptx_tensor_map_encode((void *)values[k], SBP_PTX_TMA_BF16, 2, buffer, dims,
                                                  strides, box, NULL, 128));
        }
    }
    const uint32_t threads = sbp_ptx_entry_max_threads(entry) < 128 ? sbp_ptx_entry_max_threads(entry) : 128;
    const sbp_ptx_options options = {.seed = below(1000), .instruction_limit = LIMIT};
    sbp_ptx_report report;
    return sbp_ptx_launch(entry, (uint32_t[]){2, 1, 1}, (uint32_t[]){threads, 1, 1}, 65536, params, &options,
                          &report);
}

static void try(const char *text, size_t bytes) {
    sbp_ptx_memory *memory = sbp_ptx_memory_create(UINT64_C(64) << 20);
    sbp_ptx_report report;
    sbp_ptx_module *module = sbp_ptx_module_load(memory, text, bytes, &report);
    if (!module) {
        assert_int_equal(report.status, SBP_PTX_REFUSED);
        assert_true(report.text[0] != 0);
        outcomes[SBP_PTX_REFUSED]++;
    }
    for (int k = 0; module && k < sbp_ptx_module_entries(module); k++) {
        outcomes[run_entry(memory, sbp_ptx_module_entry_at(module, k))]++;
    }
    sbp_ptx_module_unload(module);
    sbp_ptx_memory_destroy(memory);
}

static void damaged_texts_do_no_harm(void **unused) {
    (void)unused;
    glob_t files;
    assert_int_equal(glob("tests/ptx/triton/cases/*/kernel.ptx", 0, NULL, &files), 0);
    const char *more = getenv("SBP_FUZZ_ROUNDS");
    const int rounds = more ? atoi(more) : ROUNDS;
    char *text = malloc(MAX_TEXT), *copy = malloc(MAX_TEXT);
    assert_true(text && copy);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        FILE *file = fopen(files.gl_pathv[f], "rb");
        assert_non_null(file);
        const size_t bytes = fread(text, 1, MAX_TEXT, file);
        assert_int_equal(fclose(file), 0);
        try(text, bytes);
        for (int r = 0; r < rounds; r++) {
            size_t length = bytes;
            memcpy(copy, text, bytes);
            for (size_t edits = 1 + below(3); edits > 0 && length > 0; edits--) {
                length = damage(copy, length);
            }
            char *exact = malloc(length + 1); // so that ASan sees what reads behind its end
            assert_non_null(exact);
            memcpy(exact, copy, length);
            exact[length] = 0;
            try(exact, length);
            free(exact);
        }
    }
    print_message("%d ran, %d faults, %d refused\n", outcomes[0], outcomes[1], outcomes[2]);
    assert_true(outcomes[1] > 0 && outcomes[2] > 0); // damage is noticed, too
    free(text);
    free(copy);
    globfree(&files);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(damaged_texts_do_no_harm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
