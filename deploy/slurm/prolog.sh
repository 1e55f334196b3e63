#!/bin/sh
# Before a job runs on this node: its mounts and its scratch appear below STOKER_ROOT. A job without #STOKER lines has none.
# A prolog that fails takes the node out of service, so only what the job cannot do without fails it.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
CONF=/etc/stoker/slurm.env
[ -r "$CONF" ] || exit 0
conf() { sed -n "s/^$1=//p" "$CONF" | tail -n 1; }
BIN=$(conf STOKER_BIN) ARGS=$(conf STOKER_ARGS) JOBS_DIR=$(conf JOBS_DIR) SCRATCH_DIR=$(conf SCRATCH_DIR)
case "$SLURM_JOB_ID" in ''|*[!0-9]*) exit 0 ;; esac
name=slurm-$SLURM_JOB_ID
owners=$(conf STOKER_OWNERS)
user=${SLURM_JOB_USER:-}
if [ -n "$owners" ] && [ -r "$owners" ] && [ -n "$user" ]; then
    owner=$(awk -v user="$user" '$1 == user { print $2; exit }' "$owners")
    [ -n "$owner" ] && name=${owner%%/*}/$name
fi
say() { logger -t stoker-prolog "job $SLURM_JOB_ID: $*" 2>/dev/null || echo "job $SLURM_JOB_ID: $*" >&2; }
root=$JOBS_DIR/$SLURM_JOB_ID
# shellcheck disable=SC2086
mounts=$("$BIN" job show $ARGS --mounts "$name" 2>&1) || {
    # A node of Stoker that is away must not take this one out of service for everybody: a job that needs it fails by itself.
    case "$mounts" in *"there is no job"*) ;; *) say "$mounts" ;; esac
    exit 0
}
# shellcheck disable=SC2086
values=$("$BIN" job show $ARGS --env "$name" 2>/dev/null) || exit 0
[ -d "$root" ] && exit 0
umask 022
mkdir -p "$root" || exit 1
failed() {
    say "$*"
    "$(dirname "$0")/epilog.sh" >/dev/null 2>&1
    exit 1
}
tab=$(printf '\t')
printf '%s\n' "$mounts" | while IFS=$tab read -r volume path target access; do
    [ -n "$volume" ] || continue
    whole=$root/.volumes/$volume
    if ! mountpoint -q "$whole"; then
        mkdir -p "$whole"
        # shellcheck disable=SC2086
        "$BIN" mount $ARGS "$volume" "$whole" </dev/null || exit 1
    fi
    # Targets are below the job's own directory: what a user writes into a spec does not cover anything of this machine.
    mkdir -p "$root$target"
    from=$whole${path:+/$path}
    [ "$access" = ro ] || mkdir -p "$from"
    # An output that was just made belongs to the job's user; one that somebody has already stays theirs.
    if [ "$access" = out ] && [ "$(stat -c %u "$from")" = 0 ]; then chown "${SLURM_JOB_UID:-0}" "$from"; fi
    if [ -f "$from" ]; then rmdir "$root$target" && : >"$root$target"; fi
    mount --bind "$from" "$root$target" || exit 1
    [ "$access" = ro ] && { mount -o remount,bind,ro "$root$target" || exit 1; }
    true
done || failed "its data cannot be mounted"
bytes=$(printf '%s\n' "$values" | sed -n 's/^STOKER_SCRATCH_BYTES=//p')
case "$bytes" in
    '') ;;
    *[!0-9]*) failed "the size of its scratch makes no sense" ;;
    *)
        mkdir -p "$root/scratch"
        made=
        if [ -n "$SCRATCH_DIR" ] && mkdir -p "$SCRATCH_DIR"; then
            file=$SCRATCH_DIR/$SLURM_JOB_ID.img
            # Room that is taken at once is room that nobody else takes.
            if fallocate -l "$bytes" "$file" 2>/dev/null \
                && mkfs.ext4 -q -F -m 0 -O ^has_journal "$file" >/dev/null 2>&1 \
                && mount -o loop,nosuid,nodev "$file" "$root/scratch" 2>/dev/null; then
                made=1
            else
                rm -f "$file"
            fi
        fi
        [ -n "$made" ] || mount -t tmpfs -o "size=$bytes,nosuid,nodev" stoker-scratch "$root/scratch" \
            || failed "its scratch cannot be made"
        chown "${SLURM_JOB_UID:-0}" "$root/scratch"
        chmod 700 "$root/scratch"
        ;;
esac
exit 0
