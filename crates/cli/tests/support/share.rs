//! What a sandbox does in folders of the host, on any backend.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Home, wait_until};

/// Works in `/w` as root and as another user. Lines that it prints are in [`SEEN`].
const WORK: &str = r#"
set -e
cd /w
stat -c '%n %u:%g' . file
tar xf tree.tar; stat -c '%n %u:%g %a' tree tree/of-app tree/set-id
chown 0:50 tree/of-app; stat -c '%u:%g' tree/of-app; chown 1000:1000 tree/of-app
mkdir -m 1777 shared; mkdir -m 2775 group; chgrp 50 group; chmod 2775 group
su app -c 'set -e; cd /w; echo mine >shared/mine; mkdir shared/dir; echo more >>shared/mine'
stat -c '%n %u:%g' shared/mine shared/dir; echo >group/in; stat -c '%g' group/in
su app -c 'echo x >/w/file' 2>/dev/null || echo 'not the file of root'
: >shared/roots; su app -c 'rm -f /w/shared/roots' 2>/dev/null || echo 'not from a sticky directory'
cat link; cat hosts-link 2>/dev/null || echo 'no such file here'
ln file hard; stat -c %h file; mv hard renamed; rm renamed; stat -c %h file
exec 8>gone; rm gone; echo there >&8; cat /proc/self/fd/8
i=0; mkdir many; while [ $i -lt 60 ]; do : >many/a-rather-long-name-of-a-file-$i; i=$((i+1)); done
ls many | wc -l; rm -r many
dd if=/dev/urandom of=big bs=1M count=2 2>/dev/null; sha256sum <big >sum; sync
mkfifo pipe; (echo through >pipe &); cat pipe
mknod null c 1 3 2>/dev/null || echo 'no devices'
sed -i s/one/two/ file; cat file
touch -d '2001-02-03 04:05:06' file; stat -c %Y file
cat /etc/one; echo inside >/etc/one
"#;

const SEEN: &str = "\
. 0:0
file 0:0
tree 0:0 755
tree/of-app 1000:1000 640
tree/set-id 0:0 4755
0:50
shared/mine 1000:1000
shared/dir 1000:1000
50
not the file of root
not from a sticky directory
the guest's
no such file here
2
1
there
60
through
no devices
two
981173106
alone
";

/// Tries to change `/r` as root, who may mount anything.
const TRY: &str = "
for d in /r /etc/two; do mount -o remount,rw,bind $d; mount -o remount,rw $d; done 2>/dev/null
cd /r
touch file; echo x >new; echo x >>file; rm file; mkdir d; ln file hard; chmod 777 file; chown 5 file
mv file other; truncate -s 0 file; echo x >/etc/two
ls; cat file
";

/// A folder of the host with what [`WORK`] needs.
pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("file"), "one\n").unwrap();
        fs::write(path.join("alone"), "alone\n").unwrap();
        fs::write(path.join("the-hosts"), "the host's\n").unwrap();
        symlink("/etc/mine", path.join("link")).unwrap();
        symlink(path.join("the-hosts"), path.join("hosts-link")).unwrap();
        // An archive with owners that this user can't give.
        let mut archive = tar::Builder::new(fs::File::create(path.join("tree.tar")).unwrap());
        for (name, mode, owner) in [("tree/of-app", 0o640, 1000), ("tree/set-id", 0o4755, 0)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(4);
            header.set_mode(mode);
            header.set_uid(owner);
            header.set_gid(owner);
            archive
                .append_data(&mut header, name, &b"text"[..])
                .unwrap();
        }
        archive.finish().unwrap();
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn volume(&self, name: &str, target: &str) -> String {
        format!("{}:{target}", self.file(name).display())
    }
}

/// Runs the scripts on a backend.
pub fn works(home: &Home, backend: &str) {
    let folder = Folder::new();
    let one = format!(
        "type=bind,src={},dst=/etc/one",
        folder.file("alone").display()
    );
    let run = home.output(&[
        "run",
        "--rm",
        "--backend",
        backend,
        "-v",
        &folder.volume("", "/w"),
        "--mount",
        &one,
        "box",
        "sh",
        "-c",
        &["echo \"the guest's\" >/etc/mine; ", WORK].concat(),
    ]);
    assert_eq!(run.ok(), SEEN);
    outside_is_ours(&folder);
    read_only_stays(home, backend, &folder);
}

/// Everything outside belongs to this user, and has no bits beyond permissions.
fn outside_is_ours(folder: &Folder) {
    let user = fs::metadata(folder.path()).unwrap().uid();
    for name in [
        "tree/of-app",
        "tree/set-id",
        "shared/mine",
        "shared/dir",
        "group",
        "big",
    ] {
        let meta = fs::symlink_metadata(folder.file(name)).unwrap();
        assert_eq!(meta.uid(), user, "{name}");
        assert_eq!(meta.permissions().mode() & 0o7000, 0, "{name}");
    }
    assert_eq!(
        fs::read_to_string(folder.file("alone")).unwrap(),
        "inside\n"
    );
    let sum = Command::new("sha256sum")
        .stdin(fs::File::open(folder.file("big")).unwrap())
        .output();
    let known = fs::read(folder.file("sum")).unwrap();
    assert_eq!(sum.unwrap().stdout, known);
}

fn read_only_stays(home: &Home, backend: &str, folder: &Folder) {
    let shown = Folder::new();
    let one = folder.volume("sum", "/etc/two:ro");
    let all = [&shown.volume("", "/r"), ":ro"].concat();
    let run = home.output(&[
        "run",
        "--rm",
        "--backend",
        backend,
        "-v",
        &all,
        "-v",
        &one,
        "box",
        "sh",
        "-c",
        TRY,
    ]);
    assert!(run.stdout().ends_with("\none\n"), "{}", run.stdout());
    let names = fs::read_dir(shown.path()).unwrap().count();
    assert_eq!(names, 6);
    let meta = fs::metadata(shown.file("file")).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (4, 0o644));
    assert_eq!(fs::read(folder.file("sum")).unwrap().len(), 68);
}

/// Edits a file and looks at it inside, `count` times: the guest opens files without asking the host, so
/// every edit must outdate what it has cached, also those that change neither the file's length nor, within
/// a tick of the host's clock, its times. A command that is started after an edit sees it; a program that
/// runs sees it a moment later.
pub(crate) fn edits(home: &Home, backend: &str, count: usize) {
    let folder = Folder::new();
    let path = folder.path();
    fs::create_dir(path.join("directory")).unwrap();
    fs::create_dir(path.join("other")).unwrap();
    fs::write(path.join("directory/file"), "first\n").unwrap();
    fs::hard_link(path.join("directory/file"), path.join("other/link")).unwrap();
    let volume = format!("{}:/w", path.display());
    let look = "while read n; do read seen <$n/file && echo $seen || echo none; done";
    let mut arguments = vec![
        "run",
        "--rm",
        "-i",
        "--name",
        "edited",
        "--backend",
        backend,
    ];
    arguments.extend(["-v", &volume, "-w", "/w", "box", "sh", "-c", look]);
    let mut mica = home.mica(&arguments);
    let mica = mica.stdin(Stdio::piped());
    let mut running = mica.stdout(Stdio::piped()).spawn().unwrap();
    let mut to = running.stdin.take().unwrap();
    let mut from = BufReader::new(running.stdout.take().unwrap());
    let mut seen_by_program = || {
        writeln!(to, "directory").unwrap();
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line
    };
    seen_by_program();
    for number in 0..count {
        let text = edit(path, number);
        if number % 8 == 7 {
            let seen = home.output(&["exec", "edited", "cat", "directory/file"]);
            assert_eq!(seen.ok(), text, "edit {number}");
        }
        wait_until("an edit is seen", || seen_by_program() == text);
    }
    drop(to);
    running.wait().unwrap();
    home.assert_nothing_left();
}

/// Changes `directory/file` in one of five ways. Returns its text then.
fn edit(folder: &Path, number: usize) -> String {
    let (file, link) = (folder.join("directory/file"), folder.join("other/link"));
    let text = format!("{number:05}\n");
    match number % 5 {
        0 => fs::write(&file, &text).unwrap(),
        1 => {
            let file = fs::File::options().write(true).open(&file).unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
        }
        2 => fs::write(&link, &text).unwrap(),
        3 => {
            fs::write(folder.join("new"), &text).unwrap();
            fs::rename(folder.join("new"), &file).unwrap();
            fs::remove_file(&link).unwrap();
            fs::hard_link(&file, &link).unwrap();
        }
        _ => {
            fs::rename(folder.join("directory"), folder.join("away")).unwrap();
            fs::write(folder.join("away/file"), &text).unwrap();
            fs::rename(folder.join("away"), folder.join("directory")).unwrap();
        }
    }
    text
}
