#!/bin/sh
# Makes an image of a static program, for those that can't build packaging/Containerfile, without
# podman, docker or rights: image.sh PROGRAM DIRECTORY
#
# An archive in the layout of the Open Container Initiative, with one layer: the program, the authorities
# that TLS needs, and /tmp. Prints its path; podman load -i PATH takes it, and so do skopeo and docker 25. The
# same program and SOURCE_DATE_EPOCH (default: the last commit's time) give the same archive.
set -eu
umask 022

[ $# -eq 2 ] || { echo "usage: image.sh PROGRAM DIRECTORY" >&2; exit 64; }
source=$(cd "$(dirname "$0")/.." && pwd)
program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
mkdir -p "$2"
directory=$(cd "$2" && pwd)
authorities=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}

for tool in gzip sha256sum tar; do
    command -v "$tool" >/dev/null || { echo "image.sh: $tool is missing" >&2; exit 69; }
done

: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct 2>/dev/null || date +%s)}"
version=$("$program" --version | sed 's/^leasehold //')
case $(uname -m) in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) architecture=$(uname -m) ;;
esac
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

root=$work/root
install -D -m 755 "$program" "$root/usr/bin/leasehold"
if [ -r "$authorities" ]; then
    install -D -m 644 "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
fi
install -d -m 1777 "$root/tmp"

pack() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$1" -cf "$2" .
}
digest() { sha256sum "$1" | cut -d ' ' -f 1; }
bytes() { wc -c <"$1" | tr -d ' '; }

image=$work/image
blobs=$image/blobs/sha256
mkdir -p "$blobs"
# Moves a file to its place by its content, and prints what others call it.
keep() {
    sum=$(digest "$1")
    size=$(bytes "$1")
    mv "$1" "$blobs/$sum"
    printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s' "$2" "$sum" "$size"
}

pack "$root" "$work/layer.tar"
unpacked=$(digest "$work/layer.tar")
gzip -9n "$work/layer.tar"
layer=$(keep "$work/layer.tar.gz" layer.v1.tar+gzip)}
# Nobody: a lock needs no rights.
cat >"$work/config" <<CONFIG
{"created":"$created","architecture":"$architecture","os":"linux","config":{"User":"65534:65534","Entrypoint":["/usr/bin/leasehold"],"Env":["PATH=/usr/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:$unpacked"]},"history":[{"created":"$created","created_by":"packaging/image.sh"}]}
CONFIG
config=$(keep "$work/config" config.v1+json)}
cat >"$work/manifest" <<MANIFEST
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":$config,"layers":[$layer]}
MANIFEST
manifest=$(keep "$work/manifest" manifest.v1+json)
cat >"$image/index.json" <<INDEX
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[$manifest,"annotations":{"org.opencontainers.image.ref.name":"leasehold:$version"}}]}
INDEX
printf '{"imageLayoutVersion":"1.0.0"}\n' >"$image/oci-layout"

archive=$directory/leasehold-$version-$architecture.oci.tar
pack "$image" "$archive"
echo "$archive"
