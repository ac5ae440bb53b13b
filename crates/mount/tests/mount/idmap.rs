//! A filesystem in memory that is mounted a second time, with its owners mapped.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use micabox_jail::container::map_owners;
use micabox_mount::Cache;
use micabox_testing::shell;
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use tempfile::TempDir;

use crate::support::Memory;

/// Makes a user namespace whose users and groups 0 to 999 are the machine's from 100,000 on.
fn users() -> OwnedFd {
    let mut process = Command::new("unshare")
        .args(["--user", "sh", "-c", "echo; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = process.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    let of_process = Path::new("/proc").join(process.id().to_string());
    for map in ["uid_map", "gid_map"] {
        fs::write(of_process.join(map), "0 100000 1000").unwrap();
    }
    let namespace = File::open(of_process.join("ns/user")).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    namespace.into()
}

/// The second mount.
struct Mapped(TempDir);

impl Mapped {
    fn of(path: &Path) -> Self {
        let directory = TempDir::new().unwrap();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let clone = open_tree(CWD, path, flags).unwrap();
        map_owners(&clone, &users()).unwrap();
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&clone, "", CWD, directory.path(), flags).unwrap();
        Self(directory)
    }

    fn run(&self, script: &str) -> String {
        shell(self.0.path(), script)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn a_mount_with_mapped_owners_shows_them_and_gives_files_the_owners_below() {
    for cache in [Cache::None, Cache::Always] {
        let memory = Memory::mount(16 << 20, 1000, cache);
        let below = |script: &str| shell(memory.path(), script);
        below("chmod 777 .; echo text > file; chown 3:4 file; chmod 600 file");

        let mapped = Mapped::of(memory.path());
        assert_eq!(
            mapped.run("stat -c %u:%g . file"),
            "100000:100000\n100003:100004\n"
        );

        // What users of the mount make.
        mapped.run(
            "run() { setpriv --reuid $1 --regid $2 --clear-groups \"${@:3}\"; }
            run 100005 100006 sh -c 'umask 022; echo new > made; mkdir dir; mkfifo pipe; ln -s made link; ln made name'
            run 100003 100004 cat file
            ! run 3 4 cat file 2>/dev/null
            setfacl -m u:100007:r-- file
            run 100007 100007 cat file
            chown 100008:100009 name",
        );
        assert_eq!(
            below("stat -c %u:%g made name dir pipe link"),
            "8:9\n8:9\n5:6\n5:6\n5:6\n"
        );
        assert_eq!(below("getfacl -cn file | grep user:7"), "user:7:r--\n");
        assert_eq!(below("cat made"), "new\n");

        // Users that the mount does not map can create nothing (EOVERFLOW), and files of unmapped owners show the overflow user.
        let said = mapped.run("touch other 2>&1 || true");
        assert!(said.contains("Value too large"), "{said}");
        below("chown 5000:5000 name; test ! -e other");
        assert_eq!(mapped.run("stat -c %u:%g name"), "65534:65534\n");
    }
}
