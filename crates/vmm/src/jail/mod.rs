//! A jail for a process that a hostile guest may have taken over.
//!
//! Whatever it needs it has open already. So it gets nothing else: an identity that owns
//! nothing ([`identity`]), namespaces with nobody else in them ([`namespaces`]), a root
//! directory without a file ([`root`]), no capability, no path that Landlock would let it
//! open ([`landlock`]), and for each thread the few system calls that it makes
//! ([`seccomp`]). Each holds without the others; `docs/threat-model.md` says what is left.

mod filter;
mod identity;
mod landlock;
mod namespaces;
mod root;
mod seccomp;

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

pub use seccomp::{CAUGHT, Thread};

/// Why a process is not in jail. It must not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host has no namespaces for us.
    #[error(
        "this host refuses the namespaces that a machine's process is jailed in ({source}): \
         allow user namespaces (sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a \
         container its seccomp profile), or use `--backend qemu`"
    )]
    Namespaces {
        /// What the kernel said.
        source: io::Error,
    },
    /// A step that works wherever namespaces do.
    #[error("jailing the machine's process: {what}: {source}")]
    Step {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Makes an error of what the kernel said about a step.
fn step<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Step {
        what,
        source: source.into(),
    }
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
    identity::become_nobody()?;
    namespaces::enter()?;
    let seen = last_look();
    root::make_empty()?;
    set_capabilities(None, no_capabilities()).map_err(step("dropping all capabilities"))?;
    // Nobody of the same identity may look into it either.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("becoming opaque"))?;
    landlock::forbid_all()?;
    Ok(seen)
}

fn no_capabilities() -> CapabilitySets {
    CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    }
}
