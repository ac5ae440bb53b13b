//! mica-guest: the first process of a Micabox machine.
//!
//! The kernel starts it from an initial RAM filesystem that has no other files. It finds the
//! channel to its host, sets a sandbox up from the machine's devices as the host requests
//! ([`boot`]), serves commands in it ([`exec`]) and ends the machine.
//!
//! # The agent and the sandbox
//!
//! Commands run as root with all capabilities if their image says so: they can break only their own
//! machine. Two namespaces keep them from breaking it by accident, and with it the delivery of
//! their own output and exit codes:
//!
//! - A PID namespace. The agent is not in it, so neither `kill -9 -1` nor a debugger reaches it,
//!   `reboot` ends the sandbox's process 1 and not the machine, and programs that insist on being
//!   process 1 can be. The agent forks each command itself and is its parent, so it gets exit
//!   statuses directly. Orphans belong to the namespace's process 1.
//! - A mount namespace, whose root is the overlay. Once the overlay holds the lower mounts, they
//!   are in no namespace; the agent's own are in the agent's. A sandbox in which everything was
//!   unmounted still runs commands as far as its files allow.
//!
//! The sandbox is alone in its machine, so network, IPC, UTS, user and cgroup namespaces would have
//! nothing to separate.
//!
//! The same agent is the first process of a container on the host's kernel ([`Kernel::Hosts`]). What its
//! keeper has set up then takes the place of devices, and commands are confined as Docker's are.
//!
//! Once commands run, the agent opens no path in the sandbox: each new process does so itself, after
//! it has entered. A filesystem that hangs blocks only the processes that use it.

mod announced;
pub mod boot;
mod errno;
pub mod exec;
mod identity;
mod kernel;
mod kernel_log;
mod machine;
mod mount;
mod network;
mod port;
mod quoted;
mod sandbox;
mod step;
mod stop;

use std::process::ExitCode;

use micabox_wire::{ToGuest, ToHost, Upper, preamble};
use rustix::fs::Mode;

use exec::{Channel, Server, Stop};
use kernel::{Disks, Inherited, Kernel};

/// Runs process 1. Returns only if the machine can't even be ended.
pub fn run() -> ExitCode {
    // Of commands as well: a container's keeper could have another one.
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let uptime = machine::uptime_us();
    let inherited = match Inherited::by(std::env::args_os().skip(1)) {
        Ok(inherited) => inherited,
        Err(reason) => {
            kernel_log::write(reason);
            return ExitCode::FAILURE;
        }
    };
    let is_container = inherited.is_some();
    let served = serve(uptime, inherited);
    if let Err(reason) = &served {
        // On the console: without a channel, the host sees nothing else.
        kernel_log::write(reason);
    }
    if is_container {
        // The end of process 1 is the end of its namespaces.
        return served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let error = stop::end_machine();
    kernel_log::write(format_args!("reset: {error}"));
    ExitCode::FAILURE
}

/// Serves the host, from the agent's start to the last message. The error is for the console.
fn serve(uptime: u64, inherited: Option<Inherited>) -> Result<(), String> {
    let mut clock = boot::Clock::start(uptime);
    let (port, kernel, disks) = match inherited {
        Some(inherited) => (inherited.channel, Kernel::Hosts, inherited.disks),
        None => {
            boot::mount_kernel_filesystems().map_err(|failed| failed.to_string())?;
            let port = port::open().map_err(|failed| failed.to_string())?;
            (port, Kernel::Own, Disks::default())
        }
    };
    let mut channel = Channel::greeting(port, &preamble::encode(), &machine::hello(uptime))
        .map_err(|error| format!("greet the host: {error}"))?;
    clock.lap("agent");

    let boot = match channel.wait_for_message() {
        Ok(Some(ToGuest::Boot(boot))) => boot,
        Ok(None) => return Err("the host closed the channel before it sent Boot".to_owned()),
        Ok(Some(_)) => return Err("the host's first message is not Boot".to_owned()),
        Err(error) => return Err(format!("wait for the host: {error}")),
    };
    clock.lap("wait for host");

    let sandbox = match boot::boot(&boot, kernel, &disks, &mut clock) {
        Ok(sandbox) => sandbox,
        Err(failed) => {
            kernel_log::write(&failed);
            channel.send(&ToHost::BootFailed(failed));
            return channel
                .flush_all()
                .map_err(|error| format!("tell the host: {error}"));
        }
    };
    channel.send(&ToHost::Booted(clock.into_timings()));

    let mut server = Server::new(channel, sandbox);
    let stopped = server.serve();
    let (mut channel, sandbox) = server.into_parts();
    stop::end_processes();
    // A tmpfs ends with the machine.
    let is_kept = !matches!(boot.upper, Upper::Tmpfs { .. });
    let problem = stop::unmount_disks(sandbox, is_kept);
    match stopped {
        Stop::Shutdown => {
            channel.send(&ToHost::ShutdownDone { problem });
            channel
                .flush_all()
                .map_err(|error| format!("tell the host: {error}"))
        }
        // The failure has already been reported.
        Stop::Stillborn => Ok(()),
        Stop::HostGone => Err("the host is gone".to_owned()),
        Stop::Protocol(reason) => Err(format!("the host broke the protocol: {reason}")),
    }
}
