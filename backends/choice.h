/* choice.h: which backend `--backend auto` means on this machine, and how much memory a plan may count on.
 * Drivers are asked what devices they have, in a process of their own: nothing of them stays in this one.
 * Those of CUDA are opened for a moment, to see how much memory is free. Threads: no state. */
#ifndef SBP_BACKENDS_CHOICE_H
#define SBP_BACKENDS_CHOICE_H

#include "ir/base/base.h"

/* A device as its driver describes it. */
typedef struct sbp_candidate {
    char name[128];
    char missing[256];  /* why no plan can run on it, as a clause ("lacks shaderInt64"); "": nothing */
    char arch[16];      /* what --arch would say for it alone; "": the backend has no architectures */
    bool software;      /* a driver that runs on the host's processor */
    bool fp64;          /* computes in it */
    int64_t free_bytes; /* that a process may take; 0 unknown */
} sbp_candidate;

/* A backend for GPUs, and what this machine has of them. */
typedef struct sbp_choice_backend {
    const char *name, *title;     /* "vulkan"; "Vulkan", for messages */
    bool compiles;                /* this build can compile for it */
    bool absent;                  /* there is no driver: said only where nothing else is to be said */
    const sbp_candidate *devices; /* in the order of sbprun --devices */
    int32_t count;                /* 0: there is none, and `none` says why */
    const char *none;
} sbp_choice_backend;

/* What a driver says when it is asked for its devices. All zeros: nothing. */
typedef struct sbp_probed {
    sbp_candidate *devices; /* [count], the caller's to free; in the order of sbprun --devices */
    int32_t count;
    bool absent;    /* there is no driver, and `none` says which */
    char none[256]; /* why there is no device */
} sbp_probed;

/* Looks for a device: each backend for GPUs has sbp_<name>_probe in its folder. SBP_MACHINE: there is no
 * device, and diag says why. */
typedef sbp_status sbp_probe(sbp_diag *diag, sbp_probed *out) SBP_CHECKED;

typedef struct sbp_choice {
    const char *backend;  /* "cpu", or a name of those given */
    char arch[16];        /* of the device; "": not known, or there are no architectures */
    int64_t memory_bytes; /* that a process may take there; 0 unknown */
    char reason[512];     /* a clause: "NVIDIA H200"; "no Vulkan GPU: only llvmpipe, which is software" */
} sbp_choice;

/* What to choose. */
typedef struct sbp_choice_request {
    const char *backend; /* "auto", or one that was asked for */
    int32_t device;      /* number of the device, the best is 0 */
    bool fp64;           /* the plan computes in it */
} sbp_choice_request;

/* The choice by plain data: backends for GPUs, the best first. host_bytes: what a process may take of the
 * host's memory. A software device is taken only when its backend is asked for by name; a real one that
 * computes what is asked for goes before the processor. */
void sbp_choice_make(const sbp_choice_request *request, const sbp_choice_backend *backends, int32_t count,
                     int64_t host_bytes, sbp_choice *out);

/* The choice on this machine. No device is no error; SBP_MACHINE when memory runs out. */
sbp_status sbp_choice_find(const sbp_choice_request *request, sbp_diag *diag, sbp_choice *out) SBP_CHECKED;

#endif
