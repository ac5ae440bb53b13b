//! What lists of processes show of a forked process: its own words in place of those that its program was
//! started with.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::ptr;

/// The places of the bounds of a command line among the fields of `/proc/self/stat` from the third on
/// (proc_pid_stat(5): fields 48 and 49).
const ARGUMENTS: usize = 45;

/// Strings of a process that the kernel has put into its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) begin: usize,
    pub(crate) length: usize,
}

impl Bounds {
    /// Finds the strings whose bounds are at a place among the fields from the third on; none where the kernel does
    /// not say where they are.
    pub(crate) fn find(field: usize) -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The second field is a name in parentheses, which may have spaces.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut bounds = fields.split_ascii_whitespace().skip(field);
        let mut bound = || bounds.next()?.parse::<usize>().ok();
        let (begin, end) = (bound()?, bound()?);
        let length = end.checked_sub(begin)?;
        (begin > 0).then_some(Self { begin, length })
    }
}

/// The memory with this process's command line, which its forks have at the same place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Title(Option<Bounds>);

impl Title {
    /// Finds it; where the kernel does not say where it is, nothing will be shown.
    pub(crate) fn find() -> Self {
        Self(Bounds::find(ARGUMENTS))
    }

    /// Shows a name in place of the command line, as far as there is room for it. No code of this process may
    /// read its arguments at the same time.
    pub(crate) fn show(self, name: &str) {
        let Some(Bounds { begin, length }) = self.0 else {
            return;
        };
        let Some(room) = length.checked_sub(1) else {
            return;
        };
        let place = ptr::with_exposed_provenance_mut::<u8>(begin);
        let name = name.as_bytes();
        let shown = name.get(..room).unwrap_or(name);
        // SAFETY: the kernel put the strings of the command line there, in writable memory of this process
        // that nothing else uses. They end with a zero byte, and still do.
        unsafe {
            ptr::write_bytes(place, 0, length);
            ptr::copy_nonoverlapping(shown.as_ptr(), place, shown.len());
        }
        if let Ok(name) = CString::new(shown) {
            // The kernel cuts it at 15 bytes.
            let _ = rustix::thread::set_name(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_where_the_kernel_says() {
        let title = Title::find();
        let shown = std::fs::read("/proc/self/cmdline").unwrap();
        assert_eq!(Some(shown.len()), title.0.map(|bounds| bounds.length));
    }
}
