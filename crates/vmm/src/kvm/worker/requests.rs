//! What the machine's owner asks of its worker while it runs: to pause the machine, or to save
//! it.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;

use event_manager::{EventOps, Events, MutEventSubscriber};
use kvm_bindings::kvm_cpuid_entry2;
use kvm_ioctls::VmFd;
use vmm_sys_util::epoll::EventSet;

use super::Controllers;
use crate::kvm::bus::{Bus, lock};
use crate::kvm::memory::{GuestMemory, copy};
use crate::kvm::saved::Saved;
use crate::kvm::vcpu::{self, Pause};
use crate::kvm::virtio::mmio::Transport;
use crate::process::{Answer, Request};

/// Pauses and saves the machine. It is one of those whom the devices' thread serves, so that of its
/// devices none has anything in hand meanwhile; it waits until those that have a thread of
/// their own haven't either.
pub(super) struct Saver {
    pub(super) requests: UnixStream,
    pub(super) pause: Arc<Pause>,
    /// Their threads.
    pub(super) processors: Vec<JoinHandle<()>>,
    pub(super) vm: VmFd,
    pub(super) memory: GuestMemory,
    pub(super) bus: Arc<Bus>,
    /// This process's page map.
    pub(super) pages: Option<File>,
    pub(super) memory_mib: u32,
    /// It may run virtual machines, whose state KVM has and we don't save.
    pub(super) is_host: bool,
    /// What the first processor says that it can do.
    pub(super) features: Vec<kvm_cpuid_entry2>,
}

impl Saver {
    /// Takes a request, and is done when the machine may go on. False when there will be no
    /// more.
    fn serve(&self) -> io::Result<bool> {
        let files = match Request::receive(&self.requests)? {
            Some((Request::Pause, None)) => None,
            Some((Request::State, Some(state))) => match Request::receive(&self.requests)? {
                Some((Request::Memory, Some(memory))) => Some((state, memory)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            },
            None => return Ok(false),
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        let processors = self.pause.stop(&self.processors);
        // Whoever serves one of them has done what there was to do, and can't go on with
        // what comes in while it is ours: not before the end of this moment.
        let devices = self.bus.virtio.iter();
        let devices: Vec<_> = devices.map(|device| lock(&device.transport)).collect();
        let done = processors.and_then(|processors| match &files {
            Some((state, memory)) => {
                let processors = processors.into_iter().collect::<Result<_, _>>()?;
                self.save(processors, &devices, state, memory)
            }
            // What can't be saved can stand still.
            None => Ok(()),
        });
        // Whatever belongs to the same moment is being copied until the next request, or until
        // the owner gave up.
        let sent = Answer(done).send(&self.requests);
        let next = sent.and_then(|()| Request::receive(&self.requests));
        drop(devices);
        self.pause.go_on();
        match next? {
            Some((Request::GoOn, _)) => Ok(true),
            None => Ok(false),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn save(
        &self,
        processors: Vec<vcpu::State>,
        devices: &[MutexGuard<'_, Transport>],
        state: &File,
        memory: &File,
    ) -> Result<(), String> {
        if self.is_host {
            return Err("it may run virtual machines of its own (nested virtualisation)".into());
        }
        let saved = Saved {
            memory_mib: self.memory_mib,
            features: self.features.clone(),
            processors,
            controllers: Controllers::of(&self.vm).map_err(|error| error.to_string())?,
            serial: lock(&self.bus.serial).save(),
            cmos: lock(&self.bus.cmos).clone(),
            devices: devices.iter().map(|device| device.save()).collect(),
        };
        saved
            .write(state)
            .map_err(|error| format!("writing its state: {error}"))?;
        copy::write(self.memory.ram(), self.pages.as_ref(), memory)
            .map_err(|error| format!("writing its memory: {error}"))
    }
}

impl MutEventSubscriber for Saver {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        if let Err(error) = ops.add(Events::new(&self.requests, EventSet::IN)) {
            eprintln!("waiting for requests: {error}");
        }
    }

    fn process(&mut self, _events: Events, ops: &mut EventOps<'_>) {
        let served = self.serve();
        if let Err(error) = &served {
            eprintln!("a request of the machine's owner: {error}");
        }
        if !served.unwrap_or(false) {
            let _ = ops.remove(Events::empty(&self.requests));
        }
    }
}
