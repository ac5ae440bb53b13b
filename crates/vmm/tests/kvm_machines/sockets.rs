//! Tests sockets between a guest's programs and the host's (virtio-vsock), with the guest's own
//! driver: this program is also the guest's only one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use micabox_testing::PATIENCE;
use micabox_vmm::{Backend, Begin, Exit, Kvm, Machine, MachineConfig, Snapshot, Sockets};
use sha2::{Digest, Sha256};

use super::{boot, config};

/// The host's address.
const HOST: u32 = 2;

/// Ports of the guest: returns what it receives; returns a digest of what it receives; sends as
/// many bytes as requested; calls a port of the host.
const ECHO: u32 = 5001;
const DIGEST: u32 = 5002;
const SOURCE: u32 = 5003;
const CALL: u32 = 5004;
/// A port without a listener on either side.
const NOBODY: u32 = 9999;

/// Ports of the host: the guest is up; the guest was asked to call.
const READY: u32 = 6000;
const CALLED: u32 = 6001;

const MIB: usize = 1 << 20;

pub fn tests() -> Vec<Trial> {
    vec![
        Trial::test("sockets_lead_in_and_out", both_ways),
        Trial::test("a_copys_sockets_are_its_own", copies),
    ]
}

/// Returns bytes that differ by position and `seed`.
fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) >> 3) as u8 ^ (at >> 16) as u8 ^ seed;
    (0..length).map(byte).collect()
}

fn digest(data: &[u8]) -> String {
    let digest = Sha256::digest(data);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn both_ways() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("vsock");
    let at = |port: u32| directory.path().join(format!("vsock_{port}"));
    let initrd = directory.path().join("initrd.cpio");
    std::fs::write(&initrd, this_program()?)?;
    let (ready, called) = (
        UnixListener::bind(at(READY))?,
        UnixListener::bind(at(CALLED))?,
    );
    let machine = Kvm::probe()?.start(&MachineConfig {
        begin: boot(&super::guest("vmlinux"), &initrd),
        machine: micabox_spec::Machine {
            memory_mib: 512,
            ..config().machine
        },
        vsock: Some(Sockets::At(path.clone())),
        ..config()
    })?;
    let _up = accept_ready(&ready, &*machine)?;

    // Eight connections at once, each with more data than any buffer holds, and one side ends
    // first.
    let echoes: Vec<_> = (1..=8)
        .map(|seed| {
            let path = path.clone();
            std::thread::spawn(move || echo(&path, &bytes(seed, MIB)).map_err(|e| e.to_string()))
        })
        .collect();
    for echo in echoes {
        echo.join().map_err(|_| "an echo panicked")??;
    }

    // Much data, one way and the other.
    let data = bytes(0, 8 * MIB);
    let mut client = connect(&path, DIGEST)?;
    client.write_all(&data)?;
    client.shutdown(Shutdown::Write)?;
    assert_eq!(io::read_to_string(client)?, digest(&data));
    let mut client = connect(&path, SOURCE)?;
    client.write_all(&(data.len() as u64).to_le_bytes())?;
    let mut received = Vec::new();
    client.read_to_end(&mut received)?;
    assert!(
        digest(&received) == digest(&data),
        "{} bytes",
        received.len()
    );

    // No program listens: the stream ends without data.
    let mut client = UnixStream::connect(&path)?;
    client.write_all(format!("CONNECT {NOBODY}\n").as_bytes())?;
    assert_eq!(io::read_to_string(client)?, "");
    let mut client = connect(&path, CALL)?;
    client.write_all(&NOBODY.to_le_bytes())?;
    let answer = io::read_to_string(client)?;
    assert!(answer.contains("reset"), "{answer}");

    // The guest calls, and each side sends data.
    let mut client = connect(&path, CALL)?;
    client.write_all(&CALLED.to_le_bytes())?;
    let mut from_guest = accept(&called, &*machine)?;
    from_guest.write_all(b"welcome")?;
    from_guest.shutdown(Shutdown::Write)?;
    assert_eq!(io::read_to_string(from_guest)?, "hello");
    assert_eq!(io::read_to_string(client)?, "heard welcome");

    // Clients that leave in the middle leave nothing behind.
    for _ in 0..20 {
        connect(&path, ECHO)?.write_all(&bytes(9, 1000))?;
    }
    echo(&path, &bytes(10, 1000))?;
    drop(machine);
    assert!(!path.exists());
    Ok(())
}

fn copies() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let initrd = path("initrd.cpio");
    std::fs::write(&initrd, this_program()?)?;
    let (first, second) = (
        UnixListener::bind(path(&format!("first_{READY}")))?,
        UnixListener::bind(path(&format!("second_{READY}")))?,
    );
    let config = MachineConfig {
        begin: boot(&super::guest("vmlinux"), &initrd),
        machine: micabox_spec::Machine {
            memory_mib: 512,
            ..config().machine
        },
        vsock: Some(Sockets::At(path("first"))),
        ..config()
    };
    let original = Kvm::probe()?.start(&config)?;
    let _up = accept_ready(&first, &*original)?;
    let mut client = connect(&path("first"), ECHO)?;
    client.write_all(b"before")?;
    let mut back = [0; 6];
    client.read_exact(&mut back)?;
    let snapshot = Snapshot::in_memory()?;
    original.save(&snapshot, &mut || {})?;
    let copy = |vsock| -> Result<Box<dyn Machine>, Failed> {
        Ok(Kvm::probe()?.start(&MachineConfig {
            vsock: Some(vsock),
            begin: Begin::Restore(snapshot.clone()),
            ..config.clone()
        })?)
    };

    // The guest calls again, since it was told that its call is over.
    let second_machine = copy(Sockets::At(path("second")))?;
    let _up = accept_ready(&second, &*second_machine)?;
    echo(&path("second"), &bytes(1, MIB))?;
    // With no program to call, the guest gives up.
    let third = copy(Sockets::Nowhere)?;
    assert_eq!(third.wait(PATIENCE), Some(Exit::PoweredOff));

    // The original's connections still work.
    client.write_all(b"behind")?;
    client.read_exact(&mut back)?;
    assert_eq!(&back, b"behind");
    echo(&path("first"), &bytes(2, MIB))?;
    Ok(())
}

/// Accepts a connection; waits no longer than the machine lives.
fn accept(listener: &UnixListener, machine: &dyn Machine) -> Result<UnixStream, Failed> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let exit = machine.wait(Duration::from_millis(20));
        if exit.is_some() || Instant::now() > deadline {
            return Err(format!("nobody came; {exit:?}\n{}", machine.console_tail()).into());
        }
    }
}

/// Accepts the call that says that the guest is up, and its first byte: a machine that is saved
/// while the guest's `connect` has yet to return fails that `connect` in each copy.
fn accept_ready(listener: &UnixListener, machine: &dyn Machine) -> Result<UnixStream, Failed> {
    let mut up = accept(listener, machine)?;
    up.read_exact(&mut [0])?;
    Ok(up)
}

/// Connects to a port of the guest.
fn connect(path: &Path, port: u32) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    if line.starts_with(b"OK ") {
        Ok(stream)
    } else {
        Err(io::Error::other(format!(
            "{:?}",
            String::from_utf8_lossy(&line)
        )))
    }
}

fn echo(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut client = connect(path, ECHO)?;
    let mut back = Vec::new();
    std::thread::scope(|scope| {
        let mut writer = client.try_clone()?;
        let writing = scope.spawn(move || -> io::Result<()> {
            writer.write_all(data)?;
            writer.shutdown(Shutdown::Write)
        });
        client.read_to_end(&mut back)?;
        writing.join().map_err(|_| io::Error::other("panicked"))?
    })?;
    if back == data {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{} bytes of {}",
            back.len(),
            data.len()
        )))
    }
}

/// Returns an initrd with this program as its `init`, and the libraries that it has loaded.
fn this_program() -> io::Result<Vec<u8>> {
    const FILE: u32 = 0o100_755;
    const DIRECTORY: u32 = 0o040_755;
    const DEVICE: u32 = 0o020_666;
    let mut archive = Vec::new();
    for name in ["dev", "lib", "lib64"] {
        member(&mut archive, name, DIRECTORY, (0, 0), b"");
    }
    member(&mut archive, "dev/console", DEVICE, (5, 1), b"");
    member(&mut archive, "dev/null", DEVICE, (1, 3), b"");
    let program = std::fs::read(std::env::current_exe()?)?;
    member(&mut archive, "init", FILE, (0, 0), &program);
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut libraries: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.contains(".so"))
        .collect();
    libraries.sort_unstable();
    libraries.dedup();
    for path in libraries {
        let name = path.rsplit('/').next().unwrap_or_default();
        let directory = if name.starts_with("ld-") {
            "lib64"
        } else {
            "lib"
        };
        let library = std::fs::read(path)?;
        member(
            &mut archive,
            &format!("{directory}/{name}"),
            FILE,
            (0, 0),
            &library,
        );
    }
    member(&mut archive, "TRAILER!!!", 0, (0, 0), b"");
    Ok(archive)
}

/// Appends a member of a `newc` archive.
fn member(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
    let (length, name_length) = (data.len() as u32, name.len() as u32 + 1);
    let inode = archive.len() as u32 + 1;
    let (major, minor) = device;
    let fields = [
        inode,
        mode,
        0,
        0,
        1,
        0,
        length,
        0,
        0,
        major,
        minor,
        name_length,
        0,
    ];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").bytes());
    }
    for part in [&[name.as_bytes(), b"\0"].concat(), data] {
        archive.extend(part);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
}

/// Runs as process 1 of the guest: serves until the host has seen enough.
pub fn guest() -> ! {
    for (port, serve) in [
        (ECHO, serve_echo as fn(File) -> io::Result<()>),
        (DIGEST, serve_digest),
        (SOURCE, serve_source),
        (CALL, serve_call),
    ] {
        let listener = listen(port).unwrap();
        std::thread::spawn(move || {
            loop {
                // SAFETY: a descriptor and null pointers, which mean that no address is requested.
                let stream = unsafe {
                    let null = std::ptr::null_mut();
                    libc::accept(listener.as_raw_fd(), null, null.cast())
                };
                // SAFETY: it is open and new.
                let stream = unsafe { File::from_raw_fd(stream) };
                // A client may leave early.
                std::thread::spawn(move || serve(stream));
            }
        });
    }
    // In a copy the call breaks off, and another one is needed.
    while let Ok(mut up) = call(READY)
        && (up.write_all(b"!").is_err() || up.read(&mut [0]).is_err())
    {}
    // SAFETY: ends the machine.
    unsafe { libc::reboot(libc::RB_AUTOBOOT) };
    unreachable!("it goes on after a reset");
}

fn serve_echo(mut stream: File) -> io::Result<()> {
    let mut back = stream.try_clone()?;
    io::copy(&mut stream, &mut back).map(drop)
}

fn serve_digest(mut stream: File) -> io::Result<()> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data)?;
    stream.write_all(digest(&data).as_bytes())
}

fn serve_source(mut stream: File) -> io::Result<()> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    stream.write_all(&bytes(0, u64::from_le_bytes(length) as usize))
}

fn serve_call(mut stream: File) -> io::Result<()> {
    let mut port = [0; 4];
    stream.read_exact(&mut port)?;
    let answer = match call(u32::from_le_bytes(port)) {
        Ok(mut host) => {
            host.write_all(b"hello")?;
            let mut heard = String::new();
            host.read_to_string(&mut heard)?;
            format!("heard {heard}")
        }
        Err(error) => error.to_string(),
    };
    stream.write_all(answer.as_bytes())
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: numbers.
    let socket = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0) };
    match socket {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: it is open and new.
        socket => Ok(unsafe { OwnedFd::from_raw_fd(socket) }),
    }
}

fn with_address(
    socket: &OwnedFd,
    (cid, port): (u32, u32),
    call: unsafe extern "C" fn(i32, *const libc::sockaddr, u32) -> i32,
) -> io::Result<()> {
    // SAFETY: plain data, valid when zero.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as u16;
    (address.svm_cid, address.svm_port) = (cid, port);
    let length = size_of::<libc::sockaddr_vm>() as u32;
    // SAFETY: an address that lives, and its length.
    match unsafe { call(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn listen(port: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    with_address(&socket, (libc::VMADDR_CID_ANY, port), libc::bind)?;
    // SAFETY: numbers.
    match unsafe { libc::listen(socket.as_raw_fd(), 64) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

fn call(port: u32) -> io::Result<File> {
    let socket = socket()?;
    with_address(&socket, (HOST, port), libc::connect)?;
    Ok(socket.into())
}
