//! `mica serve`: the protocol of `docs/protocol.md` for what needs no sandbox's owner.
//!
//! One thread reads requests. Each request that takes time has a thread; their messages share
//! [`Replies`]. The client is gone when stdin ends: then its commands are ended, and its sandboxes too.

mod commands;
pub mod flags;
pub mod held;
pub mod message;
mod replies;
pub mod sandboxes;

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use micabox::{Cancel, ErrorKind};
use micabox_image::progress::{Progress, Silent};
use micabox_owner::protocol::frame::Pipe;
use micabox_owner::protocol::{Decoder, Frame, FrameError};

use crate::failure::Failure;
use crate::progress::Reports;
use crate::{Outcome, e2b, output, server, settings};
use commands::Commands;
use held::Held;
use message::{Reply, Request};
use replies::Replies;

/// Bytes received at a time.
const RECEIVE: usize = 64 << 10;

/// Serve programs, which make sandboxes and use them
///
/// With --stdio one program, for SDKs; docs/protocol.md describes what is said. The sandboxes that it makes end with
/// stdin, unless the program detaches them. With --e2b the clients of E2B, over HTTP; docs/e2b.md says what
/// works. The sandboxes that these make go on without the server.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("whom").required(true))]
pub struct Args {
    /// Serve the program at the other ends of stdin and stdout
    #[arg(long, group = "whom")]
    stdio: bool,

    /// Serve E2B's clients, which need the variables that are printed
    #[arg(long = "e2b", id = "e2b", group = "whom")]
    is_e2b: bool,

    #[command(flatten)]
    pub e2b: e2b::Args,
}

/// Serves the program until stdin ends.
pub fn execute(args: &Args) -> Outcome {
    if args.is_e2b {
        return server::become_it();
    }
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
                let told: Arc<dyn Progress> = if progress {
                    let replies = Arc::clone(&self.replies);
                    Arc::new(Reports::new(move |report| replies.send(number, &report)))
                } else {
                    Arc::new(Silent)
                };
                let cancel = Cancel::default();
                let creations = Arc::clone(&self.creations);
                lock(&creations).insert(number, cancel.clone());
                self.in_a_thread(number, move || {
                    let made = flags::parse(&create)
                        .and_then(|wanted| sandboxes::create(&wanted, cancel, told));
                    // From here on it is the client's.
                    lock(&creations).remove(&number);
                    held.hold(vec![made?], number, &replies)
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
                    held.hold(sandboxes::fork(&all, &sandbox, count)?, number, &replies)
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
