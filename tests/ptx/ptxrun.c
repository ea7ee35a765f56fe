/* ptxrun case.json --out DIR [--seed N] [--resident N] [--counts] [--time]: one launch, as the case describes
 * it. Exit status: 0; 1 when the kernel is at fault; 2 when something cannot be read or executed. */
#include "tests/ptx/ptx.h"
#include "tests/ptx/tensor/tma.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_BUFFERS = 256, MAX_ARGS = 256 };

typedef struct {
    const char *json_path, *out;
    sbp_ptx_options options;
    bool counts, time;
} arguments;

typedef struct {
    json_t *root;
    char folder[4096];
    sbp_ptx_memory *memory;
    sbp_ptx_module *module;
    uint64_t address[MAX_BUFFERS], bytes[MAX_BUFFERS];
    int buffers;
    _Alignas(64) uint8_t args[MAX_ARGS][128];
    void *params[MAX_ARGS];
} run_case;

static bool complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "ptxrun: ");
    (void)vfprintf(stderr, format, args);
    (void)fprintf(stderr, "\n");
    va_end(args);
    return false;
}

// ---- files ------------------------------------------------------------------------------------------------

static bool path_of(const run_case *c, const char *name, char out[8192]) {
    const int n =
        name[0] == '/' ? snprintf(out, 8192, "%s", name) : snprintf(out, 8192, "%s%s", c->folder, name);
    return n > 0 && n < 8192;
}

// The bytes of a file, freed by the caller; NULL: complained.
static uint8_t *read_file(const char *path, size_t *out_bytes) {
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t used = 0, size = 65536;
    if (f) {
        data = malloc(size);
        size_t n = 0;
        while (data && (n = fread(data + used, 1, size - used, f)) > 0) {
            used += n;
            if (used == size) {
                uint8_t *grown = realloc(data, size *= 2);
                if (!grown) {
                    free(data);
                }
                data = grown;
            }
        }
        if (ferror(f)) {
            free(data);
            data = NULL;
        }
        (void)fclose(f);
    }
    if (!data) {
        (void)complain("cannot read %s: %s", path, strerror(errno));
    }
    *out_bytes = used;
    return data;
}

static bool write_file(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[8192];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    const bool wrote = f && fwrite(data, 1, bytes, f) == bytes;
    return (f ? fclose(f) == 0 : false) && wrote ? true
                                                 : complain("cannot write %s: %s", path, strerror(errno));
}

// The folder and those above it; whether they are there is seen when a file is written.
static void make_folder(const char *folder) {
    char path[8192];
    const int n = snprintf(path, sizeof path, "%s", folder);
    for (int k = 1; k <= n && n < (int)sizeof path; k++) {
        if (path[k] == '/' || path[k] == 0) {
            path[k] = 0;
            (void)mkdir(path, 0777);
            path[k] = folder[k];
        }
    }
}

// Numbers from 2^63 on, which jansson does not take, as those of the same 64 bits.
static void wrap_numbers(char *text, size_t bytes) {
    bool quoted = false;
    for (size_t k = 0, digits; k<bytes; k += digits> 0 ? digits : 1) {
        char number[24];
        quoted ^= text[k] == '"' && (k == 0 || text[k - 1] != '\\');
        for (digits = 0; k + digits < bytes && text[k + digits] >= '0' && text[k + digits] <= '9';) {
            digits++;
        }
        if (quoted || digits < 19 || digits > 20 || (k > 0 && strchr("-+.eE", text[k - 1]))) {
            continue;
        }
        (void)snprintf(number, sizeof number, "%.*s", (int)digits, text + k);
        errno = 0;
        const uint64_t value = strtoull(number, NULL, 10);
        if (errno == 0 && value > INT64_MAX) {
            (void)snprintf(number, sizeof number, "%*lld", (int)digits, (long long)value);
            memcpy(text + k, number, digits);
        }
    }
}

static json_t *read_json(const char *path) {
    size_t bytes;
    json_error_t error;
    char *text = (char *)read_file(path, &bytes);
    if (!text) {
        return NULL;
    }
    wrap_numbers(text, bytes);
    json_t *root = json_loadb(text, bytes, 0, &error);
    free(text);
    if (!root) {
        (void)complain("%s: line %d: %s", path, error.line, error.text);
    }
    return root;
}

// ---- the case ---------------------------------------------------------------------------------------------

static bool get_u64(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value)) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_numbers(const json_t *array, uint64_t *out, size_t most, size_t *out_count) {
    *out_count = json_array_size(array);
    for (size_t k = 0; k < *out_count && k < most; k++) {
        if (!get_u64(json_array_get(array, k), &out[k])) {
            return false;
        }
    }
    return json_is_array(array) && *out_count <= most;
}

static bool read_buffers(run_case *c) {
    const json_t *list = json_object_get(c->root, "buffers");
    c->buffers = (int)json_array_size(list);
    if (c->buffers > MAX_BUFFERS) {
        return complain("more than %d buffers", MAX_BUFFERS);
    }
    for (int k = 0; k < c->buffers; k++) {
        const json_t *b = json_array_get(list, (size_t)k);
        const char *file = json_string_value(json_object_get(b, "file"));
        uint8_t *data = NULL;
        if (file) {
            char path[8192];
            size_t bytes;
            if (!path_of(c, file, path) || !(data = read_file(path, &bytes))) {
                return false;
            }
            c->bytes[k] = bytes;
        } else if (!get_u64(json_object_get(b, "bytes"), &c->bytes[k])) {
            return complain("buffer %d has neither file nor bytes", k);
        }
        if (c->bytes[k] > 0) { // else its address is 0, which is in no allocation
            c->address[k] = sbp_ptx_memory_alloc(c->memory, c->bytes[k]);
        }
        if (data && c->address[k]) {
            (void)sbp_ptx_memory_write(c->memory, c->address[k], data, c->bytes[k]);
        }
        free(data);
        if (!c->address[k] && c->bytes[k] > 0) {
            return complain("no memory for buffer %d of %llu bytes", k, (unsigned long long)c->bytes[k]);
        }
    }
    return true;
}

static bool read_map(const run_case *c, const json_t *m, void *out) {
    uint64_t buffer, dims[5], strides[4], box64[5], swizzle = 0;
    size_t rank, stride_count, box_count;
    const char *dtype = json_string_value(json_object_get(m, "dtype"));
    const json_t *strides_json = json_object_get(m, "strides");
    if (!dtype || !get_u64(json_object_get(m, "buffer"), &buffer) || buffer >= (uint64_t)c->buffers ||
        !read_numbers(json_object_get(m, "dims"), dims, 5, &rank) ||
        !(strides_json ? read_numbers(strides_json, strides, 4, &stride_count) : (stride_count = 0, true)) ||
        !read_numbers(json_object_get(m, "box"), box64, 5, &box_count) || rank != box_count ||
        stride_count + 1 != rank) {
        return complain("a broken tensor_map");
    }
    (void)get_u64(json_object_get(m, "swizzle"), &swizzle);
    uint32_t box[5];
    for (size_t k = 0; k < rank; k++) {
        box[k] = (uint32_t)box64[k];
    }
    const sbp_ptx_tma_type type = strcmp(dtype, "bf16") == 0  ? SBP_PTX_TMA_BF16
                                  : strcmp(dtype, "f16") == 0 ? SBP_PTX_TMA_F16
                                                              : SBP_PTX_TMA_F32;
    if (type == SBP_PTX_TMA_F32 && strcmp(dtype, "f32") != 0) {
        return complain("a tensor_map of type %s", dtype);
    }
    const char *fault = sbp_ptx_tensor_map_encode(out, type, (uint32_t)rank, c->address[buffer], dims,
                                                  strides, box, NULL, (uint32_t)swizzle);
    return fault ? complain("tensor_map: %s", fault) : true;
}

static bool read_arg(run_case *c, const json_t *arg, size_t k, size_t bytes) {
    uint64_t value;
    size_t size = 8;
    const json_t *f32 = json_object_get(arg, "f32"), *map = json_object_get(arg, "tensor_map");
    memset(c->args[k], 0, sizeof c->args[k]);
    if (map) {
        size = 128;
        if (!read_map(c, map, c->args[k])) {
            return false;
        }
    } else if (f32 && json_is_number(f32)) {
        const float f = (float)json_number_value(f32);
        memcpy(c->args[k], &f, size = sizeof f);
    } else if (get_u64(json_object_get(arg, "buffer"), &value)) {
        if (value >= (uint64_t)c->buffers) {
            return complain("argument %zu: there is no buffer %llu", k, (unsigned long long)value);
        }
        memcpy(c->args[k], &c->address[value], 8);
    } else if (get_u64(json_object_get(arg, "u32"), &value)) {
        memcpy(c->args[k], &value, size = 4);
    } else if (get_u64(json_object_get(arg, "u64"), &value)) {
        memcpy(c->args[k], &value, 8);
    } else {
        return complain("argument %zu is of no known kind", k);
    }
    return size == bytes ? true
                         : complain("argument %zu has %zu bytes, the parameter has %zu", k, size, bytes);
}

static bool read_args(run_case *c, const sbp_ptx_entry *entry) {
    const json_t *list = json_object_get(c->root, "args");
    const size_t count = json_array_size(list);
    if (count != (size_t)sbp_ptx_entry_params(entry) || count > MAX_ARGS) {
        return complain("%zu arguments for %d parameters", count, sbp_ptx_entry_params(entry));
    }
    for (size_t k = 0; k < count; k++) {
        if (!read_arg(c, json_array_get(list, k), k, sbp_ptx_entry_param(entry, (int)k).bytes)) {
            return false;
        }
        c->params[k] = c->args[k];
    }
    return true;
}

static bool read_shape(const run_case *c, const char *name, uint32_t out[3]) {
    uint64_t n[3] = {1, 1, 1};
    size_t count;
    if (!read_numbers(json_object_get(c->root, name), n, 3, &count) || count == 0) {
        return complain("'%s' must be up to 3 numbers", name);
    }
    for (int d = 0; d < 3; d++) {
        if (n[d] > UINT32_MAX) {
            return complain("'%s' is too large", name);
        }
        out[d] = (uint32_t)n[d];
    }
    return true;
}

static bool write_outputs(const run_case *c, const char *folder) {
    const json_t *list = json_object_get(c->root, "buffers");
    for (int k = 0; k < c->buffers; k++) {
        const char *name = json_string_value(json_object_get(json_array_get(list, (size_t)k), "out"));
        const void *data = c->bytes[k] ? sbp_ptx_memory_host(c->memory, c->address[k], c->bytes[k]) : "";
        if (name && !write_file(folder, name, data, c->bytes[k])) {
            return false;
        }
    }
    return true;
}

static double seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int launch(run_case *c, const sbp_ptx_entry *entry, const arguments *a) {
    uint32_t grid[3], block[3];
    uint64_t shared = 0;
    sbp_ptx_report report;
    (void)get_u64(json_object_get(c->root, "shared"), &shared);
    if (!read_shape(c, "grid", grid) || !read_shape(c, "block", block) || !read_args(c, entry) ||
        shared > UINT32_MAX) {
        return SBP_PTX_REFUSED;
    }
    sbp_ptx_options options = a->options;
    sbp_ptx_counts *counts = a->counts ? sbp_ptx_counts_create() : NULL;
    options.counts = counts;
    const double begin = seconds();
    const sbp_ptx_status status =
        sbp_ptx_launch(entry, grid, block, (uint32_t)shared, c->params, &options, &report);
    const double took = seconds() - begin;
    if (status != SBP_PTX_OK) {
        (void)fprintf(stderr, "ptxrun: %s: %s\n", status == SBP_PTX_FAULT ? "fault" : "refused", report.text);
    } else if (!write_outputs(c, a->out)) {
        sbp_ptx_counts_destroy(counts);
        return SBP_PTX_REFUSED;
    }
    if (a->counts) {
        sbp_ptx_counts_print(counts, stdout);
    }
    if (a->time) {
        const double n = (double)report.instructions;
        (void)printf("%.0f warp instructions in %.3f s: %.2f million/s\n", n, took, n / took * 1e-6);
    }
    sbp_ptx_counts_destroy(counts);
    return (int)status;
}

static int run(run_case *c, const arguments *a) {
    char path[8192];
    size_t bytes;
    const char *ptx = json_string_value(json_object_get(c->root, "ptx"));
    const char *name = json_string_value(json_object_get(c->root, "entry"));
    if (!ptx || !name || !path_of(c, ptx, path)) {
        (void)complain("'ptx' and 'entry' must be strings");
        return SBP_PTX_REFUSED;
    }
    char *text = (char *)read_file(path, &bytes);
    c->memory = sbp_ptx_memory_create(0);
    if (!text || !c->memory) {
        free(text);
        return SBP_PTX_REFUSED;
    }
    sbp_ptx_report report;
    c->module = sbp_ptx_module_load(c->memory, text, bytes, &report);
    free(text);
    if (!c->module) {
        (void)complain("refused: %s: %s", path, report.text);
        return SBP_PTX_REFUSED;
    }
    const sbp_ptx_entry *entry = sbp_ptx_module_entry(c->module, name);
    if (!entry) {
        (void)complain("%s has no entry '%s'", path, name);
        return SBP_PTX_REFUSED;
    }
    return read_buffers(c) ? launch(c, entry, a) : SBP_PTX_REFUSED;
}

static bool read_arguments(int argc, char **argv, arguments *a) {
    *a = (arguments){.options.seed = 1};
    for (int k = 1; k < argc; k++) {
        const bool more = k + 1 < argc;
        if (strcmp(argv[k], "--out") == 0 && more) {
            a->out = argv[++k];
        } else if (strcmp(argv[k], "--seed") == 0 && more) {
            a->options.seed = strtoull(argv[++k], NULL, 0);
        } else if (strcmp(argv[k], "--resident") == 0 && more) {
            a->options.resident = (int)strtol(argv[++k], NULL, 0);
        } else if (strcmp(argv[k], "--counts") == 0) {
            a->counts = true;
        } else if (strcmp(argv[k], "--time") == 0) {
            a->time = true;
        } else if (argv[k][0] != '-' && !a->json_path) {
            a->json_path = argv[k];
        } else {
            return false;
        }
    }
    return a->json_path && a->out;
}

int main(int argc, char **argv) {
    arguments a;
    if (!read_arguments(argc, argv, &a)) {
        (void)fprintf(
            stderr,
            "usage: ptxrun case.json --out DIR [--seed N] [--resident N (-1: all)] [--counts] [--time]\n");
        return SBP_PTX_REFUSED;
    }
    static run_case c; // large
    c.root = read_json(a.json_path);
    const char *slash = strrchr(a.json_path, '/');
    (void)snprintf(c.folder, sizeof c.folder, "%.*s", slash ? (int)(slash - a.json_path + 1) : 0,
                   a.json_path);
    if (!c.root) {
        return SBP_PTX_REFUSED;
    }
    make_folder(a.out);
    const int status = run(&c, &a);
    sbp_ptx_module_unload(c.module);
    sbp_ptx_memory_destroy(c.memory);
    json_decref(c.root);
    return status;
}
