/* ending.c: what ends an answer, by the options and by the model. */
#include "runtime/cli/sbprun/ending.h"

#include <string.h>

#include "ir/base/machine.h"

/* The model's, beside `ids`: by its config, and by how it is sampled. */
static sbp_status add_end_ids(const sbp_world *world, const sbp_session *session, sbp_row_ids *ids) {
    const char *model = session->info.meta.tokenizer;
    const char *path = model && sbp_directory_exists(model)
                           ? sbp_file_join(world->arena, model, "generation_config.json")
                           : NULL;
    const sbp_json *root;
    sbp_row_ids_add(world->arena, session->info.meta.eos_ids, ids);
    if (!path || !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(world->arena, world->diag, path, SBP_JSON_PYTHON, &root));
    sbp_row_ids_add(world->arena, sbp_json_member(root, "eos_token_id"), ids);
    return SBP_OK;
}

/* --eos-token alone; else generation_config.json, config.json and the tokenizer together. */
sbp_status sbp_ending_find(const sbp_world *world, const sbp_session *session, const sbp_texts *texts,
                           sbp_stopping *out) {
    const sbp_options *o = world->options;
    out->most_tokens = sbp_options_int(o, SBP_OPT_MAX_NEW_TOKENS);
    out->strings = sbp_options_list(o, world->arena, SBP_OPT_STOP, &out->string_count);
    const sbp_tokenizer *tokenizer = texts->tokenizer;
    if (!tokenizer && (out->string_count > 0 || sbp_options_given(o, SBP_OPT_EOS_TOKEN)))
        return sbp_fail(world->diag, SBP_USAGE, "--stop and --eos-token need the model's tokenizer");
    const char *eos = texts->chat.eos ? texts->chat.eos : tokenizer ? sbp_eos_text(tokenizer) : NULL;
    sbp_row_ids ids = {0};
    if (eos) {
        sbp_json id = {.kind = SBP_JSON_INT, .integer = sbp_tokenizer_id(tokenizer, eos, strlen(eos))};
        sbp_row_ids_add(world->arena, &id, &ids);
    }
    if (!texts->chat.eos)
        SBP_TRY(add_end_ids(world, session, &ids));
    out->end_ids = ids.data;
    out->end_id_count = (int32_t)ids.count;
    return SBP_OK;
}
