/* command_chat.c: `sbprun chat`: a conversation in the terminal, or over a pipe. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/answering.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/prompts.h"

enum { CHAT_ROWS = 4096 }; /* tokens of a conversation where --seq-len does not say how many */

static const char usage[] = "usage: sbprun chat MODEL|PLAN [options]\n\n"
                            "A conversation, line by line, rendered by the chat template. A line that ends "
                            "in \\ goes on in the next\n"
                            "one. /new begins another conversation, /exit or the end of the input ends; "
                            "Ctrl-C ends an answer. It may\n"
                            "have --seq-len tokens (4096). Options are those of sbprun generate, but for "
                            "--prompt, --data and --n.\n\n";

typedef struct chat_job {
    sbp_answering a;
    sbp_text messages; /* of the conversation: objects of a JSON array */
    int64_t turns;     /* questions of all conversations */
    bool terminal;
    char *line;
    size_t line_size;
    sbp_arena *arena; /* of the turn */
} chat_job;

/* Says something to who sits there. */
static void say(const chat_job *chat, const char *text) {
    if (chat->terminal)
        fputs(text, stderr);
}

/* A question, with the lines that it goes on in; *end: there is none. */
static sbp_status read_question(chat_job *chat, sbp_text *out, bool *end) {
    for (bool more = true; more;) {
        say(chat, out->length > 0 ? "… " : "> ");
        errno = 0;
        ssize_t length = getline(&chat->line, &chat->line_size, stdin);
        if (length < 0 && errno == EINTR && sbp_interrupt_status() == SBP_INTERRUPTED) {
            clearerr(stdin); /* Ctrl-C before an answer: the line begins anew */
            sbp_interrupt_forget();
            say(chat, "\n(/exit or Ctrl-D ends)\n");
            sbp_text_init(out, chat->arena);
            continue;
        }
        if (length < 0 && ferror(stdin))
            return sbp_interrupted() ? sbp_interrupt_status()
                                     : sbp_fail(chat->a.world.diag, SBP_IO, "cannot read standard input: %s",
                                                strerror(errno));
        *end = length < 0 && out->length == 0;
        if (length < 0)
            return SBP_OK;
        length -= length > 0 && chat->line[length - 1] == '\n';
        more = length > 0 && chat->line[length - 1] == '\\';
        sbp_text_add_n(out, chat->line, (size_t)(length - more));
        if (more)
            sbp_text_add(out, "\n");
    }
    return SBP_OK;
}

static void add_message(chat_job *chat, const char *role, const char *text, size_t length) {
    sbp_text one;
    sbp_text_init(&one, chat->arena);
    sbp_json_writer w = sbp_json_writer_on(&one);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "role", role);
    sbp_json_write_bytes(&w, "content", text, length);
    sbp_json_write_end(&w);
    sbp_text_add(&chat->messages, "%s%s", chat->messages.length > 0 ? ", " : "", one.data);
}

/* Only the first `length` characters of the messages stay. */
static void cut_messages(chat_job *chat, size_t length) {
    chat->messages.length = length;
    chat->messages.data[length] = '\0';
}

/* Tokens of the conversation so far, with what comes before an answer. */
static sbp_status render(chat_job *chat, sbp_prompt *out) {
    sbp_prompts prompts = {0};
    const sbp_json *row;
    const char *text = sbp_arena_printf(chat->arena, "{\"messages\": [%s]}", chat->messages.data);
    SBP_TRY(sbp_json_parse(chat->arena, chat->a.world.diag, "the conversation", text, strlen(text),
                           SBP_JSON_ROW, &row));
    SBP_TRY(
        sbp_prompts_add(chat->arena, chat->a.world.diag, &chat->a.texts, "the conversation", row, &prompts));
    *out = prompts.items[0];
    return SBP_OK;
}

static sbp_status print_piece(const chat_job *chat, const sbp_text_piece *piece, sbp_text *answer) {
    sbp_text_add_n(answer, piece->text, piece->length);
    return sbp_print_now(chat->a.world.diag, piece->text, piece->length);
}

/* Until it ends by itself, or by Ctrl-C, which takes the rest. */
static sbp_status stream_answer(chat_job *chat, sbp_text_stream *stream, sbp_text *answer) {
    sbp_answering *a = &chat->a;
    sbp_text_piece piece = {0};
    for (uint64_t position = 0; piece.finish == SBP_FINISH_NOT; position++) {
        sbp_sampled token;
        SBP_TRY(sbp_answering_choose(a, 0, (uint64_t)chat->turns, 0, position, &token));
        SBP_TRY(sbp_text_stream_push(stream, a->world.diag, (int32_t)token.token, &piece));
        SBP_TRY(print_piece(chat, &piece, answer));
        const int32_t next = (int32_t)token.token, text = 0;
        if (piece.finish == SBP_FINISH_NOT)
            SBP_TRY(sbp_generator_append(a->generator, a->world.diag, &text, &next, 1));
        if (sbp_interrupt_status() == SBP_TERMINATED)
            return SBP_TERMINATED;
        if (sbp_interrupted() && piece.finish == SBP_FINISH_NOT) {
            SBP_TRY(sbp_text_stream_flush(stream, a->world.diag, &piece));
            SBP_TRY(print_piece(chat, &piece, answer));
            piece.finish = SBP_FINISH_STOP;
        }
    }
    if (sbp_interrupted())
        sbp_interrupt_forget();
    return sbp_print(a->world.diag, "\n", 1);
}

static sbp_status answer(chat_job *chat, const char *question, size_t length) {
    sbp_answering *a = &chat->a;
    const size_t before = chat->messages.length;
    sbp_text text;
    sbp_text_stream *stream;
    sbp_prompt prompt;
    add_message(chat, "user", question, length);
    SBP_TRY(render(chat, &prompt));
    int64_t room = sbp_generator_most_rows(a->generator) - prompt.count;
    if (room < 1) {
        sbp_note(a->world.diag,
                 "the conversation has %lld tokens, there is room for %lld: /new begins another, --seq-len "
                 "makes more room",
                 (long long)prompt.count, (long long)sbp_generator_most_rows(a->generator));
        cut_messages(chat, before);
        return SBP_OK;
    }
    sbp_stopping stopping = a->stopping;
    stopping.most_tokens = stopping.most_tokens < room ? stopping.most_tokens : room;
    sbp_generator_set_longest(a->generator, prompt.count + stopping.most_tokens);
    SBP_TRY(
        sbp_generator_begin(a->generator, a->world.diag, 0, prompt.ids, prompt.count, prompt.count + room));
    SBP_TRY(sbp_text_stream_create(a->texts.tokenizer, a->world.diag, &stopping, &stream));
    sbp_text_init(&text, chat->arena);
    sbp_status status = stream_answer(chat, stream, &text);
    sbp_text_stream_destroy(stream);
    if (status == SBP_OK)
        add_message(chat, "assistant", text.data, text.length);
    chat->turns++;
    return status;
}

typedef struct turn {
    chat_job *chat;
    bool end;
} turn;

static sbp_status turn_body(void *user) {
    turn *t = user;
    chat_job *chat = t->chat;
    sbp_text question;
    sbp_text_init(&question, chat->arena);
    SBP_TRY(read_question(chat, &question, &t->end));
    if (t->end || question.length == 0)
        return SBP_OK;
    if (strcmp(question.data, "/exit") == 0) {
        t->end = true;
    } else if (strcmp(question.data, "/new") == 0) {
        cut_messages(chat, 0);
    } else {
        return answer(chat, question.data, question.length);
    }
    return SBP_OK;
}

static sbp_status chat_body(void *user) {
    chat_job *chat = user;
    sbp_world *world = &chat->a.world;
    static const sbp_option_id refused[] = {SBP_OPT_PROMPT, SBP_OPT_DATA, SBP_OPT_ANSWERS,
                                            SBP_OPT_MAX_NUM_SEQS};
    bool done;
    SBP_TRY(sbp_answering_parse(&chat->a, "sbprun chat", usage, &done));
    if (done)
        return SBP_OK;
    for (int i = 0; i < SBP_COUNT(refused); i++)
        if (sbp_options_given(world->options, refused[i]))
            return sbp_fail(world->diag, SBP_USAGE,
                            "sbprun chat: leave out --%s, an option of sbprun generate",
                            sbp_option_name(refused[i]));
    SBP_TRY(sbp_answering_find(&chat->a));
    if (!chat->a.texts.tokenizer || !chat->a.texts.chat.source.text)
        return sbp_fail(world->diag, SBP_INPUT, "'%s' has no %s", sbp_options_arg(world->options, 0),
                        chat->a.texts.tokenizer ? "chat template: give --chat-template FILE" : "tokenizer");
    SBP_TRY(sbp_answering_open(&chat->a, CHAT_ROWS, 1));
    SBP_TRY(sbp_generator_start(chat->a.generator, world->diag));
    sbp_text_init(&chat->messages, world->arena);
    chat->terminal = isatty(STDIN_FILENO);
    say(chat, "/new begins another conversation, /exit ends; a line that ends in \\ goes on\n");
    for (turn t = {.chat = chat}; !t.end;) {
        chat->arena = sbp_arena_create();
        if (!chat->arena)
            return sbp_fail(world->diag, SBP_MACHINE, "out of memory for a turn");
        sbp_status status = sbp_guard(chat->arena, world->diag, turn_body, &t);
        sbp_arena_destroy(chat->arena);
        SBP_TRY(status);
    }
    return SBP_OK;
}

sbp_status sbp_command_chat(sbp_diag *diag, int argc, char *const *argv) {
    chat_job chat = {0};
    sbp_status status = sbp_answering_run(&chat.a, diag, argc, argv, chat_body, &chat);
    free(chat.line);
    return status;
}
