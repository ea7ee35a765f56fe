/* older_libc.c: what the static libraries of C++ want of the C library since 2.32, for a program that is
 * linked against 2.28 (make_wheel.sh). Nothing else is linked into it. */
#include <stdint.h>
#include <sys/random.h>

/* Never: shared counts are atomic. */
char __libc_single_threaded = 0;

/* What std::random_device calls, which nothing here uses. */
uint32_t arc4random(void);
uint32_t arc4random(void) {
    uint32_t value = 0;
    while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
        ;
    return value;
}
