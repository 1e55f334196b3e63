#!/bin/sh
# After a job on this node: nothing of it stays mounted, and its scratch is wiped. May be run again, and for a job that had nothing.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
CONF=/etc/stoker/slurm.env
[ -r "$CONF" ] || exit 0
conf() { sed -n "s/^$1=//p" "$CONF" | tail -n 1; }
BIN=$(conf STOKER_BIN) JOBS_DIR=$(conf JOBS_DIR) SCRATCH_DIR=$(conf SCRATCH_DIR)
case "$SLURM_JOB_ID" in ''|*[!0-9]*) exit 0 ;; esac
root=$JOBS_DIR/$SLURM_JOB_ID
[ -d "$root" ] || exit 0
# Last mounted, first unmounted; what a process of the job still holds open goes when it does.
awk -v root="$root/" 'index($5, root) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r at; do
    case "$at" in
        "$root/.volumes/"*) "$BIN" umount "$at" >/dev/null 2>&1 || umount -l "$at" ;;
        *) umount "$at" 2>/dev/null || umount -l "$at" ;;
    esac
done
[ -n "$SCRATCH_DIR" ] && rm -f "$SCRATCH_DIR/$SLURM_JOB_ID.img"
# Only directories are left: with anything else in them this would delete bytes of a volume.
find "$root" -xdev -depth \( -type d -empty -o -type f -empty \) -delete 2>/dev/null
exit 0
