//! The host's files that QEMU gets: open descriptors, and paths to the files that it must open
//! itself.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use micabox_disk::flat_vmdk;
use micabox_jail::View;
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::process::geteuid;

use crate::file::reopen;
use crate::process::SharedDescriptor;
use crate::{Begin, Error, MachineConfig, MachineFile};

/// Files of a machine.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Descriptors that the process inherits.
    pub(super) open: Vec<SharedDescriptor>,
    /// The host's paths and the descriptors of files that QEMU opens again. The jail shows it the
    /// files that are open, or fails.
    pub(super) paths: Vec<(PathBuf, RawFd)>,
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    pub(super) regions: Vec<PathBuf>,
    /// For each disk, the number of its file, or of the VMDK descriptor of its files.
    pub(super) disks: Vec<RawFd>,
    /// Descriptors that QEMU may use by number.
    pub(super) shared: Vec<RawFd>,
}

impl Files {
    pub(super) fn of(config: &MachineConfig) -> Result<Self, Error> {
        let mut files = Self::default();
        match &config.begin {
            Begin::Boot { kernel, initrd } => {
                files.kernel = files.again(kernel)?;
                files.initrd = files.again(initrd)?;
            }
            Begin::Restore(_) => return Err(Error::NoSnapshots { backend: "QEMU" }),
        }
        for region in &config.pmem {
            let [file] = region.files.as_slice() else {
                return Err(Error::Unsupported {
                    backend: "QEMU",
                    what: "can't map several files into one pmem region".into(),
                });
            };
            let path = files.again(file)?;
            files.regions.push(path);
        }
        for disk in &config.disks {
            let number = match disk.files.as_slice() {
                [file] => files.share(Arc::clone(file.file())),
                parts => files.several(parts)?,
            };
            files.disks.push(number);
        }
        Ok(files)
    }

    /// Shows QEMU a file that it opens again, for reading; returns the path where QEMU finds it.
    fn again(&mut self, file: &MachineFile) -> Result<PathBuf, Error> {
        let failed = |error: std::io::Error| file.failed(error.to_string());
        let meta = file.file().metadata().map_err(failed)?;
        if geteuid().is_root() && meta.permissions().mode() & 0o004 == 0 {
            let why = "QEMU is not root and may not read it: `chmod o+r` it, or, if it is a root \
                       disk, use `--transport blk`";
            return Err(file.failed(why.to_owned()));
        }
        let number = file.number();
        if !self.paths.iter().any(|(_, known)| *known == number) {
            let place = file.path().canonicalize().map_err(failed)?;
            self.open.push(Arc::clone(file.file()) as _);
            self.paths.push((place, number));
        }
        Ok(View::file_path(number))
    }

    /// Shares a file with QEMU by number.
    fn share(&mut self, file: Arc<File>) -> RawFd {
        let number = file.as_raw_fd();
        if !self.shared.contains(&number) {
            self.open.push(file);
            self.shared.push(number);
        }
        number
    }

    /// Shares several files, which are one disk, and returns the number of the disk's descriptor.
    fn several(&mut self, parts: &[MachineFile]) -> Result<RawFd, Error> {
        let extents = parts.iter().map(|part| {
            let number = self.share(Arc::clone(part.file()));
            (shared_path(number), part.length())
        });
        let text = flat_vmdk(extents);
        let write = || -> std::io::Result<File> {
            let mut file = File::from(memfd_create("disk", MemfdFlags::CLOEXEC)?);
            file.write_all(text.as_bytes())?;
            file.rewind()?;
            // The memfd is open for reading and writing. QEMU opens it for reading only, and needs
            // a descriptor with that access mode.
            reopen(&file, OFlags::RDONLY)
        };
        let file = write().map_err(|source| Error::System {
            what: "describing a disk to QEMU",
            source,
        })?;
        Ok(self.share(Arc::new(file)))
    }
}

/// Returns the path at which QEMU finds a shared descriptor.
pub(super) fn shared_path(number: RawFd) -> String {
    format!("/dev/fdset/{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, PmemRegion};

    fn file() -> MachineFile {
        let file = tempfile::tempfile().unwrap();
        let mode = std::fs::Permissions::from_mode(0o644);
        file.set_permissions(mode).unwrap();
        MachineFile::new(file, "/dev").unwrap()
    }

    #[test]
    fn a_file_is_given_once_however_often_the_machine_has_it() {
        let part = file();
        let mut config = MachineConfig {
            name: "x".into(),
            begin: Begin::Boot {
                kernel: file(),
                initrd: file(),
            },
            machine: micabox_spec::Machine {
                memory_mib: 1,
                cpus: Some(1),
                ..micabox_spec::Machine::default()
            },
            pmem: vec![
                PmemRegion {
                    files: vec![part.clone()]
                };
                2
            ],
            trees: Vec::new(),
            disks: vec![Disk {
                files: vec![file(), part.clone(), part.clone()],
                read_only: true,
                serial: "x".into(),
            }],
            parts: None,
            network: None,
            vsock: None,
            shares: Vec::new(),
            cmdline_extra: Vec::new(),
            lifeline: None,
            max_processes: None,
        };
        let files = Files::of(&config).unwrap();
        assert_eq!((files.regions.len(), files.paths.len()), (2, 3));
        // The disk's two files and their descriptor.
        assert_eq!((files.disks.len(), files.shared.len()), (1, 3));
        assert_eq!(files.disks[0], files.shared[2]);
        config.pmem[0].files.push(part);
        let error = Files::of(&config).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}
