# setup.sh: what ./run-tests and ./run-demo share: packages, building, messages. Sourced by both.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cores=$(nproc)

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Debian packages by the file that shows they are there; installs what is missing, when we are root.
build_packages=(gcc:/usr/bin/gcc g++:/usr/bin/g++ cmake:/usr/bin/cmake ninja-build:/usr/bin/ninja
    pkg-config:/usr/bin/pkg-config libjansson-dev:/usr/include/jansson.h libxxhash-dev:/usr/include/xxhash.h
    libpcre2-dev:/usr/include/pcre2.h libutf8proc-dev:/usr/include/utf8proc.h
    libyaml-dev:/usr/include/yaml.h
    libcmocka-dev:/usr/include/cmocka.h zlib1g-dev:/usr/include/zlib.h libzstd-dev:/usr/include/zstd.h
    'libsnappy1v5:/usr/lib/*/libsnappy.so.1' liblz4-dev:/usr/include/lz4frame.h)

# What the Vulkan backend is built and tested with: shaderc (with what it was made of), headers, a software driver and
# validation layers. Without them the build has no Vulkan backend, or its tests are skipped.
vulkan_packages=(libshaderc-dev:/usr/lib/*/libshaderc_combined.a glslang-dev:/usr/lib/*/libMachineIndependent.a
    spirv-tools:/usr/include/spirv-tools/libspirv.h libvulkan-dev:/usr/include/vulkan/vulkan_core.h
    mesa-vulkan-drivers:/usr/share/vulkan/icd.d/lvp_icd*.json
    vulkan-validationlayers:/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json)

# What carries bytes between ranks. Without it the build has no such plugin, and its tests are skipped.
mpi_packages=(libopenmpi-dev:/usr/lib/*/openmpi/include/mpi.h openmpi-bin:/usr/bin/mpirun)

# What tests/cuda_tools.sh fetches NVIDIA's compiler with. The CUDA backend itself needs nothing to be built.
cuda_packages=(python3:/usr/bin/python3 unzip:/usr/bin/unzip ca-certificates:/etc/ssl/certs/ca-certificates.crt)

# As install_packages, but what cannot be had is done without.
install_optional() {
    (install_packages "$@") || say "going on without"
}

install_packages() {
    local missing=() entry
    for entry in "$@"; do
        compgen -G "${entry#*:}" > /dev/null || missing+=("${entry%%:*}")
    done
    [ ${#missing[@]} -eq 0 ] && return
    say "installing ${missing[*]}"
    command -v apt-get > /dev/null || die "these packages are missing, and this is no Debian: ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || die "run as root once, or install: apt-get install ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null ||
        die "apt-get could not install ${missing[*]}"
}

# build PRESET [targets]: configures and builds into build/PRESET. Always configured alike, so that ./run-demo and
# ./run-tests can share a folder; a caller that wants only the programs names them.
build() {
    local preset=$1
    shift
    say "building $preset"
    (cd "$top" && cmake --preset "$preset" -DBUILD_TESTING=ON > "build/$preset.configure.log" 2>&1) ||
        { cat "$top/build/$preset.configure.log"; die "cmake --preset $preset failed"; }
    cmake --build "$top/build/$preset" -j "$cores" ${1:+--target "$@"} > "$top/build/$preset.build.log" 2>&1 ||
        { tail -n 60 "$top/build/$preset.build.log"; die "building $preset failed (build/$preset.build.log)"; }
}
