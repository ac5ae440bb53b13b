//! The flags that limit commands, with Docker's syntax: `--ulimit`, `--cap-add`, `--cap-drop`,
//! `--group-add`, `--pids-limit`, `--cpus`.

use micabox::{Confinement, DOCKERS_CAPABILITIES, Ulimit, capability_set, ulimit_number};

use super::machine::Backend;
use super::sandbox::SandboxArgs;

/// A value of `--cpus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// Virtual processors.
    pub whole: u8,
    /// Thousandths of a processor that they may use together, if that is less.
    pub quota: Option<u32>,
}

impl Cpus {
    /// Returns thousandths of a processor.
    pub fn thousandths(self) -> u32 {
        self.quota.unwrap_or(u32::from(self.whole) * 1000)
    }
}

impl SandboxArgs {
    /// Returns what limits the sandbox's commands.
    pub fn confinement(&self) -> Confinement {
        Confinement {
            capabilities: self.capabilities(),
            ulimits: self.ulimit.clone(),
            groups: self.group_add.clone(),
            no_new_privileges: self.no_new_privileges(),
        }
    }

    /// Returns the capabilities that root keeps; None for what commands of the backend have otherwise. They
    /// combine as in Docker.
    fn capabilities(&self) -> Option<u64> {
        let all = capability_set("ALL").unwrap_or_default();
        let has_own_kernel = self.machine.backend != Backend::Host;
        if !has_own_kernel && self.cap_add.is_empty() && self.cap_drop.is_empty() {
            return None;
        }
        // What the agent gives a command if nothing else is said.
        let default = if has_own_kernel {
            all
        } else {
            DOCKERS_CAPABILITIES
        };
        let union = |sets: &[u64]| {
            let named = sets.iter().filter(|set| **set != all);
            (sets.contains(&all), named.fold(0, |sum, set| sum | set))
        };
        let (adds_all, added) = union(&self.cap_add);
        let (drops_all, dropped) = union(&self.cap_drop);
        let kept = match (adds_all, drops_all) {
            (true, _) => all & !dropped,
            (false, true) => added,
            (false, false) => default & !dropped | added,
        };
        (kept != all || !has_own_kernel).then_some(kept)
    }
}

/// Parses the name of a capability, or ALL.
pub fn capability(name: &str) -> Result<u64, String> {
    capability_set(name).ok_or_else(|| {
        "no such capability; capabilities(7) lists them, with or without CAP_, or ALL".into()
    })
}

/// Parses `NAME=SOFT[:HARD]`; -1 stands for unlimited.
pub fn ulimit(text: &str) -> Result<Ulimit, String> {
    let (name, limits) = text
        .split_once('=')
        .ok_or("expected NAME=SOFT[:HARD], as in nofile=1024:4096")?;
    let resource = ulimit_number(name).ok_or_else(|| format!("no such limit: `{name}`"))?;
    let limit = |text: &str| match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(number) => u64::try_from(number).map(Some).map_err(|_| ()),
        Err(_) => Err(()),
    };
    let limit = |text: &str| limit(text).map_err(|()| format!("`{text}`: expected a number or -1"));
    let (soft, hard) = match limits.split_once(':') {
        Some((soft, hard)) => (limit(soft)?, limit(hard)?),
        None => (limit(limits)?, limit(limits)?),
    };
    let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if most(soft) > most(hard) {
        return Err("the soft limit is above the hard one".into());
    }
    Ok(Ulimit {
        resource,
        soft,
        hard,
    })
}

/// Parses a number of processes; 0 and -1 stand for no limit.
pub fn processes(text: &str) -> Result<u64, String> {
    match text.parse::<i64>() {
        Ok(-1 | 0) => Ok(u64::MAX),
        Ok(number @ 1..) => Ok(number.unsigned_abs()),
        _ => Err("expected a number; 0 and -1 stand for no limit".into()),
    }
}

/// Parses a number of processors, 0.01 to 64. A fraction of one is a share of its time.
pub fn cpus(text: &str) -> Result<Cpus, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number")?;
    if !(0.01..=64.0).contains(&number) {
        return Err("expected 0.01 to 64".into());
    }
    let whole = number.ceil();
    let quota = (number * 1000.0).round() as u32;
    Ok(Cpus {
        whole: whole as u8,
        quota: (number < whole).then_some(quota),
    })
}

#[cfg(test)]
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
        let all = capability_set("all").unwrap();
        let admin = capability_set("SYS_ADMIN").unwrap();
        let chown = capability_set("cap_chown").unwrap();
        assert_eq!((admin, chown), (1 << 21, 1));
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

    #[test]
    fn ulimits_and_numbers_are_dockers() {
        let limit = |resource, soft, hard| Ulimit {
            resource,
            soft,
            hard,
        };
        assert_eq!(ulimit("nofile=5"), Ok(limit(7, Some(5), Some(5))));
        assert_eq!(ulimit("nofile=5:6"), Ok(limit(7, Some(5), Some(6))));
        assert_eq!(ulimit("core=-1"), Ok(limit(4, None, None)));
        assert_eq!(ulimit("core=0:-1"), Ok(limit(4, Some(0), None)));
        for bad in [
            "",
            "nofile",
            "x=1",
            "nofile=6:5",
            "nofile=-1:5",
            "nofile=-2",
            "nofile=a",
        ] {
            ulimit(bad).unwrap_err();
        }
        assert_eq!(processes("-1"), Ok(u64::MAX));
        assert_eq!(processes("7"), Ok(7));
        for bad in ["", "-2", "x", "1.5"] {
            processes(bad).unwrap_err();
        }
        let share = |whole, quota| Ok(Cpus { whole, quota });
        assert_eq!(cpus("2"), share(2, None));
        assert_eq!(cpus("1.5"), share(2, Some(1500)));
        assert_eq!(cpus("0.5"), share(1, Some(500)));
        for bad in ["0", "-1", "0.001", "65", "nan", "inf", "x"] {
            cpus(bad).unwrap_err();
        }
    }
}
