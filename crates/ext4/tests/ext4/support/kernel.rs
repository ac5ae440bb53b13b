//! Mounts the kernel's ext4 on a loop device.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use micabox_ext4::{Errno, Rename};
use micabox_testing::mounts;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};

use super::model::{Op, Outcome, summary};

/// A mounted image.
pub struct Mount {
    mount: mounts::Mount,
}

impl Mount {
    pub fn new(image: &Path, options: &str) -> Self {
        let mount = mounts::Mount::ext4(image, options);
        Self { mount }
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Makes everything durable on the image.
    pub fn sync(&self) {
        rustix::fs::syncfs(File::open(self.path()).unwrap()).unwrap();
    }

    fn at(&self, path: &[String]) -> PathBuf {
        path.iter()
            .fold(self.path().to_owned(), |at, name| at.join(name))
    }

    /// Performs an operation.
    pub fn apply(&self, op: &Op) -> Result<(), i32> {
        self.attempt(op)
            .map_err(|error| error.raw_os_error().unwrap_or(0))
    }

    fn attempt(&self, op: &Op) -> io::Result<()> {
        let open = |path: &[String]| OpenOptions::new().write(true).open(self.at(path));
        match op {
            Op::Create(path) => {
                let mut options = OpenOptions::new();
                options
                    .write(true)
                    .create_new(true)
                    .mode(0o644)
                    .open(self.at(path))
                    .map(drop)
            }
            Op::Mkdir(path) => fs::create_dir(self.at(path)),
            Op::Symlink(path, target) => symlink(target, self.at(path)),
            Op::Write {
                path,
                offset,
                length,
                byte,
            } => open(path)?.write_all_at(&vec![*byte; *length], *offset),
            Op::Truncate(path, size) => open(path)?.set_len(*size),
            Op::Allocate(path, offset, length) => Ok(rustix::fs::fallocate(
                open(path)?,
                FallocateFlags::empty(),
                *offset,
                *length,
            )?),
            Op::Punch(path, offset, length) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(open(path)?, flags, *offset, *length)?)
            }
            Op::Zero(path, offset, length) => {
                let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(open(path)?, flags, *offset, *length)?)
            }
            Op::Link(path, new) => fs::hard_link(self.at(path), self.at(new)),
            Op::Unlink(path) => fs::remove_file(self.at(path)),
            Op::Rmdir(path) => fs::remove_dir(self.at(path)),
            Op::Rename(old, new, how) => {
                let flags = match how {
                    Rename::Replace => RenameFlags::empty(),
                    Rename::NoReplace => RenameFlags::NOREPLACE,
                    Rename::Exchange => RenameFlags::EXCHANGE,
                };
                Ok(rustix::fs::renameat_with(
                    CWD,
                    self.at(old),
                    CWD,
                    self.at(new),
                    flags,
                )?)
            }
            Op::Chmod(path, permissions) => fs::set_permissions(
                self.at(path),
                fs::Permissions::from_mode((*permissions).into()),
            ),
            Op::SetXattr(path, name, value) => Ok(rustix::fs::lsetxattr(
                self.at(path),
                name.as_str(),
                value,
                XattrFlags::empty(),
            )?),
            Op::RemoveXattr(path, name) => {
                Ok(rustix::fs::lremovexattr(self.at(path), name.as_str())?)
            }
            Op::Sync => {
                self.sync();
                Ok(())
            }
        }
    }

    /// Describes every inode in the form of [`super::model::describe`].
    pub fn describe(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut rest = vec![(String::new(), self.path().to_owned())];
        while let Some((name, path)) = rest.pop() {
            let meta = fs::symlink_metadata(&path).unwrap();
            let contents = if meta.is_dir() {
                let mut names: Vec<String> = fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .filter(|name| name != "lost+found")
                    .collect();
                names.sort();
                rest.extend(
                    names
                        .iter()
                        .map(|child| (format!("{name}/{child}"), path.join(child))),
                );
                names.join(",")
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().to_str().unwrap().to_owned()
            } else {
                summary(&fs::read(&path).unwrap())
            };
            let xattrs = xattrs(&path);
            found.insert(
                name,
                format!("{:o} {xattrs:?} {contents}", meta.mode() & 0o7777),
            );
        }
        found
    }
}

fn xattrs(path: &Path) -> Vec<String> {
    let mut names = vec![0u8; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut names: Vec<&[u8]> = names[..length].split(|&byte| byte == 0).collect();
    names.retain(|name| !name.is_empty());
    names.sort();
    names
        .iter()
        .map(|name| {
            let mut value = vec![0u8; 65536];
            let length =
                rustix::fs::lgetxattr(path, CString::new(*name).unwrap(), &mut value[..]).unwrap();
            format!(
                "{}={}",
                String::from_utf8_lossy(name),
                summary(&value[..length])
            )
        })
        .collect()
}

/// Whether an outcome is the same as the model's.
pub fn agrees(found: Result<(), i32>, expected: Outcome) -> bool {
    found == expected.map_err(Errno::number)
}
