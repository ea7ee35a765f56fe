/* session.c: the end of what is trained. */
#include "runtime/cli/sbprun/session.h"

#include <unistd.h>

#include "runtime/train/shadow.h"

void sbp_session_close(sbp_session *session) {
    sbp_trainer_close(&session->trainer);
    sbp_kept_release(&session->state);
    sbp_shadow_destroy(session->shadow);
    if (session->temporary_plan)
        unlink(session->temporary_plan);
}
