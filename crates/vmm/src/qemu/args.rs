//! Builds QEMU's command line for a machine.

use std::ffi::OsString;

use serde_json::json;

use super::devices;
use super::files::Files;
use super::options::Options;
use crate::config::PMEM_ALIGNMENT;
use crate::process::Descriptors;
use crate::{Error, MachineConfig};

/// Number of pmem devices up to which a boot is about as fast as with a disk.
pub(super) const CHEAP_REGIONS: usize = 16;

/// The emulator's buffer for translated code, in MiB. QEMU's default is 1 GiB, and a busy guest
/// fills it.
const CODE_BUFFER_MIB: u32 = 256;

/// Most processors of an emulated machine. The firmware writes an MP table for 17 and none at all for 18, after which
/// the kernel has one processor; how much room it has depends on its other tables. With ACPI 18 start, but 64 take
/// minutes: each one makes the others slower.
const MOST_EMULATED: u8 = 16;

/// What QEMU's seccomp filter denies to QEMU itself.
const SECCOMP: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Processor {
    /// The host's processor, under KVM.
    Host,
    /// QEMU's emulator.
    Emulated {
        /// Frequency of the time stamp counter in kHz, if it counts evenly.
        tsc_khz: Option<u32>,
        /// One thread executes all processors in turn ([`super::binary::mixes_up_patches`]).
        one_thread: bool,
    },
}

/// Returns the arguments, without the program's name.
pub(super) fn build(
    config: &MachineConfig,
    processor: Processor,
    fds: Descriptors,
    files: &Files,
) -> Result<Vec<OsString>, Error> {
    if config.vsock.is_some() {
        return Err(Error::Unsupported {
            backend: "QEMU",
            what: "has no sockets between guest and host (--vsock) as the kvm backend does".into(),
        });
    }
    if matches!(processor, Processor::Emulated { .. }) && config.cpus() > MOST_EMULATED {
        return Err(Error::Unsupported {
            backend: "QEMU",
            what: format!(
                "emulates at most {MOST_EMULATED} processors, not {}: give fewer with --cpus, or use KVM",
                config.cpus()
            ),
        });
    }
    let mut options = Options::default();
    options.flag("-no-user-config");
    options.flag("-nodefaults");
    // A reset, which is how a panicked guest ends, ends the machine too.
    options.flag("-no-reboot");
    options.pair("-name", &config.name);
    options.pair("-sandbox", SECCOMP);
    options.pair("-display", "none");
    let mut machine = "pc,usb=off,vmport=off,hpet=off".to_owned();
    if !config.shares.is_empty() {
        // The servers of shared folders map the guest's memory too.
        machine.push_str(",memory-backend=ram");
        options.json(
            "-object",
            &json!({"qom-type": "memory-backend-memfd", "id": "ram", "share": true,
                    "size": config.ram()}),
        );
    }
    options.pair("-machine", &machine);
    match processor {
        Processor::Host => {
            options.pair("-accel", "kvm");
            options.pair("-cpu", &cpu("host", config));
        }
        Processor::Emulated { one_thread, .. } => {
            let thread = if one_thread { "single" } else { "multi" };
            options.pair(
                "-accel",
                &format!("tcg,thread={thread},tb-size={CODE_BUFFER_MIB}"),
            );
            options.pair("-cpu", &cpu("max", config));
        }
    }
    // One socket each: the firmware's MP table has only the first processor of a socket.
    let cpus = config.cpus();
    options.pair(
        "-smp",
        &format!("cpus={cpus},sockets={cpus},cores=1,threads=1"),
    );
    options.pair("-m", &memory(config));
    options.path("-kernel", &files.kernel);
    options.path("-initrd", &files.initrd);
    options.pair("-append", &command_line(config, processor));

    options.pair("-chardev", &format!("socket,id=console,fd={}", fds.console));
    options.pair("-serial", "chardev:console");

    options.pair("-chardev", &format!("socket,id=monitor,fd={}", fds.control));
    options.pair("-mon", "chardev=monitor,mode=control");

    devices::agent(&mut options, fds.agent)?;
    devices::entropy(&mut options)?;
    devices::balloon(&mut options)?;
    if let Some(interface) = &config.network {
        devices::network(&mut options, interface)?;
    }
    for (index, share) in config.shares.iter().enumerate() {
        devices::share(&mut options, index, share)?;
    }
    for (index, (region, path)) in config.pmem.iter().zip(&files.regions).enumerate() {
        devices::pmem(&mut options, index, region, path)?;
    }
    for number in &files.shared {
        options.pair("-add-fd", &format!("fd={number},set={number}"));
    }
    for (index, (disk, number)) in config.disks.iter().zip(&files.disks).enumerate() {
        devices::block(
            &mut options,
            index,
            disk,
            &config.machine.disk_rate,
            *number,
        )?;
    }
    Ok(options.into_words())
}

/// Returns a processor model, with virtualisation only if the configuration has it.
fn cpu(model: &str, config: &MachineConfig) -> String {
    match (
        config.machine.nested_virtualization,
        cfg!(target_arch = "x86_64"),
    ) {
        (false, true) => format!("{model},vmx=off,svm=off,pmu=off"),
        _ => model.to_owned(),
    }
}

/// Returns the size of RAM, and of the address space for the pmem regions above it.
fn memory(config: &MachineConfig) -> String {
    let mut text = format!("size={}M", config.machine.memory_mib);
    if !config.pmem.is_empty() {
        // Every region begins at a multiple of its alignment.
        let above = config.pmem.iter().fold(0_u64, |sum, region| {
            sum.saturating_add(region.size())
                .saturating_add(PMEM_ALIGNMENT)
        });
        let max_mib = u64::from(config.machine.memory_mib).saturating_add((above >> 20) + 1);
        text.push_str(&format!(",maxmem={max_mib}M"));
    }
    text
}

/// Returns the kernel's command line; `kernel/README.md` explains each word.
fn command_line(config: &MachineConfig, processor: Processor) -> String {
    let mut words = vec!["console=ttyS0", "quiet", "panic=-1", "reboot=t"];
    let frequency;
    if let Processor::Emulated { tsc_khz, .. } = processor {
        // An emulated kernel is slowest at calibrating clocks, patching its own code and
        // interpreting ACPI.
        words.push("no_timer_check");
        if config.cpus() == 1 {
            words.extend(["noreplace-smp", "nolapic_timer"]);
        }
        // Without ACPI's timer the kernel could not measure the counter's frequency.
        if let Some(khz) = tsc_khz {
            frequency = format!("tsc_early_khz={khz}");
            words.extend(["tsc=reliable", &frequency, "acpi=off"]);
        }
    }
    words.extend(config.cmdline_extra.iter().map(String::as_str));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use micabox_jail::View;

    use serde_json::Value;

    use super::*;
    use crate::qemu::options::{OWN_DEVICES, values};
    use crate::qemu::pci::Functions;
    use crate::{Begin, Disk, FileRef, MachineFile, NetworkInterface, PmemRegion, Sockets};

    fn emulated(tsc_khz: Option<u32>) -> Processor {
        Processor::Emulated {
            tsc_khz,
            one_thread: false,
        }
    }

    const FDS: Descriptors = Descriptors {
        agent: 10,
        console: 11,
        control: 12,
    };

    fn file(name: &str) -> MachineFile {
        let description = FileRef {
            number: 0,
            length: 4 << 20,
            name: name.into(),
            part: None,
        };
        MachineFile::received(tempfile::tempfile().unwrap(), description)
    }

    fn config() -> MachineConfig {
        MachineConfig {
            name: "mica-1".into(),
            begin: Begin::Boot {
                kernel: file("/guest/vmlinux"),
                initrd: file("/guest/a,b.cpio"),
            },
            machine: micabox_spec::Machine {
                memory_mib: 512,
                cpus: Some(2),
                ..micabox_spec::Machine::default()
            },
            pmem: Vec::new(),
            disks: Vec::new(),
            trees: Vec::new(),
            parts: None,
            network: None,
            vsock: None,
            shares: Vec::new(),
            cmdline_extra: vec!["mica.x=1".into()],
            lifeline: None,
            max_processes: None,
        }
    }

    fn interface() -> NetworkInterface {
        NetworkInterface {
            link: std::sync::Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
            address: [2, 0, 0, 0xab, 0xcd, 0xef],
            mtu: 9000,
        }
    }

    fn region(path: &str) -> PmemRegion {
        PmemRegion {
            files: vec![file(path)],
        }
    }

    /// Returns descriptor numbers as if the files had been opened.
    fn files(config: &MachineConfig) -> Files {
        let numbers: Vec<RawFd> = (30..).take(config.disks.len()).collect();
        Files {
            kernel: View::file_path(20),
            initrd: View::file_path(21),
            regions: (40..)
                .take(config.pmem.len())
                .map(View::file_path)
                .collect(),
            disks: numbers.clone(),
            shared: numbers,
            ..Files::default()
        }
    }

    fn words(config: &MachineConfig, processor: Processor) -> Vec<OsString> {
        build(config, processor, FDS, &files(config)).unwrap()
    }

    #[test]
    fn qemu_reads_no_configuration_and_has_one_monitor() {
        let arguments = words(&config(), Processor::Host);
        for flag in ["-no-user-config", "-nodefaults", "-no-reboot"] {
            assert!(arguments.iter().any(|argument| argument == flag));
        }
        // One monitor, which only the owner reaches.
        let monitors = |word: &&OsString| {
            let word = word.to_string_lossy();
            word.contains("-mon") || word.contains("qmp")
        };
        assert_eq!(arguments.iter().filter(monitors).count(), 1);
        assert_eq!(values(&arguments, "-mon"), ["chardev=monitor,mode=control"]);
        assert_eq!(values(&arguments, "-sandbox"), [SECCOMP]);
        assert_eq!(values(&arguments, "-m"), ["size=512M"]);
        assert_eq!(values(&arguments, "-initrd"), ["/proc/self/fd/21"]);
        assert!(values(&arguments, "-append")[0].ends_with(" mica.x=1"));
        assert_eq!(
            values(&arguments, "-chardev"),
            [
                "socket,id=console,fd=11",
                "socket,id=monitor,fd=12",
                "socket,id=agent,fd=10"
            ]
        );
    }

    #[test]
    fn the_processor_follows_the_acceleration() {
        let kvm = words(&config(), Processor::Host);
        assert_eq!(values(&kvm, "-accel"), ["kvm"]);
        assert_eq!(values(&kvm, "-cpu"), ["host,vmx=off,svm=off,pmu=off"]);
        let mut host = config();
        host.machine.nested_virtualization = true;
        assert_eq!(values(&words(&host, Processor::Host), "-cpu"), ["host"]);
        let slow = emulated(None);
        let threads = words(&config(), slow);
        assert!(values(&threads, "-accel")[0].starts_with("tcg,thread=multi,"));
        let in_turn = Processor::Emulated {
            tsc_khz: None,
            one_thread: true,
        };
        let one_thread = words(&config(), in_turn);
        assert!(values(&one_thread, "-accel")[0].starts_with("tcg,thread=single,"));
    }

    #[test]
    fn more_processors_than_can_be_emulated_are_refused() {
        let build = |cpus, processor| {
            let mut config = config();
            config.machine.cpus = Some(cpus);
            build(&config, processor, FDS, &files(&config)).map(drop)
        };
        let slow = emulated(None);
        build(16, slow).unwrap();
        build(64, Processor::Host).unwrap();
        let refused = build(17, slow).unwrap_err().to_string();
        assert!(
            refused.contains("at most 16 processors, not 17"),
            "{refused}"
        );
    }

    #[test]
    fn an_emulated_kernel_is_spared_what_it_is_slow_at() {
        let kernel = |cpus, processor| {
            let mut config = config();
            config.machine.cpus = Some(cpus);
            let arguments = words(&config, processor);
            let words = values(&arguments, "-append")[0].split(' ');
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        let has = |words: &[String], word: &str| words.iter().any(|known| known == word);
        let tsc_khz = Some(2_300_000);
        let one = kernel(1, emulated(tsc_khz));
        assert!(has(&one, "tsc_early_khz=2300000") && has(&one, "acpi=off"));
        assert!(has(&one, "nolapic_timer"));
        // The second processor would get no timer.
        let two = kernel(2, emulated(tsc_khz));
        assert!(has(&two, "acpi=off") && !has(&two, "nolapic_timer"));
        let arguments = words(&config(), emulated(tsc_khz));
        let topology = values(&arguments, "-smp")[0];
        assert_eq!(topology, "cpus=2,sockets=2,cores=1,threads=1");
        // ACPI's timer is needed to measure the counter.
        let uneven = kernel(1, emulated(None));
        assert!(!has(&uneven, "acpi=off") && !has(&uneven, "tsc=reliable"));
        assert!(!has(&kernel(1, Processor::Host), "no_timer_check"));
    }

    #[test]
    fn layers_are_read_only_devices_with_addresses() {
        let mut config = config();
        config.pmem = (0..9)
            .map(|n| region(&format!("/s/{n},\"x.erofs")))
            .collect();
        let arguments = words(&config, Processor::Host);
        // 9 files of 4 MiB, 2 MiB to align each, 1 to round up.
        assert_eq!(values(&arguments, "-m"), ["size=512M,maxmem=567M"]);
        let objects = values(&arguments, "-object");
        let first: Value = serde_json::from_str(objects[1]).unwrap();
        assert_eq!(first["mem-path"], "/proc/self/fd/40");
        assert_eq!(first["readonly"], true);
        assert_eq!(first["share"], true);
        let addresses: Vec<Value> = values(&arguments, "-device")
            .iter()
            .map(|device| serde_json::from_str::<Value>(device).unwrap()["addr"].clone())
            .collect();
        // The port has no PCI address; the bus, the generator and the balloon have the first three.
        assert_eq!(addresses[0], "2.0");
        assert_eq!(addresses[1], Value::Null);
        assert_eq!(addresses[4], "2.3");
        assert_eq!(addresses.last().unwrap(), "3.3");
    }

    #[test]
    fn disks_are_passed_as_open_descriptors() {
        let mut config = config();
        let disk = |name: &str| Disk {
            files: vec![file(name)],
            read_only: true,
            serial: "a".into(),
        };
        config.disks = vec![disk("/s/a"), disk("/s/b")];
        let arguments = words(&config, Processor::Host);
        let passed = values(&arguments, "-add-fd");
        assert_eq!(passed, ["fd=30,set=30", "fd=31,set=31"]);
    }

    #[test]
    fn a_machine_that_qemu_cannot_run_is_an_error() {
        let mut sockets = config();
        sockets.vsock = Some(Sockets::At("/s/vsock".into()));
        let error = build(&sockets, Processor::Host, FDS, &files(&sockets)).unwrap_err();
        assert!(error.to_string().contains("--vsock"), "{error}");

        let mut too_many = config();
        too_many.network = Some(interface());
        too_many.pmem = vec![region("/s/x"); Functions::COUNT - OWN_DEVICES];
        build(&too_many, Processor::Host, FDS, &files(&too_many)).unwrap();
        too_many.pmem.push(region("/s/x"));
        let error = build(&too_many, Processor::Host, FDS, &files(&too_many));
        let error = error.unwrap_err();
        assert!(error.to_string().contains("236 devices"), "{error}");
    }
}
