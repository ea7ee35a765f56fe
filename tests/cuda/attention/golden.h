/* golden.h: tables of lines, of which a short run makes some. */
#ifndef SBP_TESTS_CUDA_GOLDEN_H
#define SBP_TESTS_CUDA_GOLDEN_H

#include "ir/base/base.h"

/* SBP_TEST_ALL=1 */
bool golden_everything(void);
/* How many lines are not in the file; they are printed. With SBP_UPDATE_GOLDENS and `whole` (these are all
 * its lines) the file is written anew before. A file of another version of NVRTC is not compared: "skipped:
 * ..". After kernels_open(). */
int golden_check(const char *path, const sbp_text *lines, bool whole);

#endif
