//! Memory of a machine on our own monitor. `scripts/test-kvm` runs this.

use std::fs;

use crate::support::{Home, wait_until};

const MIB: u64 = 1 << 20;

/// Returns the resident bytes of the largest of all machines' processes.
fn resident() -> u64 {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let line = fs::read(path.join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("--micabox-worker").then_some(())?;
        let pages = fs::read_to_string(path.join("statm")).ok()?;
        pages.split(' ').nth(1)?.parse::<u64>().ok()
    });
    processes.max().unwrap_or_default() * 4096
}

#[test]
fn freed_memory_goes_back_to_the_host() {
    let home = Home::new();
    let script = "head -c 200m /dev/zero > /tmp/x; trap 'rm /tmp/x; echo freed' INT; \
                  echo full; while :; do sleep 1; done";
    let run = ["run", "--rm", "--backend", "kvm", "box", "sh", "-c", script];
    let mut sandbox = home.start(&run);
    assert_eq!(sandbox.line(), "full");
    let full = resident();
    assert!(full > 200 * MIB, "{full}");
    sandbox.signal(2);
    assert_eq!(sandbox.line(), "freed");
    // The guest reports free memory within seconds.
    wait_until("memory is given back", || resident() < full - 150 * MIB);
    sandbox.signal(15);
    sandbox.wait();
}
