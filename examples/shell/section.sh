#!/bin/sh
# A lock in the middle of a script, as `flock 9` gives it: taken here, held while the script goes on, and
# given back below, or when the script ends, however it ends.
set -eu

name=${1:-deploy}
fence=$(leasehold hold "$name" -w 30s --while-pid $$ --background) || exit

echo "under $name with fence $fence"
# What needs the lock stands here. If the lock is lost, the script is ended, with what it has started.

# Given back; ends the script with 76 if the lock was not held to this line.
leasehold release "$name" --fence "$fence"
echo "after"
