//! Provides `/etc/hostname`, `/etc/hosts` and `/etc/resolv.conf` as Docker does, and
//! `/etc/machine-id`. They are mounted over the image's files, so that they are not part of the
//! sandbox's changes.

use std::fs;
use std::os::fd::OwnedFd;

use micabox_tree::Root;
use micabox_wire::{BootFailed, Identity, Network};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

use crate::mount::{Filesystem, attach, attach_to};
use crate::step::Step;

/// Where the agent keeps the contents of the files in `/etc`: a separate filesystem, because the sandbox may write to
/// them.
pub const DIRECTORY: &str = "/files";

/// Names of the files in `/etc` that the agent provides.
pub const NAMES: [&str; 4] = ["hostname", "hosts", "machine-id", "resolv.conf"];

/// Proof that the files are written, and mounted in the agent's namespace.
#[derive(Debug)]
pub struct Prepared(());

/// Mounts of single files, not attached to a namespace yet.
#[derive(Debug)]
pub struct Detached(Vec<(&'static str, OwnedFd)>);

/// Mounts the files' filesystem and writes the files.
pub fn prepare(identity: &Identity) -> Result<Prepared, BootFailed> {
    fs::create_dir_all(DIRECTORY).step("make the directory", DIRECTORY)?;
    Filesystem::new("tmpfs")
        .and_then(|tmpfs| {
            tmpfs.set("size", "1m")?;
            tmpfs.set("mode", "0755")?;
            tmpfs.mount(MountAttrFlags::empty())
        })
        .and_then(|mount| Ok(attach(&mount, DIRECTORY)?))
        .step("mount tmpfs", DIRECTORY)?;
    write(identity)?;
    Ok(Prepared(()))
}

/// Writes the files. Those that a sandbox has mounted already remain the same inodes.
pub fn write(identity: &Identity) -> Result<(), BootFailed> {
    let name = &identity.hostname;
    let contents = [
        format!("{name}\n").into_bytes(),
        hosts(name, identity.network.as_ref()).into_bytes(),
        format!("{}\n", identity.machine_id).into_bytes(),
        identity.resolv_conf.clone(),
    ];
    for (name, contents) in NAMES.into_iter().zip(contents) {
        let path = format!("{DIRECTORY}/{name}");
        fs::write(&path, contents).step("write", path)?;
    }
    Ok(())
}

/// Returns Docker's `/etc/hosts`, with the sandbox's own name at an address of the loopback
/// interface, as Debian does. The gateway stands for the host.
fn hosts(hostname: &str, network: Option<&Network>) -> String {
    let host = network.map_or(String::new(), |network| {
        let [a, b, c, d] = network.gateway;
        format!("{a}.{b}.{c}.{d}\thost.mica.internal\n")
    });
    format!(
        "127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::\tip6-localnet\n\
         ff00::\tip6-mcastprefix\n\
         ff02::1\tip6-allnodes\n\
         ff02::2\tip6-allrouters\n\
         127.0.1.1\t{hostname}\n{host}"
    )
}

impl Prepared {
    /// Makes a detached mount of each file.
    pub fn detach(self) -> Result<Detached, BootFailed> {
        let mut mounts = Vec::new();
        for name in NAMES {
            let path = format!("{DIRECTORY}/{name}");
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let mount = rustix::mount::open_tree(CWD, &path, flags).step("mount", path)?;
            mounts.push((name, mount));
        }
        Ok(Detached(mounts))
    }
}

impl Detached {
    /// Mounts the files in `/etc` of the current root. What is missing there is made, where links lead as well:
    /// in many images `resolv.conf` points to a file that a service would create.
    pub fn attach(self) -> Result<(), BootFailed> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty()).step("open", "/")?;
        let root = Root::new(root);
        for (name, mount) in self.0 {
            let path = format!("/etc/{name}");
            let place = root.made_file(path.as_bytes());
            let place = place.step("make the file", &path)?;
            attach_to(&mount, &place).step("mount", path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandboxs_name_resolves() {
        assert!(hosts("box", None).ends_with("\n127.0.1.1\tbox\n"));
        assert!(hosts("box", None).starts_with("127.0.0.1\tlocalhost\n"));
    }

    #[test]
    fn the_gateway_is_the_host() {
        let network = Network {
            hardware_address: [2; 6],
            address: [10, 0, 0, 2],
            prefix: 24,
            gateway: [10, 0, 0, 1],
        };
        assert!(hosts("box", Some(&network)).ends_with("\n10.0.0.1\thost.mica.internal\n"));
    }
}
