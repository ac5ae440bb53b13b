//! The walls around a process that a hostile guest or file may have taken over.
//!
//! Whatever it needs it has open already. So it gets nothing else: an identity that owns
//! nothing ([`identity`]), namespaces with nobody else in them ([`namespaces`]), a root
//! directory without a file ([`root`]), no capability, no path that Landlock would let it
//! open ([`landlock`]), and for each thread the few system calls that it makes
//! ([`crate::Filter`]). Each holds without the others; `docs/threat-model.md` says what is left.

pub(crate) mod identity;
mod landlock;
mod namespaces;
mod root;
mod view;

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use serde::{Deserialize, Serialize};

pub use view::{View, enter_for_program};

/// Why a process is not in jail. It must not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host has no namespaces for us.
    #[error(
        "this host refuses the namespaces that a process is jailed in ({source}): \
         allow user namespaces (sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a \
         container its seccomp profile)"
    )]
    Namespaces {
        /// What the kernel said.
        source: io::Error,
    },
    /// A step that works wherever namespaces do.
    #[error("jailing a process: {what}: {source}")]
    Step {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Makes an error of what the kernel said about a step.
pub(crate) fn step<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Step {
        what,
        source: source.into(),
    }
}

/// What a jail has on this host, beside what it has on all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walls {
    /// Namespaces and an empty root, or why not.
    pub namespaces: Result<(), String>,
    /// Whether the kernel has Landlock.
    pub landlock: bool,
}

/// Puts the calling process, which must have one thread only, into jail for good.
///
/// The jailed process is a child: only a child can be in another process namespace. The
/// caller's process stays outside, holds no descriptors, waits, and ends as the child does;
/// if it is killed, so is the child.
///
/// # Errors
/// [`Error`], in whichever process it happened.
pub fn enter() -> Result<(), Error> {
    enter_with(|| ())
}

/// As [`enter`], with a `last_look` at the host's files by the jailed process, as nobody.
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

/// As [`enter`]; where the host refuses namespaces, the process goes on within the other walls.
///
/// # Errors
/// [`Error::Step`], in whichever process it happened.
pub fn enter_what_there_is() -> Result<Walls, Error> {
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

/// What needs no namespace; whether the kernel has Landlock.
fn close() -> Result<bool, Error> {
    close_but(landlock::forbid_all)
}

fn close_but(paths: impl FnOnce() -> Result<bool, Error>) -> Result<bool, Error> {
    set_capabilities(None, no_capabilities()).map_err(step("dropping all capabilities"))?;
    // Nobody of the same identity may look into it either.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("becoming opaque"))?;
    paths()
}

fn no_capabilities() -> CapabilitySets {
    CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    }
}
