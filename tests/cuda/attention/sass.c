/* sass.c: reads what nvdisasm prints, and finds loops. */
#include "tests/cuda/attention/sass.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define NVDISASM "build/cuda-tools/bin/nvdisasm"

bool sass_can_read(void) {
    if (access(NVDISASM, X_OK) == 0)
        return true;
    print_message("skipped: machine code: there is no " NVDISASM " (tests/cuda_tools.sh brings it)\n");
    return false;
}

bool sass_is(const sass_instruction *i, const char *op) {
    size_t length = strlen(op);
    return strncmp(i->op, op, length) == 0 && (i->op[length] == 0 || i->op[length] == '.');
}

/* ---- reading ---------------------------------------------------------------------------------------- */

static char *disassemble(sbp_arena *arena, const void *cubin, int64_t bytes) {
    char path[] = "/tmp/sbp_cubin_XXXXXX", command[200];
    int32_t length = 0, capacity = 0, got;
    char *text = NULL, part[4096];
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, cubin, (size_t)bytes) == (ssize_t)bytes && close(file) == 0);
    snprintf(command, sizeof command, NVDISASM " -c %s", path);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    while ((got = (int32_t)fread(part, 1, sizeof part, out)) > 0)
        for (int32_t i = 0; i < got; i++)
            SBP_PUSH(arena, text, length, capacity, part[i]);
    assert_int_equal(pclose(out), 0);
    unlink(path);
    SBP_PUSH(arena, text, length, capacity, 0);
    return text;
}

typedef struct reader {
    sbp_arena *arena;
    sbp_map labels;
    sass_instruction *items;
    int32_t count, capacity;
} reader;

/* An address within a comment, then "@!P0 BRA `(.L_x_1) ;" */
static void add_line(reader *r, char *line) {
    sass_instruction i = {.targets = {-1, -1}};
    char *at = strstr(line, "*/"), *end = strchr(line, ';');
    if (!at || !end)
        return;
    for (at += 2; *at == ' ';)
        at++;
    while (end > at && (end[-1] == ' ' || end[-1] == ';'))
        end--;
    *end = 0;
    if (*at == '@') {
        size_t length = strcspn(at, " ");
        i.never = strncmp(at, "@!PT", length) == 0 || strncmp(at, "@!UPT", length) == 0;
        i.conditional = true;
        for (at += length; *at == ' ';)
            at++;
    }
    i.text = at;
    i.op = sbp_arena_strndup(r->arena, at, strcspn(at, " "));
    SBP_PUSH(r->arena, r->items, r->count, r->capacity, i);
}

/* The label in an instruction's text; -1: none. */
static int32_t label_in(const reader *r, const char *text) {
    const char *at = strstr(text, "`(");
    if (!at)
        return -1;
    return (int32_t)sbp_map_get(&r->labels, sbp_arena_strndup(r->arena, at + 2, strcspn(at + 2, ")")));
}

/* A branch whose condition is an operand: "BRA P1, `(..)", "BRA.DIV UR4, `(..)". */
static bool has_condition(const sass_instruction *i) {
    const char *operand = strchr(i->text, ' ');
    return i->conditional || (operand && operand[1] != '`');
}

/* Code that waits for lanes goes on at the label of the BSSY that names its barrier. */
static void link_instructions(reader *r) {
    sbp_map joins;
    sbp_map_init(&joins, r->arena);
    for (int32_t k = 0; k < r->count; k++) {
        sass_instruction *i = &r->items[k];
        int32_t next = k + 1 < r->count ? k + 1 : -1;
        i->targets[0] = next;
        if (sass_is(i, "BSSY")) {
            const char *name = strchr(i->text, ' ') + 1;
            sbp_map_set(&joins, sbp_arena_strndup(r->arena, name, strcspn(name, ",")), label_in(r, i->text));
        } else if (sass_is(i, "BSYNC")) {
            i->targets[0] = (int32_t)sbp_map_get(&joins, strrchr(i->text, ' ') + 1);
            i->targets[1] = i->conditional ? next : -1;
        } else if (sass_is(i, "BRA") && !sass_is(i, "BRA.DIV")) {
            i->targets[0] = label_in(r, i->text);
            i->targets[1] = has_condition(i) ? next : -1;
        } else if (sass_is(i, "EXIT") || sass_is(i, "RET") || (sass_is(i, "CALL") && i->conditional)) {
            i->targets[0] = i->conditional ? next : -1; /* a call of what is behind a loop leaves it */
        }
    }
}

sass_kernel sass_read(sbp_arena *arena, const void *cubin, int64_t bytes) {
    reader r = {.arena = arena};
    char *text = disassemble(arena, cubin, bytes), *rest = NULL;
    bool inside = false;
    sbp_map_init(&r.labels, arena);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        size_t length = strlen(line);
        if (strcmp(line, ".text.kernel:") == 0)
            inside = true;
        else if (inside && (strncmp(line, "//----", 6) == 0 || strncmp(line, "\t.section", 9) == 0) &&
                 r.count > 0)
            break;
        else if (inside && line[0] == '.' && line[length - 1] == ':')
            sbp_map_set(&r.labels, sbp_arena_strndup(arena, line, length - 1), r.count);
        else if (inside)
            add_line(&r, line);
    }
    assert_true(r.count > 0);
    link_instructions(&r);
    return (sass_kernel){r.items, r.count};
}

/* ---- loops ------------------------------------------------------------------------------------------ */

static bool is_product(const sass_instruction *i) {
    return sass_is(i, "HMMA") || sass_is(i, "HGMMA");
}

/* The natural loop of a head: all that leads to a branch back to it without going through it. Its size; 0: no
 * instruction branches back there. */
static int32_t find_body(sbp_arena *arena, const sass_kernel *k, int32_t head, bool *body) {
    int32_t *work = NULL, count = 0, capacity = 0, size = 0;
    for (int32_t from = head; from < k->count; from++)
        if (k->items[from].targets[0] == head || k->items[from].targets[1] == head)
            SBP_PUSH(arena, work, count, capacity, from);
    if (count == 0)
        return 0;
    body[head] = true;
    while (count > 0) {
        int32_t at = work[--count];
        if (body[at])
            continue;
        body[at] = true;
        for (int32_t p = 0; p < k->count; p++)
            if (k->items[p].targets[0] == at || k->items[p].targets[1] == at)
                SBP_PUSH(arena, work, count, capacity, p);
    }
    for (int32_t i = 0; i < k->count; i++)
        size += body[i];
    return size;
}

typedef struct way {
    const sass_kernel *k;
    const bool *body;
    int32_t head;
    int64_t *cost; /* from an instruction to the head */
    int32_t *next; /* on the shortest way; -1: the head comes */
    char *state;   /* of the search: 0 new, 1 entered, 2 left */
} way;

enum { NOWHERE = 1 << 30, MUST = 1 << 16 };

/* Depth first; a branch back to what is not left yet is that of an inner loop, which turns once. */
static void visit(way *w, int32_t at) {
    const sass_instruction *i = &w->k->items[at];
    int64_t best = NOWHERE;
    int32_t next = -1;
    w->state[at] = 1;
    for (int t = 0; t < 2; t++) {
        int32_t to = i->targets[t];
        if (to < 0 || !w->body[to])
            continue;
        if (to != w->head && w->state[to] == 0)
            visit(w, to);
        if (to != w->head && w->state[to] == 1)
            continue;
        int64_t cost = to == w->head ? 0 : w->cost[to];
        if (cost < best) {
            best = cost;
            next = to == w->head ? -1 : to;
        }
    }
    w->state[at] = 2;
    w->next[at] = next;
    w->cost[at] = best == NOWHERE ? NOWHERE : best + 1 - (is_product(i) || sass_is(i, "LDGSTS") ? MUST : 0);
}

int32_t sass_main_loop(sbp_arena *arena, const sass_kernel *kernel, const bool *other, int32_t **out,
                       bool **body) {
    int32_t most = 0, size = 0, head = -1, length = 0, capacity = 0;
    *out = NULL;
    *body = NULL;
    for (int32_t to = 0; to < kernel->count; to++) {
        bool *found = SBP_NEW_ARRAY(arena, bool, kernel->count), apart = true;
        int32_t found_size = find_body(arena, kernel, to, found), products = 0;
        for (int32_t i = 0; i < kernel->count; i++) {
            products += found[i] && is_product(&kernel->items[i]);
            apart &= !(other && other[i] && found[i]);
        }
        if (!apart || products < most || products == 0 || (products == most && found_size >= size))
            continue;
        most = products;
        size = found_size;
        head = to;
        *body = found;
    }
    if (head < 0)
        return 0;
    way w = {.k = kernel, .body = *body, .head = head};
    w.cost = SBP_NEW_ARRAY(arena, int64_t, kernel->count);
    w.next = SBP_NEW_ARRAY(arena, int32_t, kernel->count);
    w.state = SBP_NEW_ARRAY(arena, char, kernel->count);
    visit(&w, head);
    for (int32_t at = head; at >= 0; at = w.next[at])
        SBP_PUSH(arena, *out, length, capacity, at);
    assert_true(w.cost[head] < NOWHERE);
    return length;
}
