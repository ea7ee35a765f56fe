#!/usr/bin/env bash
# The Vulkan tests on a newer driver than this machine's, without changing the machine (as root, on Debian or Ubuntu):
# a Debian 13 in a folder of its own, with Mesa from its backports, whose lavapipe has VK_KHR_cooperative_matrix.
#   tests/vulkan_newer_driver.sh [FOLDER [REGEX]]   FOLDER: build/newer; REGEX: of tests, 'vulkan'
#   SUITE=trixie tests/vulkan_newer_driver.sh       Mesa of Debian 13 itself (25.0, without cooperative matrices)
# About 1.5 GB and ten minutes the first time; what is there already is used again. Builds into build/newer-driver.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

folder=$(realpath -m "${1:-$top/build/newer}")
regex=${2:-vulkan}
suite=${SUITE:-trixie-backports}
root=$folder/$suite
mirror=${MIRROR:-http://deb.debian.org/debian}
[ "$(id -u)" -eq 0 ] || die "run as root: it makes a Debian in $root and enters it"
install_packages debootstrap:/usr/sbin/debootstrap util-linux:/usr/bin/unshare

packages=
for entry in "${build_packages[@]}" "${vulkan_packages[@]}" vulkan-tools:; do packages+=,${entry%%:*}; done
if [ ! -e "$root/made" ]; then
    say "making a Debian 13 in $root"
    mkdir -p "$root"
    debootstrap --variant=minbase --include="ca-certificates$packages" trixie "$root" "$mirror" > "$folder/$suite.log" 2>&1 ||
        { tail -n 20 "$folder/$suite.log"; die "debootstrap failed ($folder/$suite.log)"; }
    if [ "$suite" != trixie ]; then
        echo "deb $mirror $suite main" > "$root/etc/apt/sources.list.d/newer.list"
        chroot "$root" apt-get update -qq
        DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y -qq --no-install-recommends -t "$suite" \
            mesa-vulkan-drivers >> "$folder/$suite.log" 2>&1 || die "no Mesa of $suite ($folder/$suite.log)"
    fi
    touch "$root/made"
fi

say "building and testing there"
mkdir -p "$root/src" "$top/build"
# In a namespace of its own: the mounts go when it ends.
unshare --mount bash -euc '
    mount -t proc proc "$1/proc"
    mount --bind /dev "$1/dev"
    mount --bind "$2" "$1/src"
    exec chroot "$1" bash -euc "
        cd /src
        vulkaninfo --summary 2> /dev/null | grep -E \"deviceName|driverInfo\" || true
        cmake --preset release -B build/newer-driver > build/newer-driver.log
        cmake --build build/newer-driver -j $(nproc) >> build/newer-driver.log || { tail -n 40 build/newer-driver.log; exit 1; }
        ctest --test-dir build/newer-driver -R \"\$1\" --timeout 3600 --output-on-failure
        grep -ahoE \"skipped: .*\" build/newer-driver/Testing/Temporary/LastTest.log | sort | uniq -c || true
    " bash "$3"
' bash "$root" "$top" "$regex"
