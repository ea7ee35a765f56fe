"""The machine that gpu_check runs on: programs, libraries, Python, memory. Standard library alone."""
import glob
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

from gpu_schedule import Commands, Failed

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Where machines keep NVIDIA's libraries, beside the folders that the loader knows; {}: where Python's packages lie.
PYTHON = ["{home}/.local/lib/python3*/site-packages", "{prefix}/lib/python3*/site-packages", "/opt/*/lib/python3*/site-packages",
          "/opt/*/.venv/lib/python3*/site-packages", "/opt/*/venv/lib/python3*/site-packages", "/opt/*/envs/*/lib/python3*/site-packages",
          "/usr/local/lib/python3*/dist-packages", "/usr/lib/python3/dist-packages", "{home}/*/lib/python3*/site-packages", "/venv/lib/python3*/site-packages"]
FOLDERS = [folder + "/nvidia/*/lib" for folder in PYTHON] + ["/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib", "/opt/cuda*/lib64",
          "/opt/conda/lib", "/opt/*/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"]
LIBRARIES = ["libnvrtc.so.13", "libcublasLt.so.13", "libnccl.so.2"]
OLDER = {"libnvrtc.so.13": "libnvrtc.so.12", "libcublasLt.so.13": "libcublasLt.so.12"}  # what will do as well
DRIVER = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"]
ICDS = ["/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/nvidia/share/vulkan/icd.d", "/usr/local/nvidia/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"]
# Data sheets: dense bf16 TFLOP/s and GB/s of memory.
PEAKS = [("H200", 989, 4800), ("H100", 989, 3350), ("A100.*80", 312, 2039), ("A100", 312, 1555), ("4090", 165, 1008)]
GIB = 1 << 30


def paths(pattern):
    return sorted(glob.glob(pattern.format(home=os.path.expanduser("~"), prefix=sys.prefix)), reverse=True)


def find_library(name, folders):
    for folder in folders:
        for path in paths(f"{folder}/{name}"):
            if "/stubs/" not in path and "/compat/" not in path:
                return path
    return None


def loader_finds(name):
    """Whether it is in a folder that the loader knows by itself, or that LD_LIBRARY_PATH names."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    try:
        text = subprocess.run(["ldconfig", "-p"], capture_output=True, timeout=5, check=False).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(re.escape(name) + r" .*=> (\S+)", text)
    return found.group(1) if found else None


def size(text):
    """Bytes of "80GiB"."""
    number, unit = re.fullmatch(r"([0-9.]+) *([KMGT]i?B|B|)", text).groups()
    power = "KMGT".find(unit[:1]) + 1 if unit not in ("B", "") else 0
    return int(float(number) * (1024 if "i" in unit else 1000) ** power)


class Machine(Commands):
    def __init__(self, options, results, clock=time.monotonic):
        super().__init__(clock)
        self.options, self.results = options, results
        self.backend = os.environ.get("SBP_BACKEND", "cuda")
        self.tiny = options.tiny
        self.work = tempfile.mkdtemp(prefix="gpu_check")
        self.build = self.find_build()
        self.env = {}
        self.gpu = {}
        self.libraries = {}
        self.set_environment()

    def find_build(self):
        """SBP_BUILD, else what gpu_bundle made (unpacked, or a file in build/ that is unpacked now), else a build."""
        self.ready, packed = os.path.join(TOP, "ready"), os.path.join(TOP, "build/gpu-ready.tar.xz")
        if not os.path.exists(self.ready) and os.path.exists(packed) and not os.path.exists(os.path.join(TOP, "build/release/sbprun")):
            with tarfile.open(packed) as tar:
                tar.extractall(self.work)
            self.ready = os.path.join(self.work, "ready")
        found = self.ready if os.path.exists(os.path.join(self.ready, "sbprun")) else os.path.join(TOP, "build/release")
        return os.environ.get("SBP_BUILD") or found

    def program(self, name):
        return os.path.join(self.build, name)

    def bundled(self, name):
        return os.path.join(self.ready, name)

    def about(self):
        commit = "unknown"
        try:
            with open(next(path for path in (os.path.join(TOP, "COMMIT"), self.bundled("COMMIT")) if os.path.exists(path)), encoding="utf-8") as file:
                commit = file.read().strip()
        except (OSError, StopIteration):
            found = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True, check=False)
            commit = found.stdout.decode().strip() or commit
        return {"commit": commit, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "backend": self.backend, "tiny": self.tiny, "gpu": self.query_gpu()}

    def begin(self, part, log, deadline):
        self.log, self.deadline = log, deadline
        self.env["SBP_GPU_CHECK_PART"] = part.name
        log.write(f"==== {part.name}\n".encode())

    def end(self):
        shutil.rmtree(self.work, ignore_errors=True)

    def end_of_log(self, part):
        with open(os.path.join(self.results.folder, part + ".log"), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 1200))
            return file.read().decode(errors="replace")

    # ---- what is here ----

    def query_gpu(self):
        keys = "name,driver_version,memory.total,compute_cap,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,utilization.gpu"
        try:
            done = subprocess.run(["nvidia-smi", "--query-gpu=" + keys, "--format=csv,noheader,nounits"], capture_output=True, timeout=8, check=False)
            values = done.stdout.decode().splitlines()[0].split(", ") if done.returncode == 0 and done.stdout else []
        except (OSError, subprocess.SubprocessError):
            values = []
        if values:
            self.gpu = dict(zip(keys.split(","), values))
        return self.gpu

    def peaks(self):
        for name, flops, bandwidth in PEAKS:
            if re.search(name, self.gpu.get("name", "")):
                return flops, bandwidth
        return None

    def arch(self):
        major, _, minor = self.gpu.get("compute_cap", "9.0").partition(".")
        return os.environ.get("SBP_CUDA_ARCHS") or f"sm_{major}{minor}" + ("a" if major == "9" else "")

    def memory(self):
        if self.options.memory:
            return self.options.memory
        mib = int(float(self.gpu.get("memory.total", "81559")))
        return "1GiB" if self.tiny else f"{mib - 1536}MiB"

    def host_memory(self):
        given = self.options.host_memory or os.environ.get("SBP_HOST_MEMORY")
        if given:
            return given
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return "1GiB" if self.tiny else f"{pages * 3 // 4 >> 20}MiB"

    def set_environment(self):
        """Libraries that the loader would not find become links in one folder, so that nothing else of theirs is found."""
        links = os.path.join(self.work, "lib")
        os.makedirs(links, exist_ok=True)
        self.libraries["libcuda.so.1"] = loader_finds("libcuda.so.1") or self.link(links, find_library("libcuda.so.1", DRIVER))
        for name in LIBRARIES:
            known = loader_finds(name) if name != LIBRARIES[0] or not os.path.exists(self.bundled(f"lib/{name}.xz")) else None
            self.libraries[name] = known or self.link(links, self.unpacked(name, links) or find_library(name, FOLDERS))
            if not self.libraries[name] and name in OLDER:
                self.libraries[name] = loader_finds(OLDER[name]) or self.link(links, find_library(OLDER[name], FOLDERS))
        folders = [os.environ.get("LD_LIBRARY_PATH", ""), links, os.path.join(self.build, "lib")]
        self.env = {**os.environ, "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder)}
        if self.backend == "cuda":
            self.query_gpu()
            self.env["SBP_CUDA_ARCHS"] = self.arch()
        if os.path.isdir(self.bundled("cache")):
            self.env["XDG_CACHE_HOME"] = self.bundled("cache")
        if not any(glob.glob(folder + "/*.json") for folder in ICDS[:2]):
            found = [path for folder in ICDS[2:] for path in glob.glob(folder + "/*.json")]
            if found:
                self.env.setdefault("VK_DRIVER_FILES", ":".join(found))

    def unpacked(self, name, links):
        """What the bundle carries packed: the version that its kernels were compiled and tried with."""
        for packed in sorted(glob.glob(self.bundled(f"lib/{name.split('.so')[0]}*.xz")), reverse=True):
            target = os.path.join(links, os.path.basename(packed)[:-3])
            with lzma.open(packed) as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
        path = os.path.join(links, name)
        return path if os.path.exists(path) else None

    def link(self, links, path):
        if not path:
            return None
        beside = [path] + glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.1*")) if "nvrtc" in path else [path]
        for one in beside:
            target = os.path.join(links, os.path.basename(one))
            if not os.path.exists(target):
                os.symlink(one, target)
        return path

    def python_with(self, module):
        names = [sys.executable, "python3"] + [path for pattern in ("/opt/*/bin/python3", "/opt/*/.venv/bin/python3", "/opt/*/venv/bin/python3", "{home}/*/bin/python3")
                                               for path in paths(pattern)]
        for name in names:
            try:
                code = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
                if subprocess.run([name, "-c", code], capture_output=True, timeout=10, check=False).returncode == 0:
                    return name
            except (OSError, subprocess.SubprocessError):
                pass
        return None

    # ---- running ----

    def call(self, command, limit=None, line=None, more=None, clean=False):
        """Standard output of a command that must succeed. more: of the environment; clean: as it was given to us."""
        status, text = self.run(command, {**(os.environ if clean else self.env), **(more or {})}, limit, TOP, line)
        if status != 0:
            raise Failed(f"exit status {status}: {' '.join(command)[:200]}")
        return text

    def facts(self):
        disk, free = shutil.disk_usage(self.work), shutil.disk_usage(self.results.folder)
        tools = {name: bool(shutil.which(name)) for name in ("gcc", "cmake", "ninja", "nvcc", "nvidia-smi", "compute-sanitizer")}
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = re.search(r"model name\s*: (.*)", file.read())
        return {"processor": model.group(1) if model else platform.machine(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
                "libc": " ".join(platform.libc_ver()), "python": platform.python_version(),
                "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB, 1),
                "disk_free_gib": round(disk.free / GIB, 1), "results_free_gib": round(free.free / GIB, 1), "tools": tools}
