//! Locates the guest's kernel and agent.

use std::io;
use std::path::{Path, PathBuf};

use micabox_error::Error;
use serde::{Deserialize, Serialize};

/// Environment variable with the directory to search before all others.
const VARIABLE: &str = "MICABOX_GUEST";

/// Environment variable with words for the end of the kernel's command line, for debugging a
/// kernel.
const CMDLINE_VARIABLE: &str = "MICABOX_CMDLINE";

const KERNEL: &str = "vmlinux";
const INITRD: &str = "initrd.cpio";

/// The files that a guest boots from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFiles {
    /// The kernel.
    pub kernel: PathBuf,
    /// The agent, as an initramfs.
    pub initrd: PathBuf,
    /// Additional words for the kernel's command line.
    pub cmdline: Vec<String>,
}

impl GuestFiles {
    /// Finds the files in `$MICABOX_GUEST`; otherwise in `../lib/micabox` and `../guest`,
    /// relative to the directory of the running program. `$MICABOX_CMDLINE` has additional words
    /// for the kernel.
    ///
    /// # Errors
    /// [`Error::NoGuest`] with the places, or [`Error::GuestDenied`] with one that this user may not see.
    pub fn find() -> Result<Self, Error> {
        Self::find_for(&std::env::current_exe().unwrap_or_default())
    }

    /// Finds the files as [`GuestFiles::find`] does, for the program at `program`.
    ///
    /// # Errors
    /// [`Error::NoGuest`] with the places, or [`Error::GuestDenied`] with one that this user may not see.
    pub fn find_for(program: &Path) -> Result<Self, Error> {
        Self::find_in(directories(program), true)
    }

    /// Finds the agent as [`GuestFiles::find`] does, for a backend that boots no kernel: there need not be one.
    pub fn find_agent() -> Result<Self, Error> {
        let program = std::env::current_exe().unwrap_or_default();
        Self::find_in(directories(&program), false)
    }

    fn find_in(directories: Vec<PathBuf>, with_kernel: bool) -> Result<Self, Error> {
        // Both from one directory: they are built for each other.
        let words = std::env::var(CMDLINE_VARIABLE).unwrap_or_default();
        let cmdline: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        let complete = directories.iter().map(|dir| Self {
            kernel: dir.join(KERNEL),
            initrd: dir.join(INITRD),
            cmdline: cmdline.clone(),
        });
        if let Some(files) = complete
            .clone()
            .find(|files| (files.kernel.is_file() || !with_kernel) && files.initrd.is_file())
        {
            return Ok(files);
        }
        let needed = |files: Self| [with_kernel.then_some(files.kernel), Some(files.initrd)];
        let mut places = complete.clone().flat_map(needed).flatten();
        if let Some(path) = places.find(|path| is_denied(path)) {
            return Err(Error::GuestDenied { path });
        }
        let has_kernel = complete.clone().any(|files| files.kernel.is_file());
        Err(Error::NoGuest {
            name: if has_kernel || !with_kernel {
                INITRD
            } else {
                KERNEL
            },
            searched: directories,
        })
    }
}

fn is_denied(path: &Path) -> bool {
    path.metadata()
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Returns where the files of a program may be.
fn directories(program: &Path) -> Vec<PathBuf> {
    match std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()) {
        Some(dir) => vec![PathBuf::from(dir)],
        None => beside(program).unwrap_or_default(),
    }
}

/// Returns the directories that an installation or a build has them in.
fn beside(program: &Path) -> Option<Vec<PathBuf>> {
    let above = program.parent()?.parent()?;
    Some(vec![above.join("lib/micabox"), above.join("guest")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_guest_files_come_before_built_ones() {
        let dir = tempfile::tempdir().unwrap();
        let directories = beside(&dir.path().join("bin/mica")).unwrap();
        let missing = GuestFiles::find_in(directories.clone(), true).unwrap_err();
        assert!(missing.to_string().contains("lib/micabox"), "{missing}");

        for name in ["vmlinux", "initrd.cpio"] {
            std::fs::create_dir_all(dir.path().join("guest")).unwrap();
            std::fs::write(dir.path().join("guest").join(name), "").unwrap();
        }
        let built = GuestFiles::find_in(directories.clone(), true).unwrap();
        assert_eq!(built.kernel, dir.path().join("guest/vmlinux"));

        // An incomplete installation does not count.
        std::fs::create_dir_all(dir.path().join("lib/micabox")).unwrap();
        std::fs::write(dir.path().join("lib/micabox/vmlinux"), "").unwrap();
        assert_eq!(
            GuestFiles::find_in(directories.clone(), true).unwrap(),
            built
        );
        std::fs::write(dir.path().join("lib/micabox/initrd.cpio"), "").unwrap();
        std::fs::remove_file(dir.path().join("lib/micabox/vmlinux")).unwrap();
        let without = GuestFiles::find_in(directories.clone(), false).unwrap();
        assert_eq!(without.initrd, dir.path().join("lib/micabox/initrd.cpio"));
        std::fs::write(dir.path().join("lib/micabox/vmlinux"), "").unwrap();
        let installed = GuestFiles::find_in(directories, true).unwrap();
        assert_eq!(installed.kernel, dir.path().join("lib/micabox/vmlinux"));
    }
}
