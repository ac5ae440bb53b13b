//! `mica update`

use micabox::words::{Cpus, Memory, OrDefault, Period, Processes};
use micabox::{DiskRate, Error, ErrorKind, Expiry, NetRate, Record, Resources, SandboxRef, Upper};

use super::named::Named;

use micabox_program::failure::{Failure, Outcome};

/// Change what sandboxes may use, for now and for later starts
///
/// When a sandbox ends by itself can be changed at any time, and so can the rates of its network and (not
/// on QEMU) of its disks, the time of its processors, up to the number that it was started with, and the
/// number of its processes, if it was started with a limit of them. All else is a part of its machine, and is changed while the sandbox
/// does not run, for its next start: `mica stop`, `mica update`, `mica start`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub struct Args {
    /// Stop the sandbox when nothing has run in it and no client has been connected to it for this
    /// time; 0 for never
    #[arg(long, value_name = "DURATION", group = "change")]
    idle_timeout: Option<Period>,

    /// Stop the sandbox this long after its start; 0 for never
    #[arg(long, value_name = "DURATION", group = "change")]
    max_life: Option<Period>,

    /// Processors: of a running sandbox, how much of their time it may use, where a control group limits
    /// it; otherwise as for `mica run`; 0 changes nothing, as with Docker
    #[arg(long, value_name = "NUMBER", group = "change")]
    cpus: Option<OrDefault<Cpus>>,

    /// Memory of the machine, of a sandbox that does not run
    #[arg(short, long, value_name = "SIZE", group = "change")]
    memory: Option<OrDefault<Memory>>,

    /// Most processes and threads; 0 and -1 for no limit. Of a running sandbox, only if it was started
    /// with a limit
    #[arg(
        long,
        value_name = "NUMBER",
        group = "change",
        allow_negative_numbers = true
    )]
    pids_limit: Option<Processes>,

    /// Bytes a second of each disk; on QEMU, of a sandbox that does not run [10m, or read=50m,write=10m,iops=500]
    #[arg(long, value_name = "RATE", group = "change")]
    disk_rate: Option<DiskRate>,

    /// Bytes a second of the network [5m, or in=10m,out=1m]
    #[arg(long, value_name = "RATE", group = "change")]
    net_rate: Option<NetRate>,

    #[command(flatten)]
    named: Named,
}

/// Changes sandboxes.
pub fn execute(args: &Args) -> Outcome {
    args.named.each(|sandbox| args.change(sandbox))
}

impl Args {
    fn cpus(&self) -> Option<Cpus> {
        self.cpus.and_then(|OrDefault(cpus)| cpus)
    }

    fn memory(&self) -> Option<Memory> {
        self.memory.and_then(|OrDefault(memory)| memory)
    }

    fn change(&self, sandbox: &SandboxRef) -> Result<(), Failure> {
        let resources = Resources {
            memory_mib: self.memory().map(|Memory(mib)| mib),
            processors: self.cpus().map(Cpus::thousandths),
            pids_limit: self.pids_limit.map(|Processes(most)| most),
            disk_rate: self.disk_rate,
            net_rate: self.net_rate,
        };
        if resources != Resources::default() {
            sandbox.update(&resources).map_err(|error| match error {
                Error::Running(_) => self.must_stop(sandbox.record()),
                // What does not run yet is changed for its next start, without a control group.
                Error::Unlimited(_) if self.idle_timeout.is_some() || self.max_life.is_some() => {
                    let failure = Failure::from(error);
                    let message = format!("nothing was changed, as {}", failure.message());
                    Failure::of_kind(ErrorKind::Unsupported, message)
                        .hint("leave out --cpus, and all else is changed; `mica doctor` says what control groups need")
                }
                error => error.into(),
            })?;
        }
        if self.idle_timeout.is_some() || self.max_life.is_some() {
            sandbox.expire(&Expiry {
                idle_timeout: self.idle_timeout.map(|Period(time)| time),
                max_life: self.max_life.map(|Period(time)| time),
            })?;
        }
        Ok(())
    }

    /// Makes the message for a change that a running sandbox can't take.
    fn must_stop(&self, record: &Record) -> Failure {
        let name = &record.name;
        let cpus = u32::from(record.cpus());
        let what = if self.memory().is_some() {
            "its memory can't be changed meanwhile".to_owned()
        } else if self
            .cpus()
            .is_some_and(|time| time.thousandths() > cpus * 1000)
        {
            format!("it can't have more than the {cpus} processors that it was started with")
        } else if self.disk_rate.is_some() {
            "QEMU can't change the rate of its disks meanwhile".to_owned()
        } else {
            "it was started without a limit of processes".to_owned()
        };
        let failure = Failure::new(format!("sandbox {name} runs: {what}"));
        match record.spec.upper {
            // It ends with its changes, so it has no next start.
            Upper::Tmpfs => failure.hint(
                "it has no disk, so it can't be started again, and this is fixed for its life: run a new one with \
                 other flags",
            ),
            Upper::Disk { .. } | Upper::Folder { .. } | Upper::InPlace => failure.hint(format!(
                "`mica stop {name}`, then `mica update`, and `mica start {name}`"
            )),
        }
    }
}
