#!/bin/sh
# Home directories by NFS.
#
#   stoker up --nfs 10.0.0.1:2049 --nfs-export home:allow=10.0.0.0/24,keep-root     # the node; a service: [nfs] in its configuration
#   sudo examples/nfs_home.sh 10.0.0.1:2049 alice bob                                # a machine of that network
#
# `keep-root` lets root of the clients make and hand over directories. Export with it to one machine of administrators, and to all
# others without. NFS believes every client of an allowed address: keep it on networks that you trust.
# Exit code: 3 if this machine cannot mount NFS; the command that would is printed.
set -eu

ADDRESS=${1:?usage: nfs_home.sh HOST:PORT USER...}
shift
HOST=${ADDRESS%:*}
PORT=${ADDRESS##*:}
DIRECTORY=${STOKER_HOME_DIRECTORY:-/mnt/home}
VOLUME=${STOKER_HOME_VOLUME:-home}
STOKER=${STOKER:-stoker}

# The volume is made once, on the machine of a node.
if "$STOKER" status >/dev/null 2>&1 && ! "$STOKER" volume ls | grep -q "^$VOLUME "; then
    "$STOKER" volume create "$VOLUME"
fi

MOUNT="mount -t nfs -o vers=3,tcp,port=$PORT,mountport=$PORT,nolock $HOST:/$VOLUME $DIRECTORY"
if [ "$(id -u)" != 0 ] || ! { grep -qw nfs /proc/filesystems || modprobe nfs 2>/dev/null; }; then
    echo "this machine cannot mount NFS: be root, and have a kernel with NFS and mount.nfs (Debian: nfs-common)"
    echo "mkdir -p $DIRECTORY && $MOUNT"
    exit 3
fi
mkdir -p "$DIRECTORY"
mountpoint -q "$DIRECTORY" || $MOUNT
for USER in "$@"; do
    install -d -m 0700 -o "$USER" -g "$(id -g "$USER")" "$DIRECTORY/$USER"
    echo "$DIRECTORY/$USER"
done
