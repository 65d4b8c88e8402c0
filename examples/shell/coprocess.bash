#!/usr/bin/env bash
# A lock in a script as `flock 9` gives it: taken here, held while the script goes on, given back there,
# and also if the script is killed, since `hold` ends when its standard input is closed. As with flock, what
# the script leaves running in the background keeps the lock.
set -euo pipefail

coproc LOCK { exec leasehold hold "${1:-deploy}" -w 30s; }
holder=$LOCK_PID
if ! read -r fence name <&"${LOCK[0]}"; then
    wait "$holder" || exit $?
fi

echo "under $name with fence $fence"
# What needs the lock stands here.

# Given back.
exec {LOCK[1]}>&-
wait "$holder"
echo "after"
