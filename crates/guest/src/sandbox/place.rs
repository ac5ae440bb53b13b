//! The files that commands see.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::group::Group;
use crate::kernel::Kernel;

/// The files that commands see.
#[derive(Debug)]
pub enum Place {
    /// The agent's own, for tests outside a machine. Users are switched only if the agent is root.
    Here,
    /// A separate mount namespace.
    Namespace {
        /// The mount namespace.
        mounts: OwnedFd,
        /// The root directory in it. A descriptor, so that it is found even in a sandbox in which
        /// `/` was unmounted.
        root: OwnedFd,
        /// Its devpts filesystem.
        terminals: OwnedFd,
        /// The control group of commands; None if they are in the agent's.
        group: Option<Group>,
        /// Where folders of the host are mounted.
        folders: Vec<String>,
        /// Whose kernel it is on.
        kernel: Kernel,
    },
}

impl Place {
    /// Returns whose kernel it is on.
    pub fn kernel(&self) -> Kernel {
        match self {
            Self::Here => Kernel::Own,
            Self::Namespace { kernel, .. } => *kernel,
        }
    }

    /// Returns its devpts filesystem; None if it is the agent's own.
    pub fn terminals(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Here => None,
            Self::Namespace { terminals, .. } => Some(terminals.as_fd()),
        }
    }
}
