/* export_adapter.c: an adapter in PEFT's format: what it adds to which weight, and itself as a GGUF adapter,
 * whose matrices llama.cpp adds as alpha / r x B A to the tensors as the file has them. */
#include <math.h>
#include <string.h>

#include "frontends/formats/export/export_internal.h"
#include "frontends/formats/files/hub.h"
#include "ir/base/pattern.h"

typedef struct module {
    const char *weight; /* of the model */
    const sbp_weight *a, *b;
    exp_low_rank low_rank;
    bool loaded, used;
} module;

typedef struct whole {
    const char *weight;
    const sbp_weight *tensor;
    bool used;
} whole;

struct exp_adapter {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *directory;
    const sbp_json *config;
    sbp_weights *weights;
    module *modules;
    int32_t module_count, module_capacity;
    whole *wholes;
    int32_t whole_count, whole_capacity;
    double alpha, rank;
    bool rslora;
};

/* ---- reading ------------------------------------------------------------------------------------------ */

bool sbp_exp_is_adapter(sbp_arena *arena, const char *directory) {
    return sbp_directory_exists(directory) &&
           sbp_file_exists(sbp_file_join(arena, directory, "adapter_config.json"));
}

const char *sbp_exp_adapter_base(const exp_adapter *a) {
    const sbp_json *base = sbp_json_member(a->config, "base_model_name_or_path");
    return base && base->kind == SBP_JSON_STRING && base->count > 0 ? base->string : NULL;
}

/* What a pattern of modules says of one: of rank_pattern, alpha_pattern. */
static sbp_status patterned(const exp_adapter *a, const char *field, const char *name, double *out) {
    const sbp_json *patterns = sbp_json_member(a->config, field);
    for (int64_t i = 0; patterns && patterns->kind == SBP_JSON_OBJECT && i < patterns->count; i++) {
        const char *pattern = sbp_arena_printf(a->arena, "(.*\\.)?(%s)", patterns->items[i].key);
        bool found;
        SBP_TRY(sbp_pattern_match(a->arena, a->diag, field, pattern, SBP_PATTERN_WHOLE, name, &found));
        if (found)
            return sbp_json_as_double(a->diag, &patterns->items[i], out);
    }
    return SBP_OK;
}

static bool ends(const char *text, size_t length, const char *suffix) {
    size_t n = strlen(suffix);
    return length >= n && memcmp(text + length - n, suffix, n) == 0;
}

static sbp_status add_matrix(exp_adapter *a, const sbp_weight *w, const char *name, size_t length, bool is_b,
                             bool embedding) {
    const char *weight = sbp_arena_printf(a->arena, "%.*s.weight", (int)length, name);
    int32_t at = 0;
    if (strstr(weight, "base_layer") || w->rank != 2)
        return sbp_fail(
            a->diag, SBP_INPUT,
            "%s: tensor '%s' adapts a tensor of several experts, which is not exported; merge it by training "
            "with --merge, or by peft's merge_and_unload, and export the result",
            w->path, w->name);
    while (at < a->module_count && strcmp(a->modules[at].weight, weight) != 0)
        at++;
    if (at == a->module_count)
        SBP_PUSH(a->arena, a->modules, a->module_count, a->module_capacity,
                 (module){.weight = weight, .low_rank.in_out = embedding});
    if (is_b)
        a->modules[at].b = w;
    else
        a->modules[at].a = w;
    return SBP_OK;
}

static sbp_status add_tensor(exp_adapter *a, const sbp_weight *w) {
    static const char prefix[] = "base_model.model.";
    static const struct {
        const char *suffix;
        bool b, embedding;
    } kinds[] = {{".lora_A.weight", false, false},
                 {".lora_B.weight", true, false},
                 {".lora_embedding_A", false, true},
                 {".lora_embedding_B", true, true}};
    const char *name =
        strncmp(w->name, prefix, sizeof prefix - 1) == 0 ? w->name + sizeof prefix - 1 : w->name;
    size_t length = strlen(name);
    for (int i = 0; i < SBP_COUNT(kinds); i++)
        if (ends(name, length, kinds[i].suffix))
            return add_matrix(a, w, name, length - strlen(kinds[i].suffix), kinds[i].b, kinds[i].embedding);
    if (ends(name, length, ".base_layer.weight"))
        return SBP_OK; /* the embedding as it was, which PEFT saves beside its adapter */
    if (strstr(name, "lora_"))
        return sbp_fail(a->diag, SBP_INPUT, "%s: tensor '%s' is of a kind of adapter that is not exported",
                        w->path, w->name);
    SBP_PUSH(a->arena, a->wholes, a->whole_count, a->whole_capacity, (whole){.weight = name, .tensor = w});
    return SBP_OK;
}

static sbp_status check_module(exp_adapter *a, module *m) {
    if (!m->a || !m->b || m->a->dim[0] != m->b->dim[1])
        return sbp_fail(a->diag, SBP_INPUT, "%s: the adapter of '%s' is not two matrices of one rank",
                        a->directory, m->weight);
    exp_low_rank *lr = &m->low_rank;
    lr->rank = m->a->dim[0];
    lr->in = m->a->dim[1];
    lr->out = m->b->dim[0];
    const char *name = sbp_arena_strndup(a->arena, m->weight, strlen(m->weight) - strlen(".weight"));
    double alpha = a->alpha, stated = a->rank;
    SBP_TRY(patterned(a, "alpha_pattern", name, &alpha));
    SBP_TRY(patterned(a, "rank_pattern", name, &stated));
    if (stated != (double)lr->rank)
        return sbp_fail(a->diag, SBP_INPUT,
                        "%s: the adapter of '%s' has rank %lld, but adapter_config.json says %g",
                        a->directory, m->weight, (long long)lr->rank, stated);
    lr->scale = alpha / (a->rslora ? sqrt((double)lr->rank) : (double)lr->rank);
    return SBP_OK;
}

static sbp_status read_config(exp_adapter *a) {
    const char *path = sbp_file_join(a->arena, a->directory, "adapter_config.json"), *kind = "LORA";
    bool dora = false;
    a->alpha = a->rank = 8;
    SBP_TRY(sbp_json_read(a->arena, a->diag, path, 0, &a->config));
    SBP_TRY(sbp_json_as_object(a->diag, a->config, &a->config));
    SBP_TRY(sbp_json_get_string(a->diag, a->config, "peft_type", SBP_JSON_NULLABLE, &kind));
    SBP_TRY(sbp_json_get_double(a->diag, a->config, "r", SBP_JSON_NULLABLE, &a->rank));
    SBP_TRY(sbp_json_get_double(a->diag, a->config, "lora_alpha", SBP_JSON_NULLABLE, &a->alpha));
    SBP_TRY(sbp_json_get_bool(a->diag, a->config, "use_rslora", SBP_JSON_NULLABLE, &a->rslora));
    SBP_TRY(sbp_json_get_bool(a->diag, a->config, "use_dora", SBP_JSON_NULLABLE, &dora));
    if (strcmp(kind, "LORA") == 0 && !dora)
        return SBP_OK;
    return sbp_fail(a->diag, SBP_INPUT,
                    "%s: %s is not exported, only LoRA; peft's merge_and_unload merges it", path,
                    dora ? "use_dora" : kind);
}

sbp_status sbp_exp_adapter_open(sbp_arena *arena, sbp_diag *diag, const char *directory, exp_adapter **out) {
    exp_adapter *a = SBP_NEW(arena, exp_adapter);
    *a = (exp_adapter){.arena = arena, .diag = diag, .directory = directory};
    *out = a;
    SBP_TRY(read_config(a));
    SBP_TRY(sbp_weights_open(arena, diag, sbp_file_join(arena, directory, "adapter_model.safetensors"),
                             &a->weights));
    for (int32_t i = 0; i < sbp_weights_count(a->weights); i++)
        SBP_TRY(add_tensor(a, sbp_weights_at(a->weights, i)));
    for (int32_t i = 0; i < a->module_count; i++)
        SBP_TRY(check_module(a, &a->modules[i]));
    return SBP_OK;
}

void sbp_exp_adapter_close(exp_adapter *adapter) {
    if (adapter)
        sbp_weights_close(adapter->weights);
}

/* ---- for its model ------------------------------------------------------------------------------------ */

static sbp_status load(const exp_adapter *a, const sbp_weight *w, const float **out) {
    float *numbers = SBP_NEW_ARRAY(a->arena, float, w->elems);
    *out = numbers;
    return sbp_weights_read(a->weights, w, 0, w->elems, SBP_F32, numbers, a->diag);
}

static sbp_status load_module(const exp_adapter *a, module *m) {
    if (!m->loaded) {
        SBP_TRY(load(a, m->a, &m->low_rank.a));
        SBP_TRY(load(a, m->b, &m->low_rank.b));
    }
    m->loaded = true;
    return SBP_OK;
}

sbp_status sbp_exp_adapter_load(exp_adapter *a) {
    for (int32_t i = 0; i < a->module_count; i++)
        SBP_TRY(load_module(a, &a->modules[i]));
    return SBP_OK;
}

const exp_low_rank *sbp_exp_adapter_of(exp_adapter *a, const char *weight) {
    for (int32_t i = 0; a && i < a->module_count; i++)
        if (strcmp(a->modules[i].weight, weight) == 0) {
            a->modules[i].used = true;
            return &a->modules[i].low_rank;
        }
    return NULL;
}

const sbp_weight *sbp_exp_adapter_whole(exp_adapter *a, const char *weight) {
    for (int32_t i = 0; a && i < a->whole_count; i++)
        if (strcmp(a->wholes[i].weight, weight) == 0) {
            a->wholes[i].used = true;
            return a->wholes[i].tensor;
        }
    return NULL;
}

const sbp_weights *sbp_exp_adapter_weights(const exp_adapter *a) {
    return a->weights;
}

static sbp_status unused(const exp_adapter *a, const char *weight) {
    return sbp_fail(
        a->diag, SBP_INPUT,
        "%s: the adapter changes '%s', which its base does not have or does not keep as a matrix of its own; "
        "is --base the model that it was trained on?",
        a->directory, weight);
}

sbp_status sbp_exp_adapter_check_used(const exp_adapter *a) {
    for (int32_t i = 0; a && i < a->module_count; i++)
        if (!a->modules[i].used)
            return unused(a, a->modules[i].weight);
    for (int32_t i = 0; a && i < a->whole_count; i++)
        if (!a->wholes[i].used)
            return unused(a, a->wholes[i].weight);
    return SBP_OK;
}

/* ---- as a GGUF adapter -------------------------------------------------------------------------------- */

static bool shape(void *user, const char *name, int32_t *rank, int64_t *dim) {
    const exp_adapter *a = user;
    for (int32_t i = 0; i < a->module_count; i++)
        if (strcmp(a->modules[i].weight, name) == 0) {
            const exp_low_rank *lr = &a->modules[i].low_rank;
            *rank = 2;
            dim[0] = lr->in_out ? lr->in : lr->out;
            dim[1] = lr->in_out ? lr->out : lr->in;
            return true;
        }
    return false;
}

/* The pieces of one tensor of the file. */
typedef struct parts {
    const sbp_gguf_piece **pieces;
    exp_view *views;
    int32_t count;
} parts;

/* Where element `at` of the file's tensor is in the weight; -1: nowhere. */
static int64_t element(const parts *all, int64_t at) {
    for (int32_t k = 0; k < all->count; k++) {
        const exp_view *v = &all->views[k];
        int64_t inside = at - all->pieces[k]->file_base, from = v->base;
        if (inside < 0 || inside >= sbp_exp_view_elems(v))
            continue;
        for (int32_t d = v->rank - 1; d >= 0; d--) {
            from += inside % v->extent[d] * v->stride[d];
            inside /= v->extent[d];
        }
        return from;
    }
    return -1;
}

/* Those of the tensor that piece `first` is of; false: they do not follow each other in the file. */
static bool collect(sbp_arena *arena, const sbp_gguf_piece *pieces, int32_t count, int32_t first,
                    parts *out) {
    *out = (parts){SBP_NEW_ARRAY(arena, const sbp_gguf_piece *, count), SBP_NEW_ARRAY(arena, exp_view, count),
                   0};
    for (int32_t i = first; i < count; i++) {
        if (strcmp(pieces[i].file, pieces[first].file) != 0)
            continue;
        if (!sbp_exp_view_of(&pieces[i], NULL, &out->views[out->count]))
            return false;
        out->pieces[out->count++] = &pieces[i];
    }
    return true;
}

/* Whether the rows of the file's matrix are rows of the weight, and all in one order of columns. */
static bool is_separable(const parts *all, int64_t rows, int64_t columns, int64_t in) {
    int64_t last = element(all, rows * columns - 1);
    bool fits = last >= 0;
    for (int64_t c = 0; fits && c < columns; c++)
        fits = element(all, c) >= 0 && element(all, c) / in == element(all, 0) / in;
    for (int64_t r = 0; fits && r < rows; r++) {
        int64_t begin = element(all, r * columns), end = element(all, (r + 1) * columns - 1);
        fits = begin >= 0 && begin / in == end / in && begin % in == element(all, 0) % in &&
               end % in == element(all, columns - 1) % in;
    }
    return fits;
}

static exp_tensor *add_numbers(exp_job *job, const char *name, const float *numbers, int64_t rows,
                               int64_t columns) {
    exp_tensor *t = sbp_exp_add_tensor(job, name);
    t->order = job->count;
    t->out.rank = 2;
    t->out.dim[0] = rows;
    t->out.dim[1] = columns;
    t->out.type = sbp_exp_type_of(job->type, name, 2, t->out.dim);
    t->numbers = numbers;
    return t;
}

/* Matrices for the tensor of the file: rows of B and columns of A where its rows and columns are. */
static sbp_status add_pair(exp_job *job, exp_adapter *a, const sbp_gguf_piece *pieces, int32_t count,
                           int32_t first) {
    const sbp_gguf_piece *p = &pieces[first];
    const exp_low_rank *lr = sbp_exp_adapter_of(a, p->hf);
    int64_t rows = p->file_dim[0], columns = p->file_dim[1], in = p->hf_dim[1];
    parts all;
    bool fits = p->file_rank == 2 && collect(a->arena, pieces, count, first, &all);
    if (!fits || !is_separable(&all, rows, columns, in))
        return sbp_fail(
            a->diag, SBP_INPUT,
            "%s: llama.cpp keeps '%s' as '%s', rearranged so that no matrices of rank %lld are added to it; "
            "export the model with --merge",
            a->directory, p->hf, p->file, (long long)lr->rank);
    float *down = SBP_NEW_ARRAY(a->arena, float, lr->rank *columns),
          *up = SBP_NEW_ARRAY(a->arena, float, rows * lr->rank);
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0, from = element(&all, c) % in; r < lr->rank; r++)
            down[r * columns + c] = lr->a[r * lr->in + from];
    float factor = (float)(lr->scale * (double)lr->rank / a->alpha);
    for (int64_t o = 0; o < rows; o++)
        for (int64_t r = 0, from = element(&all, o * columns) / in; r < lr->rank; r++)
            up[o * lr->rank + r] = factor * lr->b[from * lr->rank + r];
    add_numbers(job, sbp_arena_printf(a->arena, "%s.lora_a", p->file), down, lr->rank, columns);
    add_numbers(job, sbp_arena_printf(a->arena, "%s.lora_b", p->file), up, rows, lr->rank);
    *job->parameters -= (double)rows * (double)columns;
    return SBP_OK;
}

/* Writes an embedding's adapter, in which llama.cpp looks up rows of A: it is stored as
 * [vocabulary, rank]. */
static void add_embedding(exp_job *job, exp_adapter *a, const sbp_gguf_piece *p, const exp_low_rank *lr) {
    float *down = SBP_NEW_ARRAY(a->arena, float, lr->in * lr->rank),
          *up = SBP_NEW_ARRAY(a->arena, float, lr->out * lr->rank);
    float factor = (float)(lr->scale * (double)lr->rank / a->alpha);
    for (int64_t v = 0; v < lr->in; v++)
        for (int64_t r = 0; r < lr->rank; r++)
            down[v * lr->rank + r] = lr->a[r * lr->in + v];
    for (int64_t i = 0; i < lr->out * lr->rank; i++)
        up[i] = factor * lr->b[i];
    add_numbers(job, sbp_arena_printf(a->arena, "%s.lora_a", p->file), down, lr->in, lr->rank);
    add_numbers(job, sbp_arena_printf(a->arena, "%s.lora_b", p->file), up, lr->out, lr->rank);
}

static sbp_status check_head(const exp_job *job, const exp_adapter *a) {
    const sbp_json *tied = sbp_json_member(job->model.config, "tie_word_embeddings");
    for (int32_t i = 0; i < a->module_count; i++)
        if (strcmp(a->modules[i].weight, "lm_head.weight") == 0 && tied && tied->kind == SBP_JSON_BOOL &&
            tied->boolean)
            return sbp_fail(a->diag, SBP_INPUT,
                            "%s: the adapter changes 'lm_head.weight', which is the embedding in its base; "
                            "export the model "
                            "with --merge",
                            a->directory);
    if (a->whole_count > 0)
        return sbp_fail(
            a->diag, SBP_INPUT,
            "%s: '%s' was trained whole (modules_to_save), which a GGUF adapter has no place for; export the "
            "model with --merge",
            a->directory, a->wholes[0].weight);
    return SBP_OK;
}

sbp_status sbp_exp_list_adapter(exp_job *job, exp_adapter *a, double *parameters) {
    sbp_gguf_piece *pieces;
    int32_t count;
    SBP_TRY(check_head(job, a));
    SBP_TRY(sbp_exp_adapter_load(a));
    SBP_TRY(sbp_gguf_pieces(a->arena, a->diag, a->directory, &job->model.facts, SBP_GGUF_HF, shape, a,
                            &pieces, &count));
    job->parameters = parameters;
    sbp_map names;
    sbp_map_init(&names, a->arena);
    for (int32_t i = 0; i < count; i++) {
        const exp_low_rank *lr = sbp_exp_adapter_of(a, pieces[i].hf);
        if (sbp_map_get(&names, pieces[i].file) >= 0)
            continue;
        sbp_map_set(&names, pieces[i].file, i);
        if (lr->in_out)
            add_embedding(job, a, &pieces[i], lr);
        else
            SBP_TRY(add_pair(job, a, pieces, count, i));
    }
    SBP_TRY(sbp_exp_adapter_check_used(a));
    sbp_gguf_put_string(&job->keys, "adapter.type", "lora");
    sbp_gguf_put_f32(&job->keys, "adapter.lora.alpha", (float)a->alpha);
    return SBP_OK;
}
