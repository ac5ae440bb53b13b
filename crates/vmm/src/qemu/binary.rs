//! Finds QEMU's program.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// Environment variable that names the program to use in place of the one on PATH.
const VARIABLE: &str = "MICABOX_QEMU";

/// QEMU's program for the architecture of this program, which is the guest's too.
const NAME: &str = if cfg!(target_arch = "aarch64") {
    "qemu-system-aarch64"
} else {
    "qemu-system-x86_64"
};

/// The program's place on Red Hat's distributions.
const RED_HAT: &str = "/usr/libexec/qemu-kvm";

/// Returns the program's path.
pub(super) fn find() -> Result<PathBuf, Error> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let path = std::env::var_os("PATH").unwrap_or_default();
    look(named.as_deref(), &path).ok_or_else(|| Error::NoQemu {
        binary: named.map_or_else(|| NAME.into(), |name| name.to_string_lossy().into_owned()),
        install: install_command().to_owned(),
    })
}

fn look(named: Option<&OsStr>, path: &OsStr) -> Option<PathBuf> {
    match named {
        Some(named) => Some(PathBuf::from(named)).filter(|path| is_program(path)),
        None => std::env::split_paths(path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(NAME))
            .chain([PathBuf::from(RED_HAT)])
            .find(|path| is_program(path)),
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns the command that installs QEMU on this distribution.
pub fn install_command() -> &'static str {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    install_command_for(&release)
}

fn install_command_for(os_release: &str) -> &'static str {
    let words: Vec<&str> = os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split(' '))
        .collect();
    let is = |name: &str| words.contains(&name);
    if is("debian") || is("ubuntu") {
        "sudo apt-get install --no-install-recommends qemu-system-x86"
    } else if is("fedora") {
        "sudo dnf install qemu-system-x86-core"
    } else if is("rhel") || is("centos") {
        "sudo dnf install qemu-kvm"
    } else if is("arch") {
        "sudo pacman -S qemu-system-x86"
    } else if is("alpine") {
        "sudo apk add qemu-system-x86_64"
    } else if is("suse") || is("opensuse") {
        "sudo zypper install qemu-x86"
    } else {
        "QEMU 7.2 or newer from your distribution"
    }
}

/// Returns whether an emulated processor may execute code as it was before another processor changed it, though
/// both have agreed that it is changed. A kernel that patches its code (branches that are switched while it runs) then
/// panics once in thousands of starts, in `int3`. QEMU 8.1 locks a page before it translates it. A program that does
/// not tell its version may.
pub(super) fn mixes_up_patches(program: &Path) -> bool {
    version(program).map_or(true, |line| {
        number(&line).is_none_or(|version| version < (8, 1))
    })
}

/// Returns the major and the minor number of "QEMU emulator version 7.2.22 (Debian 1:7.2)".
fn number(version: &str) -> Option<(u32, u32)> {
    let (_, number) = version.split_once("version ")?;
    let mut parts = number.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns the first line that `program --version` prints. Starting QEMU takes tens of
/// milliseconds, so this is for diagnosis, not for every start.
///
/// # Errors
/// Why the program could not print it.
pub fn version(program: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next() {
        Some(line) if output.status.success() => Ok(line.to_owned()),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_program_is_used_or_missing() {
        let path = OsStr::new("/bin:/usr/bin");
        let shell = OsStr::new("/bin/sh");
        assert_eq!(
            look(Some(shell), path).as_deref(),
            Some(Path::new("/bin/sh"))
        );
        assert_eq!(look(Some(OsStr::new("/etc/passwd")), path), None);
        assert_eq!(look(Some(OsStr::new("/proc/none/qemu")), path), None);
    }

    #[test]
    fn the_path_is_searched_in_order_and_never_relative() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(NAME);
        std::fs::write(&program, "").unwrap();
        let path = std::env::join_paths([Path::new("."), dir.path()]).unwrap();
        // Not executable yet.
        assert_ne!(look(None, &path).as_deref(), Some(program.as_path()));
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(look(None, &path).as_deref(), Some(program.as_path()));
    }

    #[test]
    fn the_numbers_of_a_version_are_compared_as_numbers() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)";
        assert_eq!(number(debian), Some((7, 2)));
        assert_eq!(number("QEMU emulator version 10.0.2"), Some((10, 0)));
        assert_eq!(number("QEMU emulator version 8.1"), Some((8, 1)));
        for unknown in ["", "version ", "QEMU 9.0", "version 9", "version x.1"] {
            assert_eq!(number(unknown), None, "{unknown}");
        }
        assert!(mixes_up_patches(Path::new("/bin/false")));
    }

    #[test]
    fn a_missing_qemu_names_the_distributions_install_command() {
        assert!(install_command_for("NAME=x\nID=debian\n").contains("apt-get"));
        assert!(install_command_for("ID=mint\nID_LIKE=\"ubuntu debian\"\n").contains("apt-get"));
        assert!(install_command_for("ID=rocky\nID_LIKE=\"rhel centos fedora\"").contains("dnf"));
        assert!(install_command_for("").contains("QEMU"));
    }
}
