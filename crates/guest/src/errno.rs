//! The kernel's error numbers.

use rustix::io::Errno;

/// Returns the errno of the C library's last call.
pub fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Describes the kernel's error, without the number that `std` adds.
pub fn describe(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_no_number() {
        assert_eq!(describe(Errno::ACCESS), "permission denied");
    }
}
