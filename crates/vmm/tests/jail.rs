//! Tests what a jailed process can still reach, by attempts from inside.
//!
//! This program starts itself once for each attempt. The process enters the jail, makes the attempt
//! and reports the outcome by its exit code, unless the seccomp filter ends it.

#[cfg(target_arch = "x86_64")]
#[path = "jail/attempts.rs"]
mod attempts;

#[cfg(target_arch = "x86_64")]
fn main() -> std::process::ExitCode {
    attempts::run()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {}
