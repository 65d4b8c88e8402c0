#!/bin/sh
# Makes a Debian package of a program that was built: debian.sh PROGRAM DIRECTORY [COMPRESSION]
#
# The package has the program, its man pages, completions, the examples, and a store for all users of the
# machine: a group, and a directory that its members may use. Prints its path. The same
# program and SOURCE_DATE_EPOCH (default: the last commit's time) give the same package, byte for byte.
# DEBFULLNAME and DEBEMAIL name the maintainer. COMPRESSION is what dpkg-deb calls -Z, say none.
#
# By dpkg-deb alone, which is on every Debian, and not by cargo-deb: the list of files is short, and
# a tool that is built from source would cost a check of minutes.
set -eu
umask 022

[ $# -ge 2 ] || { echo "usage: debian.sh PROGRAM DIRECTORY [COMPRESSION]" >&2; exit 64; }
source=$(cd "$(dirname "$0")/.." && pwd)
program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
mkdir -p "$2"
directory=$(cd "$2" && pwd)
compression=${3:-xz}

for tool in dpkg dpkg-deb gzip md5sum; do
    command -v "$tool" >/dev/null || { echo "debian.sh: $tool is missing" >&2; exit 69; }
done

: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
# "leasehold 1.2.3-rc.1" is older than 1.2.3, which Debian writes with a tilde.
version=$("$program" --version | sed 's/^leasehold //; s/-/~/')
architecture=$(dpkg --print-architecture)
name=leasehold_${version}_$architecture.deb

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM HUP

share=$root/usr/share
documents=$share/doc/leasehold
install -D -m 755 "$program" "$root/usr/bin/leasehold"
"$program" man --dir "$share/man/man1"
gzip -9n "$share"/man/man1/*.1
put() {
    mkdir -p "$(dirname "$1")"
    cat >"$1"
}
"$program" completions bash | put "$share/bash-completion/completions/leasehold"
"$program" completions zsh | put "$share/zsh/vendor-completions/_leasehold"
"$program" completions fish | put "$share/fish/vendor_completions.d/leasehold.fish"
gzip -9nc "$source/CHANGELOG.md" | put "$documents/changelog.gz"
for page in "$source"/docs/night.md "$source"/docs/operations.md "$source"/docs/operations/*.md; do
    gzip -9nc "$page" | put "$documents/${page#"$source/docs/"}.gz"
done
cp -R "$source/examples" "$documents/examples"
{
    echo "leasehold is licensed under either of the two licences below, at your choice."
    printf '\n%s\n\n' "The MIT License"
    cat "$source/LICENSE-MIT"
    printf '\n%s\n\n' "The Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0."
} | put "$documents/copyright"

# Their format knows no comments but on lines of their own.
put "$root/usr/lib/sysusers.d/leasehold.conf" <<'END'
# Members may use this machine's store.
g leasehold -
END
put "$root/usr/lib/tmpfiles.d/leasehold.conf" <<'END'
# This machine's store: the default of all users.
d /var/lib/leasehold 2770 root leasehold -
# Users' own stores are in use, however old their files are.
x /tmp/leasehold-*
END

# The newest version of the C library's symbols that the program asks for; none in a static program.
libc=$(grep -ao 'GLIBC_2\.[0-9]*' "$program" | sort -uV | tail -n 1 | sed 's/GLIBC_//')
depends=${libc:+"libc6 (>= $libc)"}
if grep -aq 'libgcc_s\.so\.1' "$program"; then
    depends="${depends:+$depends, }libgcc-s1"
fi
{
    echo "Package: leasehold"
    echo "Version: $version"
    echo "Architecture: $architecture"
    echo "Maintainer: ${DEBFULLNAME:-The leasehold authors} <${DEBEMAIL:-root@localhost}>"
    echo "Installed-Size: $(du -sk "$root/usr" | cut -f 1)"
    if [ -n "$depends" ]; then echo "Depends: $depends"; fi
    echo "Section: admin"
    echo "Priority: optional"
    echo "Description: run jobs under a lock, on one machine or on many"
    echo " Runs a command while it holds a lock in Redis, Valkey, a quorum of them, or a"
    echo " directory on this machine. The lock is a lease: it ends by itself when its"
    echo " holder dies, and the command is ended before another holder can get the lock."
} | put "$root/DEBIAN/control"
put "$root/DEBIAN/postinst" <<'END'
#!/bin/sh
# Makes what usr/lib/sysusers.d and usr/lib/tmpfiles.d say, also where there is no systemd.
set -e
[ "$1" = configure ] || exit 0
root=${DPKG_ROOT:-}
directory=$root/var/lib/leasehold
number() {
    sed -n 's/^leasehold:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/group" 2>/dev/null
}
if [ -z "$(number)" ]; then
    mkdir -p "$root/etc"
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers ${root:+--root="$root"} leasehold.conf
    else
        groupadd --system ${root:+--prefix "$root"} leasehold
    fi
fi
[ -d "$directory" ] || is_new=1
mkdir -p "$directory"
# Others than root can install into a root of their own alone, and give nothing to a group.
if [ "$(id -u)" = 0 ]; then chown "0:$(number)" "$directory"; fi
chmod 2770 "$directory"
if [ -n "${is_new:-}" ]; then
    echo "leasehold: locks of all users are in /var/lib/leasehold from now on, unless they name a store."
    echo "leasehold: members of the group may use it: sudo usermod -aG leasehold USER, then log in again."
    echo "leasehold: jobs that run already keep theirs in the user's own store until they end."
fi
END
put "$root/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
# The group stays, as files elsewhere may belong to it.
if [ "$1" = purge ]; then rm -rf "${DPKG_ROOT:-}/var/lib/leasehold"; fi
END
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
(cd "$root" && find usr -type f | LC_ALL=C sort | xargs md5sum) | put "$root/DEBIAN/md5sums"

find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Z"$compression" --build "$root" "$directory/$name" >/dev/null
echo "$directory/$name"
