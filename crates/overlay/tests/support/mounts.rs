//! Mounts of the host's kernel, made as root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

/// A mount that is unmounted on drop.
pub struct Mount {
    directory: tempfile::TempDir,
    /// Mounts below this one.
    _below: Vec<Mount>,
}

impl Mount {
    /// Mounts an ext4 filesystem in a file. `options`: `rw` or `ro`.
    pub fn ext4(image: &Path, options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "ext4", "-o", &format!("loop,{options}")]);
        run(command.arg(image).arg(directory.path()));
        Self {
            directory,
            _below: Vec::new(),
        }
    }

    /// Mounts an EROFS image, directly from its file.
    pub fn erofs(image: &Path) -> Self {
        Self::new("erofs", image, MountFlags::RDONLY, "", Vec::new())
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
        let below = vec![lower, disk];
        Self::new(
            "overlay",
            Path::new("overlay"),
            MountFlags::empty(),
            &options,
            below,
        )
    }

    /// Mounts read-only layers, the topmost first.
    pub fn stack(layers: Vec<Self>) -> Self {
        let paths = layers
            .iter()
            .map(|layer| layer.path().display().to_string());
        let options = format!("lowerdir={},xino=on", paths.collect::<Vec<_>>().join(":"));
        Self::new(
            "overlay",
            Path::new("overlay"),
            MountFlags::RDONLY,
            &options,
            layers,
        )
    }

    fn new(kind: &str, source: &Path, flags: MountFlags, options: &str, below: Vec<Self>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount(source, directory.path(), kind, flags, options.as_c_str())
            .unwrap_or_else(|error| panic!("mount -t {kind} -o {options:?}: {error}"));
        Self {
            directory,
            _below: below,
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.path().join(path.trim_start_matches('/'))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let path = self.directory.path();
        // Another test's child may hold a descriptor until it executes its program.
        for _ in 0..100 {
            if rustix::mount::unmount(path, UnmountFlags::empty()).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Even a failing test that still has a file open leaves no mount behind.
        let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
        assert!(std::thread::panicking(), "the mount is in use");
    }
}

/// Runs a command that must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> Vec<u8> {
    let output = command
        .env("LC_ALL", "C")
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output.stdout
}
