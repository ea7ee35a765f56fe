#!/usr/bin/env python3
"""How long the system takes to pin host memory, by CUDA's driver alone: gpu_pinning.py LIBCUDA GIB ..

For each size a line of JSON: seconds to touch memory with huge pages by eight threads, to register it in pieces of 1 GiB, to
give it back; or what the driver has against it. What backends/cuda/device/pinned.c does."""
import ctypes
import json
import mmap
import sys
import threading
import time

PIECE, THREADS, PAGE = 1 << 30, 8, 4096
PORTABLE = 1


class Driver:
    """Functions of CUDA 12.0 by their plain names, found as backends/cuda/device/api.c finds them."""

    def __init__(self, path):
        self.find = ctypes.CDLL(path).cuGetProcAddress_v2

    def __getattr__(self, name):
        address = ctypes.c_void_p()
        if self.find(name.encode(), ctypes.byref(address), 12000, ctypes.c_uint64(0), None) or not address:
            raise SystemExit(f"the driver has no function {name}")
        function = ctypes.CFUNCTYPE(ctypes.c_int)(address.value)
        setattr(self, name, function)
        return function


def main():
    cuda = Driver(sys.argv[1])
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for status in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
                   cuda.cuCtxSetCurrent(context)):
        if status:
            print(json.dumps({"error": f"the driver does not start: {status}"}))
            return 1
    for gib in map(float, sys.argv[2:]):
        line = measure(cuda, int(gib * (1 << 30)) // PAGE * PAGE)
        print(json.dumps({"gib": gib, **line}), flush=True)
        if "error" in line:
            break
    return 0


def touch(memory, begin, end):
    # memset leaves Python's lock to the other threads
    ctypes.memset(memory + begin, 0, end - begin)


def measure(cuda, size):
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            area.madvise(mmap.MADV_HUGEPAGE)
        view = ctypes.c_char.from_buffer(area)
        address = ctypes.addressof(view)
        begun, each = time.monotonic(), -(-size // THREADS // PAGE) * PAGE
        threads = [threading.Thread(target=touch, args=(address, min(size, i * each), min(size, (i + 1) * each))) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        touched, done, status = time.monotonic(), 0, 0
        while done < size and not status:
            status = cuda.cuMemHostRegister(ctypes.c_void_p(address + done), ctypes.c_size_t(min(PIECE, size - done)), PORTABLE)
            done += 0 if status else PIECE
        registered = time.monotonic()
        for at in range(0, min(done, size), PIECE):
            cuda.cuMemHostUnregister(ctypes.c_void_p(address + at))
        line = {"touch_seconds": round(touched - begun, 3), "register_seconds": round(registered - touched, 3),
                "give_back_seconds": round(time.monotonic() - registered, 3)}
        if status:
            line["error"] = f"CUDA error {status} after {done / (1 << 30):.0f} GiB"
        del view
    return line


if __name__ == "__main__":
    sys.exit(main())
