/* arena.c: arenas and guards. */
#include "ir/base/base.h"
#include "ir/base/machine.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024, ALIGNMENT = 16 };

typedef struct block {
    struct block *next;
    size_t used, capacity;
    _Alignas(ALIGNMENT) unsigned char data[];
} block;

struct sbp_arena {
    block *blocks; /* the newest first */
    size_t bytes;
    jmp_buf *guard; /* innermost, NULL outside any */
};

sbp_arena *sbp_arena_create(void) {
    sbp_arena *arena = sbp_malloc(sizeof *arena);
    if (arena)
        memset(arena, 0, sizeof *arena);
    return arena;
}

void sbp_arena_destroy(sbp_arena *arena) {
    if (!arena)
        return;
    for (block *b = arena->blocks; b;) {
        block *next = b->next;
        free(b);
        b = next;
    }
    free(arena);
}

sbp_arena_mark sbp_arena_begin(const sbp_arena *arena) {
    block *b = arena->blocks;
    return (sbp_arena_mark){b, b ? b->next : NULL, b ? b->used : 0, arena->bytes};
}

static void free_until(block *b, const block *end) {
    while (b != end) {
        block *next = b->next;
        free(b);
        b = next;
    }
}

/* What came after the mark lies before its block, behind it (large ones), or at its end. */
void sbp_arena_end(sbp_arena *arena, sbp_arena_mark mark) {
    block *b = mark.block;
    free_until(arena->blocks, b);
    if (b) {
        free_until(b->next, mark.next);
        b->next = mark.next;
        b->used = mark.used;
    }
    arena->blocks = b;
    arena->bytes = mark.bytes;
}

static _Noreturn void out_of_memory(sbp_arena *arena) {
    if (arena->guard)
        longjmp(*arena->guard, 1);
    fprintf(stderr, "internal error: out of memory outside a guard\n"); /* our bug: see base.h */
    abort();
}

sbp_status sbp_guard(sbp_arena *arena, sbp_diag *diag, sbp_status (*body)(void *user), void *user) {
    jmp_buf here;
    jmp_buf *outer = arena->guard;
    arena->guard = &here;
    sbp_status status;
    char limit[100];
    if (setjmp(here) == 0)
        status = body(user);
    else
        status = sbp_fail(diag, SBP_MACHINE, "out of memory (%zu bytes of compiler data held; %s)",
                          arena->bytes, sbp_machine_memory_text(limit, sizeof limit));
    arena->guard = outer;
    return status;
}

void *sbp_arena_alloc(sbp_arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 2 || sbp_test_piece_fails())
        out_of_memory(arena);
    size_t need = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block *b = arena->blocks;
    if (!b || b->capacity - b->used < need) {
        size_t capacity = need > BLOCK_BYTES / 4 ? need : BLOCK_BYTES;
        block *fresh = sbp_malloc(sizeof *fresh + capacity);
        if (!fresh)
            out_of_memory(arena);
        fresh->used = 0;
        fresh->capacity = capacity;
        arena->bytes += capacity;
        if (b && capacity != BLOCK_BYTES) { /* a large block goes behind the one still being filled */
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            arena->blocks = fresh;
        }
        b = fresh;
    }
    void *result = b->data + b->used;
    b->used += need;
    memset(result, 0, need);
    return result;
}

void *sbp_arena_array(sbp_arena *arena, size_t count, size_t size) {
    if (size != 0 && count > SIZE_MAX / 2 / size)
        out_of_memory(arena);
    return sbp_arena_alloc(arena, count * size);
}

char *sbp_arena_strndup(sbp_arena *arena, const char *text, size_t length) {
    char *copy = sbp_arena_alloc(arena, length + 1);
    memcpy(copy, text, length);
    return copy;
}

char *sbp_arena_strdup(sbp_arena *arena, const char *text) {
    return sbp_arena_strndup(arena, text, strlen(text));
}

char *sbp_arena_printf(sbp_arena *arena, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = sbp_arena_alloc(arena, (size_t)(length < 0 ? 0 : length) + 1);
    if (length > 0)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

size_t sbp_arena_bytes(const sbp_arena *arena) {
    return arena->bytes;
}

void *sbp_array_grow(sbp_arena *arena, void *array, int32_t *capacity, size_t element_bytes, int32_t count) {
    if (*capacity > INT32_MAX / 2)
        out_of_memory(arena);
    int32_t larger = *capacity ? *capacity * 2 : 8;
    void *fresh = sbp_arena_array(arena, (size_t)larger, element_bytes);
    if (count > 0)
        memcpy(fresh, array, (size_t)count * element_bytes);
    *capacity = larger;
    return fresh;
}
