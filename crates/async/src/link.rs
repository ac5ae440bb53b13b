//! The connection to a sandbox's owner: all requests to it, with their replies, and all commands,
//! with their streams.
//!
//! One task sends and receives. It never waits for those that it serves: what it receives for them is
//! bounded by what they have granted.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use micabox::{CommandError, Error, ErrorKind, Lost, NotedCommand};
use micabox_ground::lock;
use micabox_operations::NotedCommands;
use micabox_owner::protocol::{Decoder, Frame, Reply, Request, frame, preamble};
use micabox_owner::socket;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::blocking::blocking;
use crate::command::{After, Entry, Parting};

/// Most commands that were parted from before the guest has answered about their start.
const ABANDONED: usize = 4096;

/// Bytes received at a time.
const RECEIVE: usize = 64 << 10;

/// A connection. It ends when the last reference is dropped: that of the sandbox, and those of its
/// commands and their streams.
#[derive(Debug)]
pub(crate) struct Link {
    outgoing: mpsc::UnboundedSender<Packet>,
    table: Arc<Mutex<Table>>,
    /// The sandbox's name.
    name: String,
}

/// Bytes to send, and the descriptors that go with them. As much is waiting as there are requests, and
/// bytes of stdin that the owner has granted.
#[derive(Debug)]
pub(crate) struct Packet {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// What the owner's messages are for, by number.
#[derive(Default)]
struct Table {
    last: u32,
    waiting: HashMap<u32, Waiting>,
    /// How many of these are commands that were parted from before they started.
    abandoned: usize,
    /// The connection has ended.
    is_over: bool,
}

enum Waiting {
    Reply(oneshot::Sender<Reply>),
    Noted(
        NotedCommands,
        oneshot::Sender<Result<Vec<NotedCommand>, Error>>,
    ),
    Command(Box<Entry>),
}

/// Ends everything that waits when the task is over, or is dropped with its runtime.
struct Ending(Arc<Mutex<Table>>);

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = f.debug_struct("Table");
        table.field("waiting", &self.waiting.len());
        table
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Connects to the owner of the sandbox whose state is in `directory`.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`] without an owner.
    pub(crate) async fn connect(directory: &Path, name: &str) -> Result<Arc<Self>, Error> {
        let path = directory.to_owned();
        let socket = blocking(move || socket::connect_to_owner(&path)).await;
        let socket = socket.map_err(|_| Error::DoesNotRun(name.to_owned()))?;
        let system = |source| Error::System {
            what: "using a connection",
            source,
        };
        socket.set_nonblocking(true).map_err(system)?;
        let stream = UnixStream::from_std(socket).map_err(system)?;
        let (outgoing, packets) = mpsc::unbounded_channel();
        let table = Arc::default();
        let ending = Ending(Arc::clone(&table));
        tokio::spawn(attend(stream, packets, outgoing.downgrade(), ending));
        let link = Self {
            outgoing,
            table,
            name: name.to_owned(),
        };
        link.send(preamble().to_vec());
        Ok(Arc::new(link))
    }

    /// Makes a request that has one reply.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`] after the end of the connection, [`Error::Lost`] if it ends first; that
    /// of a [`Reply::Failed`].
    pub(crate) async fn ask(&self, request: &Request) -> Result<Reply, Error> {
        let (sender, reply) = oneshot::channel();
        self.begin(request, Waiting::Reply(sender), Vec::new())?;
        match reply.await {
            Ok(Reply::Failed(failure)) => Err(failure.into()),
            Ok(reply) => Ok(reply),
            Err(_) => Err(Lost::closed().into()),
        }
    }

    /// Lists the commands with a note.
    ///
    /// # Errors
    /// As [`Link::ask`], and those of [`NotedCommands::add`].
    pub(crate) async fn noted(&self) -> Result<Vec<NotedCommand>, Error> {
        let (sender, list) = oneshot::channel();
        let waiting = Waiting::Noted(NotedCommands::default(), sender);
        self.begin(&Request::Commands, waiting, Vec::new())?;
        list.await.map_err(|_| Lost::closed())?
    }

    /// Requests a command. Returns its number.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`] after the end of the connection; [`CommandError::TooLong`].
    pub(crate) fn start(
        &self,
        request: &Request,
        entry: Entry,
        descriptors: Vec<OwnedFd>,
    ) -> Result<u32, Error> {
        self.begin(request, Waiting::Command(Box::new(entry)), descriptors)
    }

    fn begin(
        &self,
        request: &Request,
        waiting: Waiting,
        descriptors: Vec<OwnedFd>,
    ) -> Result<u32, Error> {
        let mut table = lock(&self.table);
        if table.is_over {
            return Err(Error::DoesNotRun(self.name.clone()));
        }
        if table.abandoned >= ABANDONED {
            return Err(Error::Refused {
                kind: ErrorKind::InUse,
                message: format!(
                    "the guest has not answered {ABANDONED} requests that were given up"
                ),
            });
        }
        let number = table.fresh_number();
        let mut bytes = Vec::new();
        frame::encode(number, request, &mut bytes);
        if bytes.len() > frame::MAX_MESSAGE {
            return Err(CommandError::TooLong.into());
        }
        if self.outgoing.send(Packet { bytes, descriptors }).is_err() {
            return Err(Error::DoesNotRun(self.name.clone()));
        }
        // No reply can be handled before: that needs the table.
        table.waiting.insert(number, waiting);
        Ok(number)
    }

    /// Sends a message about a command that runs, unless it is over.
    pub(crate) fn send_request(&self, number: u32, request: &Request) {
        if lock(&self.table).waiting.contains_key(&number) {
            let mut bytes = Vec::new();
            frame::encode(number, request, &mut bytes);
            self.send(bytes);
        }
    }

    /// Sends frames. Those that come after the end of the connection are dropped.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        let descriptors = Vec::new();
        let _ = self.outgoing.send(Packet { bytes, descriptors });
    }

    /// Parts from a command, unless it is over.
    pub(crate) fn part(&self, number: u32) {
        let mut table = lock(&self.table);
        let Some(Waiting::Command(entry)) = table.waiting.get_mut(&number) else {
            return;
        };
        if entry.begun.is_some() {
            // The owner takes no signals for it yet.
            entry.abandoned = Some(self.outgoing.clone());
            table.abandoned += 1;
            return;
        }
        let parting = entry.parting;
        table.waiting.remove(&number);
        drop(table);
        self.send(parting.frames(number));
    }

    /// Sets what becomes of a command when it is parted from.
    pub(crate) fn part_later(&self, number: u32, parting: Parting) {
        if let Some(Waiting::Command(entry)) = lock(&self.table).waiting.get_mut(&number) {
            entry.parting = parting;
        }
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.table).is_over
    }

    /// Waits for the connection's end.
    pub(crate) async fn ended(&self) {
        self.outgoing.closed().await;
    }
}

impl Table {
    fn fresh_number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.waiting.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Hands a frame to what waits for it. Returns what is to be sent in return.
    ///
    /// # Errors
    /// The owner breaks the protocol.
    fn take(&mut self, frame: Frame<Reply>) -> Result<Option<Vec<u8>>, micabox_wire::WindowError> {
        let (Frame::Message(number, _) | Frame::Data(number, ..)) = frame;
        let Some(waiting) = self.waiting.get_mut(&number) else {
            // About a command that was parted from.
            return Ok(None);
        };
        match (waiting, frame) {
            (Waiting::Command(entry), Frame::Data(_, pipe, data)) => {
                let credit = entry.data(pipe, data)?;
                return Ok(credit.map(|credit| {
                    let mut bytes = Vec::new();
                    frame::encode(number, &credit, &mut bytes);
                    bytes
                }));
            }
            (Waiting::Command(entry), Frame::Message(_, reply)) => match entry.reply(reply)? {
                After::Nothing => {}
                After::Remove => {
                    let was_abandoned = entry.abandoned.is_some();
                    self.abandoned -= usize::from(was_abandoned);
                    self.waiting.remove(&number);
                }
                After::Part => {
                    let bytes = entry.parting.frames(number);
                    let kept = entry.abandoned.take();
                    self.abandoned -= usize::from(kept.is_some());
                    self.waiting.remove(&number);
                    // The connection may end with this, once it is sent.
                    if let Some(outgoing) = kept {
                        let descriptors = Vec::new();
                        let _ = outgoing.send(Packet { bytes, descriptors });
                    }
                }
            },
            (Waiting::Reply(_), Frame::Message(_, reply)) => {
                if let Some(Waiting::Reply(sender)) = self.waiting.remove(&number) {
                    // The request may have been given up.
                    let _ = sender.send(reply);
                }
            }
            (Waiting::Noted(list, _), Frame::Message(_, reply)) => {
                let Some(all) = list.add(reply).transpose() else {
                    return Ok(None);
                };
                if let Some(Waiting::Noted(_, sender)) = self.waiting.remove(&number) {
                    let _ = sender.send(all);
                }
            }
            (Waiting::Reply(_) | Waiting::Noted(..), Frame::Data(..)) => {}
        }
        Ok(None)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut table = lock(&self.0);
        table.is_over = true;
        let waiting = std::mem::take(&mut table.waiting);
        drop(table);
        drop(waiting);
    }
}

/// Sends and receives until the connection ends or nothing uses it any more.
async fn attend(
    stream: UnixStream,
    packets: mpsc::UnboundedReceiver<Packet>,
    // The task itself does not keep the connection.
    back: mpsc::WeakUnboundedSender<Packet>,
    ending: Ending,
) {
    tokio::select! {
        () = receive(&stream, &ending.0, &back) => {}
        () = send(&stream, packets) => {}
    }
}

/// Receives until the owner hangs up or breaks the protocol.
async fn receive(
    stream: &UnixStream,
    table: &Mutex<Table>,
    back: &mpsc::WeakUnboundedSender<Packet>,
) {
    let mut decoder = Decoder::<Reply>::default();
    let mut buffer = vec![0; RECEIVE];
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => decoder.push(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        }
        loop {
            let frame = match decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_) => return,
            };
            let answer = match lock(table).take(frame) {
                Ok(answer) => answer,
                Err(_) => return,
            };
            if let Some(bytes) = answer
                && let Some(back) = back.upgrade()
            {
                let descriptors = Vec::new();
                let _ = back.send(Packet { bytes, descriptors });
            }
        }
    }
}

/// Sends until nothing uses the connection any more.
async fn send(stream: &UnixStream, mut packets: mpsc::UnboundedReceiver<Packet>) {
    while let Some(packet) = packets.recv().await {
        if send_all(stream, &packet).await.is_err() {
            // The owner may have sent something before it ended.
            pending::<()>().await;
        }
    }
}

async fn send_all(stream: &UnixStream, packet: &Packet) -> io::Result<()> {
    let mut bytes = packet.bytes.as_slice();
    let mut descriptors: Vec<BorrowedFd<'_>> = packet.descriptors.iter().map(AsFd::as_fd).collect();
    while !bytes.is_empty() {
        stream.writable().await?;
        let sent = stream.try_io(Interest::WRITABLE, || {
            Ok(micabox_socket::send_now(stream, bytes, &descriptors)?)
        });
        match sent {
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                descriptors.clear();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
