/* context.c: which heads and rows each rank of a context has. */
#include "ir/base/context.h"

int64_t sbp_context_copies(const sbp_context_heads *h, int64_t ranks) {
    return sbp_ceil_div(ranks, h->kv_heads);
}

int64_t sbp_context_queries(const sbp_context_heads *h, int64_t ranks) {
    return sbp_ceil_div(h->heads / h->kv_heads, sbp_context_copies(h, ranks));
}

int64_t sbp_context_slots(const sbp_context_heads *h, int64_t ranks) {
    int64_t units = sbp_ceil_div(h->kv_heads * sbp_context_copies(h, ranks), ranks);
    return h->keys ? units : units * sbp_context_queries(h, ranks);
}

int64_t sbp_context_head(const sbp_context_heads *h, int64_t ranks, int64_t slot) {
    int64_t copies = sbp_context_copies(h, ranks), queries = sbp_context_queries(h, ranks);
    int64_t unit = h->keys ? slot : slot / queries, group = h->heads / h->kv_heads;
    int64_t query = unit % copies * queries + (h->keys ? 0 : slot % queries);
    if (unit >= h->kv_heads * copies)
        return -1;
    if (h->keys)
        return unit / copies;
    return query < group ? unit / copies * group + query : -1;
}

int64_t sbp_context_same(const sbp_context_heads *h, int64_t ranks) {
    return h->keys ? sbp_context_copies(h, ranks) : 1;
}

sbp_context_exchange sbp_context_exchange_of(const sbp_context_heads *queries, int64_t ranks) {
    bool idle = 2 * ranks * sbp_context_slots(queries, ranks) >= 3 * queries->heads;
    return idle ? SBP_CONTEXT_ALL_GATHER : SBP_CONTEXT_ALL_TO_ALL;
}

int64_t sbp_context_row(int64_t row, int64_t t, int64_t chunk, int64_t rank, int64_t ranks) {
    int64_t i = row / chunk, begin = i * chunk, rows = t - begin < chunk ? t - begin : chunk;
    return begin * ranks + rank * rows + (row - begin);
}
