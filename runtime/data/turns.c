/* turns.c: messages of a text, and what their tokens count. */
#include "runtime/data/turns.h"

#include <math.h>
#include <string.h>

/* ---- what messages say ------------------------------------------------------------------------------ */

static bool as_train(const sbp_json *node, bool *out) {
    if (node->kind == SBP_JSON_BOOL)
        *out = node->boolean;
    else if (node->kind == SBP_JSON_INT && (node->integer == 0 || node->integer == 1))
        *out = node->integer == 1;
    else
        return false;
    return true;
}

/* Whether a member of a message is one of these. Names that other programs have are such only with a value
 * that they take. */
static sbp_status read_member(sbp_diag *diag, const sbp_json *node, sbp_turn *turn, bool *is) {
    bool own = strcmp(node->key, "train") == 0, weight = strcmp(node->key, "weight") == 0;
    bool other = strcmp(node->key, "training") == 0 || strcmp(node->key, "loss") == 0;
    *is = own || weight || (other && node->kind == SBP_JSON_BOOL);
    if (!*is)
        return SBP_OK;
    if (weight) {
        double value = -1;
        if (sbp_json_as_double(NULL, node, &value) != SBP_OK || !(value >= 0) || !isfinite(value))
            return sbp_json_fail(diag, node, "expected a number from 0 on, by which the loss is multiplied");
        turn->weight = value;
        return SBP_OK;
    }
    turn->told = true;
    if (!as_train(node, &turn->train))
        return sbp_json_fail(diag, node, "expected true or false, found %s", sbp_json_kind_name(node->kind));
    return SBP_OK;
}

sbp_status sbp_turns_read(sbp_arena *arena, sbp_diag *diag, const sbp_json *messages, sbp_turns *out) {
    sbp_json *list = SBP_NEW(arena, sbp_json), *items = SBP_NEW_ARRAY(arena, sbp_json, messages->count + 1);
    *out = (sbp_turns){.messages = messages, .items = SBP_NEW_ARRAY(arena, sbp_turn, messages->count + 1)};
    bool found = false;
    *list = *messages;
    list->items = items;
    for (int64_t i = 0; i < messages->count; i++) {
        const sbp_json *from = &messages->items[i], *role = sbp_json_member(from, "role");
        sbp_turn *turn = &out->items[i];
        *turn = (sbp_turn){.assistant = strcmp(role->string, "assistant") == 0, .weight = 1};
        sbp_json *members = SBP_NEW_ARRAY(arena, sbp_json, from->count + 1);
        items[i] = *from;
        items[i].items = members;
        items[i].table = NULL;
        items[i].count = 0;
        for (int64_t k = 0; k < from->count; k++) {
            bool is;
            SBP_TRY(read_member(diag, &from->items[k], turn, &is));
            found |= is;
            if (!is)
                members[items[i].count++] = from->items[k];
        }
        out->told |= turn->told || turn->weight != 1;
    }
    if (found)
        out->messages = list;
    return SBP_OK;
}

/* ---- messages of the text --------------------------------------------------------------------------- */

typedef struct part {
    int64_t begin, end; /* bytes of the text */
    int64_t message;
    double weight;
} part;

/* Where messages are in the text, in its order; no two of them overlap. */
typedef struct places {
    part *items;
    int64_t count;
} places;

static int64_t index_of(const sbp_json *list, const sbp_json *node) {
    uintptr_t first = (uintptr_t)list->items, at = (uintptr_t)node;
    uintptr_t end = first + (uintptr_t)list->count * sizeof *node;
    return list->count > 0 && at >= first && at < end ? (int64_t)((at - first) / sizeof *node) : -1;
}

static bool is_placed(const places *all, int64_t message) {
    for (int64_t k = 0; k < all->count; k++)
        if (all->items[k].message == message)
            return true;
    return false;
}

/* What loops over the messages wrote. */
static places find_places(const sbp_turns_job *job) {
    const sbp_rendering *text = job->text;
    places all = {.items = SBP_NEW_ARRAY(job->arena, part, text->item_count + job->messages->count + 1)};
    for (int32_t k = 0; k < text->item_count; k++) {
        const sbp_rendered_item *item = &text->items[k];
        int64_t message = index_of(job->messages, item->json);
        if (message >= 0 && (all.count == 0 || item->begin >= all.items[all.count - 1].end))
            all.items[all.count++] = (part){item->begin, item->end, message, 1};
    }
    return all;
}

/* A message that no loop wrote, a system message before it as a rule: what stands between the text of its
 * neighbours, if it is the only such message there. false: that cannot be told. */
static bool find_gap(const sbp_turns_job *job, const places *all, int64_t message, part *out) {
    *out = (part){0, (int64_t)job->text->length, message, 1};
    if (all->count == 0 || (message > 0 && !is_placed(all, message - 1)) ||
        (message + 1 < job->messages->count && !is_placed(all, message + 1)))
        return false;
    for (int64_t k = 0; k < all->count; k++) {
        const part *p = &all->items[k];
        if (p->message < message && p->end > out->begin)
            out->begin = p->end;
        if (p->message > message && p->begin < out->end)
            out->end = p->begin;
    }
    return true;
}

static sbp_status cannot_tell(const sbp_turns_job *job, int64_t message, const char *what) {
    return sbp_fail(
        job->diag, SBP_INPUT,
        "%s: message %lld (from 0): %s cannot be told, as the template does not write messages in "
        "a loop over them; give another template by --chat-template FILE, or rows without "
        "'train' and 'weight'",
        job->where, (long long)message, what);
}

/* The places with those of a message that has none yet. */
static sbp_status place(const sbp_turns_job *job, places *all, int64_t message) {
    part gap;
    if (is_placed(all, message))
        return SBP_OK;
    if (!find_gap(job, all, message, &gap))
        return cannot_tell(job, message, "what the template writes of it");
    int64_t at = all->count++;
    for (; at > 0 && all->items[at - 1].begin >= gap.end; at--)
        all->items[at] = all->items[at - 1];
    all->items[at] = gap;
    return SBP_OK;
}

/* The message that a stretch of the assistant is of: the one in whose text it stands, or behind which it
 * does. Without a loop over messages, stretches are in the order of answers. */
static sbp_status find_owner(const sbp_turns_job *job, const places *all, int32_t span, int64_t *out) {
    const int64_t *at = job->text->spans[span];
    int64_t answers = 0, before = -1;
    *out = -1;
    for (int64_t k = 0; k < all->count; k++) {
        const part *p = &all->items[k];
        if (p->begin <= at[0] && at[1] <= p->end)
            *out = p->message;
        else if (p->end <= at[0])
            before = p->message;
    }
    if (*out < 0)
        *out = before;
    for (int64_t i = 0; i < job->messages->count && all->count == 0; i++)
        if (job->turns->items[i].assistant && answers++ == span)
            *out = i;
    bool counted = all->count > 0 || answers == job->text->span_count;
    if (*out >= 0 && counted && job->turns->items[*out].assistant)
        return SBP_OK;
    return cannot_tell(job, *out < 0 ? 0 : *out, "which answer the template writes where");
}

/* ---- tokens ----------------------------------------------------------------------------------------- */

static bool is_blank(const sbp_turns_job *job, int64_t token) {
    const int64_t *at = job->tokens->offsets[token];
    int64_t k = at[0];
    while (k < at[1] && strchr(" \t\r\n", job->text->text[k]))
        k++;
    return k == at[1];
}

/* What the assistant said, up to token `next`, should end with a special token (and blanks), which ends its
 * turn. */
static void check_end(const sbp_turns_job *job, int64_t next) {
    const sbp_encoding *all = job->tokens;
    const sbp_tokenizer *tokenizer = job->chat->options->tokenizer;
    int64_t last = next - 1;
    while (last > 0 && is_blank(job, last) && !sbp_tokenizer_is_special(tokenizer, all->ids[last]))
        last--;
    while (next < all->count && is_blank(job, next))
        next++;
    if (job->chat->warned_end || next == all->count || last < 0 ||
        sbp_tokenizer_is_special(tokenizer, all->ids[last]) ||
        !sbp_tokenizer_is_special(tokenizer, all->ids[next]))
        return;
    job->chat->warned_end = true;
    sbp_warn(job->diag,
             "%s: the template leaves the token '%.40s' behind an answer outside of it: the model will not "
             "learn to "
             "stop (shown once)",
             job->where, sbp_tokenizer_token(tokenizer, all->ids[next], NULL));
}

/* The first token that ends behind a byte of the text. */
static int64_t token_at(const sbp_encoding *all, int64_t byte) {
    int64_t low = 0, high = all->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (all->offsets[middle][1] > byte)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Tokens from that of the stretch's first character to that of its last: of several that share it the first,
 * as in transformers. The one behind the last. */
static int64_t raise(const sbp_turns_job *job, int64_t begin, int64_t end, double weight, double *out) {
    const sbp_encoding *all = job->tokens;
    if (end == 0)
        return 0;
    /* one that is empty has a token only where it lies within one */
    int64_t token = token_at(all, begin), last = token_at(all, end - 1);
    for (; token < all->count && token <= last; token++)
        out[token] = fmax(out[token], weight);
    return token;
}

/* The most that characters of a token may count: 1 outside of the parts. *from: the first part that may have
 * any; the tokens come in their order. */
static double most_of(const part *parts, int64_t count, const int64_t token[2], int64_t *from) {
    int64_t covered = token[0];
    double most = 0;
    while (*from < count && parts[*from].end <= token[0])
        ++*from;
    for (int64_t k = *from; k < count && parts[k].begin < token[1] && covered < token[1]; k++) {
        if (parts[k].begin > covered)
            return INFINITY;
        most = fmax(most, parts[k].weight);
        covered = parts[k].end;
    }
    return covered < token[1] || token[0] == token[1] ? INFINITY : most;
}

/* ---- with the loss on answers ----------------------------------------------------------------------- */

/* A message that is no answer and says "train": true: its content, and what ends it. */
static sbp_status raise_other(const sbp_turns_job *job, places *all, int64_t message, double *out) {
    const sbp_json *content = sbp_json_member(&job->messages->items[message], "content");
    const char *text = job->text->text;
    SBP_TRY(place(job, all, message));
    for (int64_t k = 0; k < all->count; k++) {
        part p = all->items[k];
        const char *said = content && content->kind == SBP_JSON_STRING ? content->string : "";
        size_t length = strlen(said);
        while (length > 0 && strchr(" \t\r\n", *said)) { /* templates strip contents */
            said++;
            length--;
        }
        while (length > 0 && strchr(" \t\r\n", said[length - 1]))
            length--;
        const char *at = p.message == message && length > 0
                             ? memmem(text + p.begin, (size_t)(p.end - p.begin), said, length)
                             : NULL;
        while (p.end > p.begin && strchr(" \t\r\n", text[p.end - 1]))
            p.end--;
        if (!at)
            continue;
        raise(job, at - text, p.end, job->turns->items[message].weight, out);
        return SBP_OK;
    }
    return cannot_tell(job, message, "where the template writes its content");
}

/* As in TRL it is wrong when the assistant says nothing in the whole, not when it does so in the prompt only.
 */
static sbp_status weigh_answers(const sbp_turns_job *job, double *out) {
    const sbp_turns *turns = job->turns;
    const sbp_rendering *text = job->text;
    places all = find_places(job);
    for (int32_t s = 0; s < text->span_count; s++) {
        int64_t owner = -1;
        if (turns->told)
            SBP_TRY(find_owner(job, &all, s, &owner));
        const sbp_turn *turn = owner < 0 ? NULL : &turns->items[owner];
        double weight = !turn ? 1 : turn->told && !turn->train ? 0 : turn->weight;
        int64_t next = raise(job, text->spans[s][0], text->spans[s][1], weight, out);
        if (weight > 0 && text->spans[s][0] < text->spans[s][1])
            check_end(job, next);
    }
    for (int64_t i = 0; i < job->messages->count; i++)
        if (!turns->items[i].assistant && turns->items[i].told && turns->items[i].train)
            SBP_TRY(raise_other(job, &all, i, out));
    return SBP_OK;
}

/* ---- with the loss on all --------------------------------------------------------------------------- */

static sbp_status weigh_all(const sbp_turns_job *job, double *out) {
    const sbp_turn *turns = job->turns->items;
    places all = find_places(job);
    for (int64_t i = 0; i < job->messages->count; i++)
        if ((turns[i].told && !turns[i].train) || turns[i].weight != 1)
            SBP_TRY(place(job, &all, i));
    for (int64_t k = 0; k < all.count; k++) {
        const sbp_turn *turn = &turns[all.items[k].message];
        all.items[k].weight = turn->told && !turn->train ? 0 : turn->weight;
    }
    for (int64_t i = 0, from = 0; i < job->tokens->count; i++) {
        double most = most_of(all.items, all.count, job->tokens->offsets[i], &from);
        out[i] = isinf(most) ? 1 : most;
    }
    return SBP_OK;
}

/* ---- both ------------------------------------------------------------------------------------------- */

sbp_status sbp_turns_weigh(const sbp_turns_job *job, double *out) {
    bool answers = sbp_loss_is_on_answers(job->loss_on), any = false;
    for (int64_t i = 0; i < job->tokens->count; i++)
        out[i] = 0;
    SBP_TRY(answers ? weigh_answers(job, out) : weigh_all(job, out));
    for (int64_t i = 0; i < job->tokens->count; i++)
        any |= out[i] > 0;
    if (any)
        return SBP_OK;
    return sbp_fail(job->diag, SBP_INPUT,
                    "%s: no token would be trained: %s; leave the row out, or give --loss-on all", job->where,
                    !answers || job->turns->told ? "its messages say so ('train', 'weight')"
                    : job->text->span_count > 0  ? "what the assistant said has none"
                                                 : "no message is the assistant's");
}
