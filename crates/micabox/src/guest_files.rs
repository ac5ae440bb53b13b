//! Where the guest's kernel and agent are.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;

/// Names a directory to look in before all others.
const VARIABLE: &str = "MICABOX_GUEST";

/// Words for the end of the kernel's command line, for whoever looks into a kernel.
const CMDLINE_VARIABLE: &str = "MICABOX_CMDLINE";

const KERNEL: &str = "vmlinux";
const INITRD: &str = "initrd.cpio";

/// The files that every guest boots from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFiles {
    /// The kernel.
    pub kernel: PathBuf,
    /// The agent, as an initramfs.
    pub initrd: PathBuf,
    /// More words for the kernel's command line.
    pub cmdline: Vec<String>,
}

impl GuestFiles {
    /// Looks in `$MICABOX_GUEST`; otherwise in `../share/micabox` and `../guest`,
    /// seen from the directory of the running program. `$MICABOX_CMDLINE` has more words
    /// for the kernel.
    ///
    /// # Errors
    /// [`Error::NoGuest`] with the places.
    pub fn find() -> Result<Self, Error> {
        Self::find_for(&std::env::current_exe().unwrap_or_default())
    }

    /// As [`GuestFiles::find`] does it for the program at `program`.
    ///
    /// # Errors
    /// [`Error::NoGuest`] with the places.
    pub fn find_for(program: &Path) -> Result<Self, Error> {
        let named = std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty());
        Self::find_in(match named {
            Some(dir) => vec![PathBuf::from(dir)],
            None => beside(program).unwrap_or_default(),
        })
    }

    fn find_in(directories: Vec<PathBuf>) -> Result<Self, Error> {
        // Both from one place: they are built for each other.
        let words = std::env::var(CMDLINE_VARIABLE).unwrap_or_default();
        let words = words.split_whitespace().map(str::to_owned);
        let cmdline: Vec<_> = words.collect();
        let complete = directories.iter().map(|dir| Self {
            kernel: dir.join(KERNEL),
            initrd: dir.join(INITRD),
            cmdline: cmdline.clone(),
        });
        if let Some(files) = complete
            .clone()
            .find(|files| files.kernel.is_file() && files.initrd.is_file())
        {
            return Ok(files);
        }
        let has_kernel = complete.clone().any(|files| files.kernel.is_file());
        Err(Error::NoGuest {
            name: if has_kernel { INITRD } else { KERNEL },
            searched: directories,
        })
    }
}

/// Where an installation or a build directory has them.
fn beside(program: &Path) -> Option<Vec<PathBuf>> {
    let above = program.parent()?.parent()?;
    Some(vec![above.join("share/micabox"), above.join("guest")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_comes_before_a_build() {
        let dir = tempfile::tempdir().unwrap();
        let directories = beside(&dir.path().join("bin/mica")).unwrap();
        let missing = GuestFiles::find_in(directories.clone()).unwrap_err();
        assert!(missing.to_string().contains("share/micabox"), "{missing}");

        for name in ["vmlinux", "initrd.cpio"] {
            std::fs::create_dir_all(dir.path().join("guest")).unwrap();
            std::fs::write(dir.path().join("guest").join(name), "").unwrap();
        }
        let built = GuestFiles::find_in(directories.clone()).unwrap();
        assert_eq!(built.kernel, dir.path().join("guest/vmlinux"));

        // Half an installation is none.
        std::fs::create_dir_all(dir.path().join("share/micabox")).unwrap();
        std::fs::write(dir.path().join("share/micabox/vmlinux"), "").unwrap();
        assert_eq!(GuestFiles::find_in(directories.clone()).unwrap(), built);
        std::fs::write(dir.path().join("share/micabox/initrd.cpio"), "").unwrap();
        let installed = GuestFiles::find_in(directories).unwrap();
        assert_eq!(installed.kernel, dir.path().join("share/micabox/vmlinux"));
    }
}
