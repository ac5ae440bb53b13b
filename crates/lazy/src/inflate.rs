//! Inflates chunks in jailed processes: a frame is foreign, even if its checksum is the index's.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use micabox_ground::{chain, lock};
use micabox_jail::{Call, Kind, Limits, Worker};
use micabox_pack::Recent;
use micabox_socket::read_before;
use serde::{Deserialize, Serialize};

use crate::blob::LARGEST;

/// The kind of worker that inflates chunks.
pub const INFLATER: Kind = Kind::parser::<Inflate>();

/// Memory of a worker: a chunk, packed and not, and zstd's tables.
const MEMORY: u64 = 64 << 20;

/// How long a chunk may take: a worker that was taken over may not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Workers that wait for the next chunk: one for each thread that reads.
const IDLE: usize = 8;

/// Chunks that are kept inflated, 1 MiB at most each: a chunk has several pages.
const KEPT: usize = 16;

/// Processes that inflate chunks, each one at a time; and what they have inflated last, for all images that share them.
pub struct Inflaters {
    idle: Mutex<Vec<Inflater>>,
    /// By the image and the number of the chunk.
    pub(crate) recent: Recent<(u64, usize)>,
}

impl Default for Inflaters {
    fn default() -> Self {
        Self {
            idle: Mutex::default(),
            recent: Recent::new(KEPT),
        }
    }
}

struct Inflater {
    socket: UnixStream,
    /// Killed when it is dropped.
    _worker: Worker<Inflate>,
}

impl Inflaters {
    /// Inflates a zstd frame that has `length` bytes.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] if it has other ones, or is none; those of the worker.
    pub fn inflate(&self, packed: &[u8], length: u64) -> io::Result<Vec<u8>> {
        if packed.len() as u64 > LARGEST || length > LARGEST {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let idle = self.idle().pop();
        let tried = idle.map(|mut idle| {
            let inflated = idle.inflate(packed, length as u32);
            inflated.map(|inflated| (idle, inflated))
        });
        let (inflater, inflated) = match tried {
            Some(Ok(done)) => done,
            // One that waited may have been killed meanwhile.
            Some(Err(_)) | None => {
                let mut new = Inflater::start()?;
                let inflated = new.inflate(packed, length as u32)?;
                (new, inflated)
            }
        };
        let mut idle = self.idle();
        if idle.len() < IDLE {
            idle.push(inflater);
        }
        drop(idle);
        let problem = "a chunk does not inflate to what its index says";
        inflated.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, problem))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Inflater>> {
        lock(&self.idle)
    }
}

impl Inflater {
    fn start() -> io::Result<Self> {
        let (socket, its) = UnixStream::pair()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let limits = Limits {
            memory: MEMORY,
            ..Limits::default()
        };
        let worker = Worker::start(&Inflate, vec![OwnedFd::from(its)], &limits);
        Ok(Self {
            socket,
            _worker: worker.map_err(|error| io::Error::other(chain(&error)))?,
        })
    }

    /// Returns the contents of a frame; `None` if it has no `length` bytes.
    fn inflate(&mut self, packed: &[u8], length: u32) -> io::Result<Option<Vec<u8>>> {
        let failed = |error: io::Error| {
            let problem = format!("the process that inflates chunks failed: {error}");
            io::Error::other(problem)
        };
        let deadline = Instant::now() + PATIENCE;
        let header = [(packed.len() as u32).to_le_bytes(), length.to_le_bytes()].concat();
        let mut answer = [0];
        self.socket
            .write_all(&header)
            .and_then(|()| self.socket.write_all(packed))
            .and_then(|()| read_before(&self.socket, &mut answer, deadline))
            .map_err(failed)?;
        if answer != [INFLATED] {
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        read_before(&self.socket, &mut bytes, deadline).map_err(failed)?;
        Ok(Some(bytes))
    }
}

/// Answers to a frame: its contents follow, or it has others.
const INFLATED: u8 = 1;
const REFUSED: u8 = 0;

/// A request to a worker, whose file is a socket. There, each question is the lengths of a frame and of its contents,
/// 32 bits each, little-endian, and the frame; each answer a byte, and the contents.
#[derive(Serialize, Deserialize)]
struct Inflate;

impl Call for Inflate {
    const KIND: &'static str = "inflate";
    type Reply = ();
    type Error = String;

    fn run(self, files: Vec<OwnedFd>) -> Result<(), String> {
        let socket = files.into_iter().next().ok_or("no socket")?;
        answer(&mut File::from(socket)).map_err(|error| error.to_string())
    }
}

/// Answers until the other side ends.
fn answer(socket: &mut File) -> io::Result<()> {
    let mut packed = Vec::new();
    loop {
        let mut header = [0; 8];
        match socket.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let [a, b, c, d, e, f, g, h] = header;
        let lengths = [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes);
        if lengths.iter().any(|length| u64::from(*length) > LARGEST) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let [frame, length] = lengths.map(|length| length as usize);
        packed.resize(frame, 0);
        socket.read_exact(&mut packed)?;
        match zstd::bulk::decompress(&packed, length) {
            Ok(bytes) if bytes.len() == length => {
                socket.write_all(&[INFLATED])?;
                socket.write_all(&bytes)?;
            }
            _ => socket.write_all(&[REFUSED])?,
        }
    }
}

impl fmt::Debug for Inflaters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inflaters").finish_non_exhaustive()
    }
}
