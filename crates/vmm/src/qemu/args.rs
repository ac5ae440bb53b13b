//! Builds QEMU's command line for a machine.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use serde_json::{Value, json};

use super::files::{Files, shared_path};
use super::pci::Functions;
use crate::config::PMEM_ALIGNMENT;
use crate::process::Descriptors;
use crate::{AGENT_PORT, Disk, DiskRate, Error, MachineConfig, NetworkInterface, PmemRegion};

/// PCI functions that every machine uses or may use: the agent's, the entropy device and the
/// network interface.
pub(super) const OWN_DEVICES: usize = 3;

/// Number of pmem devices up to which a boot is about as fast as with a disk.
pub(super) const CHEAP_REGIONS: usize = 16;

/// The emulator's buffer for translated code, in MiB. QEMU's default is 1 GiB, and a busy guest
/// fills it.
const CODE_BUFFER_MIB: u32 = 256;

/// The device of a shared folder.
const SHARE: &str = "vhost-user-fs-pci";

/// Entries of the queue of a shared folder: a request of 1 MiB is 260 buffers.
const SHARE_QUEUE: u16 = 1024;

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
    let mut arguments = Arguments::default();
    arguments.flag("-no-user-config");
    arguments.flag("-nodefaults");
    // A reset, which is how a panicked guest ends, ends the machine too.
    arguments.flag("-no-reboot");
    arguments.pair("-name", &config.name);
    arguments.pair("-sandbox", SECCOMP);
    arguments.pair("-display", "none");
    let mut machine = "pc,usb=off,vmport=off,hpet=off".to_owned();
    if !config.shares.is_empty() {
        // The servers of shared folders map the guest's memory too.
        machine.push_str(",memory-backend=ram");
        arguments.json(
            "-object",
            &json!({"qom-type": "memory-backend-memfd", "id": "ram", "share": true,
                    "size": config.ram()}),
        );
    }
    arguments.pair("-machine", &machine);
    match processor {
        Processor::Host => {
            arguments.pair("-accel", "kvm");
            arguments.pair("-cpu", &cpu("host", config));
        }
        Processor::Emulated { .. } => {
            arguments.pair("-accel", &format!("tcg,tb-size={CODE_BUFFER_MIB}"));
            arguments.pair("-cpu", &cpu("max", config));
        }
    }
    // One socket each: the firmware's MP table has only the first processor of a socket.
    let cpus = config.cpus;
    arguments.pair(
        "-smp",
        &format!("cpus={cpus},sockets={cpus},cores=1,threads=1"),
    );
    arguments.pair("-m", &memory(config));
    arguments.path("-kernel", &files.kernel);
    arguments.path("-initrd", &files.initrd);
    arguments.pair("-append", &command_line(config, processor));

    arguments.pair("-chardev", &format!("socket,id=console,fd={}", fds.console));
    arguments.pair("-serial", "chardev:console");

    arguments.pair("-chardev", &format!("socket,id=monitor,fd={}", fds.control));
    arguments.pair("-mon", "chardev=monitor,mode=control");

    let mut functions = Functions::default();
    arguments.device(
        &mut functions,
        json!({"driver": "virtio-serial-pci", "id": "agent-bus", "max_ports": 2}),
    )?;
    arguments.pair("-chardev", &format!("socket,id=agent,fd={}", fds.agent));
    arguments.json(
        "-device",
        &json!({"driver": "virtserialport", "bus": "agent-bus.0", "nr": 1,
                "chardev": "agent", "name": AGENT_PORT}),
    );
    arguments.json(
        "-object",
        &json!({"qom-type": "rng-builtin", "id": "entropy"}),
    );
    arguments.device(
        &mut functions,
        json!({"driver": "virtio-rng-pci", "rng": "entropy"}),
    )?;
    if let Some(interface) = &config.network {
        network(&mut arguments, &mut functions, interface)?;
    }
    for (index, share) in config.shares.iter().enumerate() {
        let (socket, tag) = (share.socket.as_raw_fd(), &share.tag);
        arguments.pair("-chardev", &format!("socket,id=share{index},fd={socket}"));
        arguments.device(
            &mut functions,
            json!({"driver": SHARE, "chardev": format!("share{index}"),
                   "tag": tag, "queue-size": SHARE_QUEUE}),
        )?;
    }
    for (index, (region, path)) in config.pmem.iter().zip(&files.regions).enumerate() {
        pmem(&mut arguments, &mut functions, index, region, path)?;
    }
    for number in &files.shared {
        arguments.pair("-add-fd", &format!("fd={number},set={number}"));
    }
    for (index, (disk, number)) in config.disks.iter().zip(&files.disks).enumerate() {
        let rate = &config.disk_rate;
        block(&mut arguments, &mut functions, index, disk, rate, *number)?;
    }
    Ok(arguments.0)
}

/// Returns a processor model, with virtualisation only if the configuration has it.
fn cpu(model: &str, config: &MachineConfig) -> String {
    match (config.nested_virtualization, cfg!(target_arch = "x86_64")) {
        (false, true) => format!("{model},vmx=off,svm=off,pmu=off"),
        _ => model.to_owned(),
    }
}

/// Returns the size of RAM, and of the address space for the pmem regions above it.
fn memory(config: &MachineConfig) -> String {
    let mut text = format!("size={}M", config.memory_mib);
    if !config.pmem.is_empty() {
        // Every region begins at a multiple of its alignment.
        let above = config.pmem.iter().fold(0_u64, |sum, region| {
            sum.saturating_add(region.size())
                .saturating_add(PMEM_ALIGNMENT)
        });
        let max_mib = u64::from(config.memory_mib).saturating_add((above >> 20) + 1);
        text.push_str(&format!(",maxmem={max_mib}M"));
    }
    text
}

/// Returns the kernel's command line; `kernel/README.md` explains each word.
fn command_line(config: &MachineConfig, processor: Processor) -> String {
    let mut words = vec!["console=ttyS0", "quiet", "panic=-1", "reboot=t"];
    let frequency;
    if let Processor::Emulated { tsc_khz } = processor {
        // An emulated kernel is slowest at calibrating clocks, patching its own code and
        // interpreting ACPI.
        words.push("no_timer_check");
        if config.cpus == 1 {
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

fn pmem(
    arguments: &mut Arguments,
    functions: &mut Functions,
    index: usize,
    region: &PmemRegion,
    path: &Path,
) -> Result<(), Error> {
    let backend = format!("layer{index}");
    arguments.json(
        "-object",
        // Shared, so that every machine maps the same page cache; read-only, so that
        // QEMU can't write to the file whatever the guest makes it do.
        &json!({"qom-type": "memory-backend-file", "id": backend,
                "mem-path": path.display().to_string(), "size": region.size(),
                "share": true, "readonly": true}),
    );
    arguments.device(
        functions,
        json!({"driver": "virtio-pmem-pci", "memdev": backend}),
    )
}

fn block(
    arguments: &mut Arguments,
    functions: &mut Functions,
    index: usize,
    disk: &Disk,
    rate: &DiskRate,
    number: RawFd,
) -> Result<(), Error> {
    let driver = match disk.files.len() {
        1 => "raw",
        _ => "vmdk",
    };
    let node = format!("disk{index}");
    // Discarded blocks become holes in the file.
    let discard = if disk.read_only { "ignore" } else { "unmap" };
    let mut blocks = json!({
        "driver": driver, "node-name": node, "read-only": disk.read_only, "auto-read-only": false,
        "discard": discard,
        "file": {"driver": "file", "filename": shared_path(number), "discard": discard,
                 "read-only": disk.read_only, "auto-read-only": false},
    });
    if *rate != DiskRate::default() {
        let group = format!("rate{index}");
        arguments.json("-object", &throttle(&group, rate));
        if let Some(fields) = blocks.as_object_mut() {
            fields.remove("node-name");
        }
        blocks = json!({
            "driver": "throttle", "node-name": node, "throttle-group": group,
            "read-only": disk.read_only, "auto-read-only": false, "discard": discard,
            "file": blocks,
        });
    }
    arguments.json("-blockdev", &blocks);
    arguments.device(
        functions,
        // Writes are complete when the host's page cache has them, and durable after the guest's
        // flush. Errors are reported to the guest, except for a full disk of the host: QEMU then
        // stops the machine, and the monitor's client makes it retry.
        json!({"driver": "virtio-blk-pci", "drive": node, "serial": disk.serial,
               "write-cache": "on", "werror": "enospc", "rerror": "report"}),
    )
}

/// Describes a group of QEMU's for the traffic of one disk. A limit of 0 is none.
fn throttle(name: &str, rate: &DiskRate) -> Value {
    json!({"qom-type": "throttle-group", "id": name, "limits": {
        "bps-read": rate.read.unwrap_or_default(),
        "bps-write": rate.write.unwrap_or_default(),
        "iops-total": rate.operations.unwrap_or_default(),
    }})
}

fn network(
    arguments: &mut Arguments,
    functions: &mut Functions,
    interface: &NetworkInterface,
) -> Result<(), Error> {
    let link = interface.link.as_raw_fd();
    let [a, b, c, d, e, f] = interface.address;
    let address = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    // One frame a message, for any kind of socket.
    arguments.pair(
        "-netdev",
        &format!("dgram,id=link,local.type=fd,local.str={link}"),
    );
    arguments.device(
        functions,
        // No boot ROM: it would be 250 KiB for the firmware to scan.
        json!({"driver": "virtio-net-pci", "netdev": "link", "mac": address,
               "host_mtu": interface.mtu, "romfile": ""}),
    )
}

#[derive(Debug, Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn flag(&mut self, name: &str) {
        self.0.push(name.into());
    }

    fn pair(&mut self, name: &str, value: &str) {
        self.0.push(name.into());
        self.0.push(value.into());
    }

    fn path(&mut self, name: &str, path: &Path) {
        self.0.push(name.into());
        self.0.push(path.into());
    }

    /// Adds an option in JSON, which needs no escaping of commas, unlike QEMU's own syntax.
    fn json(&mut self, name: &str, value: &Value) {
        self.pair(name, &value.to_string());
    }

    /// Adds a virtio device at the next PCI address.
    fn device(&mut self, functions: &mut Functions, mut device: Value) -> Result<(), Error> {
        let address = functions.next().ok_or_else(|| Error::Unsupported {
            backend: "QEMU",
            what: format!("has room for {} devices", Functions::COUNT - OWN_DEVICES),
        })?;
        if let Some(fields) = device.as_object_mut() {
            fields.insert("addr".into(), address.to_string().into());
            fields.insert("multifunction".into(), true.into());
            // Only the modern interface, which needs no I/O ports: there are too few.
            // A shared folder has no other.
            if fields.get("driver").is_none_or(|driver| driver != SHARE) {
                fields.insert("disable-legacy".into(), "on".into());
            }
        }
        self.json("-device", &device);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use micabox_jail::View;

    use super::*;
    use crate::{Begin, FileRef, MachineFile, Sockets};

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
            memory_mib: 512,
            cpus: 2,
            cpu_quota: None,
            nested_virtualization: false,
            require_limits: false,
            pmem: Vec::new(),
            disk_rate: DiskRate::default(),
            disks: Vec::new(),
            network: None,
            vsock: None,
            shares: Vec::new(),
            cmdline_extra: vec!["mica.x=1".into()],
            lifeline: None,
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

    fn text(config: &MachineConfig, processor: Processor) -> Vec<String> {
        build(config, processor, FDS, &files(config))
            .unwrap()
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect()
    }

    /// Returns all values of one option.
    fn values<'a>(arguments: &'a [String], name: &str) -> Vec<&'a str> {
        arguments
            .windows(2)
            .filter(|pair| pair[0] == name)
            .map(|pair| pair[1].as_str())
            .collect()
    }

    #[test]
    fn qemu_reads_no_configuration_and_has_one_monitor() {
        let arguments = text(&config(), Processor::Host);
        for flag in ["-no-user-config", "-nodefaults", "-no-reboot"] {
            assert!(arguments.iter().any(|argument| argument == flag));
        }
        // One monitor, which only the owner reaches.
        let monitors = |argument: &&String| argument.contains("-mon") || argument.contains("qmp");
        assert_eq!(arguments.iter().filter(monitors).count(), 1);
        assert_eq!(values(&arguments, "-mon"), ["chardev=monitor,mode=control"]);
        assert_eq!(values(&arguments, "-sandbox"), [SECCOMP]);
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
        let kvm = text(&config(), Processor::Host);
        assert_eq!(values(&kvm, "-accel"), ["kvm"]);
        assert_eq!(values(&kvm, "-cpu"), ["host,vmx=off,svm=off,pmu=off"]);
        let host = MachineConfig {
            nested_virtualization: true,
            ..config()
        };
        assert_eq!(values(&text(&host, Processor::Host), "-cpu"), ["host"]);
        let slow = Processor::Emulated { tsc_khz: None };
        let emulated = text(&config(), slow);
        assert!(values(&emulated, "-accel")[0].starts_with("tcg,"));
    }

    #[test]
    fn an_emulated_kernel_is_spared_what_it_is_slow_at() {
        let words = |cpus, processor| {
            let config = MachineConfig { cpus, ..config() };
            let arguments = text(&config, processor);
            let words = values(&arguments, "-append")[0].split(' ');
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        let has = |words: &[String], word: &str| words.iter().any(|known| known == word);
        let tsc_khz = Some(2_300_000);
        let one = words(1, Processor::Emulated { tsc_khz });
        assert!(has(&one, "tsc_early_khz=2300000") && has(&one, "acpi=off"));
        assert!(has(&one, "nolapic_timer"));
        // The second processor would get no timer.
        let two = words(2, Processor::Emulated { tsc_khz });
        assert!(has(&two, "acpi=off") && !has(&two, "nolapic_timer"));
        let arguments = text(&config(), Processor::Emulated { tsc_khz });
        let topology = values(&arguments, "-smp")[0];
        assert_eq!(topology, "cpus=2,sockets=2,cores=1,threads=1");
        // ACPI's timer is needed to measure the counter.
        let uneven = words(1, Processor::Emulated { tsc_khz: None });
        assert!(!has(&uneven, "acpi=off") && !has(&uneven, "tsc=reliable"));
        assert!(!has(&words(1, Processor::Host), "no_timer_check"));
    }

    #[test]
    fn a_rate_is_a_group_of_its_own_for_each_disk() {
        let mut config = config();
        let disk = |serial: &str| Disk {
            files: vec![file("/s/disk")],
            read_only: false,
            serial: serial.into(),
        };
        config.disks = vec![disk("a"), disk("b")];
        config.disk_rate.write = Some(5);
        let arguments = text(&config, Processor::Host);
        let blocks = values(&arguments, "-blockdev");
        for (index, block) in blocks.into_iter().enumerate() {
            let block: Value = serde_json::from_str(block).unwrap();
            assert_eq!(block["driver"], "throttle");
            assert_eq!(block["throttle-group"], format!("rate{index}"));
            assert_eq!(block["file"]["driver"], "raw");
        }
        let groups = values(&arguments, "-object");
        let group: Value = serde_json::from_str(groups.last().unwrap()).unwrap();
        assert_eq!(group["id"], "rate1");
        assert_eq!(group["limits"]["bps-write"], 5);
    }

    #[test]
    fn layers_are_read_only_devices_with_addresses() {
        let mut config = config();
        config.pmem = (0..9)
            .map(|n| region(&format!("/s/{n},\"x.erofs")))
            .collect();
        let arguments = text(&config, Processor::Host);
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
        // The port has no PCI address; the bus and the generator have the first two.
        assert_eq!(addresses[0], "2.0");
        assert_eq!(addresses[1], Value::Null);
        assert_eq!(addresses[3], "2.2");
        assert_eq!(addresses.last().unwrap(), "3.2");
    }

    #[test]
    fn a_network_interface_has_its_link_and_nothing_to_boot_from() {
        let mut config = config();
        config.network = Some(interface());
        let arguments = build(&config, Processor::Host, FDS, &files(&config)).unwrap();
        let arguments: Vec<String> = arguments
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect();
        let netdev = values(&arguments, "-netdev");
        let link = config.network.unwrap().link.as_raw_fd();
        assert_eq!(
            netdev,
            [format!("dgram,id=link,local.type=fd,local.str={link}")]
        );
        let device: Value = serde_json::from_str(values(&arguments, "-device")[3]).unwrap();
        assert_eq!(device["mac"], "02:00:00:ab:cd:ef");
        assert_eq!(device["host_mtu"], 9000);
        assert_eq!(device["romfile"], "");
        assert_eq!(device["addr"], "2.2");
    }

    #[test]
    fn disks_are_read_only_down_to_the_file() {
        let mut config = config();
        config.disks = vec![
            Disk {
                files: vec![file("/s/fsmeta"), file("/s/layer")],
                read_only: true,
                serial: "image".into(),
            },
            Disk {
                files: vec![file("/s/raw")],
                read_only: true,
                serial: "other".into(),
            },
        ];
        let arguments = text(&config, Processor::Host);
        assert_eq!(values(&arguments, "-m"), ["size=512M"]);
        let nodes: Vec<Value> = values(&arguments, "-blockdev")
            .iter()
            .map(|node| serde_json::from_str(node).unwrap())
            .collect();
        assert_eq!(nodes[0]["driver"], "vmdk");
        assert_eq!(nodes[1]["driver"], "raw");
        for node in &nodes {
            assert_eq!(node["read-only"], true);
            assert_eq!(node["file"]["read-only"], true);
            assert_eq!(node["file"]["auto-read-only"], false);
        }
        // By number, as they were opened.
        assert_eq!(nodes[1]["file"]["filename"], "/dev/fdset/31");
        assert_eq!(
            values(&arguments, "-add-fd"),
            ["fd=30,set=30", "fd=31,set=31"]
        );
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
        assert!(error.to_string().contains("237 devices"), "{error}");
    }
}
