//! Random histories of filesystem operations, made by the kernel.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// A random number generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }

    pub fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Few names, so that operations collide.
pub const NAMES: [&str; 8] = ["d0", "d1", "d2", "f0", "f1", "f2", "x0", "x1"];

/// Targets of symbolic links: near, far, outside of the root, missing, or cyclic.
pub const TARGETS: [&str; 8] = [
    "d0",
    "../d1/f0",
    "/d0/d1",
    "f1",
    "x0",
    "../../../d2",
    "missing",
    "x1/./../d1",
];

fn path(random: &mut Random, root: &Path) -> PathBuf {
    let directories = random.below(4);
    let mut path = root.to_owned();
    for _ in 0..directories {
        path.push(random.of(&["d0", "d1", "d2", "x0"]));
    }
    path.join(random.of(&NAMES))
}

/// Does `steps` operations below `root`. Those that the kernel refuses are skipped.
pub fn make(root: &Path, random: &mut Random, steps: usize) {
    for _ in 0..steps {
        let at = path(random, root);
        // Never through a link, which would lead out of the root.
        let mut way = at.ancestors().skip(1).take_while(|above| *above != root);
        if way.any(|above| !above.symlink_metadata().is_ok_and(|stat| stat.is_dir())) {
            continue;
        }
        let _ = step(root, &at, random);
    }
}

fn step(root: &Path, at: &Path, random: &mut Random) -> io::Result<()> {
    let stat = at.symlink_metadata();
    let is_file = stat.as_ref().is_ok_and(|stat| stat.is_file());
    let is_link = stat.as_ref().is_ok_and(|stat| stat.is_symlink());
    match random.below(20) {
        0..3 if is_file || stat.is_err() => {
            let content = vec![random.below(250) as u8 + 1; random.below(9000) as usize];
            fs::write(at, content)
        }
        3 if is_file => {
            let file = fs::OpenOptions::new().write(true).open(at)?;
            file.write_all_at(b"somewhere", random.below(60_000))
        }
        4 if is_file => {
            let file = fs::OpenOptions::new().write(true).open(at)?;
            file.set_len(random.below(20_000))
        }
        5 => fs::remove_file(at),
        6 => fs::remove_dir(at),
        7 => fs::remove_dir_all(at),
        8..11 => fs::create_dir(at),
        11 | 12 => {
            let other = path(random, root);
            fs::rename(at, other)
        }
        13 => symlink(random.of(&TARGETS), at),
        14 => fs::hard_link(at, path(random, root)),
        15 => {
            let (kind, device) = match random.below(4) {
                0 => (FileType::Fifo, 0),
                1 => (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
                2 => (FileType::BlockDevice, rustix::fs::makedev(7, 300)),
                _ => (FileType::Socket, 0),
            };
            let mode = Mode::from_raw_mode(0o640);
            Ok(rustix::fs::mknodat(CWD, at, kind, mode, device)?)
        }
        16 if !is_link => {
            let mode = random.below(0o10000) as u32;
            fs::set_permissions(at, fs::Permissions::from_mode(mode))
        }
        17 => lchown(
            at,
            Some(random.below(3) as u32),
            Some(random.below(70_000) as u32),
        ),
        18 => {
            let names = ["user.a", "user.b", "trusted.c", "trusted.overlay.inner"];
            let name = random.of(&names);
            let value = vec![b'v'; random.below(300) as usize];
            let path = CString::new(at.as_os_str().as_bytes())?;
            match random.below(4) {
                0 => rustix::fs::lremovexattr(&path, name)?,
                _ => rustix::fs::lsetxattr(&path, name, &value, XattrFlags::empty())?,
            }
            Ok(())
        }
        _ => {
            let time = Timespec {
                tv_sec: random.below(2_000_000_000) as i64 - 500_000_000,
                tv_nsec: random.below(1_000_000_000) as i64,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            Ok(rustix::fs::utimensat(CWD, at, &times, flags)?)
        }
    }
}
