/* output.c: a directory that transformers loads. */
#include "runtime/train/output.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontends/formats/tokenizer/tokenizer.h"
#include "ir/base/json_write.h"

static const int64_t SHARD_BYTES = 5000000000; /* as huggingface_hub cuts */

/* What a model directory holds besides config.json and weights. */
static const char *const carried[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "processor_config.json", /* of the other parts of a multimodal model */
    "preprocessor_config.json",
    "video_preprocessor_config.json",
};

typedef struct output_job {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_executor *executor;
    const sbp_plan *plan;
    const sbp_plan_info *info;
    const char *directory;
    const char *checkpoint; /* text of what goes on with the same plan and base; NULL: a result */
    sbp_output_part *part;  /* NULL: all of it */
} output_job;

/* An adapter's own files, not those of a model. */
static bool writes_adapter(const output_job *job) {
    return job->info->meta.adapter && (job->checkpoint || !job->info->merge);
}

/* ---- config.json ------------------------------------------------------------------------------------ */

sbp_dtype sbp_output_dtype(const sbp_plan_info *info) {
    return info->meta.dtype && strcmp(info->meta.dtype, "fp64") == 0 ? SBP_F64 : SBP_F32;
}

/* In which a merged model is written, where the user says so. */
static bool user_dtype(const sbp_plan_info *info, sbp_dtype *out) {
    const char *name = info->merge ? info->merge_dtype : NULL;
    if (name)
        *out = strcmp(name, "fp16") == 0 ? SBP_F16 : strcmp(name, "bf16") == 0 ? SBP_BF16 : SBP_F32;
    return name != NULL;
}

/* The type in which transformers would have loaded the model for what was trained, and so writes it: bf16
 * where all weights are kept in bf16, unless their masters are of a source that has more, and where an
 * adapter is merged into weights that were kept in fewer bits yet; else what is computed in. */
static sbp_dtype model_dtype(const output_job *job) {
    const sbp_plan *plan = job->plan;
    bool narrow = plan->tensors->count > 0 && !writes_adapter(job), packed = false;
    sbp_dtype given;
    if (!writes_adapter(job) && user_dtype(job->info, &given))
        return given;
    for (int32_t t = 0; t < plan->tensors->count; t++) {
        packed |= plan->tensors->tensors[t].format != SBP_FORMAT_NONE;
        if (plan->tensors->tensors[t].format)
            continue; /* of any type that the others are in */
        if (plan->tensors->tensors[t].of_adapter)
            continue; /* merged into the others */
        narrow &= plan->program->buffers[plan->buffers[t]].dtype == SBP_BF16;
        narrow &= plan->masters[t] < 0 || plan->tensors->tensors[t].recipes[0].dtype == SBP_BF16;
    }
    if (packed && job->info->meta.adapter && !writes_adapter(job) && sbp_output_dtype(job->info) == SBP_F32)
        return SBP_BF16;
    return narrow ? SBP_BF16 : sbp_output_dtype(job->info);
}

/* An object, a member a line, in a file of the directory. */
static sbp_json_writer begin_file(const output_job *job, sbp_text *out) {
    sbp_text_init(out, job->arena);
    sbp_json_writer w = sbp_json_writer_on(out);
    w.lines = 1;
    sbp_json_write_object(&w, NULL);
    return w;
}

static sbp_status end_file(const output_job *job, sbp_json_writer *w, const char *name) {
    sbp_json_write_end(w);
    sbp_text_add(w->out, "\n");
    return sbp_file_write(job->diag, sbp_file_join(job->arena, job->directory, name), w->out->data,
                          w->out->length);
}

/* The source's fields, with the dtype and the end of texts of what is written now; likewise those of the text
 * model in a multimodal one. */
static void write_fields(const output_job *job, sbp_json_writer *w, const sbp_json *fields,
                         const char *dtype) {
    for (int64_t i = 0; i < fields->count; i++) {
        const sbp_json *field = &fields->items[i];
        if (field->key[0] == '_')
            continue; /* paths, and what an object in memory was made with */
        if (strcmp(field->key, "text_config") == 0 && field->kind == SBP_JSON_OBJECT) {
            sbp_json_write_object(w, field->key);
            write_fields(job, w, field, dtype);
            sbp_json_write_end(w);
        } else if (strcmp(field->key, "dtype") != 0 && strcmp(field->key, "torch_dtype") != 0 &&
                   !(sbp_params_merge_base(job->plan) && strcmp(field->key, "quantization_config") == 0) &&
                   !(job->info->user_eos && strcmp(field->key, "eos_token_id") == 0)) {
            sbp_json_write_value(w, field->key, field);
        }
    }
    if (job->info->user_eos)
        sbp_json_write_int(w, "eos_token_id", job->info->user_eos_id);
    sbp_json_write_string(w, "dtype", dtype);
}

static sbp_status write_config(const output_job *job) {
    const char *text = job->info->meta.config;
    const sbp_json *root;
    sbp_dtype dtype = model_dtype(job);
    if (!text)
        return SBP_OK;
    SBP_TRY(sbp_json_parse(job->arena, job->diag, "config.json", text, strlen(text), SBP_JSON_PYTHON, &root));
    SBP_TRY(sbp_json_as_object(job->diag, root, &root));
    sbp_text out;
    sbp_json_writer w = begin_file(job, &out);
    write_fields(job, &w, root,
                 dtype == SBP_F64    ? "float64"
                 : dtype == SBP_BF16 ? "bfloat16"
                 : dtype == SBP_F16  ? "float16"
                                     : "float32");
    return end_file(job, &w, "config.json");
}

/* ---- the tokenizer ---------------------------------------------------------------------------------- */

/* {"tokenizer_class", "bos_token", ...}: what AutoTokenizer asks for beside tokenizer.json. */
static sbp_status write_tokenizer_config(const output_job *job) {
    const sbp_json *tokens = job->info->meta.special_tokens;
    sbp_text out;
    sbp_json_writer w = begin_file(job, &out);
    sbp_json_write_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    for (int64_t i = 0; tokens && i < tokens->count; i++) {
        const char *key = tokens->items[i].key;
        if (job->info->user_eos && strcmp(key, "eos_token") == 0)
            sbp_json_write_string(&w, key, job->info->user_eos);
        else
            sbp_json_write_value(&w, key, &tokens->items[i]);
    }
    if (job->info->user_eos && !sbp_json_member(tokens, "eos_token"))
        sbp_json_write_string(&w, "eos_token", job->info->user_eos);
    return end_file(job, &w, "tokenizer_config.json");
}

/* tokenizer.json without what the plan's text carries in it; tokenizer_config.json has that. */
static sbp_status write_tokenizer(const output_job *job) {
    const char *text = job->plan->tokenizer;
    size_t length = (size_t)job->plan->tokenizer_bytes, begin = length, end = length;
    sbp_file_out *to;
    (void)sbp_tokenizer_carrier(text, length, &begin, &end);
    SBP_TRY(sbp_file_out_open(job->diag, sbp_file_join(job->arena, job->directory, "tokenizer.json"), &to));
    sbp_status status = sbp_file_out_write(to, job->diag, text, (int64_t)begin);
    if (status == SBP_OK)
        status = sbp_file_out_write(to, job->diag, text + end, (int64_t)(length - end));
    if (status == SBP_OK)
        return sbp_file_out_commit(to, job->diag);
    sbp_file_out_abort(to);
    return status;
}

static sbp_status write_plan_tokenizer(const output_job *job) {
    const sbp_plan *plan = job->plan;
    if (plan->tokenizer_bytes == 0)
        return SBP_OK;
    SBP_TRY(write_tokenizer(job));
    if (plan->chat_template[0])
        SBP_TRY(sbp_file_write(job->diag, sbp_file_join(job->arena, job->directory, "chat_template.jinja"),
                               plan->chat_template, strlen(plan->chat_template)));
    return write_tokenizer_config(job);
}

enum { PIECE_BYTES = 1 << 16 };

/* A piece at a time: a tokenizer may have 30 MB. */
static sbp_status copy_pieces(const output_job *job, int from, const char *path, int64_t bytes, char *piece,
                              sbp_file_out *to) {
    for (int64_t at = 0; at < bytes; at += PIECE_BYTES) {
        int64_t count = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        SBP_TRY(sbp_file_pread(job->diag, from, path, piece, count, at));
        SBP_TRY(sbp_file_out_write(to, job->diag, piece, count));
    }
    return SBP_OK;
}

static sbp_status copy_file(const output_job *job, const char *path, const char *target) {
    struct stat info;
    sbp_file_out *to = NULL;
    int from;
    char *piece = sbp_arena_alloc(job->arena, PIECE_BYTES); /* first: it may not come back */
    SBP_TRY(sbp_file_open_regular(job->diag, path, &from));
    sbp_status status = fstat(from, &info) == 0
                            ? sbp_file_out_open(job->diag, target, &to)
                            : sbp_fail(job->diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    if (status == SBP_OK)
        status = copy_pieces(job, from, path, info.st_size, piece, to);
    close(from);
    if (status == SBP_OK)
        return sbp_file_out_commit(to, job->diag);
    sbp_file_out_abort(to);
    return status;
}

/* ---- another end-of-sequence token, in files that were carried over ---------------------------------- */

/* The ids that end an answer: the given one first, then those that were there. */
static void write_eos_ids(sbp_json_writer *w, int32_t id, const sbp_json *before) {
    bool list = before && before->kind == SBP_JSON_ARRAY, one = before && before->kind == SBP_JSON_INT;
    sbp_json_write_array(w, "eos_token_id");
    sbp_json_write_int(w, NULL, id);
    for (int64_t i = 0; i < (list ? before->count : one); i++) {
        const sbp_json *item = list ? &before->items[i] : before;
        if (item->kind == SBP_JSON_INT && item->integer != id)
            sbp_json_write_int(w, NULL, item->integer);
    }
    sbp_json_write_end(w);
}

/* A file of the result with eos_token, or in generation_config.json eos_token_id, as the user wants it. */
static sbp_status change_eos(const output_job *job, const char *name, bool ids) {
    const char *path = sbp_file_join(job->arena, job->directory, name),
               *key = ids ? "eos_token_id" : "eos_token";
    const sbp_json *root;
    sbp_text out;
    if (!sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(job->arena, job->diag, path, 0, &root));
    SBP_TRY(sbp_json_as_object(job->diag, root, &root));
    sbp_json_writer w = begin_file(job, &out);
    for (int64_t i = 0; i < root->count; i++)
        if (strcmp(root->items[i].key, key) != 0)
            sbp_json_write_value(&w, root->items[i].key, &root->items[i]);
    if (ids)
        write_eos_ids(&w, job->info->user_eos_id, sbp_json_member(root, key));
    else
        sbp_json_write_string(&w, key, job->info->user_eos);
    return end_file(job, &w, name);
}

enum { MOST_TEMPLATES = 64 };

/* Templates beside the first one: additional_chat_templates/NAME.jinja. Names first, copies then: nothing is
 * allocated while the folder is open. */
static sbp_status carry_templates(const output_job *job, const char *source) {
    const char *from = sbp_file_join(job->arena, source, "additional_chat_templates"),
               *to = sbp_file_join(job->arena, job->directory, "additional_chat_templates");
    char(*names)[NAME_MAX + 1] = sbp_arena_array(job->arena, MOST_TEMPLATES, sizeof *names);
    int count = 0;
    if (!sbp_directory_exists(from))
        return SBP_OK;
    if (mkdir(to, 0777) != 0 && errno != EEXIST)
        return sbp_fail(job->diag, SBP_IO, "cannot make the folder '%s': %s", to, strerror(errno));
    DIR *folder = opendir(from);
    if (!folder && errno == ENOMEM)
        return sbp_fail(job->diag, SBP_MACHINE, "out of memory for the names in '%s'", from);
    if (!folder)
        return sbp_fail(job->diag, SBP_IO, "cannot read the folder '%s': %s", from, strerror(errno));
    for (struct dirent *entry; count < MOST_TEMPLATES && (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        if (entry->d_name[0] != '.' && length > 6 && length <= NAME_MAX &&
            strcmp(entry->d_name + length - 6, ".jinja") == 0)
            memcpy(names[count++], entry->d_name, length + 1);
    }
    closedir(folder);
    for (int i = 0; i < count; i++)
        SBP_TRY(copy_file(job, sbp_file_join(job->arena, from, names[i]),
                          sbp_file_join(job->arena, to, names[i])));
    return SBP_OK;
}

static sbp_status carry_files(const output_job *job) {
    const char *source = job->info->meta.tokenizer;
    if (!source || !sbp_tokenizer_is_in(job->arena, source)) {
        SBP_TRY(write_plan_tokenizer(job));
        source = job->info->meta.weights; /* whose tokenizer may be of other files, that we do not read */
        if (job->plan->tokenizer_bytes > 0 || !source || !sbp_directory_exists(source))
            return SBP_OK;
    } else if (!sbp_file_exists(sbp_file_join(job->arena, source, "tokenizer.json"))) {
        SBP_TRY(write_plan_tokenizer(job)); /* of a tokenizer.model, say; the files beside it count more */
    }
    if (sbp_same_file(source, job->directory))
        return SBP_OK;
    for (int i = 0; i < SBP_COUNT(carried); i++) {
        const char *path = sbp_file_join(job->arena, source, carried[i]);
        if (sbp_file_exists(path))
            SBP_TRY(copy_file(job, path, sbp_file_join(job->arena, job->directory, carried[i])));
    }
    return carry_templates(job, source);
}

/* ---- the model -------------------------------------------------------------------------------------- */

static sbp_status save_weights(const output_job *job) {
    const sbp_key_value metadata[] = {{"format", "pt"}, {"checkpoint", job->checkpoint}};
    sbp_save_options options = {.dtype = model_dtype(job),
                                .max_shard_bytes = SHARD_BYTES,
                                .without_base = job->checkpoint != NULL,
                                .metadata = metadata,
                                .metadata_count = job->checkpoint ? 2 : 1};
    const char *name = "model.safetensors";
    if (writes_adapter(job)) {
        options.part = SBP_SAVE_ADAPTER;
        options.max_shard_bytes = 0;
        name = "adapter_model.safetensors";
        if (job->part && job->part->rank > 0)
            return SBP_OK;
    } else if (job->part) {
        options.rank = job->part->rank;
        options.ranks = job->part->ranks;
        options.shard_count = &job->part->shard_count;
    } else if (job->info->meta.adapter) {
        options.part = SBP_SAVE_MERGED;
        options.factor = job->info->adapter_factor;
    }
    if (!writes_adapter(job))
        options.carried = job->info->carried;
    return sbp_params_save(job->executor, job->plan, sbp_file_join(job->arena, job->directory, name),
                           &options, job->diag);
}

static sbp_status save_body(void *user) {
    const output_job *job = user;
    if (job->part && job->part->rank > 0)
        return save_weights(job);
    if (writes_adapter(job))
        SBP_TRY(sbp_file_write(job->diag, sbp_file_join(job->arena, job->directory, "adapter_config.json"),
                               job->info->meta.adapter, strlen(job->info->meta.adapter)));
    else
        SBP_TRY(write_config(job));
    SBP_TRY(carry_files(job));
    if (job->info->user_eos) {
        SBP_TRY(change_eos(job, "tokenizer_config.json", false));
        SBP_TRY(change_eos(job, "special_tokens_map.json", false));
        SBP_TRY(change_eos(job, "generation_config.json", true));
    }
    const char *template = job->info->user_template;
    if (template)
        SBP_TRY(sbp_file_write(job->diag, sbp_file_join(job->arena, job->directory, "chat_template.jinja"),
                               template, strlen(template)));
    return save_weights(job);
}

static sbp_status save(output_job job) {
    job.arena = sbp_arena_create();
    if (!job.arena)
        return sbp_fail(job.diag, SBP_MACHINE, "out of memory for what is written of the model");
    sbp_status status = sbp_guard(job.arena, job.diag, save_body, &job);
    sbp_arena_destroy(job.arena);
    return status;
}

sbp_status sbp_output_save_model(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan,
                                 const sbp_plan_info *info, const char *directory, const char *checkpoint) {
    return save((output_job){.diag = diag,
                             .executor = executor,
                             .plan = plan,
                             .info = info,
                             .directory = directory,
                             .checkpoint = checkpoint});
}

sbp_status sbp_output_save_part(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan,
                                const sbp_plan_info *info, const char *directory, sbp_output_part *part) {
    return save((output_job){.diag = diag,
                             .executor = executor,
                             .plan = plan,
                             .info = info,
                             .directory = directory,
                             .checkpoint = part->checkpoint,
                             .part = part});
}
