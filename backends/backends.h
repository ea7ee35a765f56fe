/* backends.h: the list of backends (backends.def), as text and plain data: what there is, whether or not this
 * build has it. What a build has of them: target.h, devices.h, choice.h. No name of a backend stands anywhere
 * else outside its folder. Threads: no state. */
#ifndef SBP_BACKENDS_BACKENDS_H
#define SBP_BACKENDS_BACKENDS_H

#include "ir/base/base.h"

typedef enum sbp_backend_is {
    SBP_BACKEND_HOST = 1,     /* the processor that this process runs on, in the host's memory */
    SBP_BACKEND_HAS_TF32 = 2, /* --tf32: multiplies fp32 rounded to 10 bits of mantissa */
    SBP_BACKEND_TUNES = 4,    /* --tune: has several ways to compute a matmul */
    SBP_BACKEND_UNLISTED = 8  /* trains nothing: found by its name alone */
} sbp_backend_is;

typedef struct sbp_backend {
    const char *name, *title; /* "vulkan"; "Vulkan", for messages */
    unsigned is;              /* of sbp_backend_is */
    const char *without;      /* why a build may lack its target, a clause; "": none does */
} sbp_backend;

/* NULL after the last. */
const sbp_backend *sbp_backend_at(int32_t index);
/* NULL: there is none of that name. */
const sbp_backend *sbp_backend_find(const char *name);
/* The one that every machine has. */
const sbp_backend *sbp_backend_of_host(void);
/* Whether it is one of that name, and all of that. */
bool sbp_backend_is_a(const char *name, unsigned is);
/* Names of those that are all of that, "cuda or vulkan", into out, which is returned. */
const char *sbp_backend_names(unsigned is, char *out, size_t size);

/* `pointer` where the build has the library (has is 1), else NULL (0). For tables by backends.def; `has` is a
 * macro that CMakeLists.txt defines, SBP_TARGET_vulkan. */
#define SBP_BACKEND_BUILT(has, pointer) SBP_BACKEND_BUILT_AS(has, pointer)
#define SBP_BACKEND_BUILT_AS(has, pointer) SBP_BACKEND_BUILT_##has(pointer)
#define SBP_BACKEND_BUILT_0(pointer) NULL
#define SBP_BACKEND_BUILT_1(pointer) pointer

#endif
