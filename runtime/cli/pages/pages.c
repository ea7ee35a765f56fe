/* pages.c: writes what is installed beside the two programs: `pages KIND PROGRAM FILE`, KIND: man, bash, zsh,
 * fish. Run while building. */
#include <stdio.h>
#include <string.h>

#include "ir/base/file.h"
#include "runtime/options/options.h"

static const char *const kinds[] = {"man", "bash", "zsh", "fish"}; /* by sbp_page */

typedef struct pages_job {
    sbp_arena *arena;
    sbp_diag *diag;
    char **argv;
} pages_job;

static sbp_status write_page(void *user) {
    const pages_job *job = user;
    const char *program;
    int page = 0;
    for (int32_t i = 0; (program = sbp_options_program_at(i)) && strcmp(program, job->argv[2]) != 0; i++)
        ;
    while (page < SBP_COUNT(kinds) && strcmp(kinds[page], job->argv[1]) != 0)
        page++;
    if (!program || page == SBP_COUNT(kinds))
        return sbp_fail(job->diag, SBP_USAGE, "there is no page '%s' of '%s'", job->argv[1], job->argv[2]);
    sbp_text text;
    sbp_text_init(&text, job->arena);
    sbp_options_print_page(&text, (sbp_page)page, program);
    return sbp_file_write(job->diag, job->argv[3], text.data, text.length);
}

int main(int argc, char **argv) {
    pages_job job = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .argv = argv};
    sbp_status status = SBP_USAGE;
    if (argc != 4 || !job.arena || !job.diag)
        fputs("usage: pages man|bash|zsh|fish PROGRAM FILE\n", stderr);
    else
        status = sbp_guard(job.arena, job.diag, write_page, &job);
    if (job.diag)
        fputs(sbp_diag_text(job.diag, SBP_ERROR), stderr);
    sbp_arena_destroy(job.arena);
    sbp_diag_destroy(job.diag);
    return (int)status;
}
