#!/usr/bin/env bash
# Builds llama.cpp on the CPU from the source package that PyPI has, and compares `sbprun export` with it:
#
#     tests/gguf/llama.sh BUILD [check.py's arguments]
#
# BUILD: the folder of sbprun. Needs pip, cmake, ninja, a C++ compiler and a Python with torch, transformers, numpy
# and sentencepiece ($SBP_PYTHON, else python3). What it makes lies in $SBP_LLAMA (build/llama-cpp): kept, and
# taken as it is the next time. Exit status 77: something is missing, and what is said.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
shift
version=0.3.36
home=${SBP_LLAMA:-$root/build/llama-cpp}
python=${SBP_PYTHON:-python3}
tree=$home/llama_cpp_python-$version/vendor/llama.cpp

skip() {
    echo "skipped: $*" >&2
    exit 77
}

for program in pip cmake ninja c++; do
    command -v $program >/dev/null || skip "no $program"
done
"$python" -c 'import torch, transformers, numpy' 2>/dev/null || skip "$python lacks torch, transformers or numpy (SBP_PYTHON names another)"
mkdir -p "$home"

if [ ! -f "$tree/include/llama.h" ]; then
    (cd "$home" && pip download --quiet --no-binary :all: --no-deps --no-build-isolation "llama-cpp-python==$version") ||
        (cd "$home" && pip download --quiet --no-binary :all: --no-deps "llama-cpp-python==$version") || skip "pip did not fetch llama-cpp-python $version"
    tar -xzf "$home/llama_cpp_python-$version.tar.gz" -C "$home"
fi
# ggml looks GELU up in a table of fp16; what is compared is the model.
sed -i 's|^#define GGML_GELU_FP16|// &|; s|^#define GGML_GELU_QUICK_FP16|// &|' "$tree/ggml/src/ggml-cpu/vec.h"
if [ ! -f "$home/built" ]; then
    cmake -G Ninja -S "$tree" -B "$home/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_COMMON=ON \
        -DLLAMA_OPENSSL=OFF -DGGML_OPENMP=OFF >"$home/configure.log" 2>&1 || skip "llama.cpp was not configured ($home/configure.log)"
    nice ninja -C "$home/build" -j2 llama llama-common >"$home/build.log" 2>&1 || skip "llama.cpp was not built ($home/build.log)"
    touch "$home/built"
fi
c++ -std=c++17 -O1 -w -I"$tree/include" -I"$tree/ggml/include" -I"$tree/common" -I"$tree/vendor" "$root/tests/gguf/judge.cpp" \
    -o "$home/judge" -L"$home/build/bin" -Wl,-rpath,"$home/build/bin" -lllama -lllama-common -lggml -lggml-base -lggml-cpu
exec "$python" "$root/tests/gguf/check.py" --tree "$tree" --judge "$home/judge" --bin "$build" "$@"
