//! A served file as a disk's thread reads it: it asks, waits, and reads the sparse file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use micabox_ground::lock;
use micabox_layerfs::ask::{Asker, Opened};
use micabox_layerfs::pieces::{PIECE, count, window};

use super::Line;
use super::losses::Losses;
use crate::Part;

/// A file of a disk.
#[derive(Debug)]
pub(crate) struct PartReader {
    line: Line,
    part: Part,
    served: Mutex<Served>,
}

/// The file's server.
#[derive(Debug, Default)]
struct Served {
    /// None before the first read, and once it was lost.
    server: Option<Server>,
    losses: Losses,
}

/// A server that is connected to.
#[derive(Debug)]
struct Server {
    asker: Asker,
    /// The sparse file, which is another one each time.
    opened: Opened,
}

impl PartReader {
    pub(crate) fn new(line: &Line, part: &Part) -> Self {
        Self {
            line: line.clone(),
            part: part.clone(),
            served: Mutex::default(),
        }
    }

    /// Returns the sparse file once these bytes of it are here.
    ///
    /// # Errors
    /// Why they can't be had.
    pub(crate) fn file_with(&self, bytes: &Range<u64>) -> io::Result<Arc<File>> {
        let number = |piece| u32::try_from(piece).unwrap_or(u32::MAX);
        let pieces = number(bytes.start / PIECE)..number(bytes.end.div_ceil(PIECE));
        let mut served = lock(&self.served);
        let Served { server, losses } = &mut *served;
        let brought = self.bring(server, &pieces).or_else(|error| {
            losses.recover(error, || {
                *server = None;
                self.bring(server, &pieces)
            })
        })?;
        losses.end();
        brought.map_err(io::Error::other)
    }

    /// Returns the sparse file once these pieces of it are here, or the server's reason why they can't be had.
    ///
    /// # Errors
    /// The server has ended, or there is none.
    fn bring(
        &self,
        server: &mut Option<Server>,
        pieces: &Range<u32>,
    ) -> io::Result<Result<Arc<File>, String>> {
        let server = match server {
            Some(server) => server,
            None => server.insert(self.connect()?),
        };
        let end = pieces.end.min(count(server.opened.size));
        let mut next = pieces.start;
        while next < end {
            let mut here = server.opened.run(next)?;
            if here.is_empty() {
                let wanted = next..end.min(window(next).end);
                server.asker.ask(self.part.number, &wanted)?;
                here = match server.asker.answer()?.here {
                    Ok(here) => here,
                    Err(reason) => return Ok(Err(reason)),
                };
            }
            next = here.end;
        }
        Ok(Ok(Arc::clone(&server.opened.file)))
    }

    fn connect(&self) -> io::Result<Server> {
        let asker = self.line.connect(&self.part.server)?;
        let opened = asker.open(self.part.number)?;
        Ok(Server { asker, opened })
    }
}
