/* sampler.c: which rows each step takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/rowkernel/rowkernel.h"
#include "runtime/data/groups.h"

enum { RELEASE_ROWS = 1 << 14 };

/* As long as an element of the order, in whose memory the keys lie. */
typedef struct shuffle_key {
    uint32_t k0, row;
} shuffle_key;

typedef struct shuffle_numbers {
    uint32_t key[2], epoch;
} shuffle_numbers;

static uint32_t draw(const shuffle_numbers *s, uint32_t row, uint32_t which) {
    const uint32_t counter[4] = {row, 0, s->epoch, which};
    return sbp_philox(counter, s->key);
}

/* The second number is needed where the first ones are equal only: once in some thousand rows. */
static int compare_keys(const void *a, const void *b, void *user) {
    const shuffle_key *x = a, *y = b;
    if (x->k0 != y->k0)
        return x->k0 < y->k0 ? -1 : 1;
    uint32_t p = draw(user, x->row, 1), q = draw(user, y->row, 1);
    if (p != q)
        return p < q ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* In place, as there may be many: into 256 parts by the first byte, each of which is then sorted. */
static void sort_keys(shuffle_key *keys, int64_t count, shuffle_numbers *s) {
    int64_t at[256] = {0}, ends[256], sum = 0;
    for (int64_t i = 0; i < count; i++)
        at[keys[i].k0 >> 24]++;
    for (int part = 0; part < 256; part++) {
        int64_t size = at[part];
        at[part] = sum;
        ends[part] = sum += size;
    }
    for (int part = 0; part < 256; part++)
        while (at[part] < ends[part]) {
            shuffle_key key = keys[at[part]];
            int bucket = (int)(key.k0 >> 24);
            if (bucket != part) {
                keys[at[part]] = keys[at[bucket]];
                keys[at[bucket]] = key;
            }
            at[bucket]++;
        }
    for (int part = 0; part < 256; part++) {
        int64_t first = part ? ends[part - 1] : 0;
        qsort_r(keys + first, (size_t)(ends[part] - first), sizeof *keys, compare_keys, s);
    }
}

/* Groups instead of rows, where there are any: sorted elsewhere, as rows may overtake their groups. */
static void spread_groups(sbp_sampler *s, const shuffle_key *keys) {
    int64_t at = 0;
    for (int64_t g = 0; g < s->group_count; g++)
        for (int64_t r = s->firsts[keys[g].row]; r < s->firsts[keys[g].row + 1]; r++)
            s->order[at++] = r;
}

/* The order of an epoch. Without groups in place: the keys lie in the same memory as the result. */
static void make_order(sbp_sampler *s, int64_t epoch) {
    if (s->order_epoch == epoch || (!s->shuffle && s->order_epoch >= 0))
        return;
    int64_t n = s->firsts ? s->group_count : s->data->row_count;
    shuffle_key *keys = (shuffle_key *)(void *)(s->firsts ? s->keys : s->order);
    shuffle_numbers drawn = {{(uint32_t)s->seed, (uint32_t)(s->seed >> 32)}, (uint32_t)epoch};
    for (int64_t r = 0; r < n; r++)
        keys[r] = (shuffle_key){s->shuffle ? draw(&drawn, (uint32_t)r, 0) : 0, (uint32_t)r};
    if (s->shuffle)
        sort_keys(keys, n, &drawn);
    if (s->firsts)
        spread_groups(s, keys);
    for (int64_t r = 0; r < n && !s->firsts; r++) {
        int64_t row = keys[r].row;
        memcpy(&keys[r], &row, sizeof row);
    }
    s->order_epoch = epoch;
}

/* Where groups begin, and room for their keys; false when out of memory. */
static bool find_groups(sbp_sampler *s) {
    const sbp_dataset *data = s->data;
    for (int64_t r = 0; r < data->row_count; r++)
        s->group_count += sbp_dataset_begins_group(data, r);
    s->firsts = sbp_malloc((size_t)(s->group_count + 1) * sizeof *s->firsts);
    s->keys = sbp_malloc((size_t)s->group_count * sizeof(shuffle_key));
    if (!s->firsts || !s->keys)
        return false;
    for (int64_t r = 0, g = 0; r < data->row_count; r++)
        if (sbp_dataset_begins_group(data, r))
            s->firsts[g++] = r;
    s->firsts[s->group_count] = data->row_count;
    return true;
}

sbp_status sbp_sampler_init(sbp_sampler *s, sbp_diag *diag, const sbp_dataset *data, uint64_t seed,
                            bool shuffle, int64_t batch_rows, int64_t batch_tokens) {
    *s = (sbp_sampler){.data = data,
                       .seed = seed,
                       .shuffle = shuffle,
                       .batch_rows = batch_rows,
                       .batch_tokens = batch_tokens,
                       .order_epoch = -1};
    if (data->row_count > UINT32_MAX)
        return sbp_fail(diag, SBP_INPUT, "%lld rows are more than can be shuffled",
                        (long long)data->row_count);
    s->order = sbp_malloc((size_t)data->row_count * sizeof *s->order);
    if (s->order && (!data->groups || find_groups(s)))
        return SBP_OK;
    sbp_sampler_close(s);
    return sbp_fail(diag, SBP_MACHINE, "out of memory for the order of the data");
}

void sbp_sampler_close(sbp_sampler *s) {
    free(s->order);
    free(s->firsts);
    free(s->keys);
    s->order = s->firsts = NULL;
    s->keys = NULL;
}

/* Rows from order[at] on that are not parted: of one group. */
static int64_t group_rows(const sbp_sampler *s, int64_t at) {
    int64_t rows = 1;
    while (s->firsts && at + rows < s->data->row_count &&
           s->order[at + rows] == s->order[at + rows - 1] + 1 &&
           !sbp_dataset_begins_group(s->data, s->order[at + rows]))
        rows++;
    return rows;
}

/* Rows of the step that begins at `at`. */
static int64_t step_rows(const sbp_sampler *s, int64_t at) {
    int64_t left = s->data->row_count - at;
    if (s->batch_tokens == 0 && !s->firsts)
        return left < s->batch_rows ? left : s->batch_rows;
    int64_t rows = 0, tokens = 0;
    while (rows < left) {
        int64_t more = group_rows(s, at + rows);
        for (int64_t r = rows; r < rows + more; r++)
            tokens += s->batch_tokens > 0 ? sbp_dataset_row_tokens(s->data, s->order[at + r]) : 0;
        if (rows > 0 && (s->batch_tokens > 0 ? tokens > s->batch_tokens : rows + more > s->batch_rows))
            break;
        rows += more;
    }
    return rows;
}

const int64_t *sbp_sampler_next(sbp_sampler *s, int64_t *count) {
    if (s->at >= s->data->row_count) {
        s->at = 0;
        s->epoch++;
    }
    make_order(s, s->epoch);
    *count = step_rows(s, s->at);
    s->at += *count;
    s->taken += *count;
    if (s->taken >= RELEASE_ROWS) { /* what steps before have touched of files */
        sbp_dataset_release(s->data);
        s->taken = 0;
    }
    return s->order + s->at - *count;
}

void sbp_sampler_seek(sbp_sampler *s, int64_t epoch, int64_t at) {
    s->epoch = epoch;
    s->at = at;
}

/* Whether every step has as many rows as another, but for an epoch's last. */
static bool is_even(const sbp_sampler *s) {
    return s->batch_tokens == 0 && !s->firsts;
}

int64_t sbp_sampler_epoch_steps(sbp_sampler *s, int64_t epoch) {
    sbp_sampler_seek(s, epoch, 0);
    if (is_even(s))
        return sbp_ceil_div(s->data->row_count, s->batch_rows);
    make_order(s, epoch);
    int64_t steps = 0;
    for (int64_t at = 0; at < s->data->row_count; steps++)
        at += step_rows(s, at);
    return steps;
}

int64_t sbp_sampler_total_steps(sbp_sampler *s, double epochs) {
    double whole = floor(epochs), part = epochs - whole, total = 0;
    if (is_even(s) || !s->shuffle)
        total = ceil(epochs * (double)sbp_sampler_epoch_steps(s, 0));
    else {
        for (int64_t e = 0; e < (int64_t)whole; e++)
            total += (double)sbp_sampler_epoch_steps(s, e);
        if (part > 0)
            total += ceil(part * (double)sbp_sampler_epoch_steps(s, (int64_t)whole));
    }
    sbp_sampler_seek(s, 0, 0);
    return total < 9e15 ? (int64_t)total : (int64_t)9e15;
}
