/* fuzz_yaml.c: YAML: what is read is a tree that can be gone through and holds what it says, in whatever it
 * is given; a JSON text that both readers take has the same shape in both. */
#include <stdlib.h>
#include <string.h>

#include "ir/base/json.h"
#include "ir/base/yaml.h"
#include "tests/fuzz/fuzz.h"

static void check(bool good) {
    if (!good)
        abort();
}

/* Nodes below, itself with them. */
static int64_t count_nodes(const sbp_yaml *node, int depth) {
    int64_t nodes = 1;
    check(depth < 1000 && node->line >= 1 && node->count >= 0);
    check((node->kind == SBP_YAML_SCALAR) == (node->text != NULL));
    check(node->kind != SBP_YAML_SCALAR || node->count == 0);
    for (int32_t i = 0; i < node->count; i++) {
        const sbp_yaml *item = &node->items[i];
        check((node->kind == SBP_YAML_MAP) == (item->key != NULL));
        if (item->key)
            check(sbp_yaml_member(node, item->key) != NULL);
        nodes += count_nodes(item, depth + 1);
    }
    return nodes;
}

static void compare(const sbp_json *json, const sbp_yaml *yaml) {
    bool list = json->kind == SBP_JSON_ARRAY, map = json->kind == SBP_JSON_OBJECT;
    check(yaml->kind == (list ? SBP_YAML_LIST : map ? SBP_YAML_MAP : SBP_YAML_SCALAR));
    if (!list && !map)
        return;
    check(json->count == yaml->count);
    for (int64_t i = 0; i < json->count; i++)
        compare(&json->items[i], &yaml->items[i]);
}

static sbp_status run(void *user) {
    const sbp_text *input = user;
    const sbp_yaml *yaml = NULL;
    const sbp_json *json = NULL;
    sbp_status status = sbp_yaml_parse(input->arena, NULL, SBP_INPUT, "x", input->data, input->length, &yaml);
    check(status == SBP_OK || status == SBP_INPUT || status == SBP_MACHINE);
    if (status != SBP_OK || !yaml)
        return status;
    count_nodes(yaml, 0);
    if (sbp_json_parse(input->arena, NULL, "x", input->data, input->length, 0, &json) == SBP_OK)
        compare(json, yaml);
    return SBP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_text input = {.arena = sbp_arena_create(), .data = (char *)(uintptr_t)data, .length = size};
    if (input.arena)
        (void)!sbp_guard(input.arena, NULL, run, &input);
    sbp_arena_destroy(input.arena);
    return 0;
}
