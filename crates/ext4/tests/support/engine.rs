//! Filesystems to work on, each in a file of its own.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use micabox_ext4::device::ReadOnly;
use micabox_ext4::make::{self, Journal};
use micabox_ext4::{Ext4, Options, Owner};

use crate::e2fsprogs::{e2fsck, run, tool};

/// A file with a filesystem, gone with this value.
pub struct Image {
    directory: tempfile::TempDir,
}

/// Who makes files in tests.
pub fn owner() -> Owner {
    Owner {
        permissions: 0o755,
        uid: 1000,
        gid: 100,
    }
}

impl Image {
    /// A filesystem as this crate makes it.
    pub fn new(size: u64) -> Self {
        Self::with_journal(size, Journal::Default)
    }

    /// A filesystem as this crate makes it.
    pub fn with_journal(size: u64, journal: Journal) -> Self {
        Self::with_options(size, journal, None)
    }

    /// A filesystem as this crate makes it.
    pub fn with_options(size: u64, journal: Journal, inodes: Option<u64>) -> Self {
        let image = Self::empty(size);
        let options = make::Options {
            uuid: [7; 16],
            label: [0; 16],
            time: 1_700_000_000,
            inodes,
            journal,
            reserved: 0,
        };
        make::make(&mut image.device(), size, &options).unwrap();
        image
    }

    /// A filesystem as mke2fs makes it.
    pub fn mke2fs(size: u64, arguments: &[&str]) -> Self {
        let image = Self::empty(size);
        run(tool("mke2fs")
            .args(["-q", "-F"])
            .args(arguments)
            .arg(image.path()));
        image
    }

    /// A file of zeros.
    pub fn empty(size: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = Self { directory };
        File::create(image.path()).unwrap().set_len(size).unwrap();
        image
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// The file, open for reading and writing.
    pub fn device(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path())
            .unwrap()
    }

    /// The filesystem, open for reading and writing.
    pub fn open(&self) -> Ext4<File> {
        Ext4::open(self.device(), Options::default()).unwrap()
    }

    /// The filesystem, open for reading.
    pub fn open_read_only(&self) -> Ext4<ReadOnly<File>> {
        Ext4::open_read_only(ReadOnly(self.device()), Options::default()).unwrap()
    }

    /// e2fsck has nothing to say.
    #[track_caller]
    pub fn check(&self) {
        check(&self.path());
    }

    /// e2fsck has nothing to say about what the kernel wrote as well.
    #[track_caller]
    pub fn check_with_kernel(&self) {
        check_with_kernel(&self.path());
    }

    /// e2fsck has nothing to say of a copy whose journal was replayed.
    #[track_caller]
    pub fn check_live(&self, _filesystem: &Ext4<File>) {
        let copy = self.directory.path().join("copy");
        std::fs::copy(self.path(), &copy).unwrap();
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&copy)
            .unwrap();
        drop(
            Ext4::open(device, Options::default())
                .unwrap()
                .close()
                .unwrap(),
        );
        check(&copy);
    }
}

/// e2fsck has nothing to say, but that a tree of extents could have fewer nodes: after changes in
/// its middle it could, the kernel's as well as ours.
#[track_caller]
pub fn check(path: &Path) {
    no_remarks(path, &["could be narrower.  Optimize? no"]);
}

/// As [`check`], on a filesystem that the kernel wrote to as well: the kernel may leave a tree of
/// extents a level deeper than needed, depending on when it writes back. We never do.
#[track_caller]
pub fn check_with_kernel(path: &Path) {
    no_remarks(
        path,
        &[
            "could be narrower.  Optimize? no",
            "could be shorter.  Optimize? no",
        ],
    );
}

/// Panics if e2fsck remarks on anything but its progress and lines with one of these ends.
#[track_caller]
fn no_remarks(path: &Path, permitted: &[&str]) {
    let verdict = e2fsck(path).expect("e2fsck ends");
    let remarks: Vec<_> = verdict
        .text
        .lines()
        .filter(|line| {
            !(line.is_empty()
                || line.starts_with("Pass ")
                || line.starts_with("e2fsck 1.")
                || line.contains("non-contiguous")
                || permitted.iter().any(|end| line.ends_with(end)))
        })
        .collect();
    assert!(remarks.is_empty(), "{}", verdict.text);
}
