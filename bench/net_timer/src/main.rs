//! A network and nothing else, for a guest in a network namespace: what this process executes is
//! what a sandbox's network costs.
//!
//! `net-timer GUEST COMMAND...` runs the command on GUEST (`crates/net/tests/net/guest/guest.py`),
//! which may reach this machine's loopback interface. Prints the nanoseconds that the network's
//! thread was on a processor, its system calls included.

use std::error::Error;
use std::fs;
use std::os::fd::AsRawFd;
use std::process::Command;

use micabox_net::{Addresses, Config, Network};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let guest = words.next().ok_or("where is guest.py?")?;
    let addresses = Addresses::default();
    let config = Config {
        allow: vec!["127.0.0.0/8".parse()?],
        #[cfg(feature = "header")]
        header: true,
        ..Config::default()
    };
    let (network, link) = Network::start(config)?;
    let link_there = rustix::io::dup(&link)?; // inherited, unlike the original
    let mac = addresses.guest_mac.map(|byte| format!("{byte:02x}"));
    let status = Command::new("unshare")
        .args(["--net", "--mount", "python3", &guest])
        .args([link_there.as_raw_fd().to_string(), mac.join(":")])
        .arg(format!("{}/{}", addresses.guest, addresses.prefix))
        .args([addresses.gateway.to_string(), addresses.mtu.to_string()])
        .arg(if cfg!(feature = "header") {
            "header"
        } else {
            "sums"
        })
        .args(words)
        .status()?;
    if !status.success() {
        return Err(format!("the guest's command: {status}").into());
    }
    println!("{}", cpu_time("network")?);
    drop(network);
    Ok(())
}

/// Nanoseconds that this process's thread with that name was on a processor.
fn cpu_time(name: &str) -> Result<u64, Box<dyn Error>> {
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if fs::read_to_string(task.join("comm"))?.trim() == name {
            let text = fs::read_to_string(task.join("schedstat"))?;
            let time = text.split(' ').next().ok_or("an empty schedstat")?;
            return Ok(time.parse()?);
        }
    }
    Err("no such thread".into())
}
