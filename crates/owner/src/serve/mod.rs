//! The event loop: one thread with one poll(2) for the guest, the clients and the descriptors that
//! they handed over. The loop never blocks on anything else. Work that blocks, such as waiting for
//! a machine's end or copying its memory, has a thread for as long as it takes ([`wake`]).

mod agent;
mod attach;
mod client;
mod clients;
mod command;
mod commands;
mod copies;
mod end;
mod entrance;
mod events;
mod exec;
mod expire;
mod expiry;
mod freeze;
mod freezer;
mod guest;
mod info;
mod launch;
mod limits;
mod output;
mod pause;
mod requests;
mod saving;
mod shutdown;
mod signal;
mod stall;
mod streams;
mod turn;
mod wake;
mod work;

use std::io;
use std::sync::Arc;

use micabox_vmm::Machine;
use micabox_wire::{MAX_DATA, Reattach, Restore, ToGuest};

use crate::guest::Link;
use clients::Clients;
use command::Command;
use commands::Commands;
use end::{End, Phase};
use entrance::Entrance;
use events::Events;
use expiry::Expiry;
use guest::Guest;
use launch::Sandbox;
pub use launch::{Launch, Learn, Network, Outcome, Registrar, Start};
use saving::Saving;
use stall::Stall;
pub use work::{FLUSH_TIMEOUT, LAG, SHUTDOWN_TIMEOUT};

/// The owner of a sandbox.
struct Owner {
    // In the order in which they must be dropped. Clients that see the end of their connection see
    // that everything else is gone.
    entrance: Entrance,
    machine: Arc<dyn Machine>,
    network: Option<Box<dyn Network>>,
    /// None once the sandbox's end is recorded.
    registrar: Option<Box<dyn Registrar>>,
    clients: Clients,

    guest: Guest,
    commands: Commands,
    saving: Saving,
    end: End,
    expiry: Expiry,
    stall: Stall,
    events: Events,
    sandbox: Sandbox,
}

/// Owns a sandbox until it is over and everything of it is gone except its record. Notifies the
/// creator when the sandbox is ready ([`crate::protocol::Reply::Up`]), or why the start failed.
///
/// # Errors
/// Those of setting up descriptors; the machine is killed.
pub fn serve(launch: Launch) -> io::Result<()> {
    let mut owner = Owner::new(launch)?;
    let mut buffer = vec![0; 2 * MAX_DATA];
    while owner.end.phase != Phase::Over {
        owner.turn(&mut buffer)?;
    }
    owner.entrance.close();
    owner.clients.linger();
    Ok(())
}

impl Owner {
    fn new(launch: Launch) -> io::Result<Self> {
        let greets = matches!(launch.start, Start::Boot(_));
        let mut link = Link::new(launch.machine.agent()?, greets)?;
        let mut commands = Commands::default();
        let mut boot = None;
        match launch.start {
            Start::Boot(message) => boot = Some(message),
            Start::Restore {
                identity,
                main,
                setup,
            } => {
                let restore = Restore {
                    identity: *identity,
                    reattach: main.map(|id| {
                        let command = Command::unclaimed();
                        let output_window = command.stdout.window_size();
                        commands.restore(id, command);
                        Reattach { id, output_window }
                    }),
                    setup,
                };
                link.outbox.push(ToGuest::Restore(Box::new(restore)));
            }
        }
        Ok(Self {
            entrance: Entrance::default(),
            clients: Clients::new(launch.creator)?,
            machine: launch.machine,
            network: launch.network,
            registrar: Some(launch.registrar),
            guest: Guest::new(link, boot, launch.timeout),
            commands,
            saving: Saving::new(launch.saves, launch.learn),
            end: End::default(),
            expiry: Expiry::default(),
            stall: Stall::default(),
            events: Events::new()?,
            sandbox: Sandbox {
                disk: launch.disk,
                holds_nothing: launch.holds_nothing,
                stop_signal: launch.stop_signal,
                confinement: launch.confinement,
                directory: launch.directory,
            },
        })
    }
}
