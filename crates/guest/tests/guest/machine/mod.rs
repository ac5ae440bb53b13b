//! Real machines for tests: QEMU's emulation, the built guest kernel and agent, and EROFS images
//! made by `mkfs.erofs` from this machine's own programs.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use micabox_wire::{
    Boot, BootFailed, BootTimings, Device, Extent, Format, Hello, Identity, Init, Lower, Range,
    Setup, ToGuest, ToHost, Upper, preamble,
};
use tempfile::TempDir;

use crate::host::Host;

/// A persistent-memory device's size must be a multiple of this number of bytes.
const PMEM_ALIGN: u64 = 2 * 1024 * 1024;

/// A device to attach to a machine.
pub enum Attach<'a> {
    Pmem(&'a Path),
    Disk { path: &'a Path, serial: &'a str },
}

/// A running machine whose agent has sent Hello.
pub struct Machine {
    pub host: Host,
    pub hello: Hello,
    qemu: Child,
    directory: TempDir,
}

/// Returns the directory of `vmlinux` and `initrd.cpio`.
fn guest_files() -> PathBuf {
    std::env::var_os("MICABOX_GUEST").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest"),
        PathBuf::from,
    )
}

impl Machine {
    pub fn start(devices: &[Attach<'_>]) -> Self {
        Self::start_with(devices, "")
    }

    /// Starts a machine with additional parameters on the kernel's command line.
    pub fn start_with(devices: &[Attach<'_>], words: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent");
        let listener = UnixListener::bind(&socket).unwrap();
        let guest = guest_files();
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-M", "pc", "-accel", "tcg", "-cpu", "max", "-nodefaults"])
            .args([
                "-no-user-config",
                "-nographic",
                "-no-reboot",
                "-vga",
                "none",
            ])
            .args(["-m", "512M,slots=64,maxmem=16G"])
            .arg("-kernel")
            .arg(guest.join("vmlinux"))
            .arg("-initrd")
            .arg(guest.join("initrd.cpio"))
            .arg("-append")
            // On a busy machine the timer may not have ticked when the kernel looks.
            .arg(format!(
                "console=ttyS0 quiet panic=-1 reboot=t no_timer_check {words}"
            ))
            .arg("-serial")
            .arg(format!(
                "file:{}",
                directory.path().join("console").display()
            ))
            .args(["-device", "virtio-serial-pci"])
            .arg("-chardev")
            .arg(format!("socket,id=agent,path={}", socket.display()))
            .args([
                "-device",
                "virtserialport,chardev=agent,name=micabox.agent.0",
            ]);
        for (index, device) in devices.iter().enumerate() {
            match device {
                Attach::Pmem(path) => qemu
                    .arg("-object")
                    .arg(format!(
                        "memory-backend-file,id=m{index},mem-path={},size={},share=on,readonly=on",
                        path.display(),
                        fs::metadata(path).unwrap().len()
                    ))
                    .args(["-device", &format!("virtio-pmem-pci,memdev=m{index}")]),
                Attach::Disk { path, serial } => qemu
                    .arg("-drive")
                    .arg(format!(
                        "id=d{index},if=none,format=raw,readonly=on,file={}",
                        path.display()
                    ))
                    .args([
                        "-device",
                        &format!("virtio-blk-pci,drive=d{index},serial={serial}"),
                    ]),
            };
        }
        let mut qemu = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("qemu-system-x86_64");
        let (mut stream, _) = listener.accept().unwrap();
        if let Err(error) = preamble::read(&mut stream) {
            let _ = qemu.kill();
            let console = fs::read_to_string(directory.path().join("console"));
            panic!("{error}; {}", console.unwrap_or_default());
        }
        let mut host = Host::over(stream);
        let hello = match host.receive() {
            ToHost::Hello(hello) => hello,
            other => panic!("{other:?}"),
        };
        Self {
            host,
            hello,
            qemu,
            directory,
        }
    }

    pub fn boot(&mut self, boot: Boot) -> Result<BootTimings, BootFailed> {
        self.host.send(ToGuest::Boot(Box::new(boot)));
        match self.host.receive() {
            ToHost::Booted(timings) => Ok(timings),
            ToHost::BootFailed(failed) => Err(failed),
            other => panic!("{other:?}"),
        }
    }

    /// Requests the shutdown and waits for it.
    pub fn shut_down(mut self) {
        self.host.send(ToGuest::Shutdown);
        loop {
            match self.host.receive() {
                ToHost::ShutdownDone { problem } => {
                    assert_eq!(problem, None);
                    break;
                }
                ToHost::Output { .. } | ToHost::Exited { .. } | ToHost::StdinClosed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(self.ended().success());
    }

    /// Waits until QEMU has exited after the machine's reset.
    pub fn ended(&mut self) -> ExitStatus {
        let status = self.qemu.wait().unwrap();
        let mut rest = Vec::new();
        let _ = self.host.stream.read_to_end(&mut rest);
        status
    }

    pub fn console(&self) -> String {
        fs::read_to_string(self.directory.path().join("console")).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            eprintln!("console:\n{}", self.console());
        }
    }
}

/// A Boot message with these lowers and defaults for the rest.
pub fn plan(lowers: Vec<Lower>) -> Boot {
    Boot {
        lowers,
        upper: Upper::Tmpfs {
            size_bytes: None,
            patches: None,
        },
        init: Init::Reaper,
        identity: Identity {
            hostname: "box".to_owned(),
            machine_id: "0123456789abcdef0123456789abcdef".to_owned(),
            resolv_conf: b"nameserver 192.0.2.1\n".to_vec(),
            network: None,
            wall_clock: (1_700_000_000, 500_000_000),
            entropy: [7; 32],
        },
        setup: Setup::default(),
    }
}

/// An image without further devices.
pub fn lower(image: Extent) -> Lower {
    Lower {
        format: Format::Erofs,
        image,
        devices: Vec::new(),
    }
}

/// The pmem device with this image at its start, or a part of it.
pub fn pmem(uuid: [u8; 16], range: Option<Range>) -> Extent {
    let device = Device::Pmem { uuid };
    Extent { device, range }
}

/// The disk with this serial number, or a part of it.
pub fn disk(serial: &str, range: Option<Range>) -> Extent {
    let serial = serial.to_owned();
    Extent {
        device: Device::Disk { serial },
        range,
    }
}

/// A directory tree that will become an image layer.
pub struct Layer {
    directory: TempDir,
    number: u8,
}

impl Layer {
    pub fn new(number: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory, number }
    }

    pub fn uuid(&self) -> [u8; 16] {
        [0x40 + self.number; 16]
    }

    pub fn at(&self, path: &str) -> PathBuf {
        let path = self.directory.path().join(path.trim_start_matches('/'));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path.parent().unwrap())
            .unwrap();
        path
    }

    pub fn file(&self, path: &str, contents: &[u8], mode: u32) {
        fs::write(self.at(path), contents).unwrap();
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Adds programs of this machine and the libraries that they need.
    pub fn programs(&self, names: &[&str]) {
        for name in names {
            let source = Path::new("/usr/bin").join(name);
            fs::copy(&source, self.at(&format!("/bin/{name}")))
                .unwrap_or_else(|error| panic!("{}: {error}", source.display()));
            let libraries = Command::new("ldd")
                .env_remove("LD_PRELOAD")
                .arg(&source)
                .output()
                .unwrap();
            for word in String::from_utf8(libraries.stdout)
                .unwrap()
                .split_whitespace()
            {
                if word.starts_with('/') {
                    fs::copy(word, self.at(word)).unwrap();
                }
            }
        }
    }

    /// Makes the image, padded to a device's size.
    pub fn image(&self, directory: &Path) -> PathBuf {
        let path = directory.join(format!("layer-{}.erofs", self.number));
        let uuid: String = self
            .uuid()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let uuid = format!(
            "{}-{}-{}-{}-{}",
            &uuid[..8],
            &uuid[8..12],
            &uuid[12..16],
            &uuid[16..20],
            &uuid[20..]
        );
        let output = Command::new("mkfs.erofs")
            .args(["-Enoinline_data", "-T1600000000", "--all-root", "-U", &uuid])
            .arg(&path)
            .arg(self.directory.path())
            .output()
            .expect("mkfs.erofs");
        assert!(output.status.success(), "{output:?}");
        let file = File::options().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.next_multiple_of(PMEM_ALIGN)).unwrap();
        path
    }
}

/// A small userland: enough for sh scripts.
pub fn userland() -> Layer {
    let layer = Layer::new(1);
    layer.programs(&[
        "sh", "cat", "ls", "id", "stat", "sleep", "seq", "stty", "env", "grep", "mkdir", "chmod",
        "mkfifo", "ln", "yes", "head", "rm", "mv", "date", "uname", "umount", "mount", "readlink",
        "setsid", "true", "tail", "wc", "cksum", "dd", "sort",
    ]);
    layer.file(
        "/etc/passwd",
        b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n",
        0o644,
    );
    layer.file(
        "/etc/group",
        b"root:x:0:\napp:x:1000:\naudio:x:29:app\n",
        0o644,
    );
    for directory in ["/proc", "/sys", "/dev", "/tmp"] {
        fs::create_dir(layer.at(directory)).unwrap();
    }
    fs::set_permissions(layer.at("/tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    layer
}
