//! No path at all, should one be found after all, or none but some: Landlock, where the kernel
//! has it.

use std::io;
use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::{Error, step};

/// Forbids every use of a path, every TCP port, and signals and abstract sockets beyond
/// the jail; as much of it as this kernel knows. Whether it knows any.
pub(super) fn forbid_all() -> Result<bool, Error> {
    // No rule allows anything.
    forbid_all_but(Vec::new())
}

/// What may be done with what is at a path, or below it.
pub(super) type Rule = (OwnedFd, BitFlags<AccessFs>);

/// As [`forbid_all`], but for some paths.
pub(super) fn forbid_all_but(allowed: Vec<Rule>) -> Result<bool, Error> {
    let abi = ABI::V6;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
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
