/* command_doctor.c: `sbprun doctor`: what this machine has and lacks for this program, a line each. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backends/backends.h"
#include "backends/choice.h"
#include "backends/devices.h"
#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/child.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/launcher.h"
#include "runtime/data/source/parquet.h"
#include "runtime/options/options.h"
#include "runtime/run/devices.h"

static const char usage[] =
    "usage: sbprun doctor [--json]\n\n"
    "What this machine has and lacks, a line each: programs, processor, memory, disks, GPUs\n"
    "and their drivers, libraries that are opened when they are used, and what to install.\n"
    "'ok' is there; 'none' is not needed for what was found; 'lacks' wants something.\n";

/* OK: it is there; NONE: it is not, and nothing here needs it; LACKS: something here does. */
typedef enum finding_state { FOUND_OK, FOUND_NONE, FOUND_LACKS } finding_state;

static const char *const states[] = {"ok", "none", "lacks"};

typedef struct finding {
    finding_state state;
    const char *part, *text;
    const char *install; /* what to do; NULL: nothing */
} finding;

typedef struct doctor_job {
    sbp_arena *arena;
    sbp_diag *diag, *why; /* why: of what is looked at */
    int argc;
    char *const *argv;
    finding *findings;
    int32_t count, capacity;
    const sbp_device_class *class; /* whose libraries are looked at */
    bool has_device;               /* it has one, or its card is in this machine */
} doctor_job;

static void add(doctor_job *job, finding_state state, const char *part, const char *text,
                const char *install) {
    SBP_PUSH(job->arena, job->findings, job->count, job->capacity,
             (finding){.state = state, .part = part, .text = text, .install = install});
}

/* The first error, without "error: ". */
static const char *reason_of(doctor_job *job) {
    const char *text = sbp_diag_text(job->why, SBP_ERROR);
    text += strncmp(text, "error: ", 7) == 0 ? 7 : 0;
    return sbp_arena_strndup(job->arena, text, strcspn(text, "\n"));
}

/* ---- programs, processor, memory, disks ------------------------------------------------------------- */

static void look_at_programs(doctor_job *job) {
    const char *path = NULL;
    char self[4096] = "";
    (void)!readlink("/proc/self/exe", self, sizeof self - 1);
    add(job, FOUND_OK, "sbprun", sbp_arena_printf(job->arena, "version %s, %s", SBP_VERSION, self), NULL);
    if (sbp_child_find(job->arena, job->why, "sbpc", &path) == SBP_OK)
        add(job, FOUND_OK, "sbpc", path, NULL);
    else
        add(job, FOUND_LACKS, "sbpc", reason_of(job), "put sbpc beside sbprun, to train without a plan");
}

static void look_at_memory(doctor_job *job) {
    char text[100], processor[160];
    int32_t cores = sbp_machine_cores();
    add(job, FOUND_OK, "processor",
        sbp_arena_printf(job->arena, "%s; %d core%s for this process",
                         sbp_machine_processor(processor, sizeof processor), cores, cores == 1 ? "" : "s"),
        NULL);
    add(job, FOUND_OK, "memory", sbp_arena_strdup(job->arena, sbp_machine_memory_text(text, sizeof text)),
        NULL);
}

static void look_at_disk(doctor_job *job, const char *part, const char *path) {
    struct statvfs s;
    char have[32], all[32];
    if (statvfs(path, &s) != 0)
        return;
    double unit = (double)s.f_frsize, bytes = (double)s.f_bavail * unit;
    bool writable = access(path, W_OK) == 0 && !(s.f_flag & ST_RDONLY);
    const char *text =
        sbp_arena_printf(job->arena, "%s: %s free of %s%s", path, sbp_format_bytes(have, sizeof have, bytes),
                         sbp_format_bytes(all, sizeof all, (double)s.f_blocks * unit),
                         writable ? "" : ", not to be written to");
    if (!writable)
        add(job, FOUND_LACKS, part, text, "give --out, and TMPDIR, a directory that can be written to");
    else if (bytes < 1e9)
        add(job, FOUND_LACKS, part, text, "a model and its checkpoints want more: give --out another disk");
    else
        add(job, FOUND_OK, part, text, NULL);
}

static void look_at_disks(doctor_job *job) {
    char here[4096], cache[4096];
    const char *tmp = getenv("TMPDIR");
    if (getcwd(here, sizeof here))
        look_at_disk(job, "disk here", here);
    look_at_disk(job, "disk for temporary files", tmp && *tmp ? tmp : "/tmp");
    if (sbp_cache_path("", cache, sizeof cache)) {
        for (char *slash = strrchr(cache, '/'); access(cache, F_OK) != 0 && slash > cache;
             slash = strrchr(cache, '/')) /* the nearest that is there */
            *slash = '\0';
        look_at_disk(job, "disk for caches", sbp_arena_strdup(job->arena, cache));
    }
}

/* ---- GPUs ------------------------------------------------------------------------------------------- */

/* The number that stands in a file of /sys; -1: none does. */
static long number_in(const char *device, const char *name) {
    char path[300], line[40] = "";
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/%s", device, name);
    FILE *file = fopen(path, "r");
    long number = file && fgets(line, sizeof line, file) ? strtol(line, NULL, 16) : -1;
    if (file)
        fclose(file);
    return number;
}

/* Cards of the machine by their makers, whatever drivers say. Below a guard, which must not find
 * the folder open. */
static void look_at_cards(doctor_job *job) {
    static const struct maker {
        long id;
        const char *name;
    } makers[] = {{0x10de, "NVIDIA"}, {0x1002, "AMD"}, {0x8086, "Intel"}};
    int counts[SBP_COUNT(makers)] = {0};
    DIR *devices = opendir("/sys/bus/pci/devices");
    for (struct dirent *entry; devices && (entry = readdir(devices));)
        for (int i = 0; i < SBP_COUNT(makers); i++)
            counts[i] += number_in(entry->d_name, "class") >> 16 == 3 &&
                         number_in(entry->d_name, "vendor") == makers[i].id;
    if (devices)
        closedir(devices);
    for (int i = 0; i < SBP_COUNT(makers); i++)
        if (counts[i] > 0)
            add(job, FOUND_OK, "cards",
                sbp_arena_printf(job->arena, "%d of %s on the bus", counts[i], makers[i].name), NULL);
}

static void add_device(doctor_job *job, int32_t index, const sbp_device_info *info) {
    char bytes[32], free_bytes[32];
    const char *memory = sbp_format_bytes(bytes, sizeof bytes, (double)info->memory_bytes);
    sbp_text text;
    sbp_text_init(&text, job->arena);
    sbp_text_add(&text, "%s", info->name);
    if (info->threads == 0)
        sbp_text_add(&text, ", device %d, %s", index, memory);
    else
        sbp_text_add(&text, ": the instruction set that kernels use is in brackets");
    if (info->available_bytes > 0)
        sbp_text_add(&text, ", %s free",
                     sbp_format_bytes(free_bytes, sizeof free_bytes, (double)info->available_bytes));
    sbp_text_add(&text, "%s", info->software ? "; in software, which --backend auto never takes" : "");
    add(job, FOUND_OK, job->class->name, text.data, NULL);
    job->has_device |= !info->software && info->threads == 0;
}

static void take_library(void *user, const sbp_device_library *library) {
    doctor_job *job = user;
    const char *text = sbp_arena_printf(job->arena, "%s (%s): %s", library->name, library->what,
                                        library->path ? library->path : "not found");
    add(job,
        library->path     ? FOUND_OK
        : job->has_device ? FOUND_LACKS
                          : FOUND_NONE,
        job->class->name, text, library->path ? NULL : sbp_arena_strdup(job->arena, library->brings));
}

static void look_at_backend(doctor_job *job) {
    int32_t count = 1;
    job->has_device = false;
    sbp_diag_clear(job->why);
    if (job->class->count && job->class->count(job->why, &count) != SBP_OK) {
        add(job, FOUND_NONE, job->class->name, reason_of(job), NULL);
        count = 0;
    }
    for (int32_t i = 0; i < count; i++) {
        sbp_device_info info;
        sbp_diag_clear(job->why);
        if (sbp_device_describe(job->class, i, job->why, &info) == SBP_OK)
            add_device(job, i, &info);
        else
            add(job, FOUND_NONE, job->class->name, reason_of(job), NULL);
    }
    if (job->class->libraries)
        job->class->libraries(take_library, job);
}

/* ---- the rest --------------------------------------------------------------------------------------- */

static void look_at_others(doctor_job *job) {
    const char *mpirun;
    if (sbp_parquet_has_snappy())
        add(job, FOUND_OK, "libsnappy.so.1", "decompresses Parquet", NULL);
    else
        add(job, FOUND_LACKS, "libsnappy.so.1", "not found: most Parquet files are compressed by it",
            "Debian: libsnappy1v5; Fedora: snappy");
    sbp_diag_clear(job->why);
    if (sbp_launch_check(job->arena, job->why, "--ranks N", &mpirun) == SBP_OK)
        add(job, FOUND_OK, "MPI", sbp_arena_printf(job->arena, "--ranks N starts %s", mpirun), NULL);
    else
        add(job, FOUND_NONE, "MPI", reason_of(job), NULL);
}

static void look_at_choice(doctor_job *job) {
    const sbp_choice_request request = {.backend = "auto"};
    sbp_choice choice;
    char bytes[32];
    sbp_diag_clear(job->why);
    if (sbp_choice_find(&request, job->why, &choice) != SBP_OK) {
        add(job, FOUND_LACKS, "choice", reason_of(job), NULL);
        return;
    }
    add(job, FOUND_OK, "choice",
        sbp_arena_printf(job->arena, "sbprun MODEL takes --backend %s (%s), %s free there", choice.backend,
                         choice.reason, sbp_format_bytes(bytes, sizeof bytes, (double)choice.memory_bytes)),
        NULL);
}

static void look_at_all(doctor_job *job) {
    look_at_programs(job);
    look_at_memory(job);
    look_at_disks(job);
    look_at_cards(job);
    for (int32_t i = 0; (job->class = sbp_device_at(i)) != NULL; i++)
        look_at_backend(job);
    look_at_others(job);
    look_at_choice(job);
}

/* ---- printing --------------------------------------------------------------------------------------- */

static void print_json(const doctor_job *job, sbp_text *out) {
    sbp_json_writer w = sbp_json_writer_on(out);
    w.lines = 1;
    sbp_json_write_array(&w, NULL);
    for (int32_t i = 0; i < job->count; i++) {
        const finding *f = &job->findings[i];
        sbp_json_write_object(&w, NULL);
        sbp_json_write_string(&w, "part", f->part);
        sbp_json_write_string(&w, "state", states[f->state]);
        sbp_json_write_string(&w, "text", f->text);
        sbp_json_write_string(&w, "install", f->install);
        sbp_json_write_end(&w);
    }
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
}

static void print_lines(const doctor_job *job, sbp_text *out) {
    int width = 0;
    for (int32_t i = 0; i < job->count; i++)
        width = (int)sbp_max_i64(width, (int64_t)strlen(job->findings[i].part));
    for (int32_t i = 0; i < job->count; i++) {
        const finding *f = &job->findings[i];
        sbp_text_add(out, "%-5s  %-*s  %s%s%s%s\n", states[f->state], width, f->part, f->text,
                     f->install ? " (" : "", f->install ? f->install : "", f->install ? ")" : "");
    }
}

static sbp_status doctor_body(void *user) {
    doctor_job *job = user;
    sbp_options *options;
    sbp_text out;
    sbp_text_init(&out, job->arena);
    SBP_TRY(sbp_options_parse(job->arena, job->diag, "sbprun doctor", SBP_PHASE_DOCTOR, job->argc, job->argv,
                              &options));
    if (sbp_options_on(options, SBP_OPT_HELP))
        return sbp_print(job->diag, usage, strlen(usage));
    if (sbp_options_arg_count(options) > 0)
        return sbp_fail(job->diag, SBP_USAGE, "sbprun doctor takes no '%s'; see sbprun doctor --help",
                        sbp_options_arg(options, 0));
    look_at_all(job);
    if (sbp_options_on(options, SBP_OPT_JSON))
        print_json(job, &out);
    else
        print_lines(job, &out);
    return sbp_print(job->diag, out.data, out.length);
}

sbp_status sbp_command_doctor(sbp_diag *diag, int argc, char *const *argv) {
    doctor_job job = {
        .arena = sbp_arena_create(), .diag = diag, .why = sbp_diag_create(), .argc = argc, .argv = argv};
    sbp_status status = job.arena && job.why
                            ? sbp_guard(job.arena, diag, doctor_body, &job)
                            : sbp_fail(diag, SBP_MACHINE, "out of memory for looking at this machine");
    sbp_diag_destroy(job.why);
    sbp_arena_destroy(job.arena);
    return status;
}
