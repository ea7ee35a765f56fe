/* fuzz_template.c: chat templates: the input is one, rendered over one conversation within the limits. */
#include "frontends/formats/template/template.h"
#include "tests/fuzz/fuzz.h"

static const char row[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be é\"}, {\"role\": \"user\", \"content\": "
    "[{\"type\": \"text\", "
    "\"text\": \"hi\\n\"}]}, {\"role\": \"assistant\", \"content\": \"yes <b>\", \"tool_calls\": "
    "[{\"function\": {\"name\": "
    "\"f\", \"arguments\": {\"x\": [1, 2.5, null, true]}}}]}], \"tools\": [{\"name\": \"f\"}], \"n\": 3}";

static sbp_status run(void *user) {
    const sbp_text *input = user;
    const sbp_json *root;
    const sbp_template *template;
    sbp_rendering out;
    static const sbp_template_limits limits = {
        .steps = 200000, .memory_bytes = 1 << 25, .output_bytes = 1 << 20};
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_text input = {.arena = sbp_arena_create(), .data = (char *)(uintptr_t)data, .length = size};
    if (input.arena)
        (void)!sbp_guard(input.arena, NULL, run, &input);
    sbp_arena_destroy(input.arena);
    return 0;
}
