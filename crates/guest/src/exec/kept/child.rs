//! The process's side: enters the sandbox as a user, and performs operations until the agent has no more.

use std::os::fd::{AsRawFd, OwnedFd};

use micabox_wire::{Exec, Message, StartFailed};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Resource, Rlimit, getrlimit};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::REQUEST;
use super::report::{MOST_OUTPUT, MOST_READ, Report};
use crate::exec::confinement;
use crate::exec::files::{self, Ended, Work};
use crate::exec::start::{become_user, find_user, other, see_folders, set_limits};
use crate::sandbox::Place;
use crate::sandbox::child::{close_others, enter, exit, reset_signals};
use crate::sandbox::user::Identity;

/// What a new process becomes.
pub struct Setup<'a> {
    /// The operation that it is made for: its user, and what limits it.
    pub spec: &'a Exec,
    pub place: &'a Place,
    /// Its standard streams.
    pub null: OwnedFd,
    /// To the agent.
    pub socket: OwnedFd,
}

/// The root directory that paths begin at.
#[derive(PartialEq, Eq)]
struct Root {
    mount: u64,
    inode: u64,
}

/// A process that has become its user.
struct Member<'a> {
    setup: &'a Setup<'a>,
    identity: Identity,
    root: Root,
    limits: Vec<Rlimit>,
}

/// Serves until the agent has closed its end.
pub fn run(setup: &Setup<'_>) -> ! {
    let pid = rustix::process::getpid().as_raw_pid();
    let _ = setup.report(&Report::Pid(pid));
    match setup.enter() {
        // The agent is gone, or about to kill this process.
        Ok(member) => drop(member.serve()),
        Err(failure) => drop(setup.report(&Report::Unfit(failure))),
    }
    exit(0)
}

impl Setup<'_> {
    /// Becomes a process of the sandbox and its control group: what a program there makes of it is limited too.
    fn enter(&self) -> Result<Member<'_>, StartFailed> {
        let Self { spec, place, .. } = self;
        let confinement = confinement::on(place.kernel(), &spec.confinement);
        reset_signals();
        enter(place).map_err(|errno| other("enter the sandbox", errno))?;
        self.take_streams()
            .map_err(|errno| other("set up standard streams", errno))?;
        rustix::process::setsid().map_err(|errno| other("start a session", errno))?;
        let _ = see_folders(place);
        let identity = find_user(&spec.user, &spec.confinement.groups)?;
        set_limits(place, &confinement)?;
        files::prepare();
        // As the user, it could have lower ones already.
        let limits = limits();
        become_user(place, &confinement, &identity)?;
        Ok(Member {
            setup: self,
            identity,
            root: Root::now().map_err(|errno| other("open the root", errno))?,
            limits,
        })
    }

    fn take_streams(&self) -> rustix::io::Result<()> {
        dup2_stdin(&self.null)?;
        dup2_stdout(&self.null)?;
        dup2_stderr(&self.null)?;
        close_others(vec![self.socket.as_raw_fd()])
    }

    fn report(&self, report: &Report) -> rustix::io::Result<()> {
        let message = report.append(Vec::new()).map_err(|_| Errno::MSGSIZE)?;
        rustix::io::retry_on_intr(|| send(&self.socket, &message, SendFlags::NOSIGNAL)).map(drop)
    }
}

impl Root {
    fn now() -> rustix::io::Result<Self> {
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let found = statx(files::root()?, "", AtFlags::EMPTY_PATH, wanted)?;
        Ok(Self {
            mount: found.stx_mnt_id,
            inode: found.stx_ino,
        })
    }
}

/// Returns the limits that an operation on a file may meet.
fn limits() -> Vec<Rlimit> {
    let met = [
        Resource::As,
        Resource::Cpu,
        Resource::Data,
        Resource::Fsize,
        Resource::Nofile,
        Resource::Stack,
    ];
    met.map(getrlimit).to_vec()
}

impl Member<'_> {
    /// Performs operations. Returns only with an error.
    fn serve(&self) -> rustix::io::Result<()> {
        let mut buffer = vec![0; REQUEST];
        let mut is_fresh = true;
        loop {
            let mut ready = [PollFd::new(&self.setup.socket, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            let count = match recv(&self.setup.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Errno::PIPE),
                Ok((_, count)) => count,
                // The agent has taken it back.
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(errno) => return Err(errno),
            };
            if !is_fresh && !self.is_as_new() {
                return self.setup.report(&Report::Stale);
            }
            is_fresh = false;
            self.perform(buffer.get(..count).unwrap_or_default())?;
        }
    }

    /// Returns whether a process that is made now would be the same: of this user, as the sandbox's files have
    /// it, with this root, which pivot_root(2) exchanges, and with these limits, which a process of the same user may
    /// lower by prlimit(2); how it is scheduled is not compared. Mounts are those of the namespace, which all share.
    /// If the user may not read what tells, the answer is no.
    fn is_as_new(&self) -> bool {
        let Setup { spec, place, .. } = self.setup;
        let identity = find_user(&spec.user, &spec.confinement.groups);
        identity.is_ok_and(|identity| identity == self.identity)
            && Root::now().is_ok_and(|root| root == self.root)
            && limits() == self.limits
            && see_folders(place).is_ok()
    }

    fn perform(&self, request: &[u8]) -> rustix::io::Result<()> {
        let work = match files::begin(request, None) {
            Ok(work) => work,
            Err(failure) => return self.setup.report(&Report::Failed(failure)),
        };
        let Some(work) = files::shortened(work, MOST_READ) else {
            return self.setup.report(&Report::TooLong);
        };
        if matches!(work, Work::Remove(..) | Work::Read(..)) {
            self.setup.report(&Report::Started)?;
        }
        self.setup.report(&match files::end(work, MOST_OUTPUT) {
            Ended::Over(output, failure) => Report::Over(output, failure),
            Ended::TooLong => Report::TooLong,
        })
    }
}
