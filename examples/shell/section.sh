#!/bin/sh
# A lock in the middle of a script, as `flock 9` gives it. It is released below, or when the script ends,
# however it ends.
set -eu

name=${1:-deploy}
fence=$(leasehold hold "$name" -w 30s --while-pid $$ --background) || exit

echo "under $name with fence $fence"
# The critical section. If the lock is lost, leasehold ends the script, with what it has started.

# Ends the script with 76 if the lock was lost before this line.
leasehold release "$name" --fence "$fence"
echo "after"
