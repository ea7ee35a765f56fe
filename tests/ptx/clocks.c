/* Views: see clocks.h. */
#include "tests/ptx/clocks.h"

#include <stdlib.h>
#include <string.h>

static ptx_slice *slice_create(uint32_t block, uint32_t count) {
    ptx_slice *s = calloc(1, sizeof *s + 2 * (size_t)count * sizeof(uint32_t));
    if (s) {
        *s = (ptx_slice){.refs = 1, .block = block, .count = count};
    }
    return s;
}

static void slice_drop(ptx_slice *s) {
    if (s && --s->refs == 0) {
        free(s);
    }
}

static ptx_slice *slice_keep(ptx_slice *s) {
    s->refs++;
    return s;
}

static ptx_slice *slice_copy(const ptx_slice *from) {
    ptx_slice *s = slice_create(from->block, from->count);
    if (s) {
        memcpy(s->times, from->times, 2 * (size_t)from->count * sizeof(uint32_t));
    }
    return s;
}

static ptx_view *view_alloc(int others) {
    ptx_view *v = calloc(1, sizeof *v + (size_t)others * sizeof(ptx_slice *));
    if (v) {
        v->refs = 1;
    }
    return v;
}

ptx_view *ptx_view_create(uint32_t block, uint32_t count) {
    ptx_view *v = view_alloc(0);
    ptx_slice *s = slice_create(block, count);
    if (!v || !s) {
        free(v);
        free(s);
        return NULL;
    }
    v->own = s;
    return v;
}

ptx_view *ptx_view_keep(ptx_view *view) {
    view->refs++;
    return view;
}

void ptx_view_drop(ptx_view *view) {
    if (view && --view->refs == 0) {
        slice_drop(view->own);
        for (int i = 0; i < view->count; i++) {
            slice_drop(view->others[i]);
        }
        free(view);
    }
}

ptx_view *ptx_view_copy(const ptx_view *view) {
    ptx_view *v = view_alloc(view->count);
    ptx_slice *own = slice_copy(view->own);
    if (!v || !own) {
        free(v);
        slice_drop(own);
        return NULL;
    }
    v->own = own;
    for (int i = 0; i < view->count; i++) {
        v->others[v->count++] = slice_keep(view->others[i]);
    }
    return v;
}

ptx_view *ptx_view_fenced(const ptx_view *view) {
    ptx_view *v = ptx_view_copy(view);
    for (int i = -1; v && i < v->count; i++) {
        ptx_slice *s = i < 0 ? v->own : slice_copy(v->others[i]);
        if (!s) {
            ptx_view_drop(v);
            return NULL;
        }
        memcpy(ptx_proxy(s), ptx_known(s), s->count * sizeof(uint32_t));
        if (i >= 0) {
            slice_drop(v->others[i]);
            v->others[i] = s;
        }
    }
    return v;
}

static bool knows_more(const ptx_slice *a, const ptx_slice *b) { // b than a
    uint32_t more = 0;                                           // no early end: that is what vectorises
    for (uint32_t i = 0; i < 2 * a->count; i++) {
        more |= b->times[i] > a->times[i];
    }
    return more != 0;
}

// What either knows of one block: a new reference.
static ptx_slice *slice_join(ptx_slice *a, ptx_slice *b) {
    if (a == b || !knows_more(a, b)) {
        return slice_keep(a);
    }
    if (!knows_more(b, a)) {
        return slice_keep(b);
    }
    ptx_slice *s = slice_copy(a);
    for (uint32_t i = 0; s && i < 2 * s->count; i++) {
        s->times[i] = s->times[i] > b->times[i] ? s->times[i] : b->times[i];
    }
    return s;
}

// The slices of a view in order of blocks, its own among them.
static ptx_slice *nth(const ptx_view *v, int i, int *own_at) {
    if (*own_at < 0) {
        *own_at = 0;
        while (*own_at < v->count && v->others[*own_at]->block < v->own->block) {
            ++*own_at;
        }
    }
    return i == *own_at ? v->own : v->others[i - (i > *own_at)];
}

ptx_view *ptx_view_join(ptx_view *a, ptx_view *b) {
    if (a == b || (a->own->block == b->own->block && b->count == 0 && !knows_more(a->own, b->own))) {
        return ptx_view_keep(a);
    }
    ptx_view *v = view_alloc(a->count + b->count + 1);
    int i = 0, k = 0, own_a = -1, own_b = -1;
    bool failed = !v;
    while (!failed && (i <= a->count || k <= b->count)) {
        ptx_slice *x = i <= a->count ? nth(a, i, &own_a) : NULL,
                  *y = k <= b->count ? nth(b, k, &own_b) : NULL;
        ptx_slice *s;
        if (!y || (x && x->block < y->block)) {
            s = slice_keep(x);
            i++;
        } else if (!x || y->block < x->block) {
            s = slice_keep(y);
            k++;
        } else {
            s = slice_join(x, y);
            i++;
            k++;
        }
        if (!s) {
            failed = true;
        } else if (s->block == a->own->block) {
            v->own = s;
        } else {
            v->others[v->count++] = s;
        }
    }
    if (failed && v) {
        for (int n = 0; n < v->count; n++) {
            slice_drop(v->others[n]);
        }
        slice_drop(v->own);
        free(v);
        v = NULL;
    }
    return v;
}

const ptx_slice *ptx_view_slice(const ptx_view *view, uint32_t block) {
    if (view->own->block == block) {
        return view->own;
    }
    int low = 0, high = view->count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (view->others[middle]->block < block) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < view->count && view->others[low]->block == block ? view->others[low] : NULL;
}
