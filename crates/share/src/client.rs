//! A client of a server: reads a folder as a guest's kernel would, for programs on the host that
//! want what the guest sees: owners, modes and attributes included.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use micabox_fuse::message::{
    Attributes, Body, HEADER, LARGEST, MAJOR, MINOR, MOST_DATA, REPLY_HEADER,
};
use micabox_fuse::opcode;
use rustix::io::Errno;

/// Longest value of an extended attribute, and longest list (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const LONGEST: u32 = 64 << 10;

/// Bytes of entries that are asked for at a time.
const ENTRIES: u32 = 64 << 10;

/// Where to seek to (lseek(2)).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// A conversation with a server over its stream ([`Transport::Stream`](crate::Transport)). Files have
/// numbers, which stay theirs until the conversation ends.
#[derive(Debug)]
pub struct Client {
    stream: File,
    unique: u64,
    /// The file that is open for reading, and the server's number for that.
    open: Option<(u64, u64)>,
}

/// The number of the folder itself (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

impl Client {
    /// Begins a conversation on the socket that came with a server.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let mut client = Self {
            stream: socket.into(),
            unique: 0,
            open: None,
        };
        let body = [MAJOR, MINOR, 0, 0].map(u32::to_le_bytes);
        client.ask(opcode::INIT, 0, &body.concat())?;
        Ok(client)
    }

    /// Returns the entry of a directory with a name.
    ///
    /// # Errors
    /// The system's.
    pub fn lookup(&mut self, directory: u64, name: &[u8]) -> io::Result<Option<u64>> {
        match self.ask(opcode::LOOKUP, directory, &[name, &[0]].concat()) {
            Ok(reply) => Ok(Some(Body::of(&reply).u64()?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a file's attributes.
    ///
    /// # Errors
    /// The system's.
    pub fn attributes(&mut self, file: u64) -> io::Result<Attributes> {
        let reply = self.ask(opcode::GETATTR, file, &[0; 16])?;
        let mut body = Body::of(&reply);
        body.bytes(16)?;
        Ok(body.attributes()?)
    }

    /// Returns the names in a directory with their files, without `.` and `..`, in the host's order.
    ///
    /// # Errors
    /// The system's.
    pub fn entries(&mut self, directory: u64) -> io::Result<Vec<(Box<[u8]>, u64)>> {
        let handle = self.ask(opcode::OPENDIR, directory, &[0; 8])?;
        let handle = Body::of(&handle).u64()?;
        let mut entries = Vec::new();
        let mut offset = 0;
        loop {
            let request = place(handle, offset, ENTRIES);
            let reply = self.ask(opcode::READDIRPLUS, directory, &request)?;
            let mut body = Body::of(&reply);
            if body.is_empty() {
                break;
            }
            while !body.is_empty() {
                let file = body.u64()?;
                body.bytes(ATTRIBUTES)?;
                body.u64()?; // The number on the host.
                offset = body.u64()?;
                let length = body.u32()?;
                body.u32()?; // The type.
                let name = body.bytes(length)?;
                body.bytes(length.next_multiple_of(8).saturating_sub(length))?;
                if !matches!(name, b"." | b"..") {
                    // None for one that could not be looked up.
                    let file = Some(file).filter(|file| *file != 0);
                    entries.push((Box::from(name), file));
                }
            }
        }
        self.release(opcode::RELEASEDIR, directory, handle)?;
        let mut found = Vec::with_capacity(entries.len());
        for (name, file) in entries {
            let file = match file {
                Some(file) => Some(file),
                None => self.lookup(directory, &name)?,
            };
            found.extend(file.map(|file| (name, file)));
        }
        Ok(found)
    }

    /// Reads from a regular file. Returns the number of bytes: less than asked for only at its end.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&mut self, file: u64, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let handle = self.handle(file)?;
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let size = u32::try_from(rest.len())
                .unwrap_or(MOST_DATA)
                .min(MOST_DATA);
            let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
            let bytes = self.ask(opcode::READ, file, &place(handle, at, size))?;
            let place = rest.get_mut(..bytes.len()).ok_or(Errno::IO)?;
            place.copy_from_slice(&bytes);
            done = done.saturating_add(bytes.len());
            if bytes.is_empty() {
                break;
            }
        }
        Ok(done)
    }

    /// Returns where the next bytes of a regular file are that are not a hole, from `offset` on:
    /// their beginning and end. None if there are none.
    ///
    /// # Errors
    /// The system's.
    pub fn data(&mut self, file: u64, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let handle = self.handle(file)?;
        let start = match self.seek(file, handle, offset, SEEK_DATA) {
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                return Ok(None);
            }
            start => start?,
        };
        Ok(Some((start, self.seek(file, handle, start, SEEK_HOLE)?)))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// The system's.
    pub fn read_link(&mut self, link: u64) -> io::Result<Vec<u8>> {
        self.ask(opcode::READLINK, link, &[])
    }

    /// Returns the names of a file's extended attributes.
    ///
    /// # Errors
    /// The system's.
    pub fn xattr_names(&mut self, file: u64) -> io::Result<Vec<Box<[u8]>>> {
        let request = [LONGEST, 0].map(u32::to_le_bytes).concat();
        let names = self.ask(opcode::LISTXATTR, file, &request)?;
        let names = names.split(|byte| *byte == 0);
        Ok(names
            .filter(|name| !name.is_empty())
            .map(Box::from)
            .collect())
    }

    /// Returns the value of an extended attribute; none if the file does not have it.
    ///
    /// # Errors
    /// The system's.
    pub fn xattr(&mut self, file: u64, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let size = [LONGEST, 0].map(u32::to_le_bytes).concat();
        match self.ask(opcode::GETXATTR, file, &[&size, name, &[0]].concat()) {
            Err(error) if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => Ok(None),
            value => value.map(Some),
        }
    }

    /// Returns the size in bytes of the filesystem that the folder is on.
    ///
    /// # Errors
    /// The system's.
    pub fn capacity(&mut self) -> io::Result<u64> {
        let reply = self.ask(opcode::STATFS, ROOT, &[])?;
        let mut body = Body::of(&reply);
        let blocks = body.u64()?;
        body.bytes(40)?;
        Ok(blocks.saturating_mul(body.u32()?.into()))
    }

    /// Returns the server's number of the open file, after it has closed the one before.
    fn handle(&mut self, file: u64) -> io::Result<u64> {
        match self.open {
            Some((open, handle)) if open == file => return Ok(handle),
            Some((open, handle)) => {
                self.open = None;
                self.release(opcode::RELEASE, open, handle)?;
            }
            None => {}
        }
        let reply = self.ask(opcode::OPEN, file, &[0; 8])?;
        let handle = Body::of(&reply).u64()?;
        self.open = Some((file, handle));
        Ok(handle)
    }

    fn release(&mut self, opcode: u32, file: u64, handle: u64) -> io::Result<()> {
        let request = [handle, 0, 0].map(u64::to_le_bytes).concat();
        self.ask(opcode, file, &request).map(drop)
    }

    fn seek(&mut self, file: u64, handle: u64, offset: u64, whence: u32) -> io::Result<u64> {
        let reply = self.ask(opcode::LSEEK, file, &place(handle, offset, whence))?;
        Ok(Body::of(&reply).u64()?)
    }

    /// Sends a request and returns the body of its reply.
    fn ask(&mut self, opcode: u32, file: u64, body: &[u8]) -> io::Result<Vec<u8>> {
        self.unique = self.unique.wrapping_add(1);
        let length = HEADER.saturating_add(body.len());
        let length = u32::try_from(length).map_err(|_| Errno::TOOBIG)?;
        let mut request = Vec::new();
        for number in [length, opcode] {
            request.extend(number.to_le_bytes());
        }
        for number in [self.unique, file] {
            request.extend(number.to_le_bytes());
        }
        // The user and group, the process and padding.
        request.extend([0; 16]);
        request.extend(body);
        self.stream.write_all(&request)?;

        let mut header = [0; REPLY_HEADER];
        self.stream.read_exact(&mut header)?;
        let mut fields = Body::of(&header);
        let (length, code) = (fields.u32()? as usize, fields.u32()?.cast_signed());
        if !(REPLY_HEADER..=LARGEST).contains(&length) || fields.u64()? != self.unique {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut reply = vec![0; length.saturating_sub(REPLY_HEADER)];
        self.stream.read_exact(&mut reply)?;
        match code {
            0 => Ok(reply),
            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        }
    }
}

/// Bytes of what is told of an entry, behind its number (`fuse_entry_out`).
const ATTRIBUTES: u32 = 120;

/// Makes the body of a request about a place in an open file (`fuse_read_in`, `fuse_lseek_in`).
fn place(handle: u64, offset: u64, size: u32) -> Vec<u8> {
    let place = [handle, offset].map(u64::to_le_bytes).concat();
    [place, size.to_le_bytes().to_vec(), vec![0; 20]].concat()
}
