/* fake_library.c: a library under the name of NVRTC, or of the driver, that has next to nothing. */
#include <stdlib.h>

int nvrtcVersion(int *major, int *minor);
int cuDriverGetVersion(int *version);

int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 99;
    return 0;
}

/* That of SBP_FAKE_DRIVER in the environment; without it an error. */
int cuDriverGetVersion(int *version) {
    const char *text = getenv("SBP_FAKE_DRIVER");
    *version = text ? atoi(text) : 0;
    return text ? 0 : 1;
}
