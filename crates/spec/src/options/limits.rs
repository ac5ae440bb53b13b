//! What limits a sandbox, and what its commands may do.

use serde::Deserialize;

use super::late::{Late, in_time};
use super::row::{Heading, Kind, Opt, Row, Whose};
use super::taken::{Taken, nothing};
use crate::words::{self, Capabilities, Limit, Processes, SecurityOption};
use crate::{DiskRate, Spec};

/// What limits a sandbox and the commands in it, and what rights they have.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, rename_all = "kebab-case")]
pub struct LimitOptions {
    /// Limit a resource of each process [NAME=SOFT[:HARD], as in nofile=1024:4096; -1 is unlimited]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LIMIT"))]
    pub ulimit: Vec<Limit>,

    /// Keep a capability that --cap-drop ALL takes away; root has all of them unless they are
    /// dropped [NET_ADMIN, CAP_NET_ADMIN, ALL]
    #[cfg_attr(feature = "clap", arg(long, value_name = "CAPABILITY"))]
    pub cap_add: Vec<Capabilities>,

    /// Take a capability away from root and every program
    #[cfg_attr(feature = "clap", arg(long, value_name = "CAPABILITY"))]
    pub cap_drop: Vec<Capabilities>,

    /// Keep programs from getting more rights than their callers have, as by set-user-ID bits; Docker's
    /// options for no profiles are taken as well, since there are none [no-new-privileges]
    #[cfg_attr(feature = "clap", arg(long, value_name = "OPTION"))]
    pub security_opt: Vec<SecurityOption>,

    /// Run commands with this group as well [name or gid]
    #[cfg_attr(feature = "clap", arg(long, value_name = "GROUP"))]
    pub group_add: Vec<String>,

    /// Most processes and threads of all commands together; 0 or -1 for no limit
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "NUMBER", allow_negative_numbers = true)
    )]
    pub pids_limit: Option<Processes>,

    /// Limit the traffic of each disk, in bytes a second, and the number of its requests; an image that
    /// is mapped as memory has no disk [50m; read=50m,write=20m,iops=1000]
    #[cfg_attr(feature = "clap", arg(long, value_name = "RATE"))]
    #[serde(deserialize_with = "words::optional")]
    pub disk_rate: Option<DiskRate>,

    /// Do not start unless a control group limits the machine's process (`mica doctor` says
    /// whether one can be had); nor do copies of the machine
    #[cfg_attr(feature = "clap", arg(long))]
    pub require_limits: bool,

    /// Let the sandbox run virtual machines itself (KVM inside) and use performance counters; this
    /// exposes more of the host's kernel to a hostile guest
    #[cfg_attr(feature = "clap", arg(long))]
    pub nested_virtualization: bool,
}

impl LimitOptions {
    /// Applies them.
    pub(super) fn apply(&self, spec: &mut Spec) {
        let Self {
            ulimit: _, // as `SandboxOptions::confinement` has it
            cap_add: _,
            cap_drop: _,
            security_opt: _,
            group_add: _,
            pids_limit,
            disk_rate,
            require_limits,
            nested_virtualization,
        } = self;
        if let Some(Processes(processes)) = pids_limit.filter(|limit| limit.0 != u64::MAX) {
            spec.setup.pids_limit = Some(processes);
        }
        if let Some(rate) = disk_rate {
            spec.machine.disk_rate = *rate;
        }
        // A copy of a machine that must have limits must have them, too.
        spec.machine.require_limits |= require_limits;
        spec.machine.nested_virtualization |= nested_virtualization;
    }

    /// Returns whether no program of the sandbox's can give more rights than its caller has.
    #[must_use]
    pub fn no_new_privileges(&self) -> bool {
        let options = self.security_opt.iter().rev();
        let mut given = options.filter_map(|option| match option {
            SecurityOption::NoNewPrivileges(value) => Some(*value),
            _ => None,
        });
        given.next().unwrap_or_default()
    }
}

/// Their rows.
pub(super) const OPTIONS: &[Row<LimitOptions>] = &[
    Row {
        option: Opt {
            name: "ulimit",
            kind: Kind::List,
            help: "Limits of each process: `NAME=SOFT:HARD`, as in `nofile=1024:4096`; -1 is no limit. Default: `nofile=1024:524288`.",
            listed: Some(370),
            below: Some((Heading::Limits, 40)),
            whose: Whose::Commands,
        },
        late: |limits| Late::flag(!limits.ulimit.is_empty(), "--ulimit"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "cap-add",
            kind: Kind::List,
            help: "Capabilities beside the usual ones, or that {cap-drop} with `ALL` leaves. Default: none.",
            listed: Some(380),
            below: Some((Heading::Limits, 70)),
            whose: Whose::Commands,
        },
        late: |limits| Late::flag(!limits.cap_add.is_empty(), "--cap-add"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "cap-drop",
            kind: Kind::List,
            help: "Capabilities that root and all programs lose. Default: none in a machine; Docker's with the backend `host`.",
            listed: Some(390),
            below: Some((Heading::Limits, 80)),
            whose: Whose::Commands,
        },
        late: |limits| Late::flag(!limits.cap_drop.is_empty(), "--cap-drop"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "security-opt",
            kind: Kind::List,
            help: "`no-new-privileges`, so that no program gets more rights than its caller has. Default: none.",
            listed: Some(400),
            below: Some((Heading::Limits, 90)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "group-add",
            kind: Kind::List,
            help: "Further groups of commands, by name or ID. Default: those of the user in the image.",
            listed: Some(100),
            below: Some((Heading::Limits, 100)),
            whose: Whose::Commands,
        },
        late: |limits| Late::flag(!limits.group_add.is_empty(), "--group-add"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "pids-limit",
            kind: Kind::Count,
            help: "The most processes and threads of all commands together; 0 or -1 is no limit. Default: no limit.",
            listed: Some(410),
            below: Some((Heading::Limits, 30)),
            whose: Whose::Machine,
        },
        late: |limits| Late::flag(limits.pids_limit.is_some(), "--pids-limit"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "disk-rate",
            kind: Kind::Text,
            help: "Limit of each disk, in bytes and requests a second: `50m`, `read=50m,write=20m,iops=1000`. Default: no limit.",
            listed: Some(430),
            below: Some((Heading::Limits, 50)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "require-limits",
            kind: Kind::Flag,
            help: "Whether it must not start without a control group that limits its process. Default: {false}.",
            listed: Some(440),
            below: Some((Heading::Limits, 60)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "nested-virtualization",
            kind: Kind::Flag,
            help: "Whether programs inside may use KVM and performance counters. Default: {false}.",
            listed: Some(450),
            below: Some((Heading::Machine, 50)),
            whose: Whose::Machine,
        },
        late: |limits| {
            limits.nested_virtualization.then_some(Late::Differs(
                "does not virtualise (--nested-virtualization)",
            ))
        },
        takes: |limits| Taken::kernel(limits.nested_virtualization),
    },
];
