//! No path at all, should one be found after all: Landlock, where the kernel has it.

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};

use super::{Error, step};

/// Forbids every use of a path, every TCP port, and signals and abstract sockets beyond
/// the jail; as much of it as this kernel knows. Whether it knows any.
pub(super) fn forbid_all() -> Result<bool, Error> {
    let abi = ABI::V6;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
        .and_then(Ruleset::create)
        // No rule allows anything.
        .and_then(landlock::RulesetCreated::restrict_self)
        .map(|status| status.ruleset != RulesetStatus::NotEnforced)
        .map_err(|error| step("restricting paths")(io::Error::other(error)))
}
