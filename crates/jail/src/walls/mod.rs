//! The walls around a process that a hostile guest or file may have taken over.
//!
//! The process already has open everything that it needs. So it gets nothing else: an identity that
//! owns nothing ([`identity`]), namespaces without any other process ([`namespaces`]), a root
//! directory without a file ([`root`]), no capability, no path that Landlock would let it open
//! ([`landlock`]), and for each thread the few system calls that it makes ([`crate::Filter`]). Each
//! wall holds without the others; `docs/threat-model.md` describes what is left.

mod folder;
pub(crate) mod identity;
mod landlock;
pub(crate) mod namespaces;
pub(crate) mod root;
mod view;

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use serde::{Deserialize, Serialize};

pub use self::landlock::forbid_paths;
use crate::heap;
pub use folder::{FOLDER_CAPABILITIES, enter_folder};
pub use namespaces::enter_own_mounts;
pub use view::{View, enter_for_program};

/// Why a process could not be jailed. The process must not continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host refuses the namespaces.
    #[error(
        "this host refuses the namespaces that a process is jailed in ({source}): \
         allow user namespaces (sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a \
         container its seccomp profile)"
    )]
    Namespaces {
        /// The kernel's error.
        source: io::Error,
    },
    /// A step that works wherever namespaces do.
    #[error("jailing a process: {what}: {source}")]
    Step {
        /// What the step does.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Converts the kernel's error about a step.
pub(crate) fn step<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Step {
        what,
        source: source.into(),
    }
}

/// The walls that a jail has on this host, beside those that it has on every host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walls {
    /// Namespaces and an empty root, or why not.
    pub namespaces: Result<(), String>,
    /// Whether the kernel has Landlock.
    pub landlock: bool,
}

/// Puts the calling process, which must have one thread only, into the jail for good.
///
/// The jailed process is a child: only a child can be in another process namespace. The caller's
/// process stays outside, holds no descriptors, waits, and ends as the child does; if it is killed,
/// so is the child.
///
/// # Errors
/// [`Error`], in the process where it happened.
pub fn enter() -> Result<(), Error> {
    enter_with(|| ())
}

/// As [`enter`], but the jailed process first calls `last_look`, which may open the host's files, after it has
/// given up root's identity.
///
/// # Errors
/// As [`enter`].
pub fn enter_with<T>(last_look: impl FnOnce() -> T) -> Result<T, Error> {
    identity::become_nobody(None, identity::is_user())?;
    namespaces::enter()?;
    let seen = last_look();
    root::make_empty()?;
    close()?;
    Ok(seen)
}

/// As [`enter`], but where the host refuses namespaces, the process continues within the other
/// walls. Returns which walls it has.
///
/// # Errors
/// [`Error::Step`], in the process where it happened.
pub fn enter_available() -> Result<Walls, Error> {
    let owner = namespaces::Owner::now();
    identity::become_nobody(None, identity::is_user())?;
    let namespaces = match namespaces::enter() {
        Ok(()) => {
            root::make_empty()?;
            Ok(())
        }
        Err(error @ Error::Namespaces { .. }) => {
            owner.die_with()?;
            Err(error.to_string())
        }
        Err(error) => return Err(error),
    };
    let landlock = close()?;
    Ok(Walls {
        namespaces,
        landlock,
    })
}

/// Raises the walls that need no namespace. Returns whether the kernel has Landlock.
fn close() -> Result<bool, Error> {
    close_but(landlock::forbid_all)
}

fn close_but(paths: impl FnOnce() -> Result<bool, Error>) -> Result<bool, Error> {
    heap::prepare();
    set_capabilities(None, no_capabilities()).map_err(step("dropping all capabilities"))?;
    // Processes of the same identity must not look into this one either.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(step("clearing the dumpable flag"))?;
    paths()
}

fn no_capabilities() -> CapabilitySets {
    CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    }
}
