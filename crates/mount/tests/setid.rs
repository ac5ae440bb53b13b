//! Set-id bits of a file that is changed.

#[expect(dead_code, reason = "other tests use more of it")]
mod support;

use micabox_mount::Cache;
use micabox_testing::shell;
use support::Memory;

/// Changes a file as a user, who has not the right to its set-id bits, and as root, who has it.
const CHANGES: &str = r#"
chmod 777 .
change() {
    uid=$1 left=$2
    shift 2
    head -c 10000 /dev/zero >file
    chown 1000 file
    chmod 6777 file
    test "$(stat -c %a file)" = 6777
    setpriv --reuid "$uid" --clear-groups "$@"
    is=$(stat -c %a file)
    test "$is" = "$left" || { echo "after $* by $uid: $is" >&2; exit 1; }
    rm file
}
both() {
    change 1000 777 "$@"
    change 0 6777 "$@"
}
both dd if=/dev/zero of=file bs=4k count=1 conv=notrunc status=none oflag=direct
both dd if=/dev/zero of=file bs=4k count=1 conv=notrunc status=none
both truncate -s 100 file
both fallocate -l 20000 file
both fallocate -p -o 0 -l 4096 file
both fallocate -z -o 0 -l 4096 file
"#;

#[test]
#[ignore = "needs root: mounts filesystems"]
fn set_id_bits_go_when_a_user_changes_the_file() {
    for cache in [Cache::Auto, Cache::Always] {
        let memory = Memory::mount(64 << 20, 1000, cache);
        shell(memory.path(), CHANGES);
    }
}
