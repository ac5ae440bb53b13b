//! Landlock, where the kernel has it: denies all paths, even one that could still be found, or all
//! but some.

use std::io;
use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::{Error, step};

/// What is asked of the kernel, as far as it has it.
const ABI_VERSION: ABI = ABI::V6;

/// Forbids every use of a path, every TCP port, and signals and abstract sockets beyond the jail,
/// as far as this kernel supports that. Returns whether the kernel has Landlock at all.
pub(super) fn forbid_all() -> Result<bool, Error> {
    // An empty list of rules allows nothing.
    forbid_all_but(Vec::new())
}

/// The access that is allowed to a path and everything below it.
pub(super) type Rule = (OwnedFd, BitFlags<AccessFs>);

/// As [`forbid_all`], except for some paths.
pub(super) fn forbid_all_but(allowed: Vec<Rule>) -> Result<bool, Error> {
    forbid(allowed, Scope::from_all(ABI_VERSION))
}

/// Forbids every use of a path, every TCP port and abstract sockets of others, but no signals: the kernel
/// sends the one at a parent's death in the parent's name. Returns whether the kernel has Landlock at all.
///
/// # Errors
/// [`Error`].
pub fn forbid_paths() -> Result<bool, Error> {
    forbid(Vec::new(), Scope::AbstractUnixSocket.into())
}

fn forbid(allowed: Vec<Rule>, scope: BitFlags<Scope>) -> Result<bool, Error> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_VERSION))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI_VERSION)))
        .and_then(|rules| rules.scope(scope))
        .and_then(Ruleset::create)
        .and_then(|rules| {
            let allowed = allowed.into_iter();
            let rule = |(path, access)| Ok::<_, RulesetError>(PathBeneath::new(path, access));
            rules.add_rules(allowed.map(rule))
        })
        .and_then(landlock::RulesetCreated::restrict_self)
        .map(|status| status.ruleset != RulesetStatus::NotEnforced)
        .map_err(|error| step("restricting paths")(io::Error::other(error)))
}
