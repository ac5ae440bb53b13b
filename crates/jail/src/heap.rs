//! glibc's allocator, which keeps more than a worker or a server of many files may.

/// Limits the number of the allocator's arenas, for each of which it reserves address space. By
/// default, glibc reads the number of processors from the host's files.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub(crate) fn bound_arenas() {
    const ARENAS: libc::c_int = 4;
    // SAFETY: numbers.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn bound_arenas() {}

/// Gives all pages of the heap that are free back to the system. By itself, glibc gives back only those
/// at its end.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn give_back_free_memory() {
    // SAFETY: a number; what is in use is not touched.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
pub fn give_back_free_memory() {}
