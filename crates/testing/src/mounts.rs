//! Mounts of this machine's kernel, made as root.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, unmount};
use tempfile::TempDir;

use crate::{run, wait_until};

/// A mount on a directory of its own, which is unmounted when this is dropped.
pub struct Mount {
    directory: TempDir,
    /// Mounts below this one.
    _below: Vec<Mount>,
    /// A layer without files.
    _empty: Option<TempDir>,
}

impl Mount {
    /// Mounts an ext4 filesystem in a file. `options`: `rw` or `ro`.
    pub fn ext4(image: &Path, options: &str) -> Self {
        Self::file("ext4", image, options)
    }

    /// Mounts a filesystem of this kind in a file.
    pub fn file(kind: &str, image: &Path, options: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", &format!("loop,{options}")]);
        run(command.arg(image).arg(directory.path()));
        Self {
            directory,
            _below: Vec::new(),
            _empty: None,
        }
    }

    /// Mounts an EROFS image with further devices, directly from their files, which must not be on tmpfs
    /// ([`directory_on_disk`]).
    pub fn erofs(image: &Path, devices: &[&Path]) -> Self {
        let devices = devices.iter();
        let devices = devices.map(|device| format!("device={}", device.display()));
        let options = devices.collect::<Vec<_>>().join(",");
        Self::new("erofs", image, MountFlags::RDONLY, &options)
    }

    /// Mounts an empty filesystem in memory.
    pub fn tmpfs(options: &str) -> Self {
        Self::new("tmpfs", Path::new("tmpfs"), MountFlags::empty(), options)
    }

    /// Mounts an upper layer on a disk over a lower layer, as in a sandbox.
    pub fn overlay(lower: Self, disk: Self) -> Self {
        let options = "redirect_dir=nofollow,metacopy=off,index=off";
        Self::overlay_with(lower, disk, options)
    }

    /// Does the same with other options.
    pub fn overlay_with(lower: Self, disk: Self, options: &str) -> Self {
        let at = |name| disk.path().join(name);
        for directory in [at("root"), at("work")] {
            std::fs::create_dir_all(directory).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={},xino=on,{options}",
            lower.path().display(),
            at("root").display(),
            at("work").display(),
        );
        let mut mount = Self::new(
            "overlay",
            Path::new("overlay"),
            MountFlags::empty(),
            &options,
        );
        mount._below = vec![lower, disk];
        mount
    }

    /// Mounts layers over each other, the topmost first, without a writable one. They stay mounted for as long
    /// as this.
    pub fn stack(layers: &[Self]) -> Self {
        Self::stack_with(layers, "xino=on")
    }

    /// Does the same with other options.
    pub fn stack_with(layers: &[Self], options: &str) -> Self {
        // overlayfs requires at least two.
        let empty = (layers.len() < 2).then(|| TempDir::new().unwrap());
        let paths = layers.iter().map(Self::path);
        let paths = paths.chain(empty.as_ref().map(TempDir::path));
        let paths = paths.map(|path| path.display().to_string());
        let options = format!("{options},lowerdir={}", paths.collect::<Vec<_>>().join(":"));
        let mut mount = Self::new(
            "overlay",
            Path::new("overlay"),
            MountFlags::RDONLY,
            &options,
        );
        mount._empty = empty;
        mount
    }

    fn new(kind: &str, source: &Path, flags: MountFlags, options: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let words = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount(source, directory.path(), kind, flags, words.as_c_str())
            .unwrap_or_else(|error| {
                panic!("mount -t {kind} -o {options} {}: {error}", source.display())
            });
        Self {
            directory,
            _below: Vec::new(),
            _empty: None,
        }
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the place of an absolute path in it.
    pub fn at(&self, path: &str) -> PathBuf {
        self.path().join(path.trim_start_matches('/'))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _left = Left(self.path());
        if !std::thread::panicking() {
            // Another test's child may hold a descriptor until it executes its program.
            wait_until("nothing uses a mount", || {
                unmount(self.path(), UnmountFlags::empty()).is_ok()
            });
        }
    }
}

/// Even a failing test that still has a file open leaves no mount behind.
struct Left<'a>(&'a Path);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

/// Makes a directory for images: beside the programs, since the kernel does not mount images from tmpfs.
pub fn directory_on_disk() -> TempDir {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap().join("tmp");
    std::fs::create_dir_all(&target).unwrap();
    TempDir::new_in(target).unwrap()
}
