/* run_curve.c: the numbers of metrics.jsonl as points to show: of training as many as are wanted, evaluations
 * at their own steps. */
#include <math.h>

#include "runtime/cli/sbprun/outputs.h"
#include "runtime/data/jsonl.h"

/* Points of one kind: of more than twice `most` every other goes, and the newest is kept beside them. */
typedef struct series {
    sbp_curve_point *points, newest; /* [2 * most + 1] */
    int32_t count, most;
    int64_t every, seen;
} series;

typedef struct reader {
    sbp_arena *arena;
    const char *const *keys;
    int32_t key_count;
    series train, evals;
    double evaluated; /* the step of the newest evaluation: of several files the first counts */
} reader;

static void begin(series *s, sbp_arena *arena, int32_t most) {
    *s = (series){
        .points = SBP_NEW_ARRAY(arena, sbp_curve_point, 2 * (int64_t)most + 1), .most = most, .every = 1};
}

static void add(series *s, const sbp_curve_point *point) {
    s->newest = *point;
    if (s->seen++ % s->every != 0)
        return;
    if (s->count == 2 * s->most) {
        for (int32_t i = 0; i < s->most; i++)
            s->points[i] = s->points[2 * i];
        s->count = s->most;
        s->every *= 2;
    }
    s->points[s->count++] = *point;
}

static void end(series *s) {
    if (s->count > 0 && s->points[s->count - 1].step < s->newest.step)
        s->points[s->count++] = s->newest;
}

static double number_of(const sbp_json *root, const char *key) {
    double value = NAN;
    return sbp_json_get_double(NULL, root, key, SBP_JSON_REQUIRED, &value) == SBP_OK ? value : (double)NAN;
}

static void take_object(reader *r, const sbp_json *root) {
    sbp_curve_point point = {.step = number_of(root, "step"), .eval_loss = NAN};
    if (!sbp_json_member(root, "eval_file")) {
        for (int32_t i = 0; i < r->key_count; i++)
            point.values[i] = number_of(root, r->keys[i]);
        add(&r->train, &point);
    } else if (r->evaluated != point.step) {
        for (int32_t i = 0; i < r->key_count; i++) /* of training, where it has just been there */
            point.values[i] = r->train.seen > 0 && r->train.newest.step == point.step
                                  ? r->train.newest.values[i]
                                  : (double)NAN;
        point.eval_loss = number_of(root, "eval_loss");
        r->evaluated = point.step;
        add(&r->evals, &point);
    }
}

static sbp_status take_line(void *user, const char *path, int64_t line, const char *text, size_t length) {
    reader *r = user;
    const sbp_json *root;
    (void)line;
    sbp_arena_mark mark = sbp_arena_begin(r->arena);
    if (sbp_json_parse(r->arena, NULL, path, text, length, 0, &root) == SBP_OK &&
        root->kind == SBP_JSON_OBJECT)
        take_object(r, root);
    sbp_arena_end(r->arena, mark);
    return SBP_OK;
}

sbp_status sbp_run_read_curve(const sbp_world *world, const sbp_outputs *outputs, const char *const *keys,
                              int32_t key_count, int32_t most, sbp_curve *out) {
    const char *path = sbp_file_join(world->arena, outputs->out, "metrics.jsonl");
    reader *r = SBP_NEW(world->arena, reader);
    *r = (reader){.arena = world->arena, .keys = keys, .key_count = key_count, .evaluated = NAN};
    begin(&r->train, world->arena, most);
    begin(&r->evals, world->arena, most);
    if (sbp_file_exists(path))
        SBP_TRY(sbp_lines_read(world->diag, path, take_line, r));
    end(&r->train);
    end(&r->evals);
    *out = (sbp_curve){r->train.points, r->evals.points, r->train.count, r->evals.count};
    return SBP_OK;
}
