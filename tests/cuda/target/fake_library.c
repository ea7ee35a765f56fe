/* fake_library.c: a library under the name of NVRTC that has next to nothing. */
int nvrtcVersion(int *major, int *minor);

int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 99;
    return 0;
}
