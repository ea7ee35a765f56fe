/* cgroup.h: what the control groups that this process is in allow it, of version 2 and of version 1.
 *
 * A group is found where the kernel says: its path in /proc/self/cgroup, below the place in
 * /proc/self/mountinfo where its hierarchy, or that part of it which a container sees, is mounted. Limits of
 * the groups above it, up to what is mounted, hold as well.
 *
 * root: "", or a directory in which proc/ and sys/ lie, for tests. Linux. Thread safe. */
#ifndef SBP_IR_BASE_CGROUP_H
#define SBP_IR_BASE_CGROUP_H

#include <stdint.h>

/* Called for each memory limit of a control group: the limit in bytes, and how many of them the
 * group's processes use that the kernel cannot take back. Files that it caches only to read them again
 * do not count. */
typedef void (*sbp_cgroup_visitor)(void *user, int64_t bytes, int64_t used_bytes);

/* Every limit of memory: of version 2 memory.max, and memory.high, beyond which processes are held up. */
void sbp_cgroup_memory(const char *root, sbp_cgroup_visitor visit, void *user);
/* The least quota of processor time, in cores rounded up; 0: there is none. */
int64_t sbp_cgroup_cores(const char *root);

#endif
