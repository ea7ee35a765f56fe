/* choice.h: which backend `--backend auto` means on this machine, and how much memory a plan may count on.
 * Drivers are asked what devices they have; none is opened. Threads: no state. */
#ifndef SBP_BACKENDS_CHOICE_H
#define SBP_BACKENDS_CHOICE_H

#include "ir/base.h"

/* A device as its driver describes it. */
typedef struct sbp_candidate {
    char name[128];
    char missing[256];  /* why no plan can run on it, as a clause ("lacks shaderInt64"); "": nothing */
    bool software;      /* a driver that runs on the host's processor */
    bool fp64;          /* computes in it */
    int64_t free_bytes; /* that a process may take; 0 unknown */
} sbp_candidate;

typedef struct sbp_choice {
    const char *backend;  /* "cpu" or "vulkan" */
    int64_t memory_bytes; /* that a process may take there; 0 unknown */
    char reason[512];     /* a clause: "NVIDIA H200"; "no Vulkan GPU: only llvmpipe, which is software" */
} sbp_choice;

/* What to choose. */
typedef struct sbp_choice_wish {
    const char *backend; /* "auto", or one that was asked for */
    int32_t device;      /* number of the device, the best is 0 */
    bool fp64;           /* the plan computes in it */
} sbp_choice_wish;

/* The choice by plain data: the devices of Vulkan in the order of sbprun --devices; count 0: there is none,
 * and `none` says why. compiles: this build can compile for Vulkan. host_bytes: what a process may take of
 * the host's memory. A software device is taken only when it is asked for by name; a real one that computes
 * what is wished goes before the processor. */
void sbp_choice_make(const sbp_choice_wish *wish, const sbp_candidate *devices, int32_t count,
                     const char *none, bool compiles, int64_t host_bytes, sbp_choice *out);

/* The choice on this machine. No device is no error; SBP_MACHINE when memory runs out. */
sbp_status sbp_choice_find(const sbp_choice_wish *wish, sbp_diag *diag, sbp_choice *out) SBP_CHECKED;

#endif
