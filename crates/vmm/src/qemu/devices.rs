//! The devices of a machine, as options of QEMU.

use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use micabox_spec::DiskRate;
use serde_json::{Value, json};

use super::files::shared_path;
use super::options::{Options, SHARE};
use crate::{AGENT_PORT, Disk, Error, NetworkInterface, PmemRegion, Share};

/// Entries of the queue of a shared folder: a request of 1 MiB is 260 buffers.
const SHARE_QUEUE: u16 = 1024;

/// Adds the port of the agent's byte stream, which is a socket of this number.
pub(super) fn agent(options: &mut Options, socket: RawFd) -> Result<(), Error> {
    options.device(json!({"driver": "virtio-serial-pci", "id": "agent-bus", "max_ports": 2}))?;
    options.pair("-chardev", &format!("socket,id=agent,fd={socket}"));
    options.json(
        "-device",
        &json!({"driver": "virtserialport", "bus": "agent-bus.0", "nr": 1,
                "chardev": "agent", "name": AGENT_PORT}),
    );
    Ok(())
}

/// Adds the generator of random numbers.
pub(super) fn entropy(options: &mut Options) -> Result<(), Error> {
    options.json(
        "-object",
        &json!({"qom-type": "rng-builtin", "id": "entropy"}),
    );
    options.device(json!({"driver": "virtio-rng-pci", "rng": "entropy"}))
}

/// Adds the memory balloon, for free page reporting alone: the guest reports free memory on its own,
/// and QEMU gives it to the host until the guest touches it again.
pub(super) fn balloon(options: &mut Options) -> Result<(), Error> {
    options.device(json!({"driver": "virtio-balloon-pci", "free-page-reporting": true}))
}

/// Adds a folder of the host, whose server is behind a socket.
pub(super) fn share(options: &mut Options, index: usize, share: &Share) -> Result<(), Error> {
    let (socket, tag) = (share.socket.as_raw_fd(), &share.tag);
    options.pair("-chardev", &format!("socket,id=share{index},fd={socket}"));
    options.device(json!({"driver": SHARE, "chardev": format!("share{index}"),
                          "tag": tag, "queue-size": SHARE_QUEUE}))
}

/// Adds a region of persistent memory: one file, at a path that QEMU opens.
pub(super) fn pmem(
    options: &mut Options,
    index: usize,
    region: &PmemRegion,
    path: &Path,
) -> Result<(), Error> {
    let backend = format!("layer{index}");
    options.json(
        "-object",
        // Shared, so that every machine maps the same page cache; read-only, so that
        // QEMU can't write to the file whatever the guest makes it do.
        &json!({"qom-type": "memory-backend-file", "id": backend,
                "mem-path": path.display().to_string(), "size": region.size(),
                "share": true, "readonly": true}),
    );
    options.device(json!({"driver": "virtio-pmem-pci", "memdev": backend}))
}

/// Adds a disk. `number` is of its file, or of the VMDK descriptor of its files.
pub(super) fn block(
    options: &mut Options,
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
        options.json("-object", &throttle(&group, rate));
        if let Some(fields) = blocks.as_object_mut() {
            fields.remove("node-name");
        }
        blocks = json!({
            "driver": "throttle", "node-name": node, "throttle-group": group,
            "read-only": disk.read_only, "auto-read-only": false, "discard": discard,
            "file": blocks,
        });
    }
    options.json("-blockdev", &blocks);
    options.device(
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

/// Adds a network interface, whose frames are messages of a socket.
pub(super) fn network(options: &mut Options, interface: &NetworkInterface) -> Result<(), Error> {
    let link = interface.link.as_raw_fd();
    let [a, b, c, d, e, f] = interface.address;
    let address = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    // One frame a message, for any kind of socket.
    options.pair(
        "-netdev",
        &format!("dgram,id=link,local.type=fd,local.str={link}"),
    );
    options.device(
        // No boot ROM: it would be 250 KiB for the firmware to scan.
        json!({"driver": "virtio-net-pci", "netdev": "link", "mac": address,
               "host_mtu": interface.mtu, "romfile": ""}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::options::values;
    use crate::{FileRef, MachineFile};

    fn disk(files: &[&str]) -> Disk {
        let files = files.iter().map(|name| {
            let description = FileRef {
                number: 0,
                length: 4 << 20,
                name: (*name).into(),
                part: None,
            };
            MachineFile::received(tempfile::tempfile().unwrap(), description)
        });
        Disk {
            files: files.collect(),
            read_only: true,
            serial: "a".into(),
        }
    }

    /// Returns the values of one option in JSON.
    fn all(options: Options, name: &str) -> Vec<Value> {
        let words = options.into_words();
        let values = values(&words, name).into_iter();
        values
            .map(|value| serde_json::from_str(value).unwrap())
            .collect()
    }

    #[test]
    fn a_rate_is_a_group_of_its_own_for_each_disk() {
        let rate = DiskRate {
            write: Some(5),
            ..DiskRate::default()
        };
        for name in ["-blockdev", "-object"] {
            let mut options = Options::default();
            for index in 0..2 {
                block(&mut options, index, &disk(&["/s/disk"]), &rate, 30).unwrap();
            }
            for (index, value) in all(options, name).into_iter().enumerate() {
                let group = format!("rate{index}");
                if name == "-object" {
                    assert_eq!(value["id"], group);
                    assert_eq!(value["limits"]["bps-write"], 5);
                } else {
                    assert_eq!(value["driver"], "throttle");
                    assert_eq!(value["throttle-group"], group);
                    assert_eq!(value["file"]["driver"], "raw");
                }
            }
        }
    }

    #[test]
    fn a_network_interface_has_its_link_and_nothing_to_boot_from() {
        let link = std::fs::File::open("/dev/null").unwrap();
        let number = link.as_raw_fd();
        let interface = NetworkInterface {
            link: std::sync::Arc::new(link.into()),
            address: [2, 0, 0, 0xab, 0xcd, 0xef],
            mtu: 9000,
        };
        let mut options = Options::default();
        network(&mut options, &interface).unwrap();
        let words = options.into_words();
        let expected = format!("dgram,id=link,local.type=fd,local.str={number}");
        assert_eq!(values(&words, "-netdev"), [expected]);
        let device: Value = serde_json::from_str(values(&words, "-device")[0]).unwrap();
        assert_eq!(device["mac"], "02:00:00:ab:cd:ef");
        assert_eq!(device["host_mtu"], 9000);
        assert_eq!(device["romfile"], "");
        assert_eq!(device["addr"], "2.0");
    }

    #[test]
    fn disks_are_read_only_down_to_the_file() {
        let mut options = Options::default();
        let rate = DiskRate::default();
        let image = disk(&["/s/fsmeta", "/s/layer"]);
        block(&mut options, 0, &image, &rate, 30).unwrap();
        block(&mut options, 1, &disk(&["/s/raw"]), &rate, 31).unwrap();
        let nodes = all(options, "-blockdev");
        assert_eq!(nodes[0]["driver"], "vmdk");
        assert_eq!(nodes[1]["driver"], "raw");
        for node in &nodes {
            assert_eq!(node["read-only"], true);
            assert_eq!(node["file"]["read-only"], true);
            assert_eq!(node["file"]["auto-read-only"], false);
        }
        // By number, as they were opened.
        assert_eq!(nodes[1]["file"]["filename"], "/dev/fdset/31");
    }
}
