//! Set-id bits of a file that is changed.

use micabox_mount::Cache;
use micabox_testing::shell;

use crate::support::Memory;

/// Changes a file as a user, who has not the right to its set-id bits, and as root, who has it.
const CHANGES: &str = r#"
chmod 777 .
change() {
    uid=$1 gid=$2 mode=$3 left=$4
    shift 4
    head -c 10000 /dev/zero >file
    chown 1000 file
    chmod "$mode" file
    test "$(stat -c %a file)" = "$mode"
    setpriv --reuid "$uid" --regid "$gid" --clear-groups "$@"
    is=$(stat -c %a file)
    test "$is" = "$left" || { echo "after $* by $uid:$gid: $mode became $is" >&2; exit 1; }
    rm file
}
# Files that their group executes.
executed() {
    change 1000 0 6777 777 "$@"
    change 1000 1000 6777 777 "$@"
    change 0 0 6777 6777 "$@"
}
# Files that their group does not execute, of another group and of the user's.
locked() {
    change 1000 1000 6666 666 "$@"
    change 1000 1000 2666 666 "$@"
    change 1000 0 2666 2666 "$@"
}
all() {
    executed "$@"
    locked "$@"
}
all dd if=/dev/zero of=file bs=4k count=1 conv=notrunc status=none oflag=direct
all dd if=/dev/zero of=file bs=4k count=1 conv=notrunc status=none
executed truncate -s 100 file
all fallocate -l 20000 file
all fallocate -p -o 0 -l 4096 file
"#;

/// One that tmpfs has not.
const ZEROES: &str = "all fallocate -z -o 0 -l 4096 file\n";

#[test]
#[ignore = "needs root: mounts filesystems"]
fn set_id_bits_go_when_a_user_changes_the_file() {
    // As the kernel's own filesystem has it.
    let tmpfs = tempfile::tempdir_in("/dev/shm").unwrap();
    shell(tmpfs.path(), CHANGES);
    for cache in [Cache::Auto, Cache::Always] {
        let memory = Memory::mount(64 << 20, 1000, cache);
        shell(memory.path(), &[CHANGES, ZEROES].concat());
    }
}
