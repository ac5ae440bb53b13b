//! `mica serve --stdio`: the protocol of `docs/protocol.md` for what needs no sandbox's owner.
//!
//! One thread reads requests. Each request that takes time has a thread; their messages share
//! [`Replies`]. The client is gone when stdin ends: then its commands are ended, and its sandboxes too.

mod commands;
mod message;
mod replies;

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use micabox::{Cancel, ErrorKind, Sandbox};
use micabox_ground::lock;
use micabox_image::progress::{Progress, Silent};
use micabox_owner::protocol::frame::{self, Pipe};
use micabox_owner::protocol::{Decoder, Frame, FrameError};

use micabox_creation::Held;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::progress::Reports;
use micabox_program::{output, settings};

use commands::Commands;
use message::Made;
pub use message::{Reply, Request};
use replies::Replies;

/// Bytes received at a time.
const RECEIVE: usize = 64 << 10;

/// Serves the program until stdin ends.
pub fn execute() -> Outcome {
    if output::stdout_is_terminal() {
        return Err(Failure::new(
            "`mica serve` speaks JSON to a program, and stdout is a terminal",
        )
        .hint("start it from an SDK, or use `mica run`"));
    }
    micabox::fork_processes();
    // A terminal's Ctrl-C is the program's, which decides what ends.
    let _ = rustix::process::setsid();
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let replies = Arc::new(Replies::begin());
    replies.send(
        0,
        &Reply::Hello {
            version: env!("CARGO_PKG_VERSION"),
            home: store.root(),
        },
    );
    let server = Server {
        commands: Commands::new(&replies),
        creations: Arc::default(),
        held: Held::default(),
        sandboxes,
        replies,
    };
    let served = server.read();
    server.commands.end();
    server.held.end();
    served.map_err(|error| Failure::of(&error).context("serving"))?;
    Ok(0)
}

struct Server {
    commands: Commands,
    /// Sandboxes that are being made, by the numbers of their requests.
    creations: Arc<Mutex<HashMap<u32, Cancel>>>,
    held: Held,
    sandboxes: micabox::Sandboxes,
    replies: Arc<Replies>,
}

impl Server {
    /// Reads requests to the end of stdin.
    fn read(&self) -> io::Result<()> {
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; RECEIVE];
        loop {
            let count = io::stdin().lock().read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            decoder.push(buffer.get(..count).unwrap_or_default());
            loop {
                match decoder.next_frame() {
                    Ok(Some(Frame::Message(number, request))) => self.handle(number, request),
                    Ok(Some(Frame::Data(number, Pipe::Stdin, bytes))) => {
                        self.commands.stdin(number, bytes)?;
                    }
                    Ok(Some(Frame::Data(..))) => {
                        let what = "bytes of an output, from a client";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                    }
                    Ok(None) => break,
                    Err(FrameError::Message { number, why }) => self.malformed(number, &why),
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
        }
    }

    /// Answers a message that can't be decoded. One about a request that is being served is ignored: the client
    /// would take the answer for that request's.
    fn malformed(&self, number: u32, why: &str) {
        if self.commands.has(number) || lock(&self.creations).contains_key(&number) {
            return;
        }
        let message = format!("the request is malformed: {why}");
        let failure = Failure::of_kind(ErrorKind::Invalid, message);
        self.replies.send(number, &Reply::failed(&failure));
    }

    fn handle(&self, number: u32, request: Request) {
        match request {
            Request::Command(command) => self.commands.start(number, &command),
            Request::Credit { stream, bytes } => self.commands.credit(number, stream, bytes),
            Request::Signal { signal } => self.commands.signal(number, signal),
            Request::Create { create, progress } => {
                let (held, replies) = (self.held.clone(), Arc::clone(&self.replies));
                let reports: Arc<dyn Progress> = if progress {
                    let replies = Arc::clone(&self.replies);
                    Arc::new(Reports::new(move |report| replies.send(number, &report)))
                } else {
                    Arc::new(Silent)
                };
                let cancel = Cancel::default();
                let creations = Arc::clone(&self.creations);
                lock(&creations).insert(number, cancel.clone());
                self.in_a_thread(number, move || {
                    let made = micabox_creation::wanted(&create)
                        .and_then(|wanted| micabox_creation::create(&wanted, cancel, reports));
                    // From here on it is the client's.
                    lock(&creations).remove(&number);
                    hold(&held, vec![made?], number, &replies)
                });
            }
            Request::Cancel => {
                if let Some(cancel) = lock(&self.creations).get(&number) {
                    cancel.cancel();
                }
            }
            Request::Fork { sandbox, count } => {
                let (held, replies) = (self.held.clone(), Arc::clone(&self.replies));
                let all = self.sandboxes.clone();
                self.in_a_thread(number, move || {
                    let made = micabox_creation::fork(&all, &sandbox, count)?;
                    hold(&held, made, number, &replies)
                });
            }
            Request::Detach { sandbox } => {
                let (held, replies) = (self.held.clone(), Arc::clone(&self.replies));
                self.in_a_thread(number, move || {
                    held.detach(&sandbox)?;
                    replies.send(number, &Reply::Detached);
                    Ok(())
                });
            }
        }
    }

    fn in_a_thread(
        &self,
        number: u32,
        work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) {
        let replies = Arc::clone(&self.replies);
        let work = move || {
            if let Err(failure) = work() {
                replies.send(number, &Reply::failed(&failure));
            }
        };
        if let Err(error) = std::thread::Builder::new().spawn(work) {
            let failure = Failure::of(&error).context("starting a thread");
            self.replies.send(number, &Reply::failed(&failure));
        }
    }
}

/// Tells the client about its new sandboxes, which end with it from now on.
fn hold(held: &Held, made: Vec<Sandbox>, number: u32, replies: &Replies) -> Result<(), Failure> {
    let shown = made.iter().map(|sandbox| Made {
        directory: sandbox.directory(),
        record: sandbox.record(),
    });
    let mut bytes = Vec::new();
    let reply = Reply::Sandboxes {
        sandboxes: shown.collect(),
    };
    frame::encode(number, &reply, &mut bytes);
    for sandbox in made {
        held.add(sandbox)?;
    }
    // Only now, so that a detachment finds them.
    replies.write(&bytes);
    Ok(())
}
