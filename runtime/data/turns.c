/* turns.c: messages of a text, and what their tokens count. */
#include "runtime/data/turns.h"

#include <math.h>
#include <string.h>

const char *const sbp_loss_on_names[SBP_LOSS_ON_COUNT] = {
    "auto", "all", "completion", "assistant", "last-turn", "first-turn", "tool-calls"};
const char *const sbp_reasoning_names[SBP_REASONING_COUNT] = {"all", "filled", "none"};

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
    places all = {.items =
                      SBP_NEW_ARRAY(job->arena, part, text->item_count + job->talk->messages->count + 1)};
    for (int32_t k = 0; k < text->item_count; k++) {
        const sbp_rendered_item *item = &text->items[k];
        int64_t message = index_of(job->talk->messages, item->json);
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
        (message + 1 < job->talk->messages->count && !is_placed(all, message + 1)))
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

static const char blanks[] = " \t\r\n";

/* A text without blanks around it, which templates strip as a rule. */
typedef struct stripped {
    const char *text;
    size_t length;
} stripped;

static stripped strip(const sbp_json *node) {
    stripped s = {"", 0};
    if (!node || node->kind != SBP_JSON_STRING)
        return s;
    s = (stripped){node->string, (size_t)node->count};
    for (; s.length > 0 && strchr(blanks, *s.text); s.text++)
        s.length--;
    while (s.length > 0 && strchr(blanks, s.text[s.length - 1]))
        s.length--;
    return s;
}

/* Where a text stands in a part of the whole; -1: it does not, or is empty. */
static int64_t find(const sbp_turns_job *job, const part *in, stripped what) {
    const char *text = job->text->text;
    const char *at = what.length == 0 || in->end <= in->begin
                         ? NULL
                         : memmem(text + in->begin, (size_t)(in->end - in->begin), what.text, what.length);
    return at ? at - text : -1;
}

static int64_t find_last(const sbp_turns_job *job, const part *in, stripped what) {
    part rest = *in;
    int64_t last = -1;
    for (int64_t at; (at = find(job, &rest, what)) >= 0; rest.begin = at + 1)
        last = at;
    return last;
}

static const char *const contents[] = {"content", NULL}, *const thoughts[] = {"reasoning_content", "thinking",
                                                                              "reasoning", NULL};

static bool is_one_of(const char *const *names, const char *key) {
    while (*names && strcmp(*names, key) != 0)
        names++;
    return *names != NULL;
}

enum { NOT_WRITTEN = -1, ELSEWHERE = -2 };

/* Where the template begins to write a text of a message: where a character that no text has comes first when
 * it stands before it. ELSEWHERE: it does something else with it. */
static sbp_status find_text(const sbp_turns_job *job, int64_t message, const char *const *names,
                            int64_t *begin) {
    static const char mark[] = "\xef\xa3\xbf"; /* U+F8FF */
    const sbp_json *list = job->talk->messages, *from = &list->items[message];
    sbp_conversation talk = *job->talk;
    sbp_json *messages = SBP_NEW(job->arena, sbp_json),
             *items = SBP_NEW_ARRAY(job->arena, sbp_json, list->count),
             *members = SBP_NEW_ARRAY(job->arena, sbp_json, from->count + 1);
    sbp_rendering other;
    *messages = *list;
    messages->items = items;
    memcpy(items, list->items, (size_t)list->count * sizeof *items);
    memcpy(members, from->items, (size_t)from->count * sizeof *members);
    items[message].items = members;
    items[message].table = NULL;
    for (int64_t k = 0; k < from->count; k++)
        if (is_one_of(names, members[k].key) && members[k].kind == SBP_JSON_STRING) {
            members[k].string = sbp_arena_printf(job->arena, "%s%s", mark, members[k].string);
            members[k].count = (int64_t)strlen(members[k].string);
        }
    talk.messages = messages;
    *begin = ELSEWHERE;
    if (sbp_chat_render(job->chat, job->arena, job->diag, &talk, false, &other) != SBP_OK)
        return cannot_tell(job, message, "what the template writes of it");
    size_t at = 0;
    while (at < other.length && at < job->text->length && other.text[at] == job->text->text[at])
        at++;
    if (at == other.length && at == job->text->length)
        *begin = NOT_WRITTEN;
    else if (at + sizeof mark <= other.length && memcmp(other.text + at, mark, sizeof mark - 1) == 0)
        *begin = (int64_t)at;
    return SBP_OK;
}

/* The places with those of a message that has none yet. */
static sbp_status place(const sbp_turns_job *job, places *all, int64_t message) {
    part gap;
    int64_t begin;
    if (is_placed(all, message))
        return SBP_OK;
    bool found = find_gap(job, all, message, &gap);
    SBP_TRY(find_text(job, message, contents, &begin));
    if (begin == NOT_WRITTEN)
        return SBP_OK;
    if (!found || begin < gap.begin || begin >= gap.end)
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
    for (int64_t i = 0; i < job->talk->messages->count && all->count == 0; i++)
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

/* The most that a character of a token counts: as its part does, 1 outside of the parts. *from: the first
 * part that may have any; the tokens come in their order. */
static double most_of(const part *parts, int64_t count, const int64_t token[2], int64_t *from) {
    int64_t covered = token[0];
    double most = 0;
    while (*from < count && parts[*from].end <= token[0])
        ++*from;
    for (int64_t k = *from; k < count && parts[k].begin < token[1] && covered < token[1]; k++) {
        most = fmax(most, parts[k].begin > covered ? fmax(parts[k].weight, 1) : parts[k].weight);
        covered = parts[k].end;
    }
    return covered < token[1] || token[0] == token[1] ? fmax(most, 1) : most;
}

/* ---- with the loss on answers ----------------------------------------------------------------------- */

/* A message that is no answer and says "train": true: its content, and what ends it. */
static sbp_status raise_other(const sbp_turns_job *job, places *all, int64_t message, double *out) {
    int64_t begin;
    SBP_TRY(place(job, all, message));
    SBP_TRY(find_text(job, message, contents, &begin));
    for (int64_t k = 0; k < all->count; k++) {
        const part *p = &all->items[k];
        int64_t end = p->end;
        if (p->message != message || begin < p->begin || begin > p->end)
            continue;
        while (end > begin && strchr(blanks, job->text->text[end - 1]))
            end--;
        raise(job, begin, end, job->turns->items[message].weight, out);
        return SBP_OK;
    }
    return cannot_tell(job, message, "where the template writes its content");
}

static const sbp_json *calls_of(const sbp_turns_job *job, int64_t message) {
    const sbp_json *calls = sbp_json_member(&job->talk->messages->items[message], "tool_calls");
    return calls && calls->kind == SBP_JSON_ARRAY && calls->count > 0 ? calls : NULL;
}

/* Whether a message counts by the rule for its role, when it says nothing itself. */
static bool is_on(const sbp_turns_job *job, int64_t message) {
    const sbp_turn *turns = job->turns->items;
    int64_t step = job->loss_on == SBP_LOSS_LAST_TURN ? 1 : -1, at = message + step;
    if (!sbp_loss_is_on_answers(job->loss_on))
        return true;
    if (!turns[message].assistant || job->loss_on == SBP_LOSS_ASSISTANT)
        return turns[message].assistant;
    if (job->loss_on == SBP_LOSS_TOOL_CALLS)
        return calls_of(job, message) != NULL;
    while (at >= 0 && at < job->talk->messages->count && !turns[at].assistant)
        at += step;
    return at < 0 || at >= job->talk->messages->count;
}

static double weight_of(const sbp_turns_job *job, int64_t message) {
    const sbp_turn *turn = &job->turns->items[message];
    return (turn->told ? turn->train : is_on(job, message)) ? turn->weight : 0;
}

/* Where the calls of a message begin: the first that a loop over them wrote. A message of nothing else is a
 * call as a whole. */
static sbp_status find_calls(const sbp_turns_job *job, int64_t message, int64_t *begin) {
    const sbp_json *from = &job->talk->messages->items[message], *calls = calls_of(job, message);
    int64_t content, thought;
    for (int32_t k = 0; k < job->text->item_count; k++)
        if (index_of(calls, job->text->items[k].json) >= 0) {
            *begin = job->text->items[k].begin;
            return SBP_OK;
        }
    SBP_TRY(find_text(job, message, contents, &content));
    SBP_TRY(find_text(job, message, thoughts, &thought));
    *begin = 0;
    bool says = strip(sbp_json_member(from, "content")).length > 0 && content != NOT_WRITTEN,
         thinks = strip(sbp_json_member(from, "reasoning_content")).length > 0 && thought != NOT_WRITTEN;
    if (!says && !thinks)
        return SBP_OK;
    return sbp_fail(
        job->diag, SBP_INPUT,
        "%s: message %lld (from 0): which of it are tool calls cannot be told, as the template does "
        "not write them in a loop over them; give another by --chat-template FILE, or --loss-on "
        "assistant",
        job->where, (long long)message);
}

/* A stretch of the assistant. */
static sbp_status raise_answer(const sbp_turns_job *job, const places *all, int32_t span, double *out) {
    int64_t begin = job->text->spans[span][0], end = job->text->spans[span][1], owner, calls;
    double weight = 1;
    if (job->turns->told || job->loss_on != SBP_LOSS_ASSISTANT) {
        SBP_TRY(find_owner(job, all, span, &owner));
        weight = weight_of(job, owner);
        if (weight > 0 && job->loss_on == SBP_LOSS_TOOL_CALLS && !job->turns->items[owner].told) {
            SBP_TRY(find_calls(job, owner, &calls));
            if (calls >= end)
                return SBP_OK;
            begin = calls > begin ? calls : begin;
        }
    }
    int64_t next = raise(job, begin, end, weight, out);
    if (weight > 0 && begin < end)
        check_end(job, next);
    return SBP_OK;
}

/* As in TRL it is wrong when the assistant says nothing in the whole, not when it does so in the prompt only.
 */
static sbp_status weigh_answers(const sbp_turns_job *job, places *all, double *out) {
    const sbp_turns *turns = job->turns;
    for (int32_t s = 0; s < job->text->span_count; s++)
        SBP_TRY(raise_answer(job, all, s, out));
    for (int64_t i = 0; i < job->talk->messages->count; i++)
        if (!turns->items[i].assistant && turns->items[i].told && turns->items[i].train)
            SBP_TRY(raise_other(job, all, i, out));
    return SBP_OK;
}

/* ---- with the loss on all --------------------------------------------------------------------------- */

static sbp_status weigh_all(const sbp_turns_job *job, places *all, double *out) {
    for (int64_t i = 0; i < job->talk->messages->count; i++)
        if (weight_of(job, i) != 1)
            SBP_TRY(place(job, all, i));
    for (int64_t k = 0; k < all->count; k++)
        all->items[k].weight = weight_of(job, all->items[k].message);
    for (int64_t i = 0, from = 0; i < job->tokens->count; i++)
        out[i] = most_of(all->items, all->count, job->tokens->offsets[i], &from);
    return SBP_OK;
}

/* ---- reasoning -------------------------------------------------------------------------------------- */

/* What models write around it. */
static const struct {
    const char *open, *close;
} tags[] = {{"<think>", "</think>"},
            {"<thinking>", "</thinking>"},
            {"<seed:think>", "</seed:think>"},
            {"[THINK]", "[/THINK]"},
            {"<|START_THINKING|>", "<|END_THINKING|>"},
            {"<|channel>thought\n", "<channel|>"},
            {"<|channel|>analysis<|message|>", "<|end|>"}};

/* A block by its tags; `open`: with its first tag, else one whose first tag is in a prompt, or nowhere, and
 * which begins with the part. inner: what stands between the tags. */
static bool has_block(const sbp_turns_job *job, const part *in, int tag, bool open, part *out, part *inner) {
    const stripped first = {tags[tag].open, strlen(tags[tag].open)},
                   last = {tags[tag].close, strlen(tags[tag].close)};
    int64_t at = open ? find(job, in, first) : in->begin;
    if (at < 0 || (!open && !strchr(last.text, '/'))) /* <|end|> ends other things, too */
        return false;
    *inner = (part){at + (open ? (int64_t)first.length : 0), in->end, in->message, 0};
    inner->end = find(job, inner, last);
    *out = (part){at, inner->end + (int64_t)last.length, in->message, 0};
    return inner->end >= 0;
}

/* The next block in a part, with the blanks behind it. */
static bool find_block(const sbp_turns_job *job, const part *in, part *out, part *inner) {
    bool found = false;
    part block, between;
    for (int way = 0; way < 2 && !found; way++)
        for (int t = 0; t < SBP_COUNT(tags); t++)
            if (has_block(job, in, t, way == 0, &block, &between) && (!found || block.begin < out->begin)) {
                *out = block;
                *inner = between;
                found = true;
            }
    while (found && out->end < in->end && strchr(blanks, job->text->text[out->end]))
        out->end++;
    return found;
}

static bool is_empty(const sbp_turns_job *job, const part *inner) {
    for (int64_t k = inner->begin; k < inner->end; k++)
        if (!strchr(blanks, job->text->text[k]))
            return false;
    return true;
}

/* Blocks of what the template writes of an answer. Where its content stands as it is, a block is before it or
 * begins it: what comes later is talk about tags. */
static sbp_status add_blocks(const sbp_turns_job *job, const part *answer, places *out) {
    const sbp_json *message = &job->talk->messages->items[answer->message];
    int64_t content = find_last(job, answer, strip(sbp_json_member(message, "content")));
    part rest = *answer, block, inner;
    int64_t before = out->count;
    bool found = false;
    while (find_block(job, &rest, &block, &inner)) {
        if (content >= 0 && block.begin > content)
            break;
        if (content >= 0 && block.begin < content && inner.begin == block.begin) /* without a first tag */
            block.begin = inner.begin = content;
        found = true;
        if (job->reasoning == SBP_REASONING_NONE || is_empty(job, &inner))
            out->items[out->count++] = block;
        rest.begin = block.end;
        if (content < 0 || out->count - before == 2)
            break;
    }
    stripped said = strip(sbp_json_member(message, "reasoning_content"));
    int64_t at;
    if (found || job->reasoning != SBP_REASONING_NONE || said.length == 0)
        return SBP_OK;
    SBP_TRY(find_text(job, answer->message, thoughts, &at)); /* written without tags that are known here */
    if (at == ELSEWHERE)
        return cannot_tell(job, answer->message, "which of it is reasoning");
    rest = *answer;
    rest.begin = at < answer->begin ? answer->begin : at;
    at = at == NOT_WRITTEN ? -1 : find(job, &rest, said);
    if (at >= 0)
        out->items[out->count++] = (part){at, at + (int64_t)said.length, answer->message, 0};
    return SBP_OK;
}

/* Tokens of blocks that are not to count. */
static sbp_status leave_out_blocks(const sbp_turns_job *job, const places *all, double *out) {
    places blocks = {.items = SBP_NEW_ARRAY(job->arena, part, 3 * (all->count + job->text->span_count) + 1)};
    for (int64_t k = 0; k < all->count; k++)
        if (job->turns->items[all->items[k].message].assistant)
            SBP_TRY(add_blocks(job, &all->items[k], &blocks));
    for (int32_t s = 0; all->count == 0 && s < job->text->span_count; s++) {
        part answer = {job->text->spans[s][0], job->text->spans[s][1], -1, 1};
        SBP_TRY(find_owner(job, all, s, &answer.message));
        SBP_TRY(add_blocks(job, &answer, &blocks));
    }
    for (int64_t i = 0; i < job->talk->messages->count && all->count == 0 && job->text->span_count == 0; i++)
        if (job->turns->items[i].assistant)
            return cannot_tell(job, i, "which of it is reasoning");
    for (int64_t i = 0, from = 0; i < job->tokens->count; i++)
        if (most_of(blocks.items, blocks.count, job->tokens->offsets[i], &from) == 0)
            out[i] = 0;
    return SBP_OK;
}

/* ---- all of it -------------------------------------------------------------------------------------- */

static const char *why_none(const sbp_turns_job *job) {
    if (job->turns->told || !sbp_loss_is_on_answers(job->loss_on))
        return "its messages say so ('train', 'weight')";
    if (job->text->span_count == 0)
        return "no message is the assistant's";
    return job->loss_on == SBP_LOSS_TOOL_CALLS ? "the assistant calls no tool"
                                               : "what the assistant said has none";
}

sbp_status sbp_turns_weigh(const sbp_turns_job *job, double *out) {
    places all = find_places(job);
    bool any = false;
    for (int64_t i = 0; i < job->tokens->count; i++)
        out[i] = 0;
    SBP_TRY(sbp_loss_is_on_answers(job->loss_on) ? weigh_answers(job, &all, out) : weigh_all(job, &all, out));
    if (job->reasoning != SBP_REASONING_ALL)
        SBP_TRY(leave_out_blocks(job, &all, out));
    for (int64_t i = 0; i < job->tokens->count; i++)
        any |= out[i] > 0;
    if (any)
        return SBP_OK;
    return sbp_fail(
        job->diag, SBP_INPUT, "%s: no token would be trained: %s; leave the row out%s, or give --loss-on all",
        job->where, why_none(job), job->loss_on == SBP_LOSS_TOOL_CALLS ? " (--on-bad-row skip does)" : "");
}
