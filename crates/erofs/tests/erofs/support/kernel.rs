//! Mounts with the machine's kernel, as root.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// A mount that is unmounted when this value is dropped.
pub struct Mount {
    directory: tempfile::TempDir,
    /// Another directory that the mount uses.
    _other: Option<tempfile::TempDir>,
}

impl Mount {
    fn new(kind: &str, source: &Path, options: &[u8]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = CString::new(options).unwrap();
        rustix::mount::mount(
            source,
            directory.path(),
            kind,
            MountFlags::RDONLY,
            options.as_c_str(),
        )
        .unwrap_or_else(|error| {
            panic!(
                "mount -t {kind} -o {} {}: {error}",
                options.to_string_lossy(),
                source.display()
            )
        });
        Self {
            directory,
            _other: None,
        }
    }

    /// Mounts an EROFS image directly from its file, which must not lie on tmpfs.
    pub fn erofs(image: &Path, devices: &[&Path]) -> Self {
        let mut options = Vec::new();
        for device in devices {
            if !options.is_empty() {
                options.push(b',');
            }
            options.extend_from_slice(b"device=");
            options.extend_from_slice(device.as_os_str().as_bytes());
        }
        Self::new("erofs", image, &options)
    }

    /// Stacks directories, the topmost first, without a writable layer.
    pub fn overlay(lowers: &[&Path]) -> Self {
        let mut options = b"lowerdir=".to_vec();
        // overlayfs requires at least two.
        let empty = tempfile::tempdir().unwrap();
        let mut lowers: Vec<&Path> = lowers.to_vec();
        if lowers.len() == 1 {
            lowers.push(empty.path());
        }
        for (index, lower) in lowers.iter().enumerate() {
            if index > 0 {
                options.push(b':');
            }
            options.extend_from_slice(lower.as_os_str().as_bytes());
        }
        let mut mount = Self::new("overlay", Path::new("overlay"), &options);
        mount._other = Some(empty);
        mount
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Detached, so that a failing test that still has a file open leaves nothing.
        let _ = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}

/// Creates a directory for images: on disk, since the kernel does not mount them from tmpfs.
pub fn image_directory() -> tempfile::TempDir {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}
