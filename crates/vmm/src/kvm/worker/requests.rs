//! Serves the owner's requests to a running machine: to pause it, to save it, or to limit its disks.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use event_manager::{EventOps, Events, MutEventSubscriber};
use kvm_bindings::kvm_cpuid_entry2;
use kvm_ioctls::VmFd;
use micabox_ground::lock;
use vmm_sys_util::epoll::EventSet;

use super::Controllers;
use crate::kvm::bus::Bus;
use crate::kvm::memory::{GuestMemory, copy, delta, touched};
use crate::kvm::saved::Saved;
use crate::kvm::vcpu::{self, Pause};
use crate::kvm::virtio::blk::Throttle;
use crate::kvm::virtio::mmio::Transport;
use crate::process::{Answer, Request, receive_rate};

/// Pauses and saves the machine. The devices' thread runs it, so that none of that thread's devices
/// is at work meanwhile; it waits until devices with a thread of their own aren't either.
pub(super) struct Saver {
    pub(super) requests: UnixStream,
    pub(super) pause: Arc<Pause>,
    /// The processors' threads.
    pub(super) processors: Vec<JoinHandle<()>>,
    pub(super) vm: VmFd,
    pub(super) memory: GuestMemory,
    pub(super) bus: Arc<Bus>,
    /// What limits each disk.
    pub(super) throttles: Vec<Arc<Mutex<Throttle>>>,
    /// This process's page map.
    pub(super) pages: Option<File>,
    pub(super) memory_mib: u32,
    /// Whether the guest may run virtual machines, whose state is in KVM and is not saved.
    pub(super) is_host: bool,
    /// The first processor's CPUID.
    pub(super) features: Vec<kvm_cpuid_entry2>,
}

impl Saver {
    /// Serves one request, and returns when the machine may resume. False at the end of the
    /// channel.
    fn serve(&self) -> io::Result<bool> {
        let files = match Request::receive(&self.requests)? {
            Some((Request::Touched, Some(list))) => {
                let done = self.record(&list).map_err(|error| error.to_string());
                return Answer(done).send(&self.requests).map(|()| true);
            }
            Some((Request::Rate, None)) => {
                let rate = receive_rate(&self.requests)?;
                for throttle in &self.throttles {
                    *lock(throttle) = Throttle::new(&rate, Instant::now());
                }
                return Answer(Ok(())).send(&self.requests).map(|()| true);
            }
            Some((Request::Pause, None)) => None,
            Some((Request::State, Some(state))) => match Request::receive(&self.requests)? {
                Some((Request::Memory, Some(memory))) => Some((state, memory, false)),
                Some((Request::Delta, Some(memory))) => Some((state, memory, true)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            },
            None => return Ok(false),
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        let processors = self.pause.stop(&self.processors);
        // A thread that serves a device has finished its work when its lock is free, and can't
        // begin new work while the lock is held, until the pause ends.
        let devices: Vec<_> = self
            .bus
            .virtio
            .iter()
            .map(|device| lock(&device.transport))
            .collect();
        let done = processors.and_then(|processors| match &files {
            Some((state, memory, is_delta)) => {
                let processors = processors.into_iter().collect::<Result<_, _>>()?;
                self.save(processors, &devices, state, memory, *is_delta)
            }
            // A machine that can't be saved can be paused.
            None => Ok(()),
        });
        // The owner copies what belongs to the same moment until it sends the next request, or
        // gives up.
        let sent = Answer(done).send(&self.requests);
        let next = sent.and_then(|()| Request::receive(&self.requests));
        drop(devices);
        self.pause.resume();
        match next? {
            Some((Request::GoOn, _)) => Ok(true),
            None => Ok(false),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Writes the list of the pages that the machine has written to.
    fn record(&self, list: &File) -> io::Result<()> {
        let pages = self.pages.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        touched::record(self.memory.ram(), pages, list)
    }

    fn save(
        &self,
        processors: Vec<vcpu::State>,
        devices: &[MutexGuard<'_, Transport>],
        state: &File,
        memory: &File,
        is_delta: bool,
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
        let write = if is_delta { delta::write } else { copy::write };
        let (ram, own) = (self.memory.ram(), self.memory.delta());
        write(ram, own, self.pages.as_ref(), memory)
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
