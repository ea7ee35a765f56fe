/* test_program_calls.c: what a call may be given (c14): regions of one buffer, seen with one width or with
 * several, against rectangles and elements compared one by one, buffers at one address, and calls of as many
 * arguments as there may be. */
#include "ir/program/program.h"
#include "tests/rowkernel_random.h"
#include "tests/unit/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_text text;
    sbp_program *program;
} job;

static job open_job(void) {
    job j = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
    sbp_text_init(&j.text, j.arena);
    return j;
}

static void close_job(job *j) {
    sbp_diag_destroy(j->diag);
    sbp_arena_destroy(j->arena);
}

static sbp_status parse(void *user) {
    job *j = user;
    return sbp_program_parse(j->arena, j->diag, "test", j->text.data, j->text.length, &j->program);
}

static void expect(job *j, sbp_status status, bool conflict) {
    const char *text = sbp_diag_text(j->diag, SBP_ERROR);
    if (status != (conflict ? SBP_INPUT : SBP_OK) || (conflict && !strstr(text, "program_c14")))
        fail_msg("status %d: %s\n%s", (int)status, text, j->text.length < 4000 ? j->text.data : "");
}

static void begin(job *j, int64_t rows, int64_t cols, const char *buffers) {
    sbp_text_add(&j->text,
                 "program calls\ntarget cpu\nsizes t_max 9, s_max 1, chunk 4, head_chunk 4\n"
                 "arena device 0, host 0\nscalars T, S\nbuffer B param device f32[%lld, %lld]\n%s",
                 (long long)rows, (long long)cols, buffers);
}

typedef struct region {
    int64_t row, rows, col, cols;
    int64_t width; /* 0: that of the buffer */
    bool written;
} region;

static bool overlap(const region *a, const region *b) {
    return (a->written || b->written) && a->row < b->row + b->rows && b->row < a->row + a->rows &&
           a->col < b->col + b->cols && b->col < a->col + a->cols;
}

/* Elements that a region has in a buffer of `own` columns: marked in `in`, or only the first and the end. */
static void mark(const region *r, int64_t own, bool *in, int64_t *first, int64_t *end) {
    int64_t width = r->width ? r->width : own;
    for (int64_t row = r->row; row < r->row + r->rows; row++)
        memset(in + row * width + r->col, true, (size_t)r->cols);
    *first = r->row * width + r->col;
    *end = (r->row + r->rows - 1) * width + r->col + r->cols;
}

/* A program with one call that passes these regions of B. */
static void write_call(job *j, const region *list, int count) {
    static const char *const modes[] = {"in", "out"};
    sbp_text_add(&j->text, "function @f(");
    for (int i = 0; i < count; i++)
        sbp_text_add(&j->text, "%s%s a%d f32[%lld, %lld]", i ? ", " : "", modes[list[i].written], i,
                     (long long)list[i].rows, (long long)list[i].cols);
    sbp_text_add(&j->text, ") {\n}\nentry e {\n  call @f(");
    for (int i = 0; i < count; i++) {
        sbp_text_add(&j->text, "%sa%d %s B", i ? ", " : "", i, list[i].written ? ":=" : "=");
        if (list[i].width)
            sbp_text_add(&j->text, "/%lld", (long long)list[i].width);
        sbp_text_add(&j->text, "[%lld for %lld, %lld for %lld]", (long long)list[i].row,
                     (long long)list[i].rows, (long long)list[i].col, (long long)list[i].cols);
    }
    sbp_text_add(&j->text, ")\n}\n");
}

static void regions_are_compared(void **state) {
    (void)state;
    enum { ROUNDS = 1500, SIDE = 12, MOST = 9 };
    sbp_rng rng = {3};
    int conflicts = 0;
    for (int n = 0; n < ROUNDS; n++) {
        region list[MOST];
        int count = 2 + (int)sbp_rng_below(&rng, MOST - 1);
        bool conflict = false;
        for (int i = 0; i < count; i++) {
            region *r = &list[i];
            *r = (region){.row = sbp_rng_below(&rng, SIDE), .col = sbp_rng_below(&rng, SIDE)};
            r->rows = 1 + sbp_rng_below(&rng, n % 2 ? 3 : SIDE - r->row);
            r->cols = 1 + sbp_rng_below(&rng, n % 3 ? 3 : SIDE - r->col);
            r->rows = r->rows < SIDE - r->row ? r->rows : SIDE - r->row;
            r->cols = r->cols < SIDE - r->col ? r->cols : SIDE - r->col;
            r->written = sbp_rng_below(&rng, 3) == 0;
            for (int k = 0; k < i; k++)
                conflict |= overlap(r, &list[k]);
        }
        job j = open_job();
        begin(&j, SIDE, SIDE, "");
        write_call(&j, list, count);
        if (sbp_guard(j.arena, j.diag, parse, &j) != SBP_OK)
            fail_msg("%s", sbp_diag_text(j.diag, SBP_ERROR));
        expect(&j, sbp_program_verify(j.program, j.diag), conflict);
        conflicts += conflict;
        close_job(&j);
    }
    assert_true(conflicts > ROUNDS / 5 && conflicts < ROUNDS * 4 / 5);
}

/* Seen with different widths, regions share memory that share elements; what lies between the first and the
 * last element of both may count as shared, too. */
static void widths_are_compared(void **state) {
    (void)state;
    enum { ROUNDS = 1500, SIDE = 12, ELEMS = SIDE * SIDE, MOST = 4 };
    static const int64_t widths[] = {0, 6, 8, 12, 16, 18, 36, ELEMS};
    sbp_rng rng = {5};
    int conflicts = 0, accepted = 0;
    for (int n = 0; n < ROUNDS; n++) {
        region list[MOST];
        int count = 2 + (int)sbp_rng_below(&rng, MOST - 1);
        bool exact = false, between = false, has[MOST][ELEMS] = {{false}};
        int64_t first[MOST], end[MOST];
        for (int i = 0; i < count; i++) {
            region *r = &list[i];
            *r = (region){.width = widths[sbp_rng_below(&rng, SBP_COUNT(widths))]};
            int64_t width = r->width ? r->width : SIDE, rows = ELEMS / width;
            r->row = sbp_rng_below(&rng, rows);
            r->rows = 1 + sbp_rng_below(&rng, n % 2 ? rows - r->row : 1);
            r->col = sbp_rng_below(&rng, width);
            r->cols = 1 + sbp_rng_below(&rng, n % 3 ? width - r->col : 1);
            r->written = sbp_rng_below(&rng, 2) == 0;
            mark(r, SIDE, has[i], &first[i], &end[i]);
            for (int k = 0; k < i; k++) {
                if (!r->written && !list[k].written)
                    continue;
                for (int e = 0; e < ELEMS; e++)
                    exact |= has[i][e] && has[k][e];
                between |= first[i] < end[k] && first[k] < end[i];
            }
        }
        if (between && !exact)
            continue;
        job j = open_job();
        begin(&j, SIDE, SIDE, "");
        write_call(&j, list, count);
        if (sbp_guard(j.arena, j.diag, parse, &j) != SBP_OK)
            fail_msg("%s", sbp_diag_text(j.diag, SBP_ERROR));
        expect(&j, sbp_program_verify(j.program, j.diag), exact);
        conflicts += exact;
        accepted += !exact;
        close_job(&j);
    }
    assert_true(conflicts > ROUNDS / 5 && accepted > ROUNDS / 5);
}

/* Different buffers that the memory pass put at one place. */
static void addresses_are_compared(void **state) {
    (void)state;
    static const char *const functions[] = {"in a f32[4, 4], in b f32[4, 4]",
                                            "in a f32[4, 4], out b f32[4, 4]",
                                            "out a f32[4, 4], in b f32[4, 4]"};
    for (int writes = 0; writes < 3; writes++)
        for (int64_t shift = -96; shift <= 96; shift += 32) {
            job j = open_job();
            begin(&j, 4, 4, "buffer A param device f32[4, 4]\nbuffer Z param device f32[4, 4]\n");
            sbp_text_add(&j.text, "function @f(%s) {\n}\nentry e {\n  call @f(a %s A, b %s B)\n}\n",
                         functions[writes], writes == 2 ? ":=" : "=", writes == 1 ? ":=" : "=");
            assert_int_equal(sbp_guard(j.arena, j.diag, parse, &j), SBP_OK);
            place(j.program);
            j.program->buffers[sbp_program_find_buffer(j.program, "A")].offset = 64 + 32;
            j.program->buffers[sbp_program_find_buffer(j.program, "B")].offset = 64 + 32 + shift;
            j.program->arena_bytes[SBP_DEVICE] = 1024;
            bool conflict = writes > 0 && shift > -64 && shift < 64;
            expect(&j, sbp_program_verify(j.program, j.diag), conflict);
            close_job(&j);
        }
}

/* 100 calls of 4,096 arguments, all parts of one buffer. Comparing each with each takes minutes
 * (CMakeLists.txt gives it one). */
static void many_arguments(void **state) {
    (void)state;
    enum { MOST = 4096, CALLS = 100 };
    for (int rows = 0; rows < 2; rows++) {
        job j = open_job();
        region *list = SBP_NEW_ARRAY(j.arena, region, MOST);
        for (int i = 0; i < MOST; i++)
            list[i] =
                (region){.row = rows ? i : 0, .rows = 1, .col = rows ? 0 : i, .cols = 1, .written = i % 2};
        begin(&j, rows ? MOST : 1, rows ? 1 : MOST, "");
        write_call(&j, list, MOST);
        if (sbp_guard(j.arena, j.diag, parse, &j) != SBP_OK)
            fail_msg("%s", sbp_diag_text(j.diag, SBP_ERROR));
        sbp_body *body = &j.program->entries[0].body;
        sbp_node *nodes = SBP_NEW_ARRAY(j.arena, sbp_node, CALLS);
        for (int i = 0; i < CALLS; i++)
            nodes[i] = body->nodes[0];
        *body = (sbp_body){nodes, CALLS, CALLS};
        expect(&j, sbp_program_verify(j.program, j.diag), false);
        sbp_view *view = &nodes[0].u.call->views[MOST - 2];
        *view = nodes[0].u.call->views[1];
        expect(&j, sbp_program_verify(j.program, j.diag), true);
        close_job(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_are_compared), cmocka_unit_test(widths_are_compared),
        cmocka_unit_test(addresses_are_compared), cmocka_unit_test(many_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
