/* disk.h: the disk arena: a file that has its space from the beginning and no name, so that it is gone with
 * the process. One thread at a time; the counts may be read by any. */
#ifndef SBP_BACKENDS_COMPOSITE_DISK_H
#define SBP_BACKENDS_COMPOSITE_DISK_H

#include "ir/base/base.h"

typedef struct composite_disk composite_disk;

/* Makes a file of `bytes` bytes in a directory. SBP_MACHINE when there is no room for it, with what it needs
 * and what is free; SBP_IO when the directory cannot be used. */
sbp_status composite_disk_create(const char *directory, int64_t bytes, sbp_diag *diag,
                                 composite_disk **out) SBP_CHECKED;
void composite_disk_destroy(composite_disk *disk);
/* Between memory and the file; SBP_IO when the system fails. Large pieces go around the page cache where the
 * file system lets them. */
sbp_status composite_disk_write(composite_disk *disk, int64_t offset, const void *data, int64_t bytes,
                                sbp_diag *diag) SBP_CHECKED;
sbp_status composite_disk_read(composite_disk *disk, int64_t offset, void *data, int64_t bytes,
                               sbp_diag *diag) SBP_CHECKED;
/* Bytes moved so far, either way. */
void composite_disk_counts(const composite_disk *disk, int64_t *read_bytes, int64_t *written_bytes);

#endif
