//! Filesystems for tests, each in a file of its own.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use micabox_ext4::device::ReadOnly;
use micabox_ext4::mkfs::{self, Journal};
use micabox_ext4::{Ext4, Options, Owner};

use micabox_testing::e2fsprogs::{e2fsck, tool};
use micabox_testing::run;

/// A file with a filesystem; deleted when this value is dropped.
pub struct Image {
    directory: tempfile::TempDir,
}

/// Returns the owner of files in tests.
pub fn owner() -> Owner {
    Owner {
        permissions: 0o755,
        uid: 1000,
        gid: 100,
    }
}

impl Image {
    /// Makes a filesystem with this crate.
    pub fn new(size: u64) -> Self {
        Self::with_journal(size, Journal::Default)
    }

    /// Makes a filesystem with this crate, with this journal.
    pub fn with_journal(size: u64, journal: Journal) -> Self {
        Self::with_options(size, journal, None)
    }

    /// Makes a filesystem with this crate, with this journal and number of inodes.
    pub fn with_options(size: u64, journal: Journal, inodes: Option<u64>) -> Self {
        let image = Self::empty(size);
        let options = mkfs::Options {
            uuid: [7; 16],
            label: [0; 16],
            time: 1_700_000_000,
            inodes,
            journal,
            reserved: 0,
        };
        mkfs::mkfs(&mut image.device(), size, &options).unwrap();
        image
    }

    /// Makes a filesystem with mke2fs.
    pub fn mke2fs(size: u64, arguments: &[&str]) -> Self {
        let image = Self::empty(size);
        run(tool("mke2fs")
            .args(["-q", "-F"])
            .args(arguments)
            .arg(image.path()));
        image
    }

    /// Creates a file of zeros.
    pub fn empty(size: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = Self { directory };
        File::create(image.path()).unwrap().set_len(size).unwrap();
        image
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// Opens the file for reading and writing.
    pub fn device(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path())
            .unwrap()
    }

    /// Opens the filesystem for reading and writing.
    pub fn open(&self) -> Ext4<File> {
        Ext4::open(self.device(), Options::default()).unwrap()
    }

    /// Opens the filesystem for reading.
    pub fn open_read_only(&self) -> Ext4<ReadOnly<File>> {
        Ext4::open_read_only(ReadOnly(self.device()), Options::default()).unwrap()
    }

    /// Panics if e2fsck has remarks.
    #[track_caller]
    pub fn check(&self) {
        check(&self.path());
    }

    /// Panics if e2fsck has remarks about a filesystem that the kernel wrote to as well.
    #[track_caller]
    pub fn check_with_kernel(&self) {
        check_with_kernel(&self.path());
    }

    /// Panics if e2fsck has remarks about a copy whose journal was replayed.
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

/// Panics if e2fsck has remarks, except that an extent tree could have fewer nodes: this can happen
/// after changes in its middle, with the kernel as well as with this crate.
#[track_caller]
pub fn check(path: &Path) {
    no_remarks(path, &["could be narrower.  Optimize? no"]);
}

/// Does the same as [`check`] on a filesystem that the kernel wrote to as well: depending on when
/// it writes back, the kernel may leave an extent tree a level deeper than needed. This crate never
/// does.
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

/// Panics if e2fsck has remarks except its progress and lines with one of these ends.
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
