//! Random bytes of the kernel's.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns `N` bytes that no process can foretell (getrandom(2)).
///
/// # Errors
/// The kernel's, in a process that may not ask it.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
        let many = random::<1000>().unwrap();
        assert!(many.chunks(100).all(|part| part != [0; 100]));
        assert_eq!(random::<0>().unwrap(), []);
    }
}
