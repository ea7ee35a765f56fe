/* attn.c: what the rules of attn_fwd and attn_bwd have in common. */
#include "ir/program/command.h"
#include "ir/program/traits.h"

#include <math.h>
#include <stdio.h>

const sbp_attention_operands *sbp_command_attention(sbp_command_kind kind) {
    static const sbp_attention_operands forward = {.q = SBP_ATTN_FWD_Q,
                                                   .k = SBP_ATTN_FWD_K,
                                                   .v = SBP_ATTN_FWD_V,
                                                   .o = SBP_ATTN_FWD_O,
                                                   .lse = SBP_ATTN_FWD_LSE,
                                                   .first = SBP_ATTN_FWD_FIRST,
                                                   .shared_end = SBP_ATTN_FWD_SHARED_END,
                                                   .own = SBP_ATTN_FWD_OWN,
                                                   .work = SBP_ATTN_FWD_WORK};
    static const sbp_attention_operands backward = {.backward = true,
                                                    .q = SBP_ATTN_BWD_Q,
                                                    .k = SBP_ATTN_BWD_K,
                                                    .v = SBP_ATTN_BWD_V,
                                                    .o = SBP_ATTN_BWD_O,
                                                    .lse = SBP_ATTN_BWD_LSE,
                                                    .first = SBP_ATTN_BWD_FIRST,
                                                    .shared_end = SBP_ATTN_BWD_SHARED_END,
                                                    .own = SBP_ATTN_BWD_OWN,
                                                    .work = SBP_ATTN_BWD_WORK};
    const sbp_command_traits *traits = sbp_command_traits_of(kind);
    return traits->attributes != SBP_ATTRIBUTES_ATTENTION ? NULL : traits->backward ? &backward : &forward;
}

void sbp_attention_rows(sbp_row_rules *rules) {
    const sbp_attention_operands *at = sbp_command_attention(rules->command->kind);
    const sbp_attention_attrs *a = &rules->command->u.attention;
    const int32_t columns[] = {at->first, at->shared_end, at->own};
    sbp_rows_add(rules, SBP_ROWS_SAME, at->o, at->q, 0);
    sbp_rows_add(rules, SBP_ROWS_SAME, at->lse, at->q, 0);
    for (int i = 0; i < SBP_COUNT(columns); i++)
        sbp_rows_add(rules, SBP_ROWS_ALIGNED, columns[i], at->q, 0);
    sbp_rows_add(rules, a->by_rank ? SBP_ROWS_COVER_ALL : SBP_ROWS_COVER, at->k, at->q, a->window);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, at->v, at->k, 0);
    sbp_rows_add(rules, SBP_ROWS_NO_LESS, at->work, at->q, 0);
}

static sbp_status check_attributes(const sbp_subject *s) {
    const sbp_attention_attrs *a = &s->command->u.attention;
    if (a->heads < 1 || a->heads > SBP_MOST_HEADS || a->kv_heads < 1 || a->heads % a->kv_heads != 0 ||
        a->d_qk < 1 || a->d_qk > SBP_MOST_HEADS || a->d_v < 1 || a->d_v > SBP_MOST_HEADS)
        return SBP_SUBJECT_FAIL(s, "c26", "heads %lld, kv_heads %lld, d_qk %lld, d_v %lld",
                                (long long)a->heads, (long long)a->kv_heads, (long long)a->d_qk,
                                (long long)a->d_v);
    if (a->window < 0 || !isfinite(a->scale) || !isfinite(a->softcap) || a->softcap < 0)
        return SBP_SUBJECT_FAIL(s, "c26", "window %lld, scale %g, softcap %g", (long long)a->window, a->scale,
                                a->softcap);
    if (a->by_rank && s->c->program->context < 2)
        return SBP_SUBJECT_FAIL(s, "c26", "rows by rank, without a context");
    return SBP_OK;
}

sbp_status sbp_attention_check(const sbp_subject *s) {
    const sbp_attention_operands *at = sbp_command_attention(s->command->kind);
    const sbp_attention_attrs *a = &s->command->u.attention;
    const int32_t columns[] = {at->first, at->shared_end, at->own};
    SBP_TRY(check_attributes(s));
    SBP_TRY(sbp_check_exact_cols(s, at->q, a->heads * a->d_qk));
    SBP_TRY(sbp_check_exact_cols(s, at->k, a->kv_heads * a->d_qk));
    SBP_TRY(sbp_check_exact_cols(s, at->v, a->kv_heads * a->d_v));
    SBP_TRY(sbp_check_exact_cols(s, at->o, a->heads * a->d_v));
    SBP_TRY(sbp_check_exact_cols(s, at->lse, a->heads));
    SBP_TRY(sbp_check_float(s, at->q));
    SBP_TRY(sbp_check_same_dtype(s, at->k, at->q));
    SBP_TRY(sbp_check_same_dtype(s, at->v, at->q));
    SBP_TRY(sbp_check_same_dtype(s, at->o, at->q));
    SBP_TRY(sbp_check_wide(s, at->lse, at->q));
    for (int i = 0; i < SBP_COUNT(columns); i++)
        SBP_TRY(sbp_check_index(s, columns[i]));
    return SBP_OK;
}

/* Rows that see what is in their part of the document alone: first and own are those of parts alike. */
static sbp_status check_inputs_in_parts(const sbp_subject *s, const sbp_row_input *first) {
    const sbp_attention_operands *at = sbp_command_attention(s->command->kind);
    char own[sizeof SBP_OWN_IN_PREFIX + 12];
    snprintf(own, sizeof own, SBP_OWN_IN_PREFIX "%lld",
             (long long)sbp_column_number(first->column, SBP_FIRST_IN_PREFIX));
    SBP_TRY(sbp_check_input(s, at->first, SBP_ROW_COLUMN, NULL));
    SBP_TRY(sbp_check_input(s, at->shared_end, SBP_ROW_COLUMN, "shared_end"));
    return sbp_check_input(s, at->own, SBP_ROW_COLUMN, own);
}

sbp_status sbp_attention_check_inputs(const sbp_subject *s) {
    const sbp_attention_operands *at = sbp_command_attention(s->command->kind);
    const int32_t columns[] = {at->first, at->shared_end, at->own};
    const sbp_row_input *first = sbp_subject_input(s, at->first);
    bool parts = first && sbp_column_number(first->column, SBP_FIRST_IN_PREFIX) > 0;
    if (!parts)
        SBP_TRY(sbp_check_input(s, at->first, SBP_ROW_COLUMN, "first"));
    for (int i = 0; i < SBP_COUNT(columns); i++)
        if (sbp_subject_input(s, columns[i]) && sbp_subject_input(s, columns[i])->by_rank)
            return SBP_SUBJECT_FAIL(s, "c27", "%s is in the order of ranks", s->operands[columns[i]].name);
    if (parts)
        return check_inputs_in_parts(s, first);
    SBP_TRY(
        sbp_check_input(s, at->shared_end, SBP_ROW_COLUMN, s->c->has_shared_end ? "shared_end" : "first"));
    return sbp_check_input(s, at->own, SBP_ROW_COLUMN, s->c->has_own ? "own" : "first");
}

void sbp_attention_text(sbp_fields *fields) {
    sbp_attention_attrs *a = &fields->command->u.attention;
    sbp_field_int(fields, "heads", &a->heads)->always = true;
    sbp_field_int(fields, "kv_heads", &a->kv_heads)->always = true;
    sbp_field_int(fields, "d_qk", &a->d_qk)->always = true;
    sbp_field_int(fields, "d_v", &a->d_v)->always = true;
    sbp_field_double(fields, "scale", &a->scale, 0);
    sbp_field_int(fields, "window", &a->window);
    sbp_field_double(fields, "softcap", &a->softcap, 0);
    sbp_field_flag(fields, "by_rank", &a->by_rank);
}

/* By the pairs of a row and one that it sees, as if the rows were one document. Queries by rank are a part of
 * those of all ranks. */
void sbp_attention_work(const sbp_work_query *q, sbp_work *out) {
    const sbp_attention_operands *at = sbp_command_attention(q->command->kind);
    const sbp_attention_attrs *a = &q->command->u.attention;
    const sbp_operand_shape *queries = &q->operands[at->q];
    int64_t parts = a->by_rank ? q->ranks : 1;
    double pairs =
        sbp_attention_pairs(queries->first_row * parts, queries->rows * q->chunks * parts, a->window) /
        (double)parts;
    out->kind = SBP_WORK_ATTENTION;
    out->flops =
        sbp_attention_flops(pairs, (double)(a->heads * a->d_qk), (double)(a->heads * a->d_v), at->backward) /
        (double)q->chunks;
    out->dtype = queries->dtype;
}

/* Pairs of the first `rows` rows of a document and what they see. */
static double first_pairs(int64_t rows, int64_t window) {
    double n = (double)rows, w = window > 0 && window < rows ? (double)window : n;
    return w * (w + 1) / 2 + (n - w) * w;
}

double sbp_attention_pairs(int64_t row0, int64_t rows, int64_t window) {
    return first_pairs(row0 + rows, window) - first_pairs(row0, window);
}

double sbp_attention_flops(double pairs, double qk_elems, double v_elems, bool backward) {
    return pairs * (backward ? 6 * qk_elems + 4 * v_elems : 2 * (qk_elems + v_elems));
}
