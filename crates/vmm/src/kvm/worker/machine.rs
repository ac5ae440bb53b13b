//! Builds a machine from its description, and runs it to its end.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::{IoEventAddress, Kvm, VcpuFd, VmFd};
use micabox_ground::lock;
use micabox_spec::DiskRate;
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};
use vmm_sys_util::eventfd::EventFd;

use super::Controllers;
use super::begin::Begin;
use super::filters::Thread;
use super::requests::Saver;
use super::threads::{End, Loop, Threads, Waker, watch_served};
use crate::kvm::boot;
use crate::kvm::bus::{Attached, Bus};
use crate::kvm::ending::Ending;
use crate::kvm::legacy::{self, Serial};
use crate::kvm::memory::region::map;
use crate::kvm::memory::truncation::{self, Mapped};
use crate::kvm::memory::{self, GuestMemory, layout};
use crate::kvm::parts::userfault::Userfault;
use crate::kvm::parts::{Line, Pager};
use crate::kvm::vcpu::{self, Pause, cpuid, pause};
use crate::kvm::virtio::Device;
use crate::kvm::virtio::balloon::Balloon;
use crate::kvm::virtio::blk::{Blk, Storage};
use crate::kvm::virtio::console::Console;
use crate::kvm::virtio::fs::Fs;
use crate::kvm::virtio::mmio::Transport;
use crate::kvm::virtio::net::Net;
use crate::kvm::virtio::pmem::Pmem;
use crate::kvm::virtio::rng::Rng;
use crate::kvm::virtio::vsock::Vsock;
use crate::kvm::worker_spec::{SharedParts, WorkerSpec, own, own_file};
use crate::kvm::{INTERRUPTS, acpi, saved};
use crate::{AGENT_PORT, Disk, FileRef, MachineFile, PmemRegion};

/// Why a machine can't be built.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{what}: {source}")]
    Kvm {
        what: &'static str,
        source: kvm_ioctls::Error,
    },
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Memory(#[from] memory::Error),
    #[error("the processor's addresses end before the machine's memory does")]
    NoAddresses,
    #[error(transparent)]
    Boot(#[from] boot::Error),
    #[error(transparent)]
    Processor(#[from] vcpu::Error),
    #[error(transparent)]
    Snapshot(#[from] saved::Error),
    #[error(transparent)]
    Jail(#[from] micabox_jail::Error),
    #[error("a machine has at most {} devices", INTERRUPTS.len())]
    TooManyDevices,
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        match error {
            Error::Snapshot(error) => Self::BadSnapshot(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

pub(super) fn kvm(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
    move |source| Error::Kvm { what, source }
}

pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::System { what, source }
}

/// A machine that is ready to run.
pub(super) struct Machine {
    /// Also holds the VM's descriptor, which keeps the machine in the kernel.
    saver: Saver,
    vcpus: Vec<VcpuFd>,
    bus: Arc<Bus>,
    /// What fills regions, if files of theirs are not whole.
    pager: Option<Pager>,
}

impl Machine {
    pub(super) fn build(spec: WorkerSpec, pages: Option<File>) -> Result<Self, Error> {
        let take = |descriptor| own(descriptor).map_err(system("taking a descriptor"));
        let device = take(spec.kvm)?;
        // SAFETY: an open /dev/kvm, which has no other owner from here on.
        let kvm_device = unsafe { Kvm::from_raw_fd(device.into_raw_fd()) };
        let supported = kvm_device
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(kvm("asking KVM for the processor's features"))?;
        let vm = kvm_device.create_vm().map_err(kvm("creating a machine"))?;
        Controllers::create(&vm)?;

        let settings = spec.machine;
        let cpus = settings.cpus.unwrap_or(1);
        let ram_size = u64::from(settings.memory_mib) << 20;
        let mut begin = Begin::new(spec.start, ram_size)?;
        let mut memory = begin.memory(ram_size)?;
        let mut watched = watched_ram(&memory);
        let limit = cpuid::address_limit(&supported);
        let parts = spec.parts.map(SharedParts::take).transpose();
        let (line, faults) = parts.map_err(system("taking a line"))?.unzip();
        let faults = faults.flatten().map(Userfault::new).transpose();
        let faults = faults.map_err(system("making a userfaultfd"))?;
        let files = spec.regions.iter().flat_map(|region| &region.files);
        let size = files.fold(0_u64, |sum, file| sum.saturating_add(file.length));
        let pager = faults.zip(line.clone());
        let mut pager = pager.map(|(faults, line)| Pager::new(faults, line, size));
        let regions = spec.regions;
        let regions = map_regions(
            &mut memory,
            ram_size,
            limit,
            regions,
            pager.as_mut(),
            &mut watched,
        )?;
        truncation::watch(watched).map_err(system("watching the layers"))?;
        add_slots(&vm, &memory)?;

        let mut devices: Vec<Box<dyn Device>> = Vec::new();
        let agent = UnixStream::from(take(spec.agent)?);
        let console = Console::new(AGENT_PORT, agent).map_err(system("the agent's channel"))?;
        devices.push(Box::new(console));
        devices.push(Box::new(Rng));
        devices.push(Box::<Balloon>::default());
        if let Some(link) = spec.network {
            let socket = take(link.descriptor)?;
            devices.push(Box::new(Net::new(socket, link.address, link.mtu)));
        }
        if let Some(vsock) = spec.vsock {
            let (listener, owner) = (take(vsock.listener)?, take(vsock.owner)?);
            let vsock = Vsock::new(listener, owner).map_err(system("the guest's sockets"))?;
            devices.push(Box::new(vsock));
        }
        for share in spec.shares {
            let server = take(share.server)?;
            let device = Fs::new(server, &share.tag).map_err(system("a shared folder"))?;
            devices.push(Box::new(device));
        }
        for region in &regions {
            devices.push(Box::new(Pmem::new(region)));
        }
        let mut throttles = Vec::new();
        for disk in spec.disks {
            let disk = open_disk(disk, &settings.disk_rate, line.as_ref())?;
            throttles.push(disk.throttle());
            devices.push(Box::new(disk));
        }
        let virtio = attach(&vm, &memory, devices)?;
        let bus = Arc::new(Bus {
            serial: Mutex::new(serial(&vm, take(spec.console)?, begin.serial())?),
            cmos: Mutex::new(begin.cmos()),
            virtio,
        });

        let features = features(&supported, cpus, settings.nested_virtualization)?;
        let interrupts = INTERRUPTS.take(bus.virtio.len()).collect::<Vec<_>>();
        let tables = acpi::tables(cpus, &interrupts);
        let vcpus = begin.processors(&vm, &features, &memory, ram_size, &tables, &bus)?;
        let model_registers = kvm_device
            .get_msr_index_list()
            .map_err(kvm("asking KVM for its registers"))?;
        Ok(Self {
            saver: Saver {
                requests: UnixStream::from(take(spec.control)?),
                pause: Arc::new(Pause::new(vcpus.len(), model_registers.as_slice().to_vec())),
                processors: Vec::new(),
                vm,
                memory,
                bus: Arc::clone(&bus),
                throttles,
                pages,
                memory_mib: settings.memory_mib,
                is_host: settings.nested_virtualization,
                features: features
                    .first()
                    .map_or(Vec::new(), |first| first.as_slice().to_vec()),
            },
            vcpus,
            bus,
            pager,
        })
    }

    /// Runs the machine to its end.
    pub(super) fn run(self) -> Ending {
        self.start()
            .unwrap_or_else(|error| Ending::Failed(error.to_string()))
    }

    fn start(mut self) -> Result<Ending, Error> {
        let end = Arc::new(End::new()?);
        let (slow, quick): (Vec<_>, Vec<_>) = self
            .bus
            .virtio
            .iter()
            .map(|device| Arc::clone(&device.transport))
            .partition(|transport| lock(transport).is_slow());
        pause::catch_signal().map_err(system("catching a signal"))?;
        let has_served = truncation::has_served();
        let others = usize::from(has_served) + usize::from(self.pager.is_some());
        let count = self.vcpus.len() + slow.len() + 1 + others;
        let threads = Threads::new(count);
        for (vcpu, index) in self.vcpus.into_iter().zip(0..) {
            let (bus, end) = (Arc::clone(&self.bus), Arc::clone(&end));
            let pause = Arc::clone(&self.saver.pause);
            let run = move || end.set(vcpu::run(vcpu, index, &bus, &pause, truncation::reason));
            let thread = threads.spawn(Thread::Processor, format!("vcpu{index}"), run)?;
            self.saver.processors.push(thread);
        }
        for (disk, index) in slow.into_iter().zip(0..) {
            let end = Arc::clone(&end);
            let mut events = Loop::new()?;
            events.add(Arc::clone(&disk) as _);
            let run = move || {
                if let Err(error) = events.run_slow(&disk, &end) {
                    end.set(Ending::Failed(error.to_string()));
                }
            };
            threads.spawn(Thread::Disk, format!("disk{index}"), run)?;
        }
        if has_served {
            let end = Arc::clone(&end);
            let run = move || watch_served(&end);
            threads.spawn(Thread::Files, "files".to_owned(), run)?;
        }
        if let Some(pager) = self.pager {
            let end = Arc::clone(&end);
            let run = move || pager.run(|reason| end.set(Ending::Failed(reason)));
            threads.spawn(Thread::Pager, "pager".to_owned(), run)?;
        }
        // This thread serves all other devices.
        let mut events = Loop::new()?;
        for device in quick {
            events.add(device);
        }
        events.add(Arc::new(Mutex::new(Waker(Arc::clone(&end)))));
        events.add(Arc::new(Mutex::new(self.saver)));
        threads.join(Thread::Devices)?;
        let ending = events.run(&end)?;
        lock(&self.bus.serial).flush();
        Ok(ending)
    }
}

/// Maps all pmem and adds its files to the watched ones. Returns the regions' addresses.
fn map_regions(
    memory: &mut GuestMemory,
    ram_size: u64,
    limit: u64,
    regions: Vec<PmemRegion<FileRef>>,
    mut pager: Option<&mut Pager>,
    watched: &mut Vec<Mapped>,
) -> Result<Vec<std::ops::Range<u64>>, Error> {
    let take = |region: PmemRegion<FileRef>| region.try_map(own_file);
    let regions = regions.into_iter().map(take).collect::<Result<Vec<_>, _>>();
    let regions = regions.map_err(system("taking a layer"))?;
    let sizes: Vec<u64> = regions.iter().map(PmemRegion::size).collect();
    let ranges = layout::pmem(ram_size, &sizes, limit).ok_or(Error::NoAddresses)?;
    for (region, range) in regions.iter().zip(&ranges) {
        let is_paged = |file: &MachineFile| pager.is_some() && file.part().is_some();
        let mapped = map(&region.files, is_paged).map_err(memory::Error::from)?;
        let mut start = mapped.as_ptr() as usize;
        for file in &region.files {
            let length = file.length();
            let in_memory = match pager.as_mut().filter(|_| file.part().is_some()) {
                Some(pager) => pager.add(start, file).map_err(system("paging a layer"))?,
                None => Arc::clone(file.file()),
            };
            watched.push(Mapped {
                start,
                length,
                offset: 0,
                file: in_memory,
                name: file.path().display().to_string(),
                is_ram: false,
            });
            start = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        }
        memory.add_region(mapped, range.start)?;
    }
    Ok(ranges)
}

/// Returns the parts of RAM that map a file.
fn watched_ram(memory: &GuestMemory) -> Vec<Mapped> {
    let of_files = memory.ram().iter().filter_map(|region| {
        let part = region.file_offset()?;
        Some(Mapped {
            start: region.as_ptr() as usize,
            length: region.len(),
            offset: part.start(),
            file: Arc::clone(part.arc()),
            name: "the snapshot's memory".to_owned(),
            is_ram: true,
        })
    });
    let own = memory.delta().into_iter();
    let own = own.flat_map(|delta| delta.mapped(memory.ram()));
    own.chain(of_files).collect()
}

/// Adds the memory to the machine: RAM, and each pmem region as one read-only slot.
fn add_slots(vm: &VmFd, memory: &GuestMemory) -> Result<(), Error> {
    let slot = |region: &GuestRegionMmap, flags| {
        let address = region.start_addr().raw_value();
        (address, region.len(), region.as_ptr() as u64, flags)
    };
    let ram = memory.ram().iter().map(|region| slot(region, 0));
    let regions = memory
        .regions()
        .map(|region| slot(region, KVM_MEM_READONLY));
    for ((guest_phys_addr, memory_size, userspace_addr, flags), slot) in ram.chain(regions).zip(0..)
    {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr,
            memory_size,
            userspace_addr,
        };
        // SAFETY: the mapping is the guest's own, and stays until the process ends: `Bus`
        // holds the memory in every device.
        unsafe { vm.set_user_memory_region(region) }.map_err(kvm("giving the machine memory"))?;
    }
    Ok(())
}

fn open_disk(disk: Disk<FileRef>, rate: &DiskRate, line: Option<&Line>) -> Result<Blk, Error> {
    let disk = disk.try_map(own_file).map_err(system("taking a disk"))?;
    let mut storage = Storage::new(disk.files, disk.read_only);
    if let Some(line) = line {
        storage = storage.with_parts(line);
    }
    Ok(Blk::new(storage, &disk.serial).limited(rate))
}

/// Puts each device behind registers, with an interrupt.
fn attach(
    vm: &VmFd,
    memory: &GuestMemory,
    devices: Vec<Box<dyn Device>>,
) -> Result<Vec<Attached>, Error> {
    if devices.len() > INTERRUPTS.len() {
        return Err(Error::TooManyDevices);
    }
    let addresses = (layout::VIRTIO..).step_by(layout::VIRTIO_SIZE as usize);
    let places = addresses.zip(INTERRUPTS);
    let mut attached = Vec::with_capacity(devices.len());
    for (device, (address, interrupt)) in devices.into_iter().zip(places) {
        let transport =
            Transport::new(device, memory.clone()).map_err(system("making a device"))?;
        vm.register_irqfd(transport.interrupt().line(), interrupt)
            .map_err(kvm("connecting a device's interrupt"))?;
        let notify = address + u64::from(virtio_bindings::virtio_mmio::VIRTIO_MMIO_QUEUE_NOTIFY);
        for (event, queue) in transport.notifications() {
            vm.register_ioevent(event, &IoEventAddress::Mmio(notify), queue)
                .map_err(kvm("connecting a device's queue"))?;
        }
        attached.push(Attached::new(transport));
    }
    Ok(attached)
}

fn serial(
    vm: &VmFd,
    console: OwnedFd,
    saved: Option<legacy::serial::State>,
) -> Result<Serial, Error> {
    let interrupt = EventFd::new(libc::EFD_NONBLOCK).map_err(system("making an event"))?;
    vm.register_irqfd(&interrupt, Serial::INTERRUPT)
        .map_err(kvm("connecting the console's interrupt"))?;
    Serial::new(interrupt, console.into(), saved).map_err(system("connecting the console"))
}

/// Returns the CPUID of each processor.
fn features(supported: &CpuId, count: u8, is_host: bool) -> Result<Vec<CpuId>, Error> {
    let all = (0..count).map(|id| cpuid::of_processor(supported, id, count, is_host));
    all.collect::<Option<_>>().ok_or(Error::Kvm {
        what: "describing a processor",
        source: kvm_ioctls::Error::new(libc::E2BIG),
    })
}
