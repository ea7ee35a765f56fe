/* export.c: from a directory to a file. */
#include "frontends/formats/export/export.h"

#include <math.h>
#include <string.h>

#include "frontends/formats/export/export_internal.h"
#include "frontends/formats/export/export_tokens.h"
#include "frontends/formats/files/hub.h"
#include "frontends/formats/weights/gguf_traits.h"

/* general.file_type of llama.cpp. */
static const struct {
    const char *name;
    sbp_gguf_tensor_type type;
    uint32_t file_type;
} types[] = {{"f32", SBP_GGUF_TENSOR_F32, 0},
             {"f16", SBP_GGUF_TENSOR_F16, 1},
             {"q8_0", SBP_GGUF_TENSOR_Q8_0, 7},
             {"bf16", SBP_GGUF_TENSOR_BF16, 32}};

enum { FILE_TYPE_MXFP4 = 38, QUANTIZATION_VERSION = 2 };

static int type_of(const char *name) {
    for (int i = 0; i < SBP_COUNT(types); i++)
        if (strcmp(types[i].name, name) == 0)
            return i;
    return -1;
}

/* ---- the model ---------------------------------------------------------------------------------------- */

static sbp_status refuse(const exp_job *job, const char *model_type) {
    sbp_text known;
    sbp_text_init(&known, job->model.arena);
    for (int id = 0; id < SBP_GGUF_FAMILIES; id++) {
        const char *name = sbp_gguf_family_of((sbp_gguf_family_id)id)->model_type;
        bool again =
            id > 0 && strcmp(sbp_gguf_family_of((sbp_gguf_family_id)(id - 1))->model_type, name) == 0;
        if (!again)
            sbp_text_add(&known, "%s%s", known.length ? ", " : "", name);
    }
    return sbp_fail(job->model.diag, SBP_INPUT,
                    "%s: llama.cpp's architecture for model_type '%s' is not known here; known are %s",
                    job->model.path, model_type, known.data);
}

static sbp_status read_model(exp_job *job) {
    exp_model *m = &job->model;
    bool known;
    const char *type = "";
    m->path = sbp_file_join(m->arena, job->source, "config.json");
    if (!sbp_file_exists(m->path))
        return sbp_fail(m->diag, SBP_IO, "'%s' has no config.json: it is no model's directory", job->source);
    SBP_TRY(sbp_json_read(m->arena, m->diag, m->path, SBP_JSON_PYTHON, &m->root));
    SBP_TRY(sbp_json_as_object(m->diag, m->root, &m->root));
    const sbp_json *text = sbp_json_member(m->root, "text_config");
    m->config = text && text->kind == SBP_JSON_OBJECT ? text : m->root;
    SBP_TRY(sbp_json_get_string(m->diag, m->config, "model_type", SBP_JSON_REQUIRED, &type));
    SBP_TRY(sbp_gguf_facts_of_config(m->diag, m->path, m->config, &m->facts, &known));
    if (!known)
        return refuse(job, type);
    m->architecture = sbp_gguf_family_of(m->facts.family)->architecture;
    if (sbp_gguf_has(m->facts.family, ONLY_READ))
        return sbp_fail(m->diag, SBP_INPUT,
                        "%s: GGUF files of models of type %s (architecture %s) are read, not written",
                        m->path, type, m->architecture);
    return SBP_OK;
}

/* ---- counting ----------------------------------------------------------------------------------------- */

/* As the converter counts: the tensors of all experts of a kind as one expert's. */
static exp_meta_request count_parameters(const exp_job *job) {
    exp_meta_request r = {.directory = job->source, .config = job->model.root};
    int64_t experts = 0, tensors = 0;
    for (int32_t i = 0; i < job->count; i++) {
        const sbp_gguf_tensor *t = &job->tensors[i].out;
        double size = (double)sbp_gguf_tensor_elems(t);
        bool of_experts = strstr(t->name, "_exps.") != NULL;
        int32_t axis = t->rank - (strstr(t->name, ".bias") ? 2 : 3);
        if (of_experts && t->rank >= 3 && axis >= 0) {
            r.of_experts += floor(size / (double)t->dim[axis]);
            experts += t->dim[axis];
            tensors++;
        } else {
            r.shared += size;
        }
        r.parameters += size;
    }
    r.experts = tensors ? experts / tensors : 0;
    return r;
}

static bool has_blocks(const exp_job *job) {
    for (int32_t i = 0; i < job->count; i++)
        if (job->tensors[i].out.type == SBP_GGUF_TENSOR_MXFP4)
            return true;
    return false;
}

static uint32_t file_type(const exp_job *job) {
    int at = type_of(job->type_name);
    return has_blocks(job) && job->type != SBP_GGUF_TENSOR_Q8_0 ? FILE_TYPE_MXFP4 : types[at].file_type;
}

/* ---- the tokenizer ------------------------------------------------------------------------------------ */

static const exp_tokens_rule tokens_rules[] = {
#define FAMILY(id, architecture, model_type, class_name, layers, tokens, traits) EXP_TOKENS_##tokens,
#include "frontends/formats/weights/gguf_table.def"
};

static int64_t rows_of_embedding(const exp_job *job) {
    for (int32_t i = 0; i < job->count; i++)
        if (strcmp(job->tensors[i].out.name, "token_embd.weight") == 0)
            return job->tensors[i].out.dim[0];
    return (int64_t)sbp_exp_number(&job->model, "vocab_size");
}

static sbp_status put_tokens(exp_job *job) {
    exp_tokens_request r = {.directory = job->source,
                            .config = job->model.root,
                            .pre = job->request->pre,
                            .vocab_size = rows_of_embedding(job),
                            .rule = tokens_rules[job->model.facts.family]};
    return sbp_exp_put_tokens(job->model.arena, job->model.diag, &r, &job->keys);
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static sbp_status write_file(exp_job *job, sbp_export_report *report) {
    sbp_gguf_tensor *specs = SBP_NEW_ARRAY(job->model.arena, sbp_gguf_tensor, job->count);
    sbp_gguf_writer *writer;
    for (int32_t i = 0; i < job->count; i++)
        specs[i] = job->tensors[i].out;
    report->architecture = job->model.architecture;
    report->tensors = job->count;
    report->keys = job->keys.count;
    SBP_TRY(sbp_gguf_writer_create(job->model.arena, job->model.diag, job->request->output, &job->keys, specs,
                                   job->count, &report->bytes, &writer));
    sbp_status status =
        sbp_exp_write_tensors(job->model.diag, job->tensors, job->count, job->request->stop, writer);
    if (status == SBP_OK)
        return sbp_gguf_writer_commit(writer, job->model.diag);
    sbp_gguf_writer_abort(writer);
    return status;
}

static sbp_status open_weights(exp_job *job) {
    sbp_weights *weights;
    SBP_TRY(sbp_weights_open(job->model.arena, job->model.diag, job->source, &weights));
    job->weights = weights;
    return SBP_OK;
}

static void put_versions(exp_job *job) {
    sbp_gguf_put_u32(&job->keys, "general.file_type", file_type(job));
    sbp_gguf_put_u32(&job->keys, "general.quantization_version", QUANTIZATION_VERSION);
}

static sbp_status export_directory(exp_job *job, sbp_export_report *report) {
    SBP_TRY(sbp_exp_list_tensors(job));
    SBP_TRY(sbp_exp_adapter_check_used(job->adapter));
    exp_meta_request meta = count_parameters(job);
    sbp_gguf_put_string(&job->keys, "general.architecture", job->model.architecture);
    sbp_gguf_put_string(&job->keys, "general.type", "model");
    SBP_TRY(sbp_exp_put_meta(job->model.arena, job->model.diag, &meta, &job->keys));
    SBP_TRY(sbp_exp_put_architecture(&job->model, &job->keys));
    put_versions(job);
    SBP_TRY(put_tokens(job));
    return write_file(job, report);
}

/* ---- of a GGUF file ----------------------------------------------------------------------------------- */

static sbp_status export_gguf(exp_job *job, sbp_export_report *report) {
    const sbp_gguf *gguf = sbp_weights_gguf(job->weights);
    exp_model *m = &job->model;
    bool known = true;
    if (!gguf)
        return sbp_fail(m->diag, SBP_INPUT, "'%s' is neither a directory of a model nor a GGUF file",
                        job->source);
    SBP_TRY(sbp_gguf_get_string(m->diag, gguf, "general.architecture", SBP_JSON_REQUIRED, &m->architecture));
    if (job->adapter)
        SBP_TRY(sbp_gguf_facts_of_keys(m->diag, gguf, &m->facts, &known));
    if (!known)
        return sbp_fail(m->diag, SBP_INPUT,
                        "%s: where architecture '%s' has the weights that an adapter changes is not known",
                        job->source, m->architecture);
    SBP_TRY(sbp_exp_list_of_gguf(job));
    SBP_TRY(sbp_exp_adapter_check_used(job->adapter));
    for (int32_t i = 0; i < sbp_gguf_count(gguf); i++)
        sbp_gguf_put_value(&job->keys, sbp_gguf_at(gguf, i));
    sbp_gguf_keys_remove(&job->keys, "general.alignment");
    put_versions(job);
    return write_file(job, report);
}

/* ---- adapters ----------------------------------------------------------------------------------------- */

static sbp_status find_base(exp_job *job, const exp_adapter *adapter, const char **out) {
    const sbp_export_request *r = job->request;
    const char *name = r->base ? r->base : sbp_exp_adapter_base(adapter);
    *out = name ? sbp_hub_base(job->model.arena, r->base ? NULL : r->source, name) : NULL;
    if (*out)
        return SBP_OK;
    return sbp_fail(
        job->model.diag, SBP_INPUT,
        "%s: the model that this adapter is of ('%s') is not on this machine; --base MODEL says where it is",
        r->source, name ? name : "nobody says");
}

static sbp_status export_adapter(exp_job *job, exp_adapter *adapter, sbp_export_report *report) {
    exp_meta_request meta = {.directory = job->request->source, .of_adapter = true};
    report->adapter = true;
    SBP_TRY(read_model(job));
    SBP_TRY(sbp_exp_list_adapter(job, adapter, &meta.parameters));
    sbp_gguf_keys listed = job->keys;
    sbp_gguf_keys_init(&job->keys, job->model.arena);
    sbp_gguf_put_string(&job->keys, "general.architecture", job->model.architecture);
    sbp_gguf_put_string(&job->keys, "general.type", "adapter");
    SBP_TRY(sbp_exp_put_meta(job->model.arena, job->model.diag, &meta, &job->keys));
    for (int32_t i = 0; i < listed.count; i++)
        sbp_gguf_keys_copy(&job->keys, &listed.keys[i]);
    sbp_gguf_put_u32(&job->keys, "general.quantization_version", QUANTIZATION_VERSION);
    return write_file(job, report);
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

static sbp_status export_model(exp_job *job, sbp_export_report *report) {
    if (!sbp_directory_exists(job->source)) {
        SBP_TRY(open_weights(job));
        return export_gguf(job, report);
    }
    SBP_TRY(read_model(job));
    SBP_TRY(open_weights(job));
    return export_directory(job, report);
}

static sbp_status export_any(exp_job *job, exp_adapter **adapter, sbp_export_report *report) {
    sbp_arena *arena = job->model.arena;
    if (!sbp_exp_is_adapter(arena, job->source)) {
        if (job->request->merge)
            return sbp_fail(job->model.diag, SBP_USAGE, "--merge: '%s' is no adapter", job->source);
        return export_model(job, report);
    }
    SBP_TRY(sbp_exp_adapter_open(arena, job->model.diag, job->source, adapter));
    SBP_TRY(find_base(job, *adapter, &job->source));
    if (!job->request->merge)
        return export_adapter(job, *adapter, report);
    SBP_TRY(sbp_exp_adapter_load(*adapter));
    job->adapter = *adapter;
    return export_model(job, report);
}

sbp_status sbp_export_gguf(sbp_arena *arena, sbp_diag *diag, const sbp_export_request *request,
                           sbp_export_report *report) {
    exp_job *job = SBP_NEW(arena, exp_job);
    exp_adapter *adapter = NULL;
    *job = (exp_job){.request = request, .source = request->source, .model = {.arena = arena, .diag = diag}};
    bool own = sbp_exp_is_adapter(arena, request->source) && !request->merge;
    job->type_name = request->type ? request->type : own ? "f32" : "bf16";
    job->type = types[type_of(job->type_name)].type;
    report->type = job->type_name;
    sbp_gguf_keys_init(&job->keys, arena);
    sbp_status status = export_any(job, &adapter, report);
    sbp_exp_adapter_close(adapter);
    if (job->weights)
        sbp_weights_close((sbp_weights *)job->weights);
    if (status == SBP_OK && !report->adapter)
        sbp_note(diag, "smaller types are made by llama.cpp: llama-quantize %s OUT.gguf Q4_K_M",
                 request->output);
    return status;
}
