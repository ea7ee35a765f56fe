/* fuzz_template.c: chat templates from anywhere, for libFuzzer: the input is a template, rendered over one conversation.
 * Whatever comes, a result or an error: no crash, no leak, and within the limits. With clang:
 *
 *   tests/fuzz/run.sh [seconds]
 *
 * Without it, main below runs the files that it is given (CTest: what is in the corpus). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/io/template/template.h"

static const char row[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be é\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
    "\"text\": \"hi\\n\"}]}, {\"role\": \"assistant\", \"content\": \"yes <b>\", \"tool_calls\": [{\"function\": {\"name\": "
    "\"f\", \"arguments\": {\"x\": [1, 2.5, null, true]}}}]}], \"tools\": [{\"name\": \"f\"}], \"n\": 3}";

static sbp_status run(void *user) {
    const sbp_text *input = user;
    const sbp_json *root;
    const sbp_template *template;
    sbp_rendering out;
    static const sbp_template_limits limits = {.steps = 200000, .memory_bytes = 1 << 25, .output_bytes = 1 << 20};
    SBP_TRY(sbp_json_parse(input->arena, NULL, "row", row, sizeof row - 1, SBP_JSON_ROW, &root));
    const sbp_template_variable variables[] = {
        {.name = "messages", .json = sbp_json_member(root, "messages")},
        {.name = "tools", .json = sbp_json_member(root, "tools")},
        {.name = "n", .json = sbp_json_member(root, "n")},
        {.name = "bos_token", .text = "<s>"},
        {.name = "add_generation_prompt", .boolean = true},
    };
    const sbp_template_call call = {.variables = variables,
                                    .variable_count = SBP_COUNT(variables),
                                    .date = "2026-03-01",
                                    .limits = &limits};
    SBP_TRY(sbp_template_parse(input->arena, NULL, "t", input->data, input->length, &template));
    return sbp_template_render(template, input->arena, NULL, &call, &out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_text input = {.arena = sbp_arena_create(), .length = size};
    if (input.arena) {
        input.data = malloc(size + 1); /* of its own, so that a read beyond its end is seen */
        if (input.data) {
            if (size)
                memcpy(input.data, data, size);
            (void)!sbp_guard(input.arena, NULL, run, &input);
        }
        free(input.data);
    }
    sbp_arena_destroy(input.arena);
    return 0;
}

#ifndef SBP_LIBFUZZER
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        char *text = NULL;
        size_t capacity = 0;
        ssize_t length = file ? getdelim(&text, &capacity, 0, file) : -1;
        if (length < 0)
            return 1;
        LLVMFuzzerTestOneInput((const uint8_t *)text, (size_t)length);
        for (ssize_t at = 0, end; at < length; at = end + 1) { /* and each line alone */
            for (end = at; end < length && text[end] != '\n';)
                end++;
            LLVMFuzzerTestOneInput((const uint8_t *)text + at, (size_t)(end - at));
        }
        free(text);
        fclose(file);
    }
    return 0;
}
#endif
