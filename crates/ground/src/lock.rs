//! Locks between threads, whether or not a thread has panicked while it held one.
//!
//! A lock is poisoned then. That is ignored: a panic is reported where it happens, and the other threads' work does not
//! end with a second one.

use std::sync::{
    LockResult, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Waits for a mutex.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}

/// Waits for a lock to read what it guards.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    ignore_poison(lock.read())
}

/// Waits for a lock to change what it guards.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    ignore_poison(lock.write())
}

/// Returns what a mutex guards, which no other thread has any more.
pub fn into_inner<T>(mutex: Mutex<T>) -> T {
    ignore_poison(mutex.into_inner())
}

/// Returns what was locked, for example after a [`Condvar`](std::sync::Condvar) was waited for.
pub fn ignore_poison<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn locks_are_taken_after_a_panic() {
        let (mutex, pair) = (Mutex::new(1), RwLock::new(2));
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let _guards = (lock(&mutex), write(&pair));
            panic!("for the test");
        }));
        assert!(panic.is_err() && mutex.is_poisoned() && pair.is_poisoned());
        *lock(&mutex) += 1;
        *write(&pair) += 1;
        assert_eq!((*read(&pair), into_inner(mutex)), (3, 2));
    }
}
