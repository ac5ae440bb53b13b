//! Archives of a running sandbox's files, both ways.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use micabox_disks::upper::Archive;
use micabox_error::Error;
use micabox_operations::{LeftOut, Stdio};
use micabox_parsers::Notes;
use micabox_wire::files::FileRequest;

use super::{Ends, Files, Operation};
use crate::Output;

/// Most bytes after an archive's end: its last block's padding, as GNU tar has it.
const PADDING: u64 = 1 << 20;

/// An archive that the agent writes while the caller reads it.
#[derive(Debug)]
pub struct Packed {
    output: Output,
    operation: Operation,
}

impl Files {
    /// Reads what is at a path as an archive, below `name`.
    pub(crate) fn pack(&self, path: &[u8], follow: bool, name: &[u8]) -> Result<Packed, Error> {
        let request = FileRequest::Pack {
            path: path.to_vec(),
            follow,
            name: name.to_vec(),
        };
        let ends = Ends {
            stdout: Stdio::Piped,
            ..Ends::default()
        };
        let path = OsStr::from_bytes(path).as_ref();
        let mut operation = self.start("reading", path, &request, ends)?;
        let output = operation.process.stdout.take();
        Ok(Packed {
            output: output.ok_or(Error::BadReply)?,
            operation,
        })
    }

    /// Unpacks an archive below a directory.
    pub(crate) fn unpack(&self, root: &[u8], archive: OwnedFd) -> Result<Vec<LeftOut>, Error> {
        let request = FileRequest::Unpack {
            path: root.to_vec(),
        };
        let ends = Ends {
            stdin: Stdio::Descriptor(archive),
            ..Ends::default()
        };
        let root = OsStr::from_bytes(root).as_ref();
        self.start("writing below", root, &request, ends)?.end()
    }
}

impl Packed {
    fn end(mut self) -> Result<Notes, Error> {
        // The end of the operation has the reason why it can't be read.
        let _ = io::copy(&mut (&mut self.output).take(PADDING), &mut io::sink());
        drop(self.output);
        let mut notes = Notes::default();
        for left_out in self.operation.end()? {
            notes.socket(&left_out.path);
        }
        Ok(notes)
    }
}

impl Archive for Packed {
    fn finish(self: Box<Self>) -> Result<Notes, Error> {
        self.end()
    }

    fn verdict(self: Box<Self>) -> Option<Error> {
        self.end().err()
    }
}

impl Read for Packed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.output.read(buffer)
    }
}
