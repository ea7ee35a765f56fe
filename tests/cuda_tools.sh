#!/usr/bin/env bash
# NVIDIA's compiler for kernels, NVRTC, and its disassembler, out of wheels of PyPI into build/cuda-tools: what tests of
# the CUDA backend need where no toolkit is installed. No GPU, no driver, no Python environment. Some 95 MB are fetched
# once; without a network nothing happens, and those tests are skipped.
#   tests/cuda_tools.sh        prints the folder of the libraries
# Needs python3 and unzip; pip is used where it is there, else PyPI is asked directly.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$top/build/cuda-tools
packages=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvdisasm==13.2.78)

# wheel PACKAGE==VERSION: into $work
wheel() {
    if python3 -m pip --version > /dev/null 2>&1; then
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$work" "$1"
    else
        python3 - "$1" "$work" << 'END'
import hashlib, os, platform, re, sys, urllib.parse, urllib.request
name, version = sys.argv[1].split("==")
index = f"https://pypi.org/simple/{name}/"
page = urllib.request.urlopen(index, timeout=60).read().decode()
files = re.findall(r'href="([^"#]*/([^"#/]*)\.whl)#sha256=([0-9a-f]{64})"', page)
start, end = f"{name.replace('-', '_')}-{version}-", "_" + platform.machine()
fit = [(url, file, digest) for url, file, digest in files if file.startswith(start) and file.endswith(end)]
if not fit:
    sys.exit(f"no wheel of {name} {version} for {platform.machine()}")
url, file, digest = fit[0]
data = urllib.request.urlopen(urllib.parse.urljoin(index, url), timeout=600).read()
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit(f"{name}: damaged on its way")
with open(os.path.join(sys.argv[2], file + ".whl"), "wb") as out:
    out.write(data)
END
    fi
}

stamp="${packages[*]}"
if [ "$(cat "$folder/packages" 2> /dev/null)" != "$stamp" ]; then
    mkdir -p "$top/build"
    work=$(mktemp -d "$top/build/cuda-tools.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    for package in "${packages[@]}"; do
        wheel "$package" >&2 || { echo "tests/cuda_tools.sh: $package could not be fetched" >&2; exit 1; }
    done
    mkdir "$work/all" "$work/done" "$work/done/lib" "$work/done/bin"
    for file in "$work"/*.whl; do
        unzip -q -o "$file" -d "$work/all"
    done
    # two libraries and a program; the "alt" ones are the same for old processors
    find "$work/all" -type f \( -name 'libnvrtc.so.*' -o -name 'libnvrtc-builtins.so.*' \) -exec mv -t "$work/done/lib" {} +
    find "$work/all" -type f -name nvdisasm -exec mv -t "$work/done/bin" {} +
    chmod +x "$work/done/bin/nvdisasm"
    [ -f "$work/done/lib/libnvrtc.so.13" ] || { echo "tests/cuda_tools.sh: the package has no libnvrtc.so.13" >&2; exit 1; }
    echo "$stamp" > "$work/done/packages"
    rm -rf "$folder"
    mv "$work/done" "$folder"
fi
echo "$folder/lib"
