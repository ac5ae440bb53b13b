//! A guest that speaks to a server as a monitor does for it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use micabox_share::{HEADER, Process, Settings, Transport};
use micabox_testing::PATIENCE;

pub(crate) const ROOT: u64 = 1;

pub(crate) const EIO: i32 = 5;
const LOOKUP: u32 = 1;
const INIT: u32 = 26;

/// Stands in for a guest.
pub(crate) struct Guest {
    pub(crate) stream: UnixStream,
    /// Versions and slots that the server sent of its own accord.
    pub(crate) outdated: Vec<(u64, Vec<u16>)>,
    _server: Process,
}

impl Guest {
    pub(crate) fn new(folder: &Path, read_only: bool) -> Self {
        Self::with(folder, read_only, false)
    }

    /// The guest of a folder that is the upper layer of its overlay.
    pub(crate) fn of_upper(folder: &Path) -> Self {
        Self::with(folder, false, true)
    }

    pub(crate) fn with(folder: &Path, read_only: bool, upper: bool) -> Self {
        let settings = Settings {
            read_only,
            cached: false,
            with_mounts: true,
            upper,
            as_it_is: false,
            only: None,
            transport: Transport::Stream,
        };
        let folder = fs::File::open(folder).unwrap();
        let (server, socket) = micabox_share::start(folder.into(), &settings).unwrap();
        let stream = UnixStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut guest = Self {
            stream,
            outdated: Vec::new(),
            _server: server,
        };
        let version = [7_u32, 38, 1 << 17, u32::MAX]
            .map(u32::to_le_bytes)
            .concat();
        guest.ask(INIT, 0, &version).unwrap();
        guest
    }

    /// A guest with a table of versions (`FUSE_VERSIONS`), which this one does not have in memory.
    pub(crate) fn with_versions(folder: &Path) -> Self {
        let mut guest = Self::new(folder, false);
        let words = [7_u32, 38, 1 << 17, u32::MAX, 1 << 31, 0x1000];
        let init = [&words.map(u32::to_le_bytes).concat()[..], &[0; 40]].concat();
        guest.ask(INIT, 0, &init).unwrap();
        guest
    }

    /// Sends a request, and returns the reply or its error.
    pub(crate) fn ask(&mut self, operation: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let mut request = u32::try_from(HEADER + body.len())
            .unwrap()
            .to_le_bytes()
            .to_vec();
        request.extend(operation.to_le_bytes());
        request.extend(7_u64.to_le_bytes());
        request.extend(node.to_le_bytes());
        request.resize(HEADER, 0);
        request.extend(body);
        self.stream.write_all(&request).unwrap();
        loop {
            if let Some(answer) = self.receive()? {
                return answer;
            }
        }
    }

    /// Receives an answer; None if it is to no request.
    pub(crate) fn receive(&mut self) -> Result<Option<Result<Vec<u8>, i32>>, i32> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).map_err(|_| EIO)?;
        let length = u32::from_le_bytes(header[..4].try_into().unwrap());
        let error = i32::from_le_bytes(header[4..8].try_into().unwrap());
        let mut body = vec![0; length as usize - 16];
        self.stream.read_exact(&mut body).unwrap();
        if header[8..] == [0; 8] {
            let (version, slots) = body.split_first_chunk().unwrap();
            let (slots, _) = slots.as_chunks();
            let slots = slots.iter().map(|slot| u16::from_le_bytes(*slot));
            self.outdated
                .push((u64::from_le_bytes(*version), slots.collect()));
            return Ok(None);
        }
        Ok(Some(if error == 0 { Ok(body) } else { Err(-error) }))
    }

    /// Looks a name up; returns the number by which the file is known, and its own.
    pub(crate) fn look_up(&mut self, node: u64, name: &[u8]) -> Result<(u64, u64), i32> {
        let found = self.ask(LOOKUP, node, &[name, &[0]].concat())?;
        let number = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().unwrap());
        Ok((number(0), number(40)))
    }
}
