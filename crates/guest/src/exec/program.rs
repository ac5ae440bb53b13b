//! Finds a command's program, and explains why it can't run.
//!
//! All of it happens in the new process, as the user that the command runs as.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use micabox_wire::{Exec, StartFailed, StartFailure};
use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::io::Errno;

use crate::errno::describe;
use crate::quoted::shown;

/// Finds the file to execute for a command's program, or for the one that takes its place if it is not found. Returns
/// the program's name as well.
pub fn find_either<'a>(spec: &'a Exec, path: &[u8]) -> Result<(&'a [u8], CString), StartFailed> {
    let program = spec.argv.first().map(Vec::as_slice).unwrap_or_default();
    match find(program, path) {
        Err(failed) if failed.reason == StartFailure::NotFound => {
            let fallback = &*spec.fallback;
            let found = (!fallback.is_empty()).then(|| find(fallback, path).ok());
            let found = found.flatten().ok_or(failed)?;
            Ok((fallback, found))
        }
        found => Ok((program, found?)),
    }
}

/// Finds the file to execute for `program`: itself if it has a slash, otherwise the first
/// executable file of that name in the directories of `path`.
///
/// As in Docker (Go's `exec.LookPath`), files of that name that can't be executed are skipped, and
/// if there are no others the program is not found.
pub fn find(program: &[u8], path: &[u8]) -> Result<CString, StartFailed> {
    if program.contains(&0) {
        return Err(failed(
            StartFailure::Other,
            format!("{}: has a NUL byte", shown(program)),
            None,
        ));
    }
    if program.contains(&b'/') {
        let file = to_c_string(program.to_vec());
        return match executable(&file) {
            Ok(()) => Ok(file),
            Err(errno) => Err(not_executable(program, errno)),
        };
    }
    let directories = path.split(|&byte| byte == b':');
    for directory in directories.filter(|_| !program.is_empty()) {
        // An empty element is the working directory.
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        let candidate = to_c_string([directory, b"/", program].concat());
        if executable(&candidate).is_ok() {
            return Ok(candidate);
        }
    }
    Err(failed(
        StartFailure::NotFound,
        format!(
            "{}: executable file not found in PATH ({})",
            shown(program),
            shown(path)
        ),
        Some(Errno::NOENT),
    ))
}

/// Checks whether execve(2) can succeed.
fn executable(file: &CStr) -> rustix::io::Result<()> {
    let stat = rustix::fs::statat(CWD, file, AtFlags::empty())?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return Err(Errno::ISDIR);
    }
    rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::empty())
}

fn not_executable(program: &[u8], errno: Errno) -> StartFailed {
    let reason = match errno {
        Errno::NOENT | Errno::NOTDIR => StartFailure::NotFound,
        _ => StartFailure::NotExecutable,
    };
    failed(
        reason,
        format!("{}: {}", shown(program), describe(errno)),
        Some(errno),
    )
}

/// Returns the message for the user after execve(2) of `file` failed with `errno`.
pub fn explain(file: &CStr, errno: Errno) -> StartFailed {
    let name = shown(file.to_bytes());
    match errno {
        Errno::NOENT => {
            // The file existed just before, so its interpreter or loader is missing.
            let message = match interpreter(&head(file)) {
                Some(Interpreter::Script(interpreter)) if interpreter.ends_with(b"\r") => format!(
                    "{name}: interpreter {} not found (the script has Windows line endings)",
                    shown(&interpreter)
                ),
                Some(Interpreter::Script(interpreter)) => {
                    format!("{name}: interpreter {} not found", shown(&interpreter))
                }
                Some(Interpreter::Loader(loader)) => format!(
                    "{name}: its loader {} not found (was it built for another C library?)",
                    shown(&loader)
                ),
                None => format!("{name}: {}", describe(errno)),
            };
            failed(StartFailure::NotFound, message, Some(errno))
        }
        Errno::NOEXEC => {
            let message = match foreign_machine(&head(file)) {
                Some(machine) => format!("{name}: exec format error (built for {machine})"),
                None => format!("{name}: exec format error (neither a program nor #!)"),
            };
            failed(StartFailure::NotExecutable, message, Some(errno))
        }
        Errno::TOOBIG | Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE => failed(
            StartFailure::Other,
            format!("{name}: {}", describe(errno)),
            Some(errno),
        ),
        _ => failed(
            StartFailure::NotExecutable,
            format!("{name}: {}", describe(errno)),
            Some(errno),
        ),
    }
}

/// The program that a program file needs to be run.
#[derive(Debug, PartialEq, Eq)]
enum Interpreter {
    /// After `#!`.
    Script(Vec<u8>),
    /// In ELF's PT_INTERP.
    Loader(Vec<u8>),
}

/// Bytes of a program file that are read: a loader's name is near its start, and the kernel itself
/// reads 256 bytes of a script.
const HEAD: u64 = 4096;

fn head(file: &CStr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(OsStr::from_bytes(file.to_bytes()));
    if let Ok(opened) = opened {
        // If this fails, only the explanation is missing; the error itself is reported anyway.
        let _ = opened.take(HEAD).read_to_end(&mut bytes);
    }
    bytes
}

fn interpreter(head: &[u8]) -> Option<Interpreter> {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii_start();
        // The kernel does not treat a carriage return as a blank.
        let word = line.split(|byte| b" \t\0".contains(byte)).next()?;
        return (!word.is_empty()).then(|| Interpreter::Script(word.to_vec()));
    }
    elf_loader(head).map(Interpreter::Loader)
}

/// Returns PT_INTERP of a 64-bit little-endian ELF file (System V ABI, "Program Header").
fn elf_loader(head: &[u8]) -> Option<Vec<u8>> {
    const PT_INTERP: u32 = 3;
    head.strip_prefix(b"\x7fELF\x02\x01")?;
    let table = usize::try_from(u64::from_le_bytes(field(head, 32)?)).ok()?;
    let entry_size = usize::from(u16::from_le_bytes(field(head, 54)?));
    let entries = usize::from(u16::from_le_bytes(field(head, 56)?));
    for index in 0..entries {
        let entry = table.checked_add(index.checked_mul(entry_size)?)?;
        if u32::from_le_bytes(field(head, entry)?) == PT_INTERP {
            let start = usize::try_from(u64::from_le_bytes(field(head, entry + 8)?)).ok()?;
            let length = usize::try_from(u64::from_le_bytes(field(head, entry + 32)?)).ok()?;
            let name = head.get(start..start.checked_add(length)?)?;
            return Some(name.strip_suffix(b"\0").unwrap_or(name).to_vec());
        }
    }
    None
}

/// Returns the machine that an ELF file is for, if it is not this one (ELF's `e_machine`).
fn foreign_machine(head: &[u8]) -> Option<String> {
    const NATIVE: u16 = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    head.strip_prefix(b"\x7fELF")?;
    let machine = u16::from_le_bytes(field(head, 18)?);
    if machine == NATIVE {
        return None;
    }
    let name = match machine {
        3 => "32 bit x86".to_owned(),
        40 => "32 bit ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "ARM64".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("machine {other}"),
    };
    Some(name)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Creates a failure with the kernel's error, if there is one.
pub fn failed(reason: StartFailure, message: String, errno: Option<Errno>) -> StartFailed {
    StartFailed {
        reason,
        message,
        errno: errno.map_or(0, Errno::raw_os_error),
    }
}

/// Ends the string at the first NUL byte; callers have already rejected those.
fn to_c_string(mut bytes: Vec<u8>) -> CString {
    if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
        bytes.truncate(end);
    }
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn write(path: &Path, contents: &[u8], mode: u32) {
        fs::write(path, contents).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn path_is_searched_as_docker_does() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
        for directory in [&first, &second] {
            fs::create_dir(directory).unwrap();
        }
        fs::create_dir(first.join("tool")).unwrap();
        write(&first.join("data"), b"", 0o644);
        write(&second.join("tool"), b"", 0o755);
        let path = format!("/proc/none:{}:{}", first.display(), second.display());
        let found = find(b"tool", path.as_bytes()).unwrap();
        assert_eq!(found.to_bytes(), second.join("tool").as_os_str().as_bytes());
        for missing in [&b"data"[..], b"other", b""] {
            let failure = find(missing, path.as_bytes()).unwrap_err();
            assert_eq!(failure.reason, StartFailure::NotFound);
            assert_eq!(failure.exit_code(), 127);
        }
        let reason = |path: &Path| {
            find(path.as_os_str().as_bytes(), b"")
                .map(|_| ())
                .map_err(|failure| failure.reason)
        };
        assert_eq!(reason(&second.join("tool")), Ok(()));
        assert_eq!(reason(&first), Err(StartFailure::NotExecutable));
        assert_eq!(
            reason(&first.join("data")),
            Err(StartFailure::NotExecutable)
        );
        assert_eq!(reason(&first.join("none")), Err(StartFailure::NotFound));
        assert_eq!(
            reason(&first.join("data/below")),
            Err(StartFailure::NotFound)
        );
        assert_eq!(
            find(b"to\0ol", b"/bin").unwrap_err().reason,
            StartFailure::Other
        );
    }

    #[test]
    fn the_interpreter_of_a_script_is_found() {
        let script = |text: &[u8]| match interpreter(text) {
            Some(Interpreter::Script(name)) => String::from_utf8(name).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(script(b"#!/bin/sh\necho"), "/bin/sh");
        assert_eq!(script(b"#! \t/usr/bin/env python3\n"), "/usr/bin/env");
        assert_eq!(script(b"#!/bin/sh\r\necho"), "/bin/sh\r");
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"#!"), None);
        assert_eq!(interpreter(b"echo"), None);
    }

    #[test]
    fn a_programs_loader_is_found() {
        let head = head(c"/proc/self/exe");
        let Some(Interpreter::Loader(loader)) = interpreter(&head) else {
            panic!("the test itself has no loader");
        };
        assert!(Path::new(OsStr::from_bytes(&loader)).exists());
        assert_eq!(foreign_machine(&head), None);
        let mut other = head;
        other[18] = 8;
        other[19] = 0;
        assert_eq!(foreign_machine(&other).as_deref(), Some("machine 8"));
    }

    proptest! {
        #[test]
        fn arbitrary_programs_are_parsed_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = interpreter(&bytes);
            let _ = foreign_machine(&bytes);
            for (to, from) in bytes.iter_mut().zip(b"\x7fELF\x02\x01") {
                *to = *from;
            }
            let _ = interpreter(&bytes);
            let _ = foreign_machine(&bytes);
        }
    }
}
