/* test_fence.c: programs of real models, in all modes, on paper (tests/common/fence_simulator.h): their
 * fences order whatever conflicts, and none of them could be left out. */
#include "tests/common/compile_model.h"
#include "tests/common/fence_simulator.h"
#include "tests/common/sweep.h"
#include "tests/unit/objective_test_group.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 64, MAX_STREAMS = 96 };

/* ---- batches ----------------------------------------------------------------------------------------- */

/* Where documents begin decides what attention of a chunk reads. */
typedef enum layout { ONE_DOCUMENT, MANY_DOCUMENTS, SHARED_PROMPT, LAYOUTS } layout;

typedef struct rows {
    int64_t first[MAX_ROWS], shared_end[MAX_ROWS], own[MAX_ROWS];
} rows;

static void lay_out(rows *r, layout kind, int64_t t) {
    for (int64_t k = 0; k < t; k++) {
        int64_t begin = kind == MANY_DOCUMENTS ? k - k % 5 : 0;
        r->first[k] = r->shared_end[k] = r->own[k] = begin;
        if (kind == SHARED_PROMPT && k >= 3) { /* rows 0 .. 2 are a prompt; completions of 4 rows */
            r->first[k] = 0;
            r->shared_end[k] = 3;
            r->own[k] = 3 + (k - 3) / 4 * 4;
        }
    }
}

static void add_size(int64_t *sizes, int *count, int64_t t, int64_t t_max) {
    for (int k = 0; k < *count; k++)
        if (sizes[k] == t)
            return;
    if (t >= 1 && t <= t_max)
        sizes[(*count)++] = t;
}

static int choose_sizes(const sbp_program *p, int64_t *sizes) {
    int count = 0;
    const int64_t c[] = {p->chunk, p->head_chunk};
    add_size(sizes, &count, 1, p->t_max);
    add_size(sizes, &count, p->t_max, p->t_max);
    for (int k = 0; k < 2; k++) {
        add_size(sizes, &count, c[k] + 1, p->t_max);
        add_size(sizes, &count, 2 * c[k], p->t_max);
        add_size(sizes, &count, 3 * c[k] + 2, p->t_max);
        add_size(sizes, &count, c[k] - 1, p->t_max);
        add_size(sizes, &count, c[k], p->t_max);
    }
    return count;
}

/* ---- one program ------------------------------------------------------------------------------------- */

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *name;
    sbp_program *program;
    fence_list fences;
    fence_stream *streams[MAX_STREAMS];
    int stream_count;
} bench;

static struct { int64_t programs, streams, commands, fences, killed, waits, tight; } totals;

static void record(bench *b, layout kind, int64_t t, int64_t uncounted, const int32_t *sequence,
                   int32_t count) {
    rows r;
    lay_out(&r, kind, t);
    fence_batch batch = {
        .t = t, .s = t, .first = r.first, .shared_end = r.shared_end, .own = r.own, .uncounted = uncounted};
    assert_true(b->stream_count < MAX_STREAMS);
    fence_stream **out = &b->streams[b->stream_count++];
    if (fence_stream_record(b->arena, b->diag, b->program, &batch, sequence, count, out) != SBP_OK)
        fail_msg("%s: %s", b->name, sbp_diag_text(b->diag, SBP_ERROR));
}

static void record_all(bench *b) {
    int32_t *pairs, pair_count = fence_sequence_of_pairs(b->arena, b->program, &pairs);
    int32_t *once = SBP_NEW_ARRAY(b->arena, int32_t, b->program->entry_count + 1);
    int64_t sizes[16];
    int size_count = choose_sizes(b->program, sizes);
    for (int32_t e = 0; e < b->program->entry_count; e++)
        once[e] = e;
    for (int k = 0; k < size_count; k++)
        for (int kind = 0; kind < (sizes[k] > 1 ? LAYOUTS : 1); kind++)
            record(b, (layout)kind, sizes[k], 0, once, b->program->entry_count);
    record(b, ONE_DOCUMENT, 1, 0, pairs, pair_count);
    record(b, ONE_DOCUMENT, b->program->t_max, 0, pairs, pair_count);
    if (!sbp_program_counted(b->program))
        return;
    for (int k = 0; k < size_count; k++)
        for (int part = 1; part <= 2; part++) /* a half counts; none */
            record(b, ONE_DOCUMENT, sizes[k], part * sizes[k] / 2, once, b->program->entry_count);
    record(b, ONE_DOCUMENT, b->program->t_max, b->program->t_max, pairs, pair_count);
}

static void check_streams(bench *b) {
    for (int k = 0; k < b->stream_count; k++) {
        const char *message = fence_stream_check_data(b->arena, b->streams[k]);
        if (message)
            fail_msg("%s: stale or clobbered data: %s", b->name, message);
        message = fence_stream_check_order(b->arena, b->streams[k], NULL, false);
        if (message)
            fail_msg("%s: %s", b->name, message);
        totals.commands += fence_stream_commands(b->streams[k]);
    }
    totals.streams += b->stream_count;
    totals.programs++;
}

static bool hazard_when(bench *b, const sbp_command *changed, bool earlier) {
    for (int k = 0; k < b->stream_count; k++)
        if (fence_stream_check_order(b->arena, b->streams[k], changed, earlier))
            return true;
    return false;
}

/* Leaves out each fence in turn: some stream must then have a hazard. So must it when a fence to compute from
 * another queue does not wait for the last copy before it: commands wait for no copy in vain. */
static int check_mutants(bench *b) {
    int survivors = 0;
    for (int32_t f = 0; f < b->fences.count; f++) {
        const sbp_command *fence = b->fences.items[f];
        bool needed = hazard_when(b, fence, false);
        bool waits = fence->u.fence.from != SBP_QUEUE_COMPUTE && fence->u.fence.to == SBP_QUEUE_COMPUTE;
        bool tight = !waits || hazard_when(b, fence, true);
        if (!(needed && tight) && ++survivors <= 5)
            print_message("%s: fence %d (%s -> %s) %s\n", b->name, (int)f,
                          sbp_queue_names[fence->u.fence.from], sbp_queue_names[fence->u.fence.to],
                          needed ? "waits for a copy in vain" : "is not needed by any stream");
        totals.killed += needed;
        totals.waits += waits;
        totals.tight += waits && tight;
    }
    totals.fences += b->fences.count;
    return survivors;
}

static bool verbose(void) {
    return getenv("SBP_TEST_VERBOSE") != NULL;
}

static void count_places(const sbp_program *p, const sbp_body *body, int depth, int *fences, int *commands,
                         int *in_loops) {
    for (int32_t n = 0; n < body->count; n++)
        if (body->nodes[n].kind == SBP_NODE_LOOP) {
            count_places(p, &body->nodes[n].u.loop->body, depth + 1, fences, commands, in_loops);
        } else if (body->nodes[n].kind == SBP_NODE_COMMAND &&
                   body->nodes[n].u.command->kind == SBP_CMD_FENCE) {
            ++*fences;
            *in_loops += depth > 0;
        } else {
            ++*commands;
        }
}

static void describe(const bench *b) {
    print_message("%s: %d fences\n", b->name, (int)b->fences.count);
    for (int32_t f = 0; f < b->program->function_count + b->program->entry_count; f++) {
        bool entry = f >= b->program->function_count;
        int32_t e = f - b->program->function_count;
        int fences = 0, commands = 0, in_loops = 0;
        count_places(b->program, entry ? &b->program->entries[e].body : &b->program->functions[f].body, 0,
                     &fences, &commands, &in_loops);
        print_message("  %-24s %3d commands %3d fences, %d in loops\n",
                      entry ? b->program->entries[e].name : b->program->functions[f].name, commands, fences,
                      in_loops);
    }
}

static const char *text_of(bench *b) {
    sbp_text text;
    sbp_text_init(&text, b->arena);
    sbp_program_print(&text, b->program);
    return text.data;
}

/* On a program with fences the pass finds the same ones again. */
static void check_again(bench *b) {
    const sbp_pass_input in = {.arena = b->arena, .diag = b->diag};
    const char *before = text_of(b);
    if (sbp_pass_fence(&in, b->program) != SBP_OK || strcmp(before, text_of(b)) != 0)
        fail_msg("%s: the second time there are other fences", b->name);
}

static int examine(const char *name, const compile_request *request) {
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .name = name};
    if (compile_model(b.arena, b.diag, request, &b.program) != SBP_OK)
        fail_msg("%s: %s", name, sbp_diag_text(b.diag, SBP_ERROR));
    if (sbp_program_verify(b.program, b.diag) != SBP_OK)
        fail_msg("%s: %s", name, sbp_diag_text(b.diag, SBP_ERROR));
    check_again(&b);
    b.fences = fence_list_make(b.arena, b.program);
    if (verbose())
        describe(&b);
    record_all(&b);
    check_streams(&b);
    int survivors = check_mutants(&b);
    sbp_arena_destroy(b.arena);
    sbp_diag_destroy(b.diag);
    return survivors;
}

/* ---- the programs ------------------------------------------------------------------------------------ */

#define GOLDEN "tests/golden/"

static void report(int survivors) {
    print_message(
        "%lld programs, %lld streams, %lld commands; %lld fences left out, %lld times a hazard; %lld "
        "fences behind copies moved forward, %lld times a hazard\n",
        (long long)totals.programs, (long long)totals.streams, (long long)totals.commands,
        (long long)totals.fences, (long long)totals.killed, (long long)totals.waits, (long long)totals.tight);
    if (survivors > 0)
        fail_msg("%d fences do not pass", survivors);
    assert_true(totals.fences > 0);
    memset(&totals, 0, sizeof totals);
}

static const char *const models[] = {"llama_plain", "llama_bias",         "llama_tied_pad",
                                     "llama_mqa",   "mistral_window",     "qwen2_sliding",
                                     "qwen3_plain", "gemma3_layer_types", "gemma3_softcap"};

static const char *name_of(char *buffer, size_t size, const char *model, const char *mode) {
    snprintf(buffer, size, "%s, %s", model, mode);
    return buffer;
}

/* Chunk sizes, segments, checkpoints of one model. */
static void schedules_of_one_model(void **unused) {
    (void)unused;
    const struct {
        int64_t t_max, chunk, head_chunk, segment, every;
    } grid[] = {{17, 5, 5, 1, 1}, {20, 6, 3, 1, 2},  {14, 4, 7, 2, 1},  {14, 4, 3, 2, 2},
                {8, 1, 1, 1, 1},  {10, 10, 4, 1, 1}, {12, 32, 5, 1, 3}, {14, 4, 3, 3, 1}};
    int survivors = 0;
    for (int k = 0; k < SBP_COUNT(grid); k++) {
        char name[128], mode[64];
        compile_request request = compile_request_for(GOLDEN "qwen2_sliding/model", grid[k].t_max,
                                                      grid[k].chunk, grid[k].head_chunk);
        request.options.schedule.segment = grid[k].segment;
        request.options.schedule.checkpoint_every = grid[k].every;
        snprintf(mode, sizeof mode, "t_max %d C %d H %d g %d k %d", (int)grid[k].t_max, (int)grid[k].chunk,
                 (int)grid[k].head_chunk, (int)grid[k].segment, (int)grid[k].every);
        survivors += examine(name_of(name, sizeof name, "qwen2_sliding", mode), &request);
    }
    report(survivors);
}

typedef struct mode {
    const char *name;
    bool save_all, offload, step, frozen, two_pass, bf16, bf16_gradients, counted, no_states;
    int64_t every;
    const char *set;
    sbp_space away; /* where everything lives; SBP_DEVICE: as `offload` says */
    int32_t first;  /* how many of each class, from the first; 0: all */
} mode;

#define SEVEN_LAYERS "num_hidden_layers=7"

static const mode modes[] = {
    {.name = "stream"},
    {.name = "save all", .save_all = true},
    {.name = "offload", .offload = true},
    {.name = "offload, save all", .offload = true, .save_all = true},
    {.name = "offload, save all, k 2", .offload = true, .save_all = true, .every = 2},
    {.name = "step", .step = true},
    {.name = "step, offload, k 2", .step = true, .offload = true, .every = 2},
    {.name = "bf16 gradients, k 2", .bf16_gradients = true, .every = 2},
    {.name = "bf16, offload", .bf16 = true, .offload = true},
    {.name = "bf16, step, k 2", .bf16 = true, .step = true, .every = 2},
    {.name = "frozen below", .frozen = true},
    {.name = "two passes", .two_pass = true},
    {.name = "two passes, offload", .two_pass = true, .offload = true},
    {.name = "counted", .counted = true},
    {.name = "counted, two passes, offload", .counted = true, .two_pass = true, .offload = true},
    {.name = "counted, step, k 2", .counted = true, .step = true, .every = 2},
    {.name = "counted, all on disk", .counted = true, .away = SBP_DISK},
    {.name = "counted, bf16, frozen below", .counted = true, .bf16 = true, .frozen = true},
    {.name = "7 layers, offload", .offload = true, .set = SEVEN_LAYERS},
    {.name = "7 layers, offload, k 3", .offload = true, .every = 3, .set = SEVEN_LAYERS},
    {.name = "7 layers, offload, save all, k 2",
     .offload = true,
     .save_all = true,
     .every = 2,
     .set = SEVEN_LAYERS},
    {.name = "7 layers, offload, save all, k 3, step",
     .offload = true,
     .save_all = true,
     .every = 3,
     .step = true,
     .set = SEVEN_LAYERS},
    {.name = "all on the host", .away = SBP_HOST, .save_all = true},
    {.name = "all on disk", .away = SBP_DISK},
    {.name = "all on disk, step, k 2", .away = SBP_DISK, .step = true, .every = 2},
    {.name = "all on disk, bf16", .away = SBP_DISK, .bf16 = true, .save_all = true},
    {.name = "some on the host", .away = SBP_HOST, .first = 3, .save_all = true, .set = SEVEN_LAYERS},
    {.name = "some on disk, step", .away = SBP_DISK, .first = 5, .step = true, .set = SEVEN_LAYERS},
};

static int examine_mode(const char *model, const mode *m) {
    char name[128], path[128];
    snprintf(path, sizeof path, strchr(model, '/') ? "%s" : GOLDEN "%s/model", model);
    compile_request request = compile_request_for(path, 14, 4, 3);
    request.options.schedule.save_all = m->save_all;
    request.options.schedule.drop_states = m->no_states;
    compile_offload(&request, m->offload);
    if (m->away != SBP_DEVICE)
        compile_away(&request, m->away, m->first);
    request.options.schedule.checkpoint_every = m->every > 0 ? m->every : 1;
    request.options.step = m->step;
    request.compute = m->bf16 ? SBP_BF16 : SBP_F32;
    request.options.grad_dtype = m->bf16_gradients ? SBP_BF16 : SBP_F32;
    request.set = m->set;
    request.freeze = m->frozen ? "*layers.0.*" : NULL;
    request.objective = m->two_pass ? objective_test_group : NULL;
    request.options.counted = m->counted ? "weight" : NULL;
    return examine(name_of(name, sizeof name, model, m->name), &request);
}

static void modes_of_one_model(void **unused) {
    (void)unused;
    int survivors = 0;
    for (int k = 0; k < SBP_COUNT(modes); k++)
        survivors += examine_mode("qwen2_sliding", &modes[k]);
    report(survivors);
}

/* Values that more than the next layer reads, in every fourth mode; in all with SBP_TEST_ALL. */
static void shared_values(void **unused) {
    (void)unused;
    int survivors = 0, step = testing_all() ? 1 : 4;
    for (int m = 0; m < SBP_COUNT(modes); m += step)
        if (!modes[m].set)
            survivors += examine_mode("tests/data/onnx/side_values.json", &modes[m]);
    report(survivors);
}

/* States that go from chunk to chunk, kept and made again, in every fourth mode; in all with SBP_TEST_ALL. */
static void states(void **unused) {
    (void)unused;
    int survivors = 0, step = testing_all() ? 1 : 4;
    for (int m = 0; m < SBP_COUNT(modes); m += step)
        for (int drop = 0; drop < 2 && !modes[m].set; drop++) {
            mode with = modes[m];
            with.no_states = drop != 0;
            survivors += examine_mode("lfm2_v", &with);
        }
    report(survivors);
}

/* In two modes; in all with SBP_TEST_ALL. */
static void several_models(void **unused) {
    (void)unused;
    int survivors = 0;
    bool all = testing_all();
    for (int k = 0; k < SBP_COUNT(models); k++)
        for (int m = 0; m < SBP_COUNT(modes); m++)
            if ((all && !(modes[m].set && strstr(models[k], "layer_types"))) || m == 0 || m == 4)
                survivors += examine_mode(models[k], &modes[m]);
    report(survivors);
}

/* Places each buffer of a function over the next one of that function: where both are in use at once, data is
 * lost. */
static void simulator_notices_shared_memory(void **unused) {
    (void)unused;
    compile_request request = compile_request_for(GOLDEN "qwen2_sliding/model", 14, 4, 3);
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .name = "shared memory"};
    if (compile_model(b.arena, b.diag, &request, &b.program) != SBP_OK)
        fail_msg("%s", sbp_diag_text(b.diag, SBP_ERROR));
    int moved = 0, noticed = 0;
    for (int32_t k = 0; k + 1 < b.program->buffer_count; k++) {
        sbp_buffer *buffer = &b.program->buffers[k], *next = buffer + 1;
        int64_t offset = buffer->offset;
        if (buffer->function < 0 || next->function != buffer->function || next->offset == offset)
            continue;
        b.stream_count = 0;
        buffer->offset = next->offset;
        record_all(&b);
        bool seen = false;
        for (int s = 0; s < b.stream_count && !seen; s++)
            seen = fence_stream_check_data(b.arena, b.streams[s]) != NULL;
        moved++;
        noticed += seen;
        buffer->offset = offset;
    }
    print_message("%d buffers moved over another, %d times data was lost\n", moved, noticed);
    assert_true(moved > 10 && noticed > moved / 2);
    sbp_arena_destroy(b.arena);
    sbp_diag_destroy(b.diag);
}

/* ---- workspaces -------------------------------------------------------------------------------------- */

/* Commands of a function in the order of its text. */
typedef struct command_list {
    const sbp_command **items;
    int32_t count, capacity;
} command_list;

static void list_commands(sbp_arena *arena, const sbp_body *body, command_list *list) {
    for (int32_t n = 0; n < body->count; n++)
        if (body->nodes[n].kind == SBP_NODE_LOOP)
            list_commands(arena, &body->nodes[n].u.loop->body, list);
        else if (body->nodes[n].kind == SBP_NODE_COMMAND && body->nodes[n].u.command->kind != SBP_CMD_FENCE)
            SBP_PUSH(arena, list->items, list->count, list->capacity, body->nodes[n].u.command);
}

/* How a command touches a buffer: bit 0 reads, bit 1 writes. */
static int touches(const sbp_program *p, const sbp_command *command, int32_t buffer) {
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    int32_t count = sbp_command_operands(p, command, operands);
    int how = 0;
    for (int32_t k = 0; k < count; k++)
        if (command->views[k].ref == buffer)
            how |= (operands[k].access != SBP_WRITE ? 1 : 0) | (operands[k].access != SBP_READ ? 2 : 0);
    return how;
}

/* Whether a buffer holds something when command `at` runs: it is touched by it, or was written before and is
 * read by the next that touches it. */
static bool is_alive(const sbp_program *p, const command_list *list, int32_t at, int32_t buffer) {
    bool written = false;
    for (int32_t k = 0; k < at; k++)
        written |= touches(p, list->items[k], buffer) & 2;
    for (int32_t k = at + 1; k < list->count && written; k++)
        if (touches(p, list->items[k], buffer))
            return touches(p, list->items[k], buffer) & 1;
    return touches(p, list->items[at], buffer);
}

/* The workspace of each command of the model, laid over each buffer that is alive then: all are
 * to be noticed. */
static int lay_workspaces(const char *model) {
    char path[128];
    snprintf(path, sizeof path, GOLDEN "%s/model", model);
    compile_request request = compile_request_for(path, 14, 4, 3);
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .name = model};
    if (compile_model(b.arena, b.diag, &request, &b.program) != SBP_OK)
        fail_msg("%s", sbp_diag_text(b.diag, SBP_ERROR));
    sbp_program *p = b.program;
    int32_t *entries = SBP_NEW_ARRAY(b.arena, int32_t, p->entry_count + 1);
    for (int32_t e = 0; e < p->entry_count; e++)
        entries[e] = e;
    int moved = 0;
    for (int32_t w = 0; w < p->buffer_count; w++) {
        sbp_buffer *work = &p->buffers[w];
        command_list list = {0};
        if (work->function < 0 || work->role != SBP_ROLE_WORKSPACE)
            continue;
        list_commands(b.arena, &p->functions[work->function].body, &list);
        int32_t at = 0;
        while (at < list.count && touches(p, list.items[at], w) != 2)
            at++;
        bool kept = false; /* what another command reads is no workspace */
        for (int32_t k = 0; k < list.count; k++)
            kept |= touches(p, list.items[k], w) & 1;
        for (int32_t k = 0; k < p->buffer_count && !kept && at < list.count; k++) {
            int64_t offset = work->offset;
            if (k == w || p->buffers[k].function != work->function || p->buffers[k].space != work->space ||
                !is_alive(p, &list, at, k))
                continue;
            b.stream_count = 0;
            work->offset = p->buffers[k].offset;
            record(&b, ONE_DOCUMENT, p->t_max, 0, entries, p->entry_count);
            if (!fence_stream_check_data(b.arena, b.streams[0]))
                fail_msg("%s: nobody noticed workspace %s over %s", model, work->name, p->buffers[k].name);
            work->offset = offset;
            moved++;
        }
    }
    sbp_arena_destroy(b.arena);
    sbp_diag_destroy(b.diag);
    return moved;
}

static void simulator_notices_workspaces(void **unused) {
    (void)unused;
    static const char *const with[] = {"llama_plain", "qwen3_next_dense", "granite_hybrid_groups"};
    for (int m = 0; m < SBP_COUNT(with); m++) {
        int moved = lay_workspaces(with[m]);
        print_message("%s: %d times a workspace was laid over what is alive\n", with[m], moved);
        assert_true(moved > 3);
    }
}

static sbp_status run_pass(void *user) {
    const bench *b = user;
    return sbp_pass_fence(&(sbp_pass_input){.arena = b->arena, .diag = b->diag}, b->program);
}

/* Every allocation of the pass fails once: an error, no leak, no crash; then it works on what is left. */
static void pass_survives_lack_of_memory(void **unused) {
    (void)unused;
    compile_request request = compile_request_for(GOLDEN "llama_plain/model", 14, 4, 3);
    request.stop_after = "memory";
    compile_offload(&request, true);
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
    assert_int_equal(compile_model(b.arena, b.diag, &request, &b.program), SBP_OK);
    int64_t failures = 0;
    for (;; failures++) {
        sbp_test_fail_allocation(failures + 1);
        sbp_status status = sbp_guard(b.arena, b.diag, run_pass, &b);
        sbp_test_fail_allocation(0);
        if (status == SBP_OK)
            break;
        assert_int_equal(status, SBP_MACHINE);
    }
    print_message("%lld allocations failed\n", (long long)failures);
    assert_true(failures > 0);
    assert_int_equal(sbp_program_verify(b.program, b.diag), SBP_OK);
    assert_true(fence_list_make(b.arena, b.program).count > 0);
    sbp_arena_destroy(b.arena);
    sbp_diag_destroy(b.diag);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_of_one_model),
        cmocka_unit_test(modes_of_one_model),
        cmocka_unit_test(shared_values),
        cmocka_unit_test(states),
        cmocka_unit_test(several_models),
        cmocka_unit_test(simulator_notices_shared_memory),
        cmocka_unit_test(simulator_notices_workspaces),
        cmocka_unit_test(pass_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
