//! This machine's own programs at work in a shared folder, as root and as another user.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use support::Home;

/// Works in a directory of its own.
const WORK: &str = r#"
set -e
mkdir "$1"; cd "$1"; export HOME=$PWD PATH=/usr/bin:/bin:/usr/sbin
git init -q -b main source; cd source
git config user.name a; git config user.email a@localhost
i=0; mkdir many; while [ $i -lt 20 ]; do echo $i >many/$i; i=$((i+1)); done
echo one >file; chmod 755 file; ln -s file link
git add .; git commit -q -m first; git status --porcelain
echo two >file; git mv many/7 moved; git status --porcelain
git commit -q -a -m second; git checkout -q HEAD~1; git checkout -q main
git gc -q; git fsck --no-progress; git clone -q . ../clone; git -C ../clone status --porcelain
cd ..
mkdir unpacked; tar cf all.tar source; tar xf all.tar -C unpacked; diff -r source unpacked/source
rsync -a source/ copied/; rsync -ain --delete source/ copied/; rsync -a --inplace all.tar second.tar
cmp all.tar second.tar
mkdir -p package/DEBIAN package/usr/share/p root/var/lib/dpkg/info root/var/lib/dpkg/updates
: >root/var/lib/dpkg/status; echo text >package/usr/share/p/text
printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: d\n' >package/DEBIAN/control
dpkg-deb --root-owner-group -b package p.deb >p.log
[ "$(id -u)" != 0 ] || dpkg --log=/dev/null --root="$PWD/root" -i p.deb >>p.log
[ "$(id -u)" != 0 ] || cat root/usr/share/p/text
python3 -I -S -c "$PYTHON"
find . ! -type l -user "$(id -u)" -group "$(id -g)" | wc -l; find . ! -type l | wc -l
"#;

/// Locks between two processes, memory that both map, and a file that gets its name last.
const PYTHON: &str = r#"
import fcntl, mmap, os
def other(work):
    if (child := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        except BlockingIOError:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with open("locked", "w+b") as file:
    file.truncate(2 << 20)
    for lock in fcntl.flock, fcntl.lockf:
        def attempt():
            with open("locked", "r+b") as again:
                lock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock(file, fcntl.LOCK_EX)
        held = other(attempt)
        lock(file, fcntl.LOCK_UN)
        print(lock.__name__, held, other(attempt))
    view = mmap.mmap(file.fileno(), 0)
    def change():
        with open("locked", "r+b") as again, mmap.mmap(again.fileno(), 0) as theirs:
            theirs[1 << 20] = 7
    print("mapped", other(change), view[1 << 20])
    view[0:5] = b"bytes"
    view.flush()
    view.close()
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(unnamed, b"late")
os.link(f"/proc/self/fd/{unnamed}", "named", src_dir_fd=unnamed, follow_symlinks=True)
print("named", open("named").read(), os.fstat(unnamed).st_nlink)
"#;

const SEEN: &str = " M file\nR  many/7 -> moved\n";

const SEEN_OF_PYTHON: &str = "\
flock 3 0
lockf 3 0
mapped 0 7
named late 1
";

#[test]
#[ignore = "needs a built guest"]
fn programs_are_content_in_a_folder_as_root_and_as_another_user() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("work"), WORK).unwrap();
    let volume = format!("{}:/w", path.display());
    // busybox runs its own programs, wherever they are.
    let both =
        "cd /w; chmod 777 .; /usr/bin/sh work root; /bin/su app -c '/usr/bin/sh /w/work app'";
    let seen = run(&home, &volume, both);
    let (root, rest) = seen.split_once(SEEN_OF_PYTHON).unwrap();
    let (app, last) = rest.split_once(SEEN_OF_PYTHON).unwrap();
    assert_eq!(root, [SEEN, "text\n"].concat());
    // All belongs inside to the user who made it.
    for counts in [app.strip_suffix(SEEN).unwrap(), last] {
        let (owned, all) = counts.trim().split_once('\n').unwrap();
        assert_eq!(owned, all);
    }
    outside(&path.join("root"));
    outside(&path.join("app"));
    home.assert_nothing_left();
}

/// What a user inside has made is whole outside, and this user's.
fn outside(made: &Path) {
    let git = |arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.env("HOME", made)
            .arg("-C")
            .arg(made.join("source"))
            .args(arguments);
        let output = git.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(git(&["status", "--porcelain"]), "");
    assert_eq!(git(&["log", "--format=%s"]), "second\nfirst\n");
    git(&["fsck", "--no-progress"]);
    let locked = fs::read(made.join("locked")).unwrap();
    assert_eq!((&locked[..5], locked[1 << 20]), (&b"bytes"[..], 7));
    let named = fs::metadata(made.join("named")).unwrap();
    assert_eq!(named.permissions().mode() & 0o777, 0o640);
    assert_eq!(named.uid(), rustix::process::geteuid().as_raw());
}

/// Runs a script in a sandbox that has this machine's programs.
fn run(home: &Home, volume: &str, script: &str) -> String {
    let run = home.output(&[
        "run",
        "--rm",
        "--backend",
        "qemu",
        "-v",
        "/usr:/usr:ro,cached",
        "--symlink",
        "usr/lib:/lib",
        "--symlink",
        "usr/lib64:/lib64",
        "-v",
        volume,
        "-e",
        &format!("PYTHON={PYTHON}"),
        "box",
        "sh",
        "-c",
        &format!("set -e; {script}"),
    ]);
    run.ok().to_owned()
}
