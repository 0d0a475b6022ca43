#!/bin/sh
# STAND-IN for NVIDIA's self-extracting driver package, made by tests/sandbox/gpu/build-run. It holds no NVIDIA software.
# Version @VERSION@. Everything after the line that says so is a tar archive; unknown options go to nvidia-installer, as in the real one.
set -e
label="NVIDIA Accelerated Graphics Driver for Linux-x86_64 @VERSION@ (kpro stand-in)"
payload_sha256=@SHA256@
self=$0
keep=no extract=no target=
offset=$(awk '/^# --- archive ---$/ {print NR + 1; exit}' "$self")
payload() { tail -n "+$offset" "$self"; }
check() {
    if [ "$(payload | sha256sum | cut -d' ' -f1)" != "$payload_sha256" ]; then
        echo "Error in check sums: the archive is damaged" >&2
        exit 1
    fi
}
for option in "$@"; do
    case $option in
    --info) echo "Identification    : $label"; exit 0 ;;
    --check) check; echo "MD5 checksums are OK"; echo "All good."; exit 0 ;;
    --list) payload | tar -tf -; exit 0 ;;
    -x | --extract-only) extract=yes keep=yes ;;
    --keep) keep=yes ;;
    esac
done
name=NVIDIA-Linux-x86_64-@VERSION@
check
if [ $extract = yes ]; then
    target=$name
    while [ $# -gt 0 ]; do
        if [ "$1" = --target ]; then target=$2; fi
        shift
    done
    mkdir -p "$target"
    payload | tar -xf - -C "$target"
    exit 0
fi
target=$(mktemp -d "${TMPDIR:-/tmp}/selfgz.XXXXXX")
trap 'rm -rf "$target"' EXIT
payload | tar -xf - -C "$target"
rc=0
(cd "$target" && ./nvidia-installer "$@") || rc=$?
exit $rc
# --- archive ---
