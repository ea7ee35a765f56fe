/* test_memory_pack.c: what packing buffers costs, counted and not timed: a graph of twice as many operations
 * takes about twice the work, as long as each buffer is live with a few others; and the places are right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "passes/lower/memory.h"

enum { ALIGNMENT = 64 };

typedef struct chain {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_program *program;
    sbp_liveness live;
} chain;

/* Operation i writes buffer i, which operation i + 1 reads and, where i is a multiple of `far`, one farther
 * on too. They are a function's, or (function -1) an entry's. */
static chain make_chain(int32_t count, int32_t function, int32_t far) {
    chain c = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
    c.program = sbp_program_create(c.arena, "chain");
    c.program->t_max = c.program->s_max = 1;
    c.program->function_count = function >= 0;
    c.program->functions = SBP_NEW_ARRAY(c.arena, sbp_function, 1);
    c.program->buffers = SBP_NEW_ARRAY(c.arena, sbp_buffer, count);
    c.program->buffer_count = c.program->buffer_capacity = count;
    sbp_memory_frames(c.arena, c.program, 1, &c.live);
    sbp_live_set *sets = function >= 0 ? c.live.frames : c.live.buffers;
    for (int32_t i = 0; i < count; i++) {
        c.program->buffers[i] = (sbp_buffer){.name = "x",
                                             .role = SBP_ROLE_STREAM,
                                             .space = SBP_DEVICE,
                                             .dtype = SBP_F32,
                                             .count = 1,
                                             .rows = sbp_extent_const(1),
                                             .cols = 16 + i * 7919 % 113,
                                             .function = function,
                                             .offset = -1};
        sets[i].ranges = SBP_NEW_ARRAY(c.arena, sbp_live_range, 1);
        sets[i].ranges[0] = (sbp_live_range){i, i + (i % far == 0 ? 8 : 1)};
        sets[i].count = sets[i].capacity = 1;
    }
    return c;
}

static void end_chain(chain *c) {
    sbp_diag_destroy(c->diag);
    sbp_arena_destroy(c->arena);
}

static int64_t end_of(const sbp_buffer *b) {
    return b->offset + b->stride;
}

/* No two that are live together share a byte. */
static void check_places(const chain *c, const sbp_live_set *sets) {
    const sbp_buffer *b = c->program->buffers;
    for (int32_t i = 0; i < c->program->buffer_count; i++) {
        assert_true(b[i].offset >= 0 && b[i].offset % ALIGNMENT == 0);
        for (int32_t k = i + 1; k < c->program->buffer_count && k <= sets[i].ranges[0].end; k++)
            assert_true(end_of(&b[i]) <= b[k].offset || end_of(&b[k]) <= b[i].offset);
    }
}

static int64_t looks_of(int32_t count, int32_t function, int32_t far) {
    const sbp_target_info target = {.name = "test", .alignment_bytes = ALIGNMENT};
    chain c = make_chain(count, function, far);
    int64_t looks = 0;
    assert_int_equal(sbp_memory_pack_counted(c.arena, c.diag, c.program, &c.live, &target, &looks), SBP_OK);
    check_places(&c, function >= 0 ? c.live.frames : c.live.buffers);
    assert_true(looks >= count);
    end_chain(&c);
    return looks;
}

static void test_twice_the_operations(void **state) {
    (void)state;
    for (int32_t function = -1; function <= 0; function++)
        for (int32_t far = 1; far <= 5; far += 2) {
            int64_t before = looks_of(1000, function, far);
            for (int32_t count = 2000; count <= 16000; count *= 2) {
                int64_t looks = looks_of(count, function, far);
                print_message("  %d buffers: %lld looks, %.1f each\n", count, (long long)looks,
                              (double)looks / count);
                if (looks > before * 5 / 2)
                    fail_msg("%d buffers take %lld looks, half of them %lld", count, (long long)looks,
                             (long long)before);
                before = looks;
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_twice_the_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
