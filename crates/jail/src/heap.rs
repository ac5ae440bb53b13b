//! Tunes glibc's malloc for jailed processes: it must retain little, and must not open
//! `/proc/sys/vm/overcommit_memory` later, when the filter forbids it.

/// Prepares the allocator for a filter that allows opening no file. The first time that a thread's arena
/// gives memory back, glibc asks `/proc/sys/vm/overcommit_memory` how to: here, and not when a server has
/// long been busy.
pub(crate) fn prepare() {
    // Below what glibc maps (128 KiB), and together more than it keeps at an arena's end (the same).
    const PIECE: usize = 100 << 10;
    bound_arenas();
    let thread = std::thread::Builder::new().spawn(|| {
        let pieces = [(); 4].map(|()| Vec::<u8>::with_capacity(PIECE));
        drop(std::hint::black_box(pieces));
    });
    // Without a thread now there will be none later.
    let _ = thread.map(std::thread::JoinHandle::join);
}

/// Limits the number of the allocator's arenas, for each of which it reserves address space. By
/// default, glibc reads the number of processors from the host's files.
#[allow(unsafe_code)]
fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 4)
    };
}

/// Gives all pages of the heap that are free back to the system. By itself, glibc gives back only those
/// at its end.
#[allow(unsafe_code)]
pub fn give_back_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a number; what is in use is not touched.
    unsafe {
        libc::malloc_trim(0)
    };
}
