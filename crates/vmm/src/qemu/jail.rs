//! QEMU's jail, in which QEMU sees its program, libraries and data, and the parts of its machine,
//! and no other files of the host.
//!
//! A worker enters the jail and executes QEMU, which adds its own seccomp filter (`-sandbox`).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_jail::{Kind, View, enter_for_program, take};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::Lack;

/// The kind of worker that becomes QEMU.
pub const QEMU_WORKER: Kind = Kind::new(NAME, become_qemu);

/// The worker's name on a command line.
pub(super) const NAME: &str = "qemu";

/// Where systems keep programs, their libraries and their data: everyone may read all of it.
const SYSTEM: [&str; 10] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/alternatives",
];

/// A file on which QEMU tests whether file locks work.
const NULL: &str = "/dev/null";

const KVM: &str = "/dev/kvm";

/// The QEMU that a worker executes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    program: PathBuf,
    arguments: Vec<OsString>,
    view: View,
}

impl Start {
    /// `files` are the files that QEMU opens again.
    pub(super) fn new(
        program: &Path,
        arguments: Vec<OsString>,
        files: Vec<(PathBuf, RawFd)>,
        uses_kvm: bool,
    ) -> io::Result<Self> {
        let program = program.canonicalize()?;
        let mut paths: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        if !paths.iter().any(|path| program.starts_with(path)) {
            paths.push(prefix(&program));
        }
        let mut devices = vec![PathBuf::from(NULL)];
        if uses_kvm {
            devices.push(PathBuf::from(KVM));
        }
        let view = View {
            paths,
            files,
            devices,
            group: uses_kvm.then(group).flatten(),
        };
        Ok(Self {
            program,
            arguments,
            view,
        })
    }

    /// Writes it to a file, for a worker.
    pub(super) fn write(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("qemu", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file.into())
    }
}

/// Returns what to show for a program outside the usual places: the whole installation prefix if
/// the program looks installed, otherwise the program.
fn prefix(program: &Path) -> PathBuf {
    program
        .parent()
        .filter(|path| path.ends_with("bin"))
        .and_then(Path::parent)
        .filter(|path| path.parent().is_some())
        .unwrap_or(program)
        .to_owned()
}

/// Returns the group that may use KVM, if one may.
fn group() -> Option<u32> {
    let meta = std::fs::metadata(KVM).ok()?;
    (meta.mode() & 0o060 == 0o060).then(|| meta.gid())
}

/// Returns why QEMU can't use the host's KVM, although this process can.
pub(super) fn no_kvm() -> Option<Lack> {
    let meta = std::fs::metadata(KVM).ok()?;
    let is_shared = meta.mode() & 0o006 == 0o006 || group().is_some();
    (rustix::process::geteuid().is_root() && !is_shared).then(|| {
        Lack::new(format!("only root may open {KVM}, and QEMU is not root")).remedy_is(format!(
            "give it to a group: `chgrp kvm {KVM} && chmod 660 {KVM}`"
        ))
    })
}

/// Runs in the worker: enters the jail and executes QEMU. Returns an exit code only if that fails.
fn become_qemu(descriptor: RawFd) -> i32 {
    let why = match start(descriptor) {
        Ok(never) => match never {},
        Err(why) => why,
    };
    eprintln!("{why}");
    1
}

fn start(descriptor: RawFd) -> Result<std::convert::Infallible, String> {
    let read = || -> io::Result<Start> {
        // SAFETY: the owner gave it to this worker, once.
        #[allow(unsafe_code)]
        let mut file = File::from(unsafe { take(descriptor) }?);
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    let start = read().map_err(|error| format!("reading what to run: {error}"))?;
    enter_for_program(&start.view).map_err(|error| error.to_string())?;
    let mut command = Command::new(&start.program);
    let error = command.args(&start.arguments).env_clear().exec();
    Err(format!("{}: {error}", start.program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qemu_outside_of_system_directories_may_read_its_prefix() {
        let prefix = |path| prefix(Path::new(path)).display().to_string();
        assert_eq!(prefix("/opt/qemu/bin/qemu"), "/opt/qemu");
        assert_eq!(prefix("/tmp/x/qemu"), "/tmp/x/qemu");
        // Never the root directory.
        assert_eq!(prefix("/bin/qemu"), "/bin/qemu");
        assert_eq!(prefix("/qemu"), "/qemu");
    }
}
