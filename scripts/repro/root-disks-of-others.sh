#!/bin/bash
# Root disks that other tools make: EROFS compressed with lz4 (mkfs.erofs -zlz4hc), ext4 with the quota feature. They boot, and
# a compressed EROFS can be read when it is mounted. Needs mkfs.erofs, mke2fs, QEMU; as root for the mount.
MICA=${MICA:-mica} BUSYBOX=${BUSYBOX:-/bin/busybox}
work=$(mktemp -d); export MICABOX_HOME=$work/home; cd "$work" || exit 2
trap 'cd /; rm -rf --one-file-system "$work"' EXIT
mkdir -p root/bin root/proc root/sys root/dev root/tmp root/etc empty
cp "$BUSYBOX" root/bin/busybox; ln -s busybox root/bin/sh; seq 1 50000 >root/numbers
mkfs.erofs -zlz4hc lz4.erofs root >/dev/null 2>&1 || exit 2
mke2fs -q -F -t ext4 -O quota -d root quota.ext4 32M 2>/dev/null || exit 2
bad=0
try() { local what=$1 out; shift; if out=$("$@" 2>&1); then echo "ok    $what"; else echo "WRONG $what: $(echo "$out" | head -1 | cut -c1-180)"; bad=1; fi
    case $out in *'pull the image again'*) echo "WRONG $what: hint about an image that there is not"; bad=1;; esac; }
try 'compressed EROFS as root disk' "$MICA" run --rm -q --backend qemu --root-disk lz4.erofs /bin/sh -c :
try 'ext4 with quota as root disk, written to' "$MICA" run --rm -q --backend qemu --root-disk quota.ext4:rw /bin/sh -c :
if out=$("$MICA" mount lz4.erofs empty -- cat numbers 2>&1) && [ "$(echo "$out" | tail -1)" = 50000 ]; then echo 'ok    compressed EROFS mounted'
else case $out in *ompress*) echo 'ok    compressed EROFS refused with its reason';; *) echo "WRONG mount of a compressed EROFS: $out"; bad=1;; esac; fi
exit $bad
