/* weights_stack.c: tensors of one shape whose names differ in a number are one tensor, too. */
#include "frontends/weights/weights_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 9 };

/* The last part of a name that is a number, between dots: its place and length; false: there is none. */
static bool find_number(const char *name, size_t *begin, size_t *length) {
    size_t end = strlen(name);
    for (;;) {
        size_t from = end;
        while (from > 0 && name[from - 1] != '.')
            from--;
        size_t digits = 0;
        while (digits < end - from && isdigit((unsigned char)name[from + digits]))
            digits++;
        if (digits > 0 && digits == end - from && digits <= MOST_DIGITS &&
            (name[from] != '0' || digits == 1)) {
            *begin = from;
            *length = digits;
            return true;
        }
        if (from == 0)
            return false;
        end = from - 1;
    }
}

static bool is_like(const sbp_weight *a, const sbp_weight *b) {
    return a->readable == b->readable && a->quantized == b->quantized && a->format == b->format &&
           a->dtype == b->dtype && a->codec == b->codec && a->rank == b->rank && !a->scales == !b->scales &&
           memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

/* Makes the stack of parts whose places are taken; false when one is missing, or they are not alike. */
static bool finish_stack(sbp_weights *w, sbp_weight *stack) {
    const sbp_weight *first = stack->parts[0];
    for (int64_t i = 0; i < stack->part_count; i++)
        if (!stack->parts[i] || !is_like(stack->parts[i], first))
            return false;
    int64_t *dim = SBP_NEW_ARRAY(w->arena, int64_t, first->rank + 1);
    dim[0] = stack->part_count;
    memcpy(dim + 1, first->dim, (size_t)first->rank * sizeof *dim);
    sbp_weight all = *first;
    all.name = stack->name;
    all.rank = first->rank + 1;
    all.dim = dim;
    all.parts = stack->parts;
    all.part_count = stack->part_count;
    *stack = all;
    return first->rank < SBP_MAX_RANK && sbp_mul_i64(first->elems, all.part_count, &stack->elems);
}

void sbp_weights_stack(sbp_weights *w) {
    int32_t *stack_of = SBP_NEW_ARRAY(w->arena, int32_t, w->count), count = 0, capacity = 0;
    sbp_weight *stacks = NULL;
    sbp_map by_name;
    sbp_map_init(&by_name, w->arena);
    sbp_map_init(&w->stack_by_name, w->arena);
    for (int32_t i = 0; i < w->count; i++) {
        const char *name = w->weights[i].name;
        size_t begin, length;
        stack_of[i] = -1;
        if (!find_number(name, &begin, &length))
            continue;
        const char *pattern = sbp_arena_printf(w->arena, "%.*s*%s", (int)begin, name, name + begin + length);
        int32_t known = sbp_map_get(&by_name, pattern);
        stack_of[i] = known >= 0 && known < count ? known : count;
        if (stack_of[i] == count) {
            sbp_map_set(&by_name, pattern, count);
            SBP_PUSH(w->arena, stacks, count, capacity, (sbp_weight){.name = pattern});
        }
        stacks[stack_of[i]].part_count++;
    }
    for (int32_t s = 0; s < count; s++)
        stacks[s].parts = SBP_NEW_ARRAY(w->arena, const sbp_weight *, stacks[s].part_count);
    for (int32_t i = 0; i < w->count; i++) {
        size_t begin, length;
        if (stack_of[i] < 0 || !find_number(w->weights[i].name, &begin, &length))
            continue;
        long long number = strtoll(w->weights[i].name + begin, NULL, 10);
        if (number < stacks[stack_of[i]].part_count)
            stacks[stack_of[i]].parts[number] = &w->weights[i];
    }
    w->stacks = stacks;
    for (int32_t s = 0; s < count; s++)
        if (finish_stack(w, &stacks[s]))
            sbp_map_set(&w->stack_by_name, stacks[s].name, s);
}

/* Elements first .. first + count - 1 of a stack, part by part. */
sbp_status sbp_weights_read_stack(const sbp_weights *w, const sbp_weight *t, int64_t first, int64_t count,
                                  sbp_dtype dtype, void *out, sbp_diag *diag) {
    int64_t size = t->elems / t->part_count;
    for (int64_t done = 0; done < count;) {
        int64_t at = first + done, left = size - at % size, n = count - done < left ? count - done : left;
        SBP_TRY(sbp_weights_read(w, t->parts[at / size], at % size, n, dtype,
                                 (char *)out + done * sbp_dtype_bytes(dtype), diag));
        done += n;
    }
    return SBP_OK;
}
