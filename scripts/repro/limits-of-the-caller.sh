#!/usr/bin/env bash
# mica started with a limit for files' sizes (`ulimit -f`: batch systems, cron), without a working directory or with
# temporary files that can't be made: what fails says why, and what needs none of it works. As root, for the host backend.
set -u
MICA=${MICA:-mica} BUSYBOX=${BUSYBOX:-/bin/busybox}
dir=$(mktemp -d)
export MICABOX_HOME=$dir/home
trap 'cd /; rm -rf "$dir"' EXIT
cd "$dir" || exit
mkdir -p root/bin
cp "$BUSYBOX" root/bin/busybox
for name in sh pwd; do ln -s busybox "root/bin/$name"; done
tar -C root -cf layer.tar bin
digest=$(sha256sum layer.tar | cut -d' ' -f1)
printf '{"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": ["sha256:%s"]}}' "$digest" >config.json
printf '[{"Config": "config.json", "RepoTags": ["box:1"], "Layers": ["layer.tar"]}]' >manifest.json
tar -cf image.tar layer.tar config.json manifest.json

failed=0
expect() { # LABEL CODE TEXT, of the status and the output of the command before
    case "$status $output" in
        "$2 "*"$3"*) echo "ok $1" ;;
        *) echo "WRONG $1 (exit $status): $output"; failed=1 ;;
    esac
}
status=0
output=$(ulimit -f 0; "$MICA" load -q image.tar 2>&1) || status=$?
expect 'load, and no file may have a byte' 1 'File too large'
status=0
output=$("$MICA" load -q image.tar 2>&1) || status=$?
expect 'load without a limit after it' 0 'box:1'
status=0
output=$(mkdir gone && cd gone && rmdir ../gone && TMPDIR=/nonexistent "$MICA" run --rm -q --backend host box:1 pwd 2>&1) || status=$?
expect 'a working directory that is gone, no place for temporary files' 0 '/'
exit "$failed"
