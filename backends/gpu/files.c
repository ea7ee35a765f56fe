/* files.c: the text of a kernel out of files. A kernel's file says by `#include` what it needs before it. */
#include "backends/gpu/gpu.h"

#include <string.h>

static const char *text_of(const sbp_gpu_file *files, const char *name, size_t length) {
    for (; files->name; files++) {
        size_t all = strlen(files->name);
        if (all >= length && strncmp(files->name + all - length, name, length) == 0 &&
            (all == length || files->name[all - length - 1] == '/'))
            return files->text;
    }
    return NULL;
}

/* No circles: what is included includes nothing. */
static void add_text(sbp_text *out, const sbp_gpu_file *files, const char *text) {
    static const char include[] = "#include \"";
    for (const char *line = strstr(text, include); line; line = strstr(text, include)) {
        const char *name = line + sizeof include - 1;
        size_t length = strcspn(name, "\"");
        const char *included = text_of(files, name, length);
        sbp_text_add_n(out, text, (size_t)(line - text));
        if (included)
            sbp_text_add_n(out, included, strlen(included));
        text = name + length + strcspn(name + length, "\n");
    }
    sbp_text_add_n(out, text, strlen(text));
}

bool sbp_gpu_add_file(sbp_text *out, const sbp_gpu_file *files, const char *name) {
    const char *text = text_of(files, name, strlen(name));
    if (text)
        add_text(out, files, text);
    return text != NULL;
}

bool sbp_gpu_add_kernel(sbp_text *out, const sbp_gpu_file *files, const char *name, const char *suffix,
                        const char *spelling) {
    sbp_text own, common;
    sbp_text_init(&own, out->arena);
    sbp_text_init(&common, out->arena);
    sbp_text_add(&own, "%s.%s", name, suffix);
    sbp_text_add(&common, "%s.kernel", name);
    if (sbp_gpu_add_file(out, files, own.data))
        return true;
    if (!text_of(files, common.data, common.length))
        return false;
    return sbp_gpu_add_file(out, files, spelling) && sbp_gpu_add_file(out, files, common.data);
}
