//! Mounted trees of a store's own, and what they look like.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_testing::shell;

use super::{Finished, Home, image, wait_until};

/// Prints everything about a tree that a program can see, but for sizes of directories.
const LOOK: &str = r#"cd "$1" || exit 1
find . -printf '%P|%y|%m|%U:%G|%n|%T@|%l\n' | sort
find . ! -type d -printf '%P|%s\n' | sort
find . \( -type c -o -type b \) -exec stat -c '%n %t:%T' {} + | sort
find . -type f -print0 | sort -z | xargs -0 sha256sum
find . -print0 | xargs -0 getfattr -h -d -m - -e hex | awk '/^# file/ { file = $0; next } NF { print file, $0 }' | sort
find . -type f -links +1 -printf '%i %P\n' | sort -k 2 |
    awk '{ if (!($1 in first)) first[$1] = $2; print $2, "is", first[$1] }'"#;

/// Makes files of all kinds with attributes of all kinds, for any filesystem.
const FILES: &str = r#"mkdir -p t/deep/er t/.. && cd t
echo text > file; ln file deep/hard; ln -s ../file deep/link; mkfifo fifo; mknod zero c 1 5; mknod disk b 8 300
truncate -s 3M sparse; printf end >> sparse; printf x | dd of=sparse bs=1 seek=1000000 conv=notrunc 2>/dev/null
seq 200000 > long; touch -d '1969-07-20 20:17:40.123456789' old; printf '%0200d' 0 > "$(printf '%0200d' 7)"
setfattr -n user.note -v hello file; setfattr -n trusted.secret -v 1 deep
setfacl -m u:1234:rw file; setfacl -d -m g:55:r deep
cp /bin/true capable; setcap cap_net_raw+ep capable
chown 1000:50 long; chmod 4750 long; chmod 1777 deep/er; : > empty; mkdir many
for i in $(seq 500); do echo $i > many/name-$i; done; cd .."#;

/// A store, and directories to mount on.
pub struct World {
    pub home: Home,
}

impl World {
    pub fn new() -> Self {
        let home = Home::empty();
        shell(home.path(), &format!("umask 022\n{FILES}\nmkdir a b c"));
        shell(
            home.path(),
            "tar --xattrs --xattrs-include='*' --sparse -C t -cf layer.tar .",
        );
        let mut layers = image::layers();
        layers.push(fs::read(home.path().join("layer.tar")).unwrap());
        home.load(&layers, &image::config());
        Self { home }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn mica(&self, words: &str) -> Finished {
        let words: Vec<&str> = words.split(' ').collect();
        let mut mica = self.home.mica(&words);
        mica.current_dir(self.home.path());
        Finished::of(mica)
    }

    pub fn look(&self, name: &str) -> String {
        look(&self.path(name))
    }

    pub fn mounted(&self) -> serde_json::Value {
        self.home.output(&["mount", "--json"]).json()
    }

    /// Fails unless nothing is mounted, served or recorded.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(
            !table.contains(self.home.path().to_str().unwrap()),
            "{table}"
        );
        wait_until("the record is gone", || self.home.sandboxes().is_empty());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for place in ["a", "b", "c"] {
            let place = self.path(place);
            let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

pub fn look(place: &Path) -> String {
    let output = Command::new("sh")
        .args(["-c", LOOK, "look"])
        .arg(place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
pub fn assert_same(one: &str, other: &str) {
    let differs = one
        .lines()
        .zip(other.lines())
        .find(|(one, other)| one != other);
    assert!(
        one == other,
        "{differs:?}, {} and {} bytes",
        one.len(),
        other.len()
    );
}

/// Returns what a tree looks like without the counts of directories in directories, which a merged one has
/// not.
pub fn shape(look: &str) -> String {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split('|').collect();
        let is_directory = fields.get(1) == Some(&"d");
        let shown = fields
            .iter()
            .enumerate()
            .filter(|(at, _)| !is_directory || *at != 4);
        let shown: Vec<&str> = shown.map(|(_, field)| *field).collect();
        shown.join("|") + "\n"
    };
    look.lines().map(line).collect()
}
