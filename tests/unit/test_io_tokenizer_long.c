/* Tokenizers and long texts: what a text is cut at on its way (stretches of normal forms, words that no merge
 * joins) changes no token, and a long one takes some bytes of memory per byte, not hundreds. */
#include "tests/unit/io_testing.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "frontends/formats/tokenizer/tokenizer.h"

#define DATA "tests/data/tokenizers/"

/* Loads a tokenizer's file with one stretch of its text replaced. */
static const sbp_tokenizer *load_changed(io_fixture *f, const char *path, const char *from, const char *to) {
    const char *text;
    size_t length;
    const sbp_tokenizer *t = NULL;
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &text, &length));
    const char *at = strstr(text, from);
    assert_non_null(at);
    char *changed = sbp_arena_printf(f->arena, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, path, changed, strlen(changed), &t));
    return t;
}

/* Texts whose characters change places with, or join, what is before them: marks out of order, jamo, vowel
 * signs of two parts, compatibility forms. */
static const char *const composed[] = {
    "e\xcc\x81 q\xcc\x87\xcc\xa3\xcc\x87 a\xcc\x95\xcc\x80\xd6\xae\xcc\x80",
    "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab\xea\xb0\x80\xe1\x86\xa8 \xe1\x84\x92\xe3\x85\x8f",
    "\xe0\xa6\x95\xe0\xa7\x87\xe0\xa6\xbe \xe0\xac\x95\xe0\xad\x87\xe0\xad\x96 \xef\xbd\xb6\xef\xbe\x9e",
    "\xe3\x81\x8b\xe3\x82\x99\xe3\x83\x8f\xe3\x82\x9a \xe4\xb8\xad\xcc\x81 \xef\xac\x81\xcc\xa3 "
    "\xc3\x85\xcc\xa3",
};

/* The same tokens behind a filler of any length. */
static void check_places(io_fixture *f, const char *name, const sbp_tokenizer *t, int *checked) {
    enum { FILLER = 4200 };
    for (int c = 0; c < SBP_COUNT(composed); c++) {
        size_t length = strlen(composed[c]);
        char text[FILLER + 200];
        memset(text, 'z', FILLER);
        for (int i = 1; i < FILLER; i += 2)
            text[i] = ' ';
        memcpy(text + FILLER, composed[c], length + 1);
        sbp_encoding alone;
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, text + FILLER - 8, length + 8,
                                          SBP_WITH_OFFSETS, &alone));
        int64_t last = alone.count - 6; /* not the filler's and what joins it */
        assert_true(last > 8);
        for (size_t before = 4098 - length - 4; before <= 4100; before++) {
            sbp_encoding e;
            sbp_arena *arena = sbp_arena_create();
            assert_ok(f, sbp_tokenizer_encode(t, arena, f->diag, text + FILLER - before, length + before,
                                              SBP_WITH_OFFSETS, &e));
            const int32_t *ids = e.ids + e.count - last;
            bool same = memcmp(ids, alone.ids + 6, (size_t)last * sizeof *ids) == 0;
            for (int64_t i = 0; same && i < 2 * last; i++)
                same = e.offsets[e.count - last + i / 2][i % 2] - (int64_t)before ==
                       alone.offsets[6 + i / 2][i % 2] - 8;
            if (!same)
                fail_msg("%s: text %d has other tokens behind %zu bytes", name, c, before);
            sbp_arena_destroy(arena);
            ++*checked;
        }
    }
}

static void normal_forms_do_not_depend_on_the_place(void **state) {
    io_fixture *f = *state;
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    int checked = 0;
    for (int i = 0; i < SBP_COUNT(forms); i++) {
        char to[40];
        snprintf(to, sizeof to, "\"normalizer\":{\"type\":\"%s\"}", forms[i]);
        const sbp_tokenizer *t = load_changed(f, DATA "qwen2.json", "\"normalizer\":{\"type\":\"NFC\"}", to);
        check_places(f, forms[i], t, &checked);
    }
    assert_true(checked > 400);
}

#ifndef __SANITIZE_ADDRESS__ /* its own memory hides that of texts */
/* ---- memory ------------------------------------------------------------------------------------------- */

typedef struct long_text {
    const sbp_tokenizer *t;
    char *text;
    size_t length;
} long_text;

/* Peak of a process of its own, in bytes. */
static int64_t peak_of(const long_text *job, bool encode) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sbp_encoding e = {0};
        sbp_arena *arena = sbp_arena_create();
        sbp_status status =
            encode ? sbp_tokenizer_encode(job->t, arena, NULL, job->text, job->length, 0, &e) : SBP_OK;
        _exit(status != SBP_OK || (encode && e.count < (int64_t)job->length / 20));
    }
    int status;
    struct rusage usage;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_int_equal(status, 0);
    return (int64_t)usage.ru_maxrss * 1024;
}

static void memory_is_a_few_bytes_per_byte(void **state) {
    io_fixture *f = *state;
    /* Ids take 4 bytes for a token while the text is read, and 4 when they are handed over; the rest is text
     * in other forms, and the symbols and pairs of one endless word. */
    enum { N = 2 << 20, MOST = 12 };
    static const char *const names[] = {DATA "qwen2.json", DATA "smollm2.json", DATA "llama2.json",
                                        DATA "gemma3.json"};
    long_text job = {.text = malloc(N)};
    for (int c = 0; c < SBP_COUNT(names); c++) {
        job.t = load_changed(f, names[c], "", "");
        for (int kind = 0; kind < 5; kind++) {
            static const char
                prose[] = "Once upon a time, there was a little girl named Lily. ",
                wide[] = "caf\xc3\xa9 e\xcc\x81t\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87\xe3\x81\x8b\xe3\x82\x99 ";
            uint64_t random = 9;
            for (size_t i = 0; i < N; i++)
                job.text[i] = kind == 0   ? prose[i % (sizeof prose - 1)]
                              : kind == 1 ? (char)('0' + io_random(&random) % 10)
                              : kind == 2 ? 'a'
                              : kind == 3 ? (char)('A' + io_random(&random) % 58)
                                          : wide[i % (sizeof wide - 1)];
            job.length = N / (sizeof wide - 1) * (sizeof wide - 1);
            int64_t before = peak_of(&job, false), peak = peak_of(&job, true);
            double each = (double)(peak - before) / (double)job.length;
            if (each > MOST)
                fail_msg("%s, text %d: %.1f bytes of memory a byte, at most %d", names[c], kind, each, MOST);
        }
    }
    free(job.text);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(normal_forms_do_not_depend_on_the_place, io_setup, io_teardown),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test_setup_teardown(memory_is_a_few_bytes_per_byte, io_setup, io_teardown),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
