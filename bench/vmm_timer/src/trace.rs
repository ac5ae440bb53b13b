//! What a machine says on its serial port, and when: the host's kernel traces each write.
//! So output is noticed without polling, at the moment at which the guest makes it.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Result;

/// Far longer than any start takes: only a hang ends it.
const PATIENCE: Duration = Duration::from_secs(240);

/// The kernel's trace of `kvm_pio` at the serial port.
pub struct Trace {
    instance: PathBuf,
}

impl Trace {
    /// Makes a trace instance, separate from those of other programs.
    pub fn new() -> Result<Self> {
        let root = tracefs()?;
        let instance = root.join("instances").join("vmm-timer");
        fs::create_dir_all(&instance)?;
        let set = |name: &str, value: &str| fs::write(instance.join(name), value);
        set("trace_clock", "mono")?;
        set("buffer_percent", "0")?;
        set("events/kvm/kvm_pio/filter", "port == 0x3f8")?;
        set("tracing_on", "1")?;
        Ok(Self { instance })
    }

    /// Begins to listen, and forgets what was said before.
    pub fn begin(&self) -> Result<()> {
        fs::write(self.instance.join("trace"), "")?;
        self.enable(true)
    }

    fn enable(&self, on: bool) -> Result<()> {
        let value = if on { "1" } else { "0" };
        fs::write(self.instance.join("events/kvm/kvm_pio/enable"), value)?;
        Ok(())
    }

    /// Waits until a machine has said `words`: the time of the last byte, in seconds of
    /// CLOCK_MONOTONIC.
    pub fn wait_for(&self, words: &[u8]) -> Result<f64> {
        let mut pipe = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.instance.join("trace_pipe"))?;
        let deadline = Instant::now() + PATIENCE;
        let (mut text, mut said) = (String::new(), Vec::new());
        let mut buffer = vec![0; 1 << 16];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => sleep(&pipe, deadline)?,
                Ok(count) => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(&pipe, deadline)?,
                Err(error) => return Err(error.into()),
            }
            while let Some((line, rest)) = text.split_once('\n') {
                if let Some((time, byte)) = write(line) {
                    said.push(byte);
                    if said.ends_with(words) {
                        self.enable(false)?;
                        return Ok(time);
                    }
                }
                text = rest.to_owned();
            }
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.enable(false);
        let _ = fs::remove_dir(&self.instance); // as is done with these
    }
}

/// Waits until there is something to read.
fn sleep(pipe: &File, deadline: Instant) -> Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err("a machine says nothing".into());
    }
    let mut poll = libc::pollfd {
        fd: pipe.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(left.as_millis())?;
    // SAFETY: one pollfd that lives.
    unsafe { libc::poll(&mut poll, 1, milliseconds) };
    Ok(())
}

/// Time and byte of a line like
/// `vcpu0-94 [000] .... 12.345678: kvm_pio: pio_write at 0x3f8 size 1 count 1 val 0x4b`.
fn write(line: &str) -> Option<(f64, u8)> {
    let (head, event) = line.split_once(": kvm_pio: pio_write ")?;
    let time = head.split_whitespace().last()?.parse().ok()?;
    let value = event.split("val 0x").nth(1)?.split_whitespace().next()?;
    let value = u32::from_str_radix(value, 16).ok()?;
    Some((time, value.to_le_bytes()[0]))
}

/// Where the kernel's tracing is, mounted if it is not.
fn tracefs() -> Result<PathBuf> {
    mounted("tracefs", &["/sys/kernel/tracing"])
}

/// KVM's counters, a directory a machine.
pub fn counters() -> Result<PathBuf> {
    Ok(mounted("debugfs", &["/sys/kernel/debug"])?.join("kvm"))
}

fn mounted(kind: &str, usual: &[&str]) -> Result<PathBuf> {
    for line in fs::read_to_string("/proc/mounts")?.lines() {
        let mut words = line.split(' ').skip(1);
        if let (Some(place), Some(found)) = (words.next(), words.next())
            && found == kind
        {
            return Ok(place.into());
        }
    }
    // A sandbox's /sys may be closed to us; our own directory never is.
    let own = format!("/tmp/vmm-timer-{kind}");
    fs::create_dir_all(&own)?;
    for place in usual.iter().chain([&own.as_str()]) {
        if mount(kind, Path::new(place)).is_ok() {
            return Ok(place.into());
        }
    }
    Err(format!("{kind} can't be mounted: this needs root, and a kernel that has it").into())
}

fn mount(kind: &str, place: &Path) -> Result<()> {
    let done = std::process::Command::new("mount")
        .args(["-t", kind, kind])
        .arg(place)
        .stderr(std::process::Stdio::null())
        .status()?;
    if done.success() {
        Ok(())
    } else {
        Err(done.to_string().into())
    }
}
