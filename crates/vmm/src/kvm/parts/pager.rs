//! Fills the memory of regions: a file's pieces are mapped over its missing memory when they are asked for first.
//!
//! Each piece of the mapped file is in the page cache that all machines share, and no byte is copied. Neighbours are one
//! mapping, so that a file that has come in full is one.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use micabox_layerfs::ask::{Answer, Asker, Opened};
use micabox_layerfs::pieces::{MOST, PIECE, Pieces};
use rustix::event::{PollFd, PollFlags, poll};

use super::Line;
use super::losses::Losses;
use super::userfault::Userfault;
use crate::MachineFile;

/// Pieces of larger regions are asked for several at a time: with these numbers of them, apart from each other, a process
/// has not as many mappings as a kernel allows (65,530 unless it is set).
const MOST_RUNS: u64 = 16 << 10;

/// Most pieces behind the 2 MiB of a fault that are mapped with it where they are here, too: 256 MiB.
const MOST_BEHIND: u32 = 4096;

/// Fills memory. Dropped, what is not filled would read as zeros: [`Pager::run`] never returns with it.
#[derive(Debug)]
pub(crate) struct Pager {
    faults: Userfault,
    line: Line,
    servers: Vec<Server>,
    files: Vec<Paged>,
    /// Pieces to ask for at a time.
    step: u32,
}

#[derive(Debug)]
struct Server {
    name: String,
    asker: Asker,
    losses: Losses,
}

/// A file, and the memory that it is mapped to piece by piece.
#[derive(Debug)]
struct Paged {
    /// For messages.
    name: String,
    start: usize,
    length: u64,
    /// Its server and its number there.
    server: usize,
    number: u32,
    /// The sparse file of the server that was connected to last.
    opened: Opened,
    mapped: Pieces,
    /// The pieces that were asked for.
    asked: BTreeSet<u32>,
}

impl Pager {
    /// Makes a pager for regions of so many bytes in all.
    pub(crate) fn new(faults: Userfault, line: Line, size: u64) -> Self {
        let step = size.div_ceil(PIECE * MOST_RUNS).next_power_of_two();
        Self {
            faults,
            line,
            servers: Vec::new(),
            files: Vec::new(),
            step: u32::try_from(step).unwrap_or(MOST).min(MOST),
        }
    }

    /// Takes over the memory at `start`, which [`map`](crate::kvm::memory::region::map) has left for a file, and maps
    /// what is here. Returns the sparse file.
    ///
    /// # Errors
    /// Those of the server, and of the kernel.
    pub(crate) fn add(&mut self, start: usize, of: &MachineFile) -> io::Result<Arc<File>> {
        let part = of.part().ok_or(io::ErrorKind::InvalidInput)?;
        let known = self.servers.iter().position(|it| it.name == part.server);
        let server = match known {
            Some(server) => server,
            None => {
                let name = part.server.clone();
                let asker = self.line.connect(&name)?;
                self.servers.push(Server {
                    name,
                    asker,
                    losses: Losses::default(),
                });
                self.servers.len() - 1
            }
        };
        self.faults.register(start, of.length())?;
        let open = |pager: &mut Self| pager.server(server)?.asker.open(part.number);
        let opened = match open(self) {
            Err(error) => self.recover(server, error, open)?,
            opened => opened?,
        };
        if opened.size != of.length() {
            return Err(io::Error::other("its server has another file"));
        }
        let file = Arc::clone(&opened.file);
        self.files.push(Paged {
            name: of.path().display().to_string(),
            start,
            length: of.length(),
            server,
            number: part.number,
            opened,
            mapped: Pieces::none(of.length()),
            asked: BTreeSet::new(),
        });
        if let Some(paged) = self.files.last_mut() {
            for run in paged.opened.runs()? {
                paged.map(&run)?;
            }
        }
        Ok(file)
    }

    /// Fills memory for as long as the process lives, or until something can't be filled: `failed` gets the reason, and what
    /// is missing stays so.
    pub(crate) fn run(mut self, failed: impl FnOnce(String)) {
        let Err(reason) = self.fill();
        failed(reason);
        // Who waits for memory waits until the process has ended.
        std::mem::forget(self);
    }

    fn fill(&mut self) -> Result<std::convert::Infallible, String> {
        loop {
            let askers = self.servers.iter();
            let askers = askers.map(|server| server.asker.connection().as_fd());
            let polled = std::iter::once(self.faults.as_fd()).chain(askers);
            let mut polled: Vec<PollFd<'_>> = polled
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
                .collect();
            rustix::io::retry_on_intr(|| poll(&mut polled, None)).map_err(waiting)?;
            let ready: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
            let (is_missed, answered) = ready.split_first().unwrap_or((&false, &[]));
            for (server, _) in answered
                .iter()
                .enumerate()
                .filter(|(_, is_ready)| **is_ready)
            {
                self.take_answer(server)?;
            }
            if *is_missed {
                for address in self.faults.read().map_err(waiting)? {
                    self.miss(address)?;
                }
            }
        }
    }

    /// Maps the piece at an address if it is here. Otherwise asks for it, unless it is under way.
    fn miss(&mut self, address: usize) -> Result<(), String> {
        let found = self.files.iter().position(|file| {
            let offset = address.checked_sub(file.start);
            offset.is_some_and(|offset| (offset as u64) < file.length)
        });
        let index = found.ok_or("missing memory is no file's")?;
        let file = self.files.get_mut(index).ok_or("")?;
        let piece = ((address - file.start) as u64 / PIECE) as u32;
        let here = file.opened.run_on(piece, MOST_BEHIND).map_err(filling)?;
        if file.mapped.has(piece) || !here.is_empty() {
            file.map(&here).map_err(filling)?;
            let (start, end) = (here.start.min(piece), here.end.max(piece + 1));
            return file.wake(&self.faults, &(start..end)).map_err(filling);
        }
        if !file.asked.insert(piece) {
            return Ok(());
        }
        let server = file.server;
        let pieces = file.wanted(piece, self.step);
        let number = file.number;
        let asked = self.server(server).map_err(waiting)?;
        match asked.asker.ask(number, &pieces) {
            Ok(()) => Ok(()),
            Err(error) => self.reconnect(server, error),
        }
    }

    fn take_answer(&mut self, number: usize) -> Result<(), String> {
        let server = self.server(number).map_err(waiting)?;
        let Answer { file, asked, here } = match server.asker.answer() {
            Ok(answer) => answer,
            Err(error) => return self.reconnect(number, error),
        };
        server.losses.end();
        let mut files = self.files.iter_mut();
        let file = files.find(|it| it.server == number && it.number == file);
        let file = file.ok_or("an answer is about no file")?;
        let here = here.map_err(|reason| format!("{} can't be read: {reason}", file.name))?;
        file.map(&here).map_err(filling)?;
        file.asked.remove(&asked);
        file.wake(&self.faults, &here).map_err(filling)
    }

    /// Has another connection to a server, which was lost with an error, and asks it for what that one was asked.
    fn reconnect(&mut self, number: usize, error: io::Error) -> Result<(), String> {
        self.recover(number, error, |_| Ok(())).map_err(|error| {
            format!(
                "the image's layers can't be read: their server, mica-layers, has ended: {error}"
            )
        })
    }

    /// As [`Pager::reconnect`], and attempts what the server was lost at.
    fn recover<T>(
        &mut self,
        number: usize,
        error: io::Error,
        mut attempt: impl FnMut(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        let line = self.line.clone();
        let mut losses = std::mem::take(&mut self.server(number)?.losses);
        let recovered = losses.recover(error, || {
            let server = self.server(number)?;
            server.asker = line.connect(&server.name)?;
            self.ask_again(number)?;
            attempt(self)
        });
        self.server(number)?.losses = losses;
        recovered
    }

    fn server(&mut self, number: usize) -> io::Result<&mut Server> {
        let server = self.servers.get_mut(number);
        server.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    fn ask_again(&mut self, number: usize) -> io::Result<()> {
        let server = self.servers.get(number).ok_or(io::ErrorKind::NotFound)?;
        for file in self.files.iter_mut().filter(|file| file.server == number) {
            let opened = server.asker.open(file.number)?;
            if opened.size != file.length {
                return Err(io::Error::other("it has another file"));
            }
            file.opened = opened;
        }
        for file in self.files.iter().filter(|file| file.server == number) {
            for piece in &file.asked {
                let pieces = file.wanted(*piece, self.step);
                server.asker.ask(file.number, &pieces)?;
            }
        }
        Ok(())
    }
}

impl Paged {
    /// Returns the pieces to ask for with one: the rest of its group, as far as they are missing.
    fn wanted(&self, piece: u32, step: u32) -> Range<u32> {
        let group = (piece / step + 1).saturating_mul(step);
        let mut gaps = self.mapped.gaps(piece..group);
        gaps.next().unwrap_or(piece..piece + 1)
    }

    /// Maps pieces that are in the file.
    fn map(&mut self, pieces: &Range<u32>) -> io::Result<()> {
        let gaps: Vec<_> = self.mapped.gaps(pieces.clone()).collect();
        for gap in gaps {
            let (start, length) = self.bytes(&gap);
            let offset = u64::from(gap.start) * PIECE;
            // SAFETY: these are pages of the memory that was left for this file, which is only read, by who has waited for
            // them; the mapping stays as long as the process.
            let mapped = unsafe {
                libc::mmap(
                    start as *mut libc::c_void,
                    length as usize,
                    libc::PROT_READ,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    self.opened.file.as_raw_fd(),
                    offset as libc::off_t,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            gap.for_each(|piece| self.mapped.add(piece));
        }
        Ok(())
    }

    fn wake(&self, faults: &Userfault, pieces: &Range<u32>) -> io::Result<()> {
        let (start, length) = self.bytes(pieces);
        faults.wake(start, length)
    }

    /// Returns the address and the length of pieces.
    fn bytes(&self, pieces: &Range<u32>) -> (usize, u64) {
        let offset = |piece: u32| (u64::from(piece) * PIECE).min(self.length);
        let (start, end) = (offset(pieces.start), offset(pieces.end));
        (self.start + start as usize, end - start)
    }
}

fn waiting(error: impl Into<io::Error>) -> String {
    format!("waiting for missing memory: {}", error.into())
}

fn filling(error: io::Error) -> String {
    format!("filling missing memory: {error}")
}
