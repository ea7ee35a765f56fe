/* export_model.c: which tensors a file has, of which tensors of the directory, and of which types. */
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/export/export_internal.h"

/* ---- names of the directory --------------------------------------------------------------------------- */

/* Multimodal models have their text model under another name. */
static const sbp_weight *find(const exp_job *job, const char *name) {
    static const char *const roots[][2] = {{"model.", "model.language_model."},
                                           {"model.", "language_model.model."},
                                           {"lm_head.", "language_model.lm_head."},
                                           {"backbone.", "model."}};
    const sbp_weight *w = sbp_weights_find(job->weights, name);
    for (int i = 0; !w && i < SBP_COUNT(roots); i++) {
        size_t n = strlen(roots[i][0]);
        if (strncmp(name, roots[i][0], n) == 0)
            w = sbp_weights_find(job->weights,
                                 sbp_arena_printf(job->model.arena, "%s%s", roots[i][1], name + n));
    }
    return w;
}

static bool shape(void *user, const char *name, int32_t *rank, int64_t *dim) {
    const sbp_weight *w = find(user, name);
    if (!w)
        return false;
    *rank = w->rank;
    for (int32_t d = 0; d < w->rank && d < SBP_MAX_RANK; d++)
        dim[d] = w->dim[d];
    return w->rank <= SBP_MAX_RANK;
}

/* ---- the list ----------------------------------------------------------------------------------------- */

/* -1 for what comes before the layers, then their numbers; what comes behind them. */
static int64_t place(const char *name) {
    if (strncmp(name, "blk.", 4) == 0)
        return strtoll(name + 4, NULL, 10);
    return strncmp(name, "output", 6) == 0 ? INT32_MAX : -1;
}

static int by_place(const void *a, const void *b) {
    const exp_tensor *x = a, *y = b;
    int64_t p = place(x->out.name), q = place(y->out.name);
    return p != q ? (p < q ? -1 : 1) : x->order - y->order;
}

static int by_start(const void *a, const void *b) {
    const exp_piece *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static sbp_status add_piece(exp_job *job, sbp_map *names, const sbp_gguf_piece *p) {
    const sbp_weight *w = find(job, p->hf), *whole = sbp_exp_adapter_whole(job->adapter, w->name);
    int32_t at = sbp_map_get(names, p->file);
    exp_tensor *t = at >= 0 ? &job->tensors[at] : sbp_exp_add_tensor(job, p->file);
    if (at < 0) {
        sbp_map_set(names, p->file, job->count - 1);
        t->order = job->count;
        t->rule = p->rule;
        t->out.rank = p->file_rank;
        memcpy(t->out.dim, p->file_dim, sizeof t->out.dim);
        t->out.type = w->format == SBP_FORMAT_MXFP4
                          ? SBP_GGUF_TENSOR_MXFP4
                          : sbp_exp_type_of(job->type, p->file, p->file_rank, p->file_dim);
        if (t->out.type == SBP_GGUF_TENSOR_MXFP4 && sbp_exp_adapter_of(job->adapter, w->name))
            t->out.type = sbp_exp_type_of(job->type, p->file, p->file_rank, p->file_dim);
    }
    exp_piece piece = {.at = p->file_base,
                       .weights = whole ? sbp_exp_adapter_weights(job->adapter) : job->weights,
                       .adapter = sbp_exp_adapter_of(job->adapter, w->name)};
    if (whole && whole->elems != w->elems)
        return sbp_fail(job->model.diag, SBP_INPUT,
                        "%s: tensor '%s' of the adapter has another shape than '%s' of %s", whole->path,
                        whole->name, w->name, w->path);
    bool runs = sbp_exp_view_of(p, whole ? whole : w, &piece.view);
    piece.delta = piece.view;
    if (!runs)
        return sbp_fail(job->model.diag, SBP_INTERNAL, "%s: tensor '%s' would be stored in mixed order",
                        w->path, p->file);
    SBP_PUSH(job->model.arena, t->pieces, t->piece_count, t->piece_capacity, piece);
    sbp_weight_add_names(w, &job->used);
    return SBP_OK;
}

/* Each element of a tensor is in one piece. */
static sbp_status check_whole(const exp_job *job, exp_tensor *t) {
    int64_t elems = 0;
    qsort(t->pieces, (size_t)t->piece_count, sizeof *t->pieces, by_start);
    for (int32_t p = 0; p < t->piece_count; p++) {
        if (t->pieces[p].at != elems)
            break;
        elems += sbp_exp_view_elems(&t->pieces[p].view);
    }
    if (elems == sbp_gguf_tensor_elems(&t->out))
        return SBP_OK;
    return sbp_fail(job->model.diag, SBP_INPUT,
                    "%s: of tensor '%s' of the GGUF file the model has a part only", job->source,
                    t->out.name);
}

/* Tensors that no language model has: of images and sound, of drafts, and what older versions saved. */
static bool is_beside(const exp_job *job, const char *name) {
    static const char *const beside[] = {
        "visual.",     "vision_",       "vision.",     "audio_", "audio.",
        "projector.",  "embed_vision",  "embed_audio", "mtp.",   "rotary_emb.inv_freq",
        "masked_bias", "attention.bias"};
    for (int i = 0; i < SBP_COUNT(beside); i++)
        if (strstr(name, beside[i]))
            return true;
    const sbp_json *tied = sbp_json_member(job->model.config, "tie_word_embeddings");
    const char *layers = sbp_gguf_family_of(job->model.facts.family)->layers, *at = strstr(name, layers);
    bool draft = at && strtoll(at + strlen(layers), NULL, 10) >= job->model.facts.layers;
    return draft || (strstr(name, "lm_head.") && tied && tied->kind == SBP_JSON_BOOL && tied->boolean);
}

static sbp_status check_used(const exp_job *job) {
    int32_t left = 0;
    for (int32_t i = 0; i < sbp_weights_count(job->weights); i++) {
        const sbp_weight *w = sbp_weights_at(job->weights, i);
        if (sbp_map_get(&job->used, w->name) >= 0)
            continue;
        if (!is_beside(job, w->name))
            return sbp_fail(job->model.diag, SBP_INPUT,
                            "%s: llama.cpp's architecture %s has no place for tensor '%s'", w->path,
                            job->model.architecture, w->name);
        left++;
    }
    if (left > 0)
        sbp_note(job->model.diag,
                 "%s: %d tensors that are not of the language model (images, sound, drafts) are left out",
                 job->source, left);
    return SBP_OK;
}

static sbp_status add_extras(exp_job *job) {
    exp_extra extras[EXP_MOST_EXTRAS];
    int count;
    SBP_TRY(sbp_exp_extra_tensors(&job->model, extras, &count));
    for (int i = 0; i < count; i++) {
        exp_tensor *t = sbp_exp_add_tensor(job, extras[i].name);
        t->out = (sbp_gguf_tensor){extras[i].name, SBP_GGUF_TENSOR_F32, 1, {extras[i].count}};
        t->numbers = extras[i].numbers;
    }
    return SBP_OK;
}

/* A directory has experts in one spelling; what it has under the other too is another tensor's. */
static bool is_spelled_twice(const exp_job *job, const sbp_gguf_piece *pieces, int32_t count, int32_t at) {
    for (int32_t i = 0; pieces[at].other_spelling && i < count; i++)
        if (i != at && !pieces[i].other_spelling && strcmp(pieces[i].file, pieces[at].file) == 0 &&
            find(job, pieces[i].hf) != find(job, pieces[at].hf))
            return true;
    return false;
}

sbp_status sbp_exp_list_tensors(exp_job *job) {
    sbp_gguf_piece *pieces;
    int32_t count;
    sbp_map names;
    sbp_map_init(&names, job->model.arena);
    sbp_map_init(&job->used, job->model.arena);
    SBP_TRY(add_extras(job));
    SBP_TRY(sbp_gguf_pieces(job->model.arena, job->model.diag, job->source, &job->model.facts, SBP_GGUF_HF,
                            shape, job, &pieces, &count));
    for (int32_t i = 0; i < count; i++)
        if (!is_spelled_twice(job, pieces, count, i))
            SBP_TRY(add_piece(job, &names, &pieces[i]));
    for (int32_t i = 0; i < job->count; i++)
        if (!job->tensors[i].numbers)
            SBP_TRY(check_whole(job, &job->tensors[i]));
    SBP_TRY(check_used(job));
    qsort(job->tensors, (size_t)job->count, sizeof *job->tensors, by_place);
    return SBP_OK;
}

/* ---- of a GGUF file ----------------------------------------------------------------------------------- */

static bool shape_in_file(void *user, const char *name, int32_t *rank, int64_t *dim) {
    const exp_job *job = user;
    const sbp_weight *w = sbp_weights_find(job->weights, name);
    if (!w || w->rank > SBP_MAX_RANK)
        return false;
    *rank = w->rank;
    for (int32_t d = 0; d < w->rank; d++)
        dim[d] = w->dim[d];
    return true;
}

/* A tensor as it is in the file, in a type of ours. */
static void add_same(exp_job *job, const sbp_weight *w, sbp_map *names) {
    exp_tensor *t = sbp_exp_add_tensor(job, w->name);
    t->order = job->count;
    t->out.rank = w->rank;
    for (int32_t d = 0; d < w->rank; d++)
        t->out.dim[d] = w->dim[d];
    t->out.type = sbp_exp_type_of(job->type, w->name, w->rank, t->out.dim);
    sbp_map_set(names, w->name, job->count - 1);
    exp_piece piece = {.weights = job->weights,
                       .view = {.weight = w, .rank = 1, .extent = {w->elems}, .stride = {1}}};
    SBP_PUSH(job->model.arena, t->pieces, t->piece_count, t->piece_capacity, piece);
}

/* Where the weight that an adapter changes has its elements, in place of the tensor as one piece. */
static sbp_status add_delta(exp_job *job, const sbp_map *names, const sbp_gguf_piece *p) {
    const exp_low_rank *adapter = sbp_exp_adapter_of(job->adapter, p->hf);
    exp_tensor *t = &job->tensors[sbp_map_get(names, p->file)];
    exp_piece piece = {.at = p->file_base, .weights = job->weights, .adapter = adapter};
    if (!adapter)
        return SBP_OK;
    if (adapter->in * adapter->out != sbp_weights_find(job->weights, p->file)->elems && p->loop_count == 1)
        return sbp_fail(job->model.diag, SBP_INPUT,
                        "%s: an adapter of '%s' is [%lld, %lld], which '%s' is not", job->source, p->hf,
                        (long long)adapter->out, (long long)adapter->in, p->file);
    if (!sbp_exp_view_of(p, sbp_weights_find(job->weights, p->file), &piece.delta))
        return sbp_fail(job->model.diag, SBP_INTERNAL, "%s: tensor '%s' would be stored in mixed order",
                        job->source, p->file);
    piece.view = piece.delta;
    piece.view.base = p->file_base;
    int64_t inside = 1;
    for (int32_t d = piece.view.rank - 1; d >= 0; d--) {
        piece.view.stride[d] = inside;
        inside *= piece.view.extent[d];
    }
    if (t->piece_count == 1 && !t->pieces[0].adapter)
        t->piece_count = 0;
    SBP_PUSH(job->model.arena, t->pieces, t->piece_count, t->piece_capacity, piece);
    return SBP_OK;
}

sbp_status sbp_exp_list_of_gguf(exp_job *job) {
    sbp_gguf_piece *pieces;
    int32_t count;
    sbp_map names;
    sbp_map_init(&names, job->model.arena);
    for (int32_t i = 0; i < sbp_weights_count(job->weights); i++) {
        const sbp_weight *w = sbp_weights_at(job->weights, i);
        if (!w->readable)
            return sbp_fail(job->model.diag, SBP_INPUT,
                            "%s: tensor '%s' is %s, whose numbers are not known here", w->path, w->name,
                            w->encoding);
        if (!strstr(w->name, ".xielu.")) /* of a key, which the file has already */
            add_same(job, w, &names);
    }
    if (!job->adapter)
        return SBP_OK;
    SBP_TRY(sbp_gguf_pieces(job->model.arena, job->model.diag, job->source, &job->model.facts, SBP_GGUF_FILE,
                            shape_in_file, job, &pieces, &count));
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(add_delta(job, &names, &pieces[i]));
    for (int32_t i = 0; i < job->count; i++)
        SBP_TRY(check_whole(job, &job->tensors[i]));
    return SBP_OK;
}
