//! The host's files that QEMU gets: open descriptors, and paths to the files that it must open
//! itself.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use micabox_jail::View;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::geteuid;

use crate::file::open;
use crate::{DiskSource, Error, MachineConfig, PmemFile};

/// Files of a machine.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Descriptors that the process inherits.
    pub(super) open: Vec<OwnedFd>,
    /// The host's paths and the descriptors of files that QEMU opens again.
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
    pub(super) fn open(config: &MachineConfig) -> Result<Self, Error> {
        let mut files = Self::default();
        files.kernel = files.again(&config.kernel, None)?;
        files.initrd = files.again(&config.initrd, None)?;
        for region in &config.pmem {
            let [file] = region.files.as_slice() else {
                return Err(Error::Unsupported {
                    backend: "QEMU",
                    what: "can't map several files into one pmem region".into(),
                });
            };
            let path = files.again(&file.path, Some(file.size))?;
            files.regions.push(path);
        }
        for disk in &config.disks {
            let number = match &disk.source {
                DiskSource::Raw(path) => files.share(open(path, None, disk.read_only)?.0),
                DiskSource::Files { files: parts, vmdk } => files.descriptor(parts, vmdk)?,
            };
            files.disks.push(number);
        }
        Ok(files)
    }

    /// Opens a file for reading that QEMU opens again; returns the path where QEMU finds it.
    fn again(&mut self, path: &Path, length: Option<u64>) -> Result<PathBuf, Error> {
        let failed = |why: String| Error::File {
            path: path.to_owned(),
            why,
        };
        let (file, _) = open(path, length, true)?;
        let meta = file.metadata().map_err(|error| failed(error.to_string()))?;
        if geteuid().is_root() && meta.permissions().mode() & 0o004 == 0 {
            let why = "QEMU is not root and may not read it: `chmod o+r` it, or, if it is a root \
                       disk, use `--transport blk`";
            return Err(failed(why.to_owned()));
        }
        let place = path
            .canonicalize()
            .map_err(|error| failed(error.to_string()))?;
        let number = self.keep(file.into());
        self.paths.push((place, number));
        Ok(View::file_path(number))
    }

    /// Shares a file with QEMU by number.
    fn share(&mut self, file: File) -> RawFd {
        let number = self.keep(file.into());
        self.shared.push(number);
        number
    }

    fn keep(&mut self, file: OwnedFd) -> RawFd {
        let number = file.as_raw_fd();
        self.open.push(file);
        number
    }

    /// Copies the VMDK descriptor at `path`, with numbers in place of its parts' paths.
    fn descriptor(&mut self, parts: &[PmemFile], path: &Path) -> Result<RawFd, Error> {
        let failed = |why: String| Error::File {
            path: path.to_owned(),
            why,
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let parts = parts.iter().map(|part| {
            let (file, _) = open(&part.path, Some(part.size), true)?;
            Ok(self.share(file))
        });
        let numbers = parts.collect::<Result<Vec<_>, Error>>()?;
        let text = by_numbers(&text, &numbers)
            .ok_or_else(|| failed("it does not list the files of the disk".into()))?;
        let write = || -> std::io::Result<File> {
            let mut file = File::from(memfd_create("disk", MemfdFlags::CLOEXEC)?);
            file.write_all(text.as_bytes())?;
            file.rewind()?;
            Ok(file)
        };
        let file = write().map_err(|source| Error::System {
            what: "describing a disk to QEMU",
            source,
        })?;
        // The memfd is open for reading and writing. QEMU opens it for reading only, and needs a
        // descriptor with that access mode.
        let reading =
            File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|source| {
                Error::System {
                    what: "describing a disk to QEMU",
                    source,
                }
            })?;
        Ok(self.share(reading))
    }
}

/// Returns the path at which QEMU finds a shared descriptor.
pub(super) fn shared_path(number: RawFd) -> String {
    format!("/dev/fdset/{number}")
}

/// Replaces the paths in a VMDK descriptor's text. Extents of one file follow each other, and the
/// first of them begins at the file's first sector.
fn by_numbers(text: &str, numbers: &[RawFd]) -> Option<String> {
    let mut numbers = numbers.iter();
    let mut current = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let Some((before, rest)) = line.split_once(" FLAT \"") else {
            lines.push(line.to_owned());
            continue;
        };
        let (_, start) = rest.rsplit_once("\" ")?;
        if start == "0" {
            current = numbers.next();
        }
        let path = shared_path(*current?);
        lines.push(format!("{before} FLAT \"{path}\" {start}"));
    }
    lines.push(String::new());
    numbers.next().is_none().then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PmemRegion;

    #[test]
    fn a_region_is_one_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mode = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(mode).unwrap();
        let part = PmemFile {
            path: file.path().to_owned(),
            size: 0,
        };
        let mut config = MachineConfig {
            name: "x".into(),
            kernel: file.path().to_owned(),
            initrd: file.path().to_owned(),
            memory_mib: 1,
            cpus: 1,
            nested_virtualization: false,
            require_limits: false,
            pmem: vec![PmemRegion {
                files: vec![part.clone()],
            }],
            disks: Vec::new(),
            network: None,
            vsock: None,
            cmdline_extra: Vec::new(),
            lifeline: None,
            resumed: None,
        };
        let files = Files::open(&config).unwrap();
        assert_eq!((files.regions.len(), files.paths.len()), (1, 3));
        config.pmem[0].files.push(part);
        let error = Files::open(&config).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }

    #[test]
    fn a_vmdk_descriptor_has_fd_numbers_for_paths() {
        let text = "version=1\nRW 8 FLAT \"a b.erofs\" 0\nRW 4 FLAT \"a b.erofs\" 8\n\
                    RW 2 FLAT \"../x\" 0\n\nddb.x = \"4\"\n";
        let expected = "version=1\nRW 8 FLAT \"/dev/fdset/7\" 0\n\
                        RW 4 FLAT \"/dev/fdset/7\" 8\nRW 2 FLAT \"/dev/fdset/9\" 0\n\n\
                        ddb.x = \"4\"\n";
        assert_eq!(by_numbers(text, &[7, 9]).as_deref(), Some(expected));
        assert_eq!(by_numbers(text, &[7]), None);
        assert_eq!(by_numbers(text, &[7, 8, 9]), None);
    }
}
