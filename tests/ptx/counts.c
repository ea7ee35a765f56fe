/* Counts of what launches executed: see ptx.h. */
#include "tests/ptx/machine.h"
#include "tests/ptx/tensor/matrix.h"

#include <stdlib.h>

typedef struct {
    const char *kernel; // owned
    int line;
    char name[64];
    uint64_t shared, wavefronts, least_wavefronts; // requests, what they took
    uint64_t global, sectors, least_sectors;
} line_count;

struct sbp_ptx_counts {
    uint64_t launches, classes[PTX_CLASSES];
    line_count *lines;
    int count, capacity;
};

static const char *const class_names[] = {
#define PTX_CLASS(name, text) text,
#include "tests/ptx/classes.def"
#undef PTX_CLASS
};

sbp_ptx_counts *sbp_ptx_counts_create(void) {
    return calloc(1, sizeof(sbp_ptx_counts));
}

void sbp_ptx_counts_destroy(sbp_ptx_counts *counts) {
    if (counts) {
        for (int k = 0; k < counts->count; k++) {
            free((char *)counts->lines[k].kernel);
        }
        free(counts->lines);
        free(counts);
    }
}

static line_count *line_at(ptx_launch *L, const ptx_insn *i) {
    sbp_ptx_counts *c = L->options.counts;
    for (int k = c->count - 1; k >= 0; k--) {
        if (c->lines[k].line == i->line && strcmp(c->lines[k].kernel, L->entry->name) == 0) {
            return &c->lines[k];
        }
    }
    if (c->count == c->capacity) {
        const int capacity = c->capacity ? 2 * c->capacity : 64;
        line_count *grown = realloc(c->lines, (size_t)capacity * sizeof *grown);
        if (!grown) {
            ptx_no_memory(L);
        }
        c->lines = grown;
        c->capacity = capacity;
    }
    char *kernel = strdup(L->entry->name);
    if (!kernel) {
        ptx_no_memory(L);
    }
    line_count *l = &c->lines[c->count++];
    *l = (line_count){.kernel = kernel, .line = i->line};
    (void)snprintf(l->name, sizeof l->name, "%s", i->name);
    return l;
}

void ptx_count_shared(ptx_launch *L, const ptx_insn *i, const uint32_t addresses[32], uint32_t mask,
                      int bytes) {
    line_count *l = line_at(L, i);
    const int lanes = __builtin_popcount(mask), phase = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
    l->shared++;
    l->wavefronts += (uint64_t)sbp_ptx_wavefronts(addresses, mask, bytes > 16 ? 16 : bytes);
    l->least_wavefronts += (uint64_t)((lanes + phase - 1) / phase);
}

void ptx_count_global(ptx_launch *L, const ptx_insn *i, const uint64_t addresses[32], uint32_t mask,
                      int bytes) {
    line_count *l = line_at(L, i);
    uint64_t sectors[2 * PTX_LANES];
    int count = 0;
    uint64_t distinct[PTX_LANES];
    int addresses_count = 0;
    PTX_EACH_LANE(lane, mask) {
        for (uint64_t s = addresses[lane] / 32; s <= (addresses[lane] + (uint64_t)bytes - 1) / 32; s++) {
            int k = 0;
            while (k < count && sectors[k] != s) {
                k++;
            }
            if (k == count && count < 2 * PTX_LANES) {
                sectors[count++] = s;
            }
        }
        int k = 0;
        while (k < addresses_count && distinct[k] != addresses[lane]) {
            k++;
        }
        if (k == addresses_count) {
            distinct[addresses_count++] = addresses[lane];
        }
    }
    l->global++;
    l->sectors += (uint64_t)count;
    l->least_sectors += (uint64_t)((addresses_count * bytes + 31) / 32);
}

void ptx_count_launch(ptx_launch *L) {
    sbp_ptx_counts *c = L->options.counts;
    c->launches++;
    for (int k = 0; k < L->entry->length; k++) {
        c->classes[L->entry->code[k].class] += L->line_counts[k];
    }
}

uint64_t sbp_ptx_counts_instructions(const sbp_ptx_counts *counts) {
    uint64_t sum = 0;
    for (int k = 0; k < PTX_CLASSES; k++) {
        sum += counts->classes[k];
    }
    return sum;
}

static int by_place(const void *a, const void *b) {
    const line_count *x = a, *y = b;
    const int order = strcmp(x->kernel, y->kernel);
    return order ? order : x->line - y->line;
}

void sbp_ptx_counts_print(const sbp_ptx_counts *counts, FILE *out) {
    (void)fprintf(out, "launches %llu\nwarp instructions %llu\n", (unsigned long long)counts->launches,
                  (unsigned long long)sbp_ptx_counts_instructions(counts));
    for (int k = 0; k < PTX_CLASSES; k++) {
        if (counts->classes[k]) {
            (void)fprintf(out, "  %-28s %12llu\n", class_names[k], (unsigned long long)counts->classes[k]);
        }
    }
    qsort(counts->lines, (size_t)counts->count, sizeof *counts->lines, by_place);
    for (int k = 0; k < counts->count; k++) {
        const line_count *l = &counts->lines[k];
        (void)fprintf(out, "%s line %d %s:", l->kernel, l->line, l->name);
        if (l->shared) {
            (void)fprintf(out, " shared %llu requests, %llu wavefronts (least %llu)",
                          (unsigned long long)l->shared, (unsigned long long)l->wavefronts,
                          (unsigned long long)l->least_wavefronts);
        }
        if (l->global) {
            (void)fprintf(out, " global %llu requests, %llu sectors (least %llu)",
                          (unsigned long long)l->global, (unsigned long long)l->sectors,
                          (unsigned long long)l->least_sectors);
        }
        (void)fprintf(out, "\n");
    }
}
