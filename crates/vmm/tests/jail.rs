//! What a process in jail can still reach, found out by trying from inside.
//!
//! This program starts itself once for each attempt. The process enters the jail, tries,
//! and says what came of it: with its exit code, or the system call filter does.

#[cfg(target_arch = "x86_64")]
#[path = "jail/attempts.rs"]
mod attempts;

#[cfg(target_arch = "x86_64")]
fn main() -> std::process::ExitCode {
    attempts::run()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {}
