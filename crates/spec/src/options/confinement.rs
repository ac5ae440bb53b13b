//! What limits commands: `--ulimit`, `--cap-add`, `--cap-drop`, `--group-add`.

use micabox_wire::{Confinement, DOCKERS_CAPABILITIES};

use super::SandboxOptions;
use crate::BackendChoice;
use crate::words::{Capabilities, Limit};

impl SandboxOptions {
    /// Returns what limits the sandbox's commands.
    #[must_use]
    pub fn confinement(&self) -> Confinement {
        Confinement {
            capabilities: self.capabilities(),
            ulimits: self
                .limits
                .ulimit
                .iter()
                .map(|Limit(ulimit)| *ulimit)
                .collect(),
            groups: self.limits.group_add.clone(),
            no_new_privileges: self.limits.no_new_privileges(),
        }
    }

    /// Returns the capabilities that root keeps; None for what commands of the backend have otherwise. They
    /// combine as in Docker.
    fn capabilities(&self) -> Option<u64> {
        let Capabilities(all) = Capabilities::ALL;
        let has_own_kernel = self.machine.backend != BackendChoice::Host;
        if !has_own_kernel && self.limits.cap_add.is_empty() && self.limits.cap_drop.is_empty() {
            return None;
        }
        // What the agent gives a command if nothing else is set.
        let default = if has_own_kernel {
            all
        } else {
            DOCKERS_CAPABILITIES
        };
        let union = |sets: &[Capabilities]| {
            let named = sets.iter().filter(|set| set.0 != all);
            let has_all = sets.contains(&Capabilities::ALL);
            (has_all, named.fold(0, |sum, set| sum | set.0))
        };
        let (adds_all, added) = union(&self.limits.cap_add);
        let (drops_all, dropped) = union(&self.limits.cap_drop);
        let kept = match (adds_all, drops_all) {
            (true, _) => all & !dropped,
            (false, true) => added,
            (false, false) => default & !dropped | added,
        };
        (kept != all || !has_own_kernel).then_some(kept)
    }
}

#[cfg(all(test, feature = "clap"))]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn capabilities_combine_as_in_docker() {
        let kept = |flags: &[&str]| {
            parse(&[flags, &["box"]].concat())
                .unwrap()
                .sandbox
                .capabilities()
        };
        let (all, admin, chown) = (Capabilities::ALL.0, 1 << 21, 1);
        assert_eq!(kept(&[]), None);
        assert_eq!(kept(&["--cap-add", "SYS_ADMIN"]), None);
        assert_eq!(kept(&["--cap-drop", "sys_admin"]), Some(all & !admin));
        assert_eq!(kept(&["--cap-drop", "ALL"]), Some(0));
        let flags = ["--cap-drop", "all", "--cap-add", "CAP_CHOWN"];
        assert_eq!(kept(&flags), Some(chown));
        let flags = ["--cap-add", "ALL", "--cap-drop", "CHOWN"];
        assert_eq!(kept(&flags), Some(all & !chown));
        parse(&["--cap-add", "FLY", "box"]).unwrap_err();
        // On the host's kernel they begin with Docker's.
        let on_host = |flags: &[&str]| kept(&[&["--backend", "host"], flags].concat());
        assert_eq!(on_host(&[]), None);
        assert_eq!(
            on_host(&["--cap-drop", "CHOWN"]),
            Some(DOCKERS_CAPABILITIES & !chown)
        );
        assert_eq!(
            on_host(&["--cap-add", "SYS_ADMIN"]),
            Some(DOCKERS_CAPABILITIES | admin)
        );
        assert_eq!(on_host(&["--cap-add", "ALL"]), Some(all));
    }
}
