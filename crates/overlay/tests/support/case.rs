//! A lower and an upper layer that the kernel wrote.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_ext4::mkfs::{Journal, Options, mkfs};
use micabox_image::convert::{Expect, Place, convert_layer_in};
use micabox_image::{Digest, Limits, Store};
use micabox_overlay::lower::{Lower, LowerKind};
use micabox_overlay::view::{self, View};
use micabox_testing::mounts::{Mount, directory_on_disk};
use micabox_testing::run;

use super::history::{self, Random};

pub struct Case {
    pub directory: tempfile::TempDir,
    kind: LowerKind,
    lower: PathBuf,
    /// The disk with the upper layer.
    pub disk: PathBuf,
    pub random: Random,
}

impl Case {
    /// Makes random layers; the upper one has a history of `steps`.
    pub fn new(kind: LowerKind, seed: u64, steps: usize) -> Self {
        let directory = directory_on_disk();
        let mut random = Random(seed);
        let mut lower = empty(directory.path(), "lower");
        let mount = Mount::ext4(&lower, "rw");
        history::make(mount.path(), &mut random, 250);
        if kind == LowerKind::Erofs {
            let archive = directory.path().join("lower.tar");
            let mut tar = Command::new("tar");
            tar.args(["--xattrs", "--xattrs-include=*", "--format=pax", "--sparse"]);
            run(tar
                .args(["--numeric-owner", "-cf"])
                .arg(&archive)
                .arg("-C")
                .arg(mount.path())
                .arg("."));
            lower = convert(directory.path(), &archive);
        }
        drop(mount);
        let disk = empty(directory.path(), "disk");
        let case = Self {
            directory,
            kind,
            lower,
            disk,
            random,
        };
        let mount = case.mount(&case.disk);
        let mut random = Random(seed + 1000);
        history::make(mount.path(), &mut random, steps);
        drop(mount);
        case
    }

    /// Mounts the lower layer with the kernel.
    pub fn mount_lower(&self) -> Mount {
        match self.kind {
            LowerKind::Erofs => Mount::erofs(&self.lower, &[]),
            LowerKind::Ext4 => Mount::ext4(&self.lower, "ro"),
        }
    }

    /// Mounts both layers with the kernel, the upper one on `disk`.
    pub fn mount(&self, disk: &Path) -> Mount {
        Mount::overlay(self.mount_lower(), Mount::ext4(disk, "rw"))
    }

    /// Opens the lower layer with this crate.
    pub fn lower(&self) -> Lower {
        Lower::open(self.kind, vec![File::open(&self.lower).unwrap()]).unwrap()
    }

    /// Opens both layers with this crate.
    pub fn view(&self) -> View<micabox_overlay::view::Disk> {
        let disk = view::open(File::open(&self.disk).unwrap()).unwrap();
        View::new(disk, self.lower())
    }
}

/// Makes an empty ext4 filesystem.
fn empty(directory: &Path, name: &str) -> PathBuf {
    const SIZE: u64 = 64 << 20;
    let path = directory.join(name);
    let mut file = File::create_new(&path).unwrap();
    file.set_len(SIZE).unwrap();
    let options = Options {
        uuid: [7; 16],
        label: [0; 16],
        time: 1_700_000_000,
        inodes: None,
        journal: Journal::Default,
        reserved: 0,
    };
    mkfs(&mut file, SIZE, &options).unwrap();
    path
}

/// Converts a layer's archive to an EROFS image.
pub fn convert(directory: &Path, archive: &Path) -> PathBuf {
    let store = Store::open(&directory.join("store")).unwrap();
    let expect = Expect {
        blob: None,
        diff_id: Digest::of(&fs::read(archive).unwrap()),
        archive: None,
        checksum: None,
    };
    let source = File::open(archive).unwrap();
    let limits = Limits::default();
    convert_layer_in(Place::Here, &store, source, &expect, &limits)
        .unwrap()
        .path
}
