#!/bin/sh
# Times what a stranger does first: fetch the Debian package, install it, hold a lock.
#
#     packaging/first-minute.sh URL-OR-FILE
#
# It is installed in a root of its own, which is removed at the end; nothing of this system changes. What it
# depends on (the C library) is taken as there.
set -eu

package=${1:?usage: first-minute.sh URL-OR-FILE}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/root/var/lib/dpkg/info" "$scratch/root/var/lib/dpkg/updates"
: >"$scratch/root/var/lib/dpkg/status"

now() {
    date +%s%N
}

step() {
    printf '%-10s %6d ms\n' "$1" $((($3 - $2) / 1000000))
}

begun=$(now)
case $package in
    *://*) curl --fail --silent --show-error --location --output "$scratch/leasehold.deb" "$package" ;;
    *) cp "$package" "$scratch/leasehold.deb" ;;
esac
fetched=$(now)
dpkg --root="$scratch/root" --force-not-root --force-bad-path --force-depends --force-script-chrootless \
    --install "$scratch/leasehold.deb" >/dev/null 2>&1
installed=$(now)
export LEASEHOLD_STORE="embedded:$scratch/locks"
"$scratch/root/usr/bin/leasehold" run reports/daily -- true
held=$(now)

step fetched "$begun" "$fetched"
step installed "$fetched" "$installed"
step held "$installed" "$held"
step "in all" "$begun" "$held"
