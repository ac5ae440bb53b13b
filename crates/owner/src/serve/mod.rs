//! The event loop: one thread with one poll(2) for the guest, the clients and the descriptors that
//! they handed over. The loop never blocks on anything else. Work that blocks, such as waiting for
//! a machine's end or copying its memory, has a thread for as long as it takes ([`wake`]).

mod agent;
mod attach;
mod client;
mod command;
mod copies;
mod end;
mod exec;
mod expiry;
mod freeze;
mod freezer;
mod launch;
mod limits;
mod pause;
mod requests;
mod shutdown;
mod wake;
mod work;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_vmm::Machine;
use micabox_wire::{
    Boot, Confinement, Hello, MAX_DATA, OutputStream, Phase, Reattach, Restore, ToGuest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};

use crate::Lost;
use crate::guest::{Broken, Link};
use crate::protocol::Reply;
use crate::socket::Listener;
use client::{Client, ClientId};
use command::{Command, Input, Sink};
use end::End;
use expiry::Expiry;
use freezer::{Freeze, Freezer, Pausing};
pub use launch::{Launch, Learn, Network, Outcome, Registrar, Start};
use wake::{Inbox, Notifier};
pub use work::{FLUSH_TIMEOUT, LAG, SHUTDOWN_TIMEOUT};

/// Interval of checks whether the host's disk is full, for a sandbox with a disk.
const STALL_LOOK: Duration = Duration::from_secs(1);

/// Time until clients are accepted again after a failure of accept(2).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long clients may take to read their last messages.
const LINGER: Duration = Duration::from_secs(10);

/// Time between the first command's stop signal and SIGKILL when a signal ends the owner.
const SIGNAL_GRACE: Duration = Duration::from_secs(10);

/// How long a machine may take to end after its agent's stream has ended.
const END_OF_MACHINE: Duration = Duration::from_secs(10);

/// Events from threads to the event loop.
#[derive(Debug)]
enum Event {
    /// Progress of a freeze.
    Freeze(Freeze),
    /// Progress of a pause.
    Pause(Pausing),
    /// Why the agent's stream ended.
    Lost(Lost),
    /// Whether the machine is gone, after the wait for its end.
    Gone(bool),
}

/// A source of poll(2) that became ready.
#[derive(Clone, Copy, Debug)]
enum Source {
    Link,
    Listener,
    Inbox,
    /// A signal that asks this process to end.
    Signal,
    Client(ClientId),
    Stdin(u32),
    Output(u32, OutputStream),
    /// The copy of an output for a client that has attached.
    Copy(u32, OutputStream, (ClientId, u32)),
}

/// The first command, which has the sandbox's lifetime, and when it reached its stages.
#[derive(Clone, Copy, Debug)]
struct First {
    id: u32,
    started: Option<Instant>,
    first_output: Option<Instant>,
    has_ended: bool,
}

/// The owner of a sandbox.
struct Owner {
    // In the order in which they must be dropped. Clients that see the end of their connection see
    // that everything else is gone.
    listener: Option<Listener>,
    machine: Arc<dyn Machine>,
    network: Option<Box<dyn Network>>,
    /// None once the sandbox's end is recorded.
    registrar: Option<Box<dyn Registrar>>,
    clients: BTreeMap<ClientId, Client>,

    link: Link,
    /// Whether the agent's stream is read.
    is_linked: bool,
    begun: Instant,
    /// The message to send when the agent's hello arrives.
    boot: Option<Box<Boot>>,
    hello: Option<(Instant, Hello)>,
    up: Option<(Instant, Vec<Phase>)>,
    /// Deadline for the guest's start.
    up_deadline: Option<Instant>,
    /// How long the guest may take to answer.
    patience: Duration,
    lost: Option<Lost>,

    commands: BTreeMap<u32, Command>,
    next_command: u32,
    first: Option<First>,
    /// The command to reattach in this copy, until a client does.
    unclaimed: Option<u32>,

    next_client: ClientId,
    creator: ClientId,
    /// When clients are accepted again, after a failure.
    accept_at: Option<Instant>,
    is_detached: bool,
    freezer: Freezer,
    pauses: pause::Waiting,
    end: End,
    expiry: Expiry,
    is_stalled: bool,
    next_stall_look: Option<Instant>,
    notifier: Notifier<Event>,
    inbox: Inbox<Event>,
    /// Readable when a signal has asked this process to end.
    signals: UnixStream,

    disk: Option<PathBuf>,
    holds_nothing: bool,
    learn: Option<Learn>,
    stop_signal: i32,
    /// What limits commands unless their clients want something else.
    confinement: Confinement,
    saves: Result<serde_json::Value, String>,
    directory: PathBuf,
}

/// Owns a sandbox until it is over and everything of it is gone except its record. Notifies the
/// creator when the sandbox is ready ([`Reply::Up`]), or why the start failed.
///
/// # Errors
/// Those of setting up descriptors; the machine is killed.
pub fn serve(launch: Launch) -> io::Result<()> {
    let mut owner = Owner::new(launch)?;
    let mut buffer = vec![0; 2 * MAX_DATA];
    while owner.end.phase != end::Phase::Over {
        owner.turn(&mut buffer)?;
    }
    owner.linger();
    Ok(())
}

/// Returns a socket that is readable when a signal has asked this process to end.
fn catch_signals() -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    // A client that closes its end of a pipe ends nothing: the write fails. The runtime of Rust sees
    // to that, but not in a program that is not Rust's.
    signal_hook::flag::register(SIGPIPE, Arc::default())?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

impl Owner {
    fn new(launch: Launch) -> io::Result<Self> {
        let (notifier, inbox) = wake::inbox()?;
        let greets = matches!(launch.start, Start::Boot(_));
        let mut link = Link::new(launch.machine.agent()?, greets)?;
        let mut commands = BTreeMap::new();
        let (mut boot, mut unclaimed) = (None, None);
        match launch.start {
            Start::Boot(message) => boot = Some(message),
            Start::Restore {
                identity,
                main,
                setup,
            } => {
                let restore = Restore {
                    identity: *identity,
                    reattach: main.map(|id| {
                        let command = Command::unclaimed();
                        let output_window = command.stdout.window_size();
                        commands.insert(id, command);
                        Reattach { id, output_window }
                    }),
                    setup,
                };
                unclaimed = main;
                link.outbox.push(ToGuest::Restore(Box::new(restore)));
            }
        }
        let now = Instant::now();
        Ok(Self {
            listener: None,
            clients: BTreeMap::from([(0, Client::new(launch.creator)?)]),
            machine: launch.machine,
            network: launch.network,
            registrar: Some(launch.registrar),
            link,
            is_linked: true,
            begun: now,
            boot,
            hello: None,
            up: None,
            up_deadline: now.checked_add(launch.timeout),
            patience: launch.timeout,
            lost: None,
            commands,
            next_command: 0,
            first: unclaimed.map(|id| First {
                id,
                started: None,
                first_output: None,
                has_ended: false,
            }),
            unclaimed,
            next_client: 1,
            creator: 0,
            accept_at: None,
            is_detached: false,
            freezer: Freezer::default(),
            pauses: pause::Waiting::default(),
            end: End::default(),
            expiry: Expiry::default(),
            is_stalled: false,
            next_stall_look: None,
            notifier,
            inbox,
            signals: catch_signals()?,
            disk: launch.disk,
            holds_nothing: launch.holds_nothing,
            learn: launch.learn,
            stop_signal: launch.stop_signal,
            confinement: launch.confinement,
            saves: launch.saves,
            directory: launch.directory,
        })
    }

    /// Waits for events, and handles them.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for (source, ready) in self.wait()? {
            match source {
                Source::Link => self.read_link(ready, buffer),
                Source::Listener => self.accept(),
                Source::Inbox => {
                    for event in self.inbox.take() {
                        self.event(event);
                    }
                }
                Source::Signal => {
                    let _ = (&self.signals).read(&mut [0; 64]);
                    self.begin_end(Some(SIGNAL_GRACE));
                }
                Source::Client(id) => self.read_client(id, ready, buffer),
                Source::Stdin(id) => self.read_stdin(id, buffer),
                Source::Output(id, stream) => self.write_output(id, stream, ready),
                Source::Copy(id, stream, client) => self.write_copy(id, stream, client, ready),
            }
        }
        self.check_deadlines();
        self.link.flush();
        self.flush();
        Ok(())
    }

    /// Sends clients what they can take.
    fn flush(&mut self) {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        for id in ids {
            let client = self.clients.get_mut(&id);
            if client.is_some_and(|client| client.flush().is_err()) {
                self.client_gone(id);
                self.clients.remove(&id);
            }
        }
    }

    /// Waits for ready sources. Returns none of them when a deadline passes first.
    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        let mut add = |source, fd, events| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, events));
        };
        if self.is_linked {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, self.link.has_unsent());
            add(Source::Link, self.link.as_fd(), events);
        }
        add(Source::Inbox, self.inbox.as_fd(), PollFlags::IN);
        add(Source::Signal, self.signals.as_fd(), PollFlags::IN);
        if let Some(listener) = &self.listener
            && self.accept_at.is_none()
        {
            add(Source::Listener, listener.socket.as_fd(), PollFlags::IN);
        }
        for (&id, client) in &self.clients {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, !client.is_full() && !client.has_ended);
            events.set(PollFlags::OUT, client.has_unsent());
            add(Source::Client(id), client.as_fd(), events);
        }
        let has_room = self.link.outbox.stdin_room() > 0 && !self.freezer.saves();
        for (&id, command) in &self.commands {
            if let Input::Descriptor(descriptor) = &command.stdin
                && command.runs()
                && has_room
                && command.stdin_window.available() > 0
            {
                add(Source::Stdin(id), descriptor.as_fd(), PollFlags::IN);
            }
            for (stream, output) in [
                (OutputStream::Stdout, &command.stdout),
                (OutputStream::Stderr, &command.stderr),
            ] {
                if let Sink::Descriptor(descriptor) = &output.sink {
                    // Without requested events, poll(2) still reports that nothing reads it any
                    // more.
                    let mut events = PollFlags::empty();
                    events.set(PollFlags::OUT, output.is_pending());
                    add(Source::Output(id, stream), descriptor.as_fd(), events);
                }
                for copy in output.copies.iter() {
                    if let Some((descriptor, is_behind)) = copy.descriptor() {
                        let mut events = PollFlags::empty();
                        events.set(PollFlags::OUT, is_behind);
                        add(Source::Copy(id, stream, copy.client), descriptor, events);
                    }
                }
            }
        }
        let left = self
            .deadline()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(sources
            .into_iter()
            .zip(fds.iter().map(PollFd::revents))
            .filter(|(_, ready)| !ready.is_empty())
            .collect())
    }

    /// Returns the next deadline.
    fn deadline(&self) -> Option<Instant> {
        let commands = self.commands.values();
        let commands = commands.flat_map(|command| [command.deadline, command.answer_by]);
        let others = [
            self.up_deadline,
            self.end.deadline(),
            self.freezer.deadline(),
            self.next_stall_look,
            self.accept_at,
            self.expiry_deadline(),
        ];
        commands.chain(others).flatten().min()
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_due(self.up_deadline) {
            self.up_deadline = None;
            self.lose(Lost::silent(&*self.machine));
        }
        if is_due(self.freezer.deadline()) {
            self.freeze_over(Err("the guest did not answer in time".to_owned()));
        }
        if is_due(self.accept_at) {
            self.accept_at = None;
        }
        if is_due(self.next_stall_look) {
            self.next_stall_look = Some(now + STALL_LOOK);
            self.look_for_stall();
        }
        let late: Vec<_> = self
            .commands
            .iter()
            .filter(|(_, command)| is_due(command.deadline))
            .map(|(&id, _)| id)
            .collect();
        for id in late {
            self.time_is_over(id);
        }
        let is_busy = self.freezer.is_busy();
        for command in self.commands.values_mut() {
            command.expect_answer(now, is_busy);
        }
        let unanswered: Vec<_> = self
            .commands
            .iter()
            .filter(|(_, command)| is_due(command.answer_by))
            .map(|(&id, _)| id)
            .collect();
        for id in unanswered {
            self.unanswered(id);
        }
        self.check_expiry();
        self.check_end();
    }

    fn look_for_stall(&mut self) {
        let stalled = self.machine.is_stalled();
        if stalled != self.is_stalled {
            self.is_stalled = stalled;
            self.send(self.creator, 0, &Reply::Stalled { stalled });
        }
    }

    fn read_link(&mut self, ready: PollFlags, buffer: &mut [u8]) {
        if ready.intersects(PollFlags::OUT) {
            self.link.flush();
        }
        if !ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let mut result = self.link.receive(buffer);
        while result.is_ok() {
            match self.link.next_message() {
                Ok(Some(message)) => {
                    if let Err(violation) = self.handle(message) {
                        result = Err(Broken::Violation(violation));
                    }
                }
                Ok(None) => return,
                Err(broken) => result = Err(broken),
            }
        }
        match result {
            Err(Broken::Violation(why)) => {
                self.is_linked = false;
                let machine = &*self.machine;
                self.lose(Lost::end_of_conversation(
                    machine,
                    Some(why),
                    Duration::ZERO,
                ));
            }
            Err(Broken::Ended) => {
                self.is_linked = false;
                // The machine's end is the better reason.
                self.in_a_thread(|machine| {
                    Event::Lost(Lost::end_of_conversation(machine, None, END_OF_MACHINE))
                });
            }
            Ok(()) => {}
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            let socket = match listener.socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // As a rule, no descriptors are left, and the connection waits.
                Err(_) => {
                    self.accept_at = Instant::now().checked_add(ACCEPT_PAUSE);
                    return;
                }
            };
            // The directory is its user's alone; a descriptor of it, or a mistake, is not enough.
            let peer = rustix::net::sockopt::socket_peercred(&socket);
            if !peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid()) {
                continue;
            }
            // If no descriptors are left, the connection is closed, and the client may retry.
            if let Ok(client) = Client::new(socket) {
                self.clients.insert(self.next_client, client);
                self.next_client += 1;
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Freeze(Freeze::Frozen) => self.frozen(),
            Event::Freeze(Freeze::Over(over)) => self.freeze_over(over),
            Event::Pause(pausing) => self.pausing(pausing),
            Event::Lost(lost) => self.lose(lost),
            Event::Gone(is_gone) => self.conclude(is_gone),
        }
    }

    /// Runs `body`, which waits for the machine, in a thread.
    fn in_a_thread(&self, body: impl FnOnce(&dyn Machine) -> Event + Send + 'static) {
        let (machine, notifier) = (Arc::clone(&self.machine), self.notifier.clone());
        let thread = std::thread::Builder::new().name("machine-end".into());
        let spawned = thread.spawn(move || notifier.notify(body(&*machine)));
        if spawned.is_err() {
            // Without a thread, nothing waits for the machine: it is killed.
            self.machine.kill();
            self.notifier.notify(Event::Gone(false));
        }
    }

    /// Sends a client a message, if it is still connected.
    fn send(&mut self, client: ClientId, number: u32, reply: &Reply) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.reply(number, reply);
        }
    }

    fn send_with(&mut self, client: ClientId, number: u32, reply: &Reply, file: Arc<File>) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.reply_with(number, reply, file);
        }
    }

    /// Sends clients the rest of their messages, for at most [`LINGER`].
    fn linger(&mut self) {
        drop(self.listener.take());
        let deadline = Instant::now() + LINGER;
        loop {
            self.clients.retain(|_, client| client.flush().is_ok());
            let left = deadline.saturating_duration_since(Instant::now());
            let unsent = self.clients.values().filter(|client| client.has_unsent());
            let fds: Vec<_> = unsent.map(AsFd::as_fd).collect();
            if fds.is_empty() || left.is_zero() {
                return;
            }
            let fds = fds.into_iter();
            let mut fds: Vec<_> = fds
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT))
                .collect();
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}
