//! Random edits, made by this crate and by the kernel.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use micabox_overlay::edit::Edit;
use micabox_overlay::patch::Patch;
use micabox_testing::mounts::Mount;
use micabox_testing::run;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};

use super::history::{NAMES, Random, TARGETS};
use super::tree::{Tree, of_directory};
use micabox_ext4::FileKind;

/// Makes random edits with `edit` and below `mount`. Returns the edits that succeeded.
pub fn make(
    edit: &mut Edit<File>,
    mount: &Mount,
    random: &mut Random,
    archive: &Path,
) -> Vec<Patch> {
    let mut done = Vec::new();
    for _ in 0..25 {
        let tree = of_directory(mount.path());
        let patch = match random.below(6) {
            0 => Patch::Remove(absolute(any(&tree, random, |kind| kind != FileKind::File))),
            1 => Patch::Remove(absolute(any(&tree, random, |kind| kind == FileKind::File))),
            2 => Patch::Directory(new_path(&tree, random, "new/deep")),
            3 => Patch::File {
                name: b"own name".to_vec(),
                mode: random.below(0o10000) as u16,
                to: new_path(&tree, random, ""),
            },
            4 => Patch::Symlink {
                target: random.of(&TARGETS).into(),
                path: new_path(&tree, random, ""),
            },
            _ => Patch::Archive(absolute(any(&tree, random, |kind| {
                kind == FileKind::Directory
            }))),
        };
        // Edits that the kernel's side refuses are skipped.
        if !by_kernel(mount, &patch, archive) {
            continue;
        }
        let file = match &patch {
            Patch::File { .. } => Some(content()),
            Patch::Archive(_) => Some(File::open(archive).unwrap()),
            _ => None,
        };
        let applied = patch.apply(edit, file);
        applied.unwrap_or_else(|problem| panic!("{patch:?}: {problem}"));
        done.push(patch);
    }
    done
}

fn absolute(path: &[u8]) -> Vec<u8> {
    [b"/", path].concat()
}

/// Returns the path of a random file of some kind in the tree; the root's if there is none.
fn any<'t>(tree: &'t Tree, random: &mut Random, of: impl Fn(FileKind) -> bool) -> &'t [u8] {
    let all = tree.iter().filter(|(_, node)| of(node.kind));
    let all: Vec<_> = all.map(|(path, _)| path.as_slice()).collect();
    all.get(random.below(all.len().max(1) as u64) as usize)
        .unwrap_or(&&b""[..])
}

/// Returns a path below a directory, or below a link that may lead to one.
fn new_path(tree: &Tree, random: &mut Random, between: &str) -> Vec<u8> {
    let of = |kind| matches!(kind, FileKind::Directory | FileKind::Symlink);
    let directory = any(tree, random, of).escape_ascii().to_string();
    format!("/{directory}/{between}/{}", random.of(&NAMES)).into_bytes()
}

fn text() -> &'static [u8] {
    b"some text"
}

fn content() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file
}

/// Opens a path, with symbolic links followed as with the mount as root.
pub fn open(mount: &Path, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(mount, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        match rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
            // A file was renamed somewhere on the machine (openat2(2)).
            Err(rustix::io::Errno::AGAIN) => {}
            opened => return opened,
        }
    }
}

/// Makes the edit with system calls. Returns whether it succeeded.
fn by_kernel(mount: &Mount, patch: &Patch, archive: &Path) -> bool {
    let split = |path: &[u8]| {
        let slash = path.iter().rposition(|byte| *byte == b'/').unwrap();
        (path[..slash + 1].to_vec(), path[slash + 1..].to_vec())
    };
    let kind_at = |directory: &OwnedFd, name: &[u8]| {
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
    };
    match patch {
        Patch::Remove(path) => {
            let real = mount.at(std::str::from_utf8(path).unwrap());
            if path == b"/" || path.starts_with(b"/lost+found") {
                return false;
            }
            if real.symlink_metadata().unwrap().is_dir() {
                fs::remove_dir_all(real).unwrap()
            } else {
                fs::remove_file(real).unwrap()
            }
            true
        }
        Patch::Directory(path) => {
            // Only a whole directory to begin with: a dangling link is treated differently by
            // `mkdir -p`.
            let (above, last) = split(path);
            let above = above.strip_suffix(b"new/deep/").unwrap();
            let Ok(mut at) = open(mount.path(), above, OFlags::DIRECTORY) else {
                return false;
            };
            for name in [&b"new"[..], b"deep", &last] {
                let found = kind_at(&at, name);
                let is_new = found.is_none();
                match found {
                    None => {
                        let mode = Mode::from_raw_mode(0o755);
                        rustix::fs::mkdirat(&at, name, mode).unwrap();
                    }
                    Some(FileType::Directory) => {}
                    Some(_) => return false,
                }
                if is_new {
                    be_root(&at, name, Some(0o755));
                }
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                at = rustix::fs::openat(&at, name, flags, Mode::empty()).unwrap();
            }
            true
        }
        Patch::File { to: path, .. } | Patch::Symlink { path, .. } => {
            let to;
            let path = match patch {
                Patch::File { .. } => match through_links(mount, path) {
                    Some(real) => {
                        to = real;
                        &to
                    }
                    None => return false,
                },
                _ => path,
            };
            let (above, name) = split(path);
            let Ok(directory) = open(mount.path(), &above, OFlags::DIRECTORY) else {
                return false;
            };
            match kind_at(&directory, &name) {
                Some(FileType::Directory) => return false,
                Some(_) => rustix::fs::unlinkat(&directory, &*name, AtFlags::empty()).unwrap(),
                None => {}
            }
            match patch {
                Patch::File { mode, .. } => {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&directory, &*name, flags, Mode::empty());
                    let mut file = File::from(file.unwrap());
                    file.write_all(text()).unwrap();
                    be_root(&directory, &name, Some(*mode));
                }
                Patch::Symlink { target, .. } => {
                    rustix::fs::symlinkat(&**target, &directory, &*name).unwrap();
                    be_root(&directory, &name, None);
                }
                _ => unreachable!(),
            }
            true
        }
        Patch::Archive(path) => {
            let real = mount.at(std::str::from_utf8(path).unwrap());
            let mut tar = Command::new("tar");
            tar.args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf"]);
            run(tar.arg(archive).arg("-C").arg(real));
            true
        }
    }
}

/// Returns the path below the mount where the kernel opens or makes the file of a path, links at
/// its end followed; none if it refuses.
fn through_links(mount: &Mount, path: &[u8]) -> Option<Vec<u8>> {
    let opened = open(mount.path(), path, OFlags::empty()).or_else(|error| match error {
        rustix::io::Errno::NOENT => make_file(mount.path(), path),
        _ => Err(error),
    });
    let opened = opened.ok()?;
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let real = fs::read_link(link).unwrap();
    let below = real.strip_prefix(mount.path()).unwrap();
    // Not the root, which nothing replaces.
    below.file_name()?;
    Some([b"/", below.as_os_str().as_bytes()].concat())
}

/// Makes a file at a path, where a link that dangles leads to if there is one.
fn make_file(mount: &Path, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let root = rustix::fs::open(mount, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat2(&root, path, flags, Mode::RUSR, ResolveFlags::IN_ROOT) {
            // A file was renamed somewhere on the machine (openat2(2)).
            Err(rustix::io::Errno::AGAIN) => {}
            made => return made,
        }
    }
}

/// Gives a new file to root, also in a directory whose group is inherited.
fn be_root(directory: &OwnedFd, name: &[u8], mode: Option<u16>) {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let (uid, gid) = (Some(Uid::ROOT), Some(Gid::ROOT));
    rustix::fs::chownat(directory, name, uid, gid, flags).unwrap();
    if let Some(mode) = mode {
        let mode = Mode::from_raw_mode(mode.into());
        rustix::fs::chmodat(directory, name, mode, AtFlags::empty()).unwrap();
    }
}

/// Makes an archive with one file of each kind, below a name that no other file has.
pub fn archive(directory: &Path) -> std::path::PathBuf {
    let from = directory.join("packed");
    let all = from.join("from archive/sub");
    fs::create_dir_all(&all).unwrap();
    fs::write(all.join("file"), vec![b'c'; 70_000]).unwrap();
    fs::set_permissions(all.join("file"), fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(all.join("file"), Some(7), Some(70_000)).unwrap();
    fs::hard_link(all.join("file"), all.join("hard")).unwrap();
    std::os::unix::fs::symlink("file", all.join("link")).unwrap();
    let sparse = File::create(all.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"deep", 1 << 20).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    let node = |name, kind, device| {
        rustix::fs::mknodat(CWD, all.join(name), kind, mode, device).unwrap();
    };
    node("fifo", FileType::Fifo, 0);
    node("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    let name = std::ffi::CString::new(all.as_os_str().as_bytes()).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&name, "user.of", b"a directory", flags).unwrap();
    rustix::fs::setxattr(&name, "trusted.of", b"a directory", flags).unwrap();
    let path = directory.join("archive.tar");
    let mut tar = Command::new("tar");
    tar.args(["--xattrs", "--xattrs-include=*", "--format=pax", "--sparse"]);
    let tar = tar
        .arg("--mtime=2001-02-03 04:05:06.5")
        .arg("-cf")
        .arg(&path);
    run(tar.arg("-C").arg(&from).arg("from archive"));
    path
}
