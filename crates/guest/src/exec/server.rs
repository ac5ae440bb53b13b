//! The loop that serves a host.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use micabox_wire::{
    Error, Exec, MAX_DATA, OutputStream, Restore, StartFailed, StartFailure, ToGuest, ToHost,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::channel::Channel;
use super::command::{Command, Progress};
use super::kept::{Kept, Reassigned};
use super::spawn::Process;
use super::watches::Watches;
use crate::boot::setup;
use crate::identity;
use crate::kernel::Disks;
use crate::kernel_log;
use crate::sandbox::{PidNamespace, Place, Sandbox};

/// Why the server stopped.
#[derive(Debug)]
pub enum Stop {
    /// The host requested it.
    Shutdown,
    /// The host is gone.
    HostGone,
    /// The host violated the protocol, which is a bug: its messages can't be relied on.
    Protocol(String),
    /// This copy of a machine could not be restored, and has reported that.
    Stillborn,
}

/// Serves one host's commands in one sandbox.
#[derive(Debug)]
pub struct Server {
    channel: Channel,
    sandbox: Sandbox,
    commands: BTreeMap<u32, Command>,
    /// Streams of ended commands that daemons hold open. Their data is read and dropped: a daemon
    /// must neither block nor die because the command that started it has ended.
    abandoned: Vec<OwnedFd>,
    /// Processes of the original's commands that were not reattached. They must be waited for.
    forgotten: Vec<Process>,
    /// What commands watch.
    watches: Watches,
    /// Processes for operations on files.
    kept: Kept,
    /// Where the round over the commands starts, so that no command is always served first.
    turn: u32,
}

/// What a polled descriptor stands for.
#[derive(Clone, Copy)]
enum Source {
    Channel,
    Init,
    Report(u32),
    Process(u32),
    Output(u32, OutputStream),
    Stdin(u32),
    Abandoned(usize),
    Forgotten(usize),
    Watches,
    Kept(u32),
}

impl Server {
    /// Creates a server for the host at the other end of `channel`.
    pub fn new(channel: Channel, sandbox: Sandbox) -> Self {
        Self {
            channel,
            sandbox,
            commands: BTreeMap::new(),
            abandoned: Vec::new(),
            forgotten: Vec::new(),
            watches: Watches::default(),
            kept: Kept::default(),
            turn: 0,
        }
    }

    /// Serves until the host requests a shutdown or an error occurs. Commands may still be running
    /// then.
    pub fn serve(&mut self) -> Stop {
        let mut buffer = Box::new([0; MAX_DATA]);
        loop {
            if let Err(stop) = self.turn(&mut buffer) {
                return stop;
            }
        }
    }

    /// Returns the channel and the sandbox, after the server has stopped.
    pub fn into_parts(self) -> (Channel, Sandbox) {
        (self.channel, self.sandbox)
    }

    fn turn(&mut self, buffer: &mut [u8; MAX_DATA]) -> Result<(), Stop> {
        let (mut closed, mut ended, mut changed) = (Vec::new(), Vec::new(), false);
        for (source, ready) in self.wait()? {
            match source {
                Source::Channel => self.talk(ready)?,
                Source::Init => self.sandbox.pids = PidNamespace::Owned,
                Source::Report(id) => self.read_report(id, false),
                Source::Process(id) => self.check_process(id),
                Source::Output(id, stream) => {
                    if !self.channel.is_full()
                        && let Some(command) = self.commands.get_mut(&id)
                    {
                        command.read_output(stream, buffer, &mut self.channel);
                    }
                }
                Source::Stdin(id) => {
                    if let Some(command) = self.commands.get_mut(&id) {
                        if ready.intersects(PollFlags::ERR) {
                            command.close_stdin(&mut self.channel);
                        } else {
                            command.write_stdin(&mut self.channel);
                        }
                    }
                }
                Source::Abandoned(index) => {
                    let stream = self.abandoned.get(index);
                    if stream.is_some_and(|stream| !discard(stream, buffer)) {
                        closed.push(index);
                    }
                }
                Source::Forgotten(index) => ended.push(index),
                Source::Watches => changed = true,
                Source::Kept(number) => {
                    if let Some(reassigned) = self.kept.look(number, buffer, &mut self.channel) {
                        self.reassign(reassigned);
                    }
                }
            }
        }
        for reassigned in self.kept.look_at_time(Instant::now()) {
            self.reassign(reassigned);
        }
        if changed {
            self.watches.turn();
        }
        for index in closed.into_iter().rev() {
            self.abandoned.swap_remove(index);
        }
        for index in ended.into_iter().rev() {
            self.forgotten.swap_remove(index).reap();
        }
        self.forgotten.extend(self.kept.take_retired());
        self.turn = self.turn.wrapping_add(1);
        self.finish(buffer)
    }

    /// Sends the remaining output of ended commands, their exit statuses, and the queue, as far as
    /// the host accepts them.
    fn finish(&mut self, buffer: &mut [u8; MAX_DATA]) -> Result<(), Stop> {
        loop {
            self.finish_commands(buffer);
            let waits_for_room = self.channel.is_full();
            self.channel.flush().map_err(|_| Stop::HostGone)?;
            // If there is room now, no event follows. If there is none, poll(2) reports room later.
            if !waits_for_room || self.channel.is_full() {
                return Ok(());
            }
        }
    }

    /// Waits for events, and returns their sources.
    fn wait(&self) -> Result<Vec<(Source, PollFlags)>, Stop> {
        let mut sources = Vec::new();
        let mut poll_fds = Vec::new();
        let mut add = |source, fd, events| {
            sources.push(source);
            poll_fds.push(PollFd::from_borrowed_fd(fd, events));
        };
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.channel.has_unsent());
        add(Source::Channel, self.channel.as_fd(), events);
        if let PidNamespace::Started(init) = &self.sandbox.pids {
            add(Source::Init, init.as_fd(), PollFlags::IN);
        }
        let room = !self.channel.is_full();
        for (&id, command) in self.round() {
            if let Some(report) = &command.process.report {
                add(Source::Report(id), report.pipe.as_fd(), PollFlags::IN);
            }
            if command.runs() {
                add(
                    Source::Process(id),
                    command.process.handle.as_fd(),
                    PollFlags::IN,
                );
                for (stream, output) in [
                    (OutputStream::Stdout, &command.stdout),
                    (OutputStream::Stderr, &command.stderr),
                ] {
                    if let Some(output) =
                        output.as_ref().filter(|o| room && command.wants_output(o))
                    {
                        add(
                            Source::Output(id, stream),
                            output.pipe.as_fd(),
                            PollFlags::IN,
                        );
                    }
                }
            }
            if let Some(stdin) = command.polled_stdin() {
                // Even without requested events, poll(2) reports that stdin has no reader any more.
                let mut events = PollFlags::empty();
                events.set(PollFlags::OUT, !stdin.queue.is_empty());
                add(Source::Stdin(id), stdin.pipe.as_fd(), events);
            }
        }
        for (index, stream) in self.abandoned.iter().enumerate() {
            add(Source::Abandoned(index), stream.as_fd(), PollFlags::IN);
        }
        for (index, process) in self.forgotten.iter().enumerate() {
            add(
                Source::Forgotten(index),
                process.handle.as_fd(),
                PollFlags::IN,
            );
        }
        for (source, events) in self.watches.sources() {
            add(Source::Watches, source, events);
        }
        for (number, source) in self.kept.sources().filter(|_| room) {
            add(Source::Kept(number), source, PollFlags::IN);
        }
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let timeout = self.kept.deadline().map(left);
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut poll_fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Stop::Protocol(format!("poll: {errno}"))),
        }
        Ok(sources
            .into_iter()
            .zip(poll_fds.iter().map(PollFd::revents))
            .filter(|(_, ready)| !ready.is_empty())
            .collect())
    }

    /// Returns all commands, beginning with another one each turn.
    fn round(&self) -> impl Iterator<Item = (&u32, &Command)> {
        let start = match self.commands.len() {
            0 => 0,
            count => self.turn as usize % count,
        };
        let commands = || self.commands.iter();
        commands().skip(start).chain(commands().take(start))
    }

    fn talk(&mut self, ready: PollFlags) -> Result<(), Stop> {
        if ready.intersects(PollFlags::OUT) {
            self.channel.flush().map_err(|_| Stop::HostGone)?;
        }
        if !ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(());
        }
        let open = self.channel.receive().map_err(|_| Stop::HostGone)?;
        let protocol = |error: Error| Stop::Protocol(error.to_string());
        while let Some(message) = self.channel.next_message().map_err(protocol)? {
            self.handle(message)?;
        }
        if open { Ok(()) } else { Err(Stop::HostGone) }
    }

    fn handle(&mut self, message: ToGuest) -> Result<(), Stop> {
        // Messages to a command that has ended were sent before its end was known.
        let id = match message {
            ToGuest::Boot(_) => return Err(Stop::Protocol("a second Boot".to_owned())),
            ToGuest::Shutdown => return Err(Stop::Shutdown),
            ToGuest::Quiesce => return self.quiesce(),
            ToGuest::Thaw { .. } | ToGuest::Restore(_) => {
                return Err(Stop::Protocol("not quiesced".to_owned()));
            }
            ToGuest::LimitProcesses { most } => {
                self.limit_processes(most);
                return Ok(());
            }
            ToGuest::Exec { id, spec } => {
                self.start(id, spec);
                return Ok(());
            }
            ToGuest::Stdin { id, .. }
            | ToGuest::CloseStdin { id }
            | ToGuest::Signal { id, .. }
            | ToGuest::SignalGroup { id, .. }
            | ToGuest::Resize { id, .. }
            | ToGuest::Credit { id, .. } => id,
        };
        let Some(command) = self.commands.get_mut(&id) else {
            match message {
                ToGuest::Signal { signal, .. } => self.kept.signal(id, signal, false),
                ToGuest::SignalGroup { signal, .. } => self.kept.signal(id, signal, true),
                _ => {}
            }
            return Ok(());
        };
        let result = match message {
            ToGuest::Stdin { data, .. } => command.queue_stdin(&data, &mut self.channel),
            ToGuest::Credit { stream, bytes, .. } => command.grant(stream, bytes),
            ToGuest::CloseStdin { .. } => {
                command.end_stdin(&mut self.channel);
                Ok(())
            }
            ToGuest::Signal { signal, .. } => {
                command.signal(signal);
                Ok(())
            }
            ToGuest::SignalGroup { signal, .. } => {
                command.signal_group(signal);
                Ok(())
            }
            ToGuest::Resize { size, .. } => {
                command.resize(size);
                Ok(())
            }
            _ => Ok(()),
        };
        result.map_err(|error| Stop::Protocol(format!("command {id}: {error}")))
    }

    fn limit_processes(&self, most: u64) {
        if let Place::Namespace {
            group: Some(group), ..
        } = &self.sandbox.place
            && let Err(errno) = group.limit(most)
        {
            kernel_log::write(format_args!("the limit of processes stays: {errno}"));
        }
    }

    /// Sends nothing while the machine is copied, in the original and in every copy.
    fn quiesce(&mut self) -> Result<(), Stop> {
        self.kept.retire_idle();
        self.channel.send(&ToHost::Quiesced);
        self.channel.flush_all().map_err(|_| Stop::HostGone)?;
        match self.channel.wait_for_message() {
            Ok(Some(ToGuest::Thaw {
                wall_clock,
                entropy,
            })) => identity::renew(wall_clock, &entropy, &self.sandbox)
                .map_err(|failed| Stop::Protocol(failed.to_string())),
            Ok(Some(ToGuest::Restore(restore))) => self.restore(&restore),
            Ok(Some(_)) => Err(Stop::Protocol("a message while quiesced".to_owned())),
            Ok(None) => Err(Stop::HostGone),
            Err(error) => Err(Stop::Protocol(error.to_string())),
        }
    }

    /// Continues as a copy: takes on its own identity, and keeps only the reattached command.
    fn restore(&mut self, restore: &Restore) -> Result<(), Stop> {
        let assumed = identity::assume(&restore.identity, &mut self.sandbox).and_then(|()| {
            setup::apply(&restore.setup, &mut self.sandbox.place, &Disks::default())
        });
        if let Err(failed) = assumed {
            self.channel.send(&ToHost::BootFailed(failed));
            self.channel.flush_all().map_err(|_| Stop::HostGone)?;
            return Err(Stop::Stillborn);
        }
        self.channel.send(&ToHost::Restored);
        self.kept.forget();
        for (id, mut command) in std::mem::take(&mut self.commands) {
            match restore.reattach.filter(|reattach| reattach.id == id) {
                Some(reattach) => {
                    command.reattached(reattach.output_window, &mut self.channel);
                    self.commands.insert(id, command);
                }
                None => {
                    let (process, outputs) = command.forgotten();
                    self.abandoned.extend(outputs);
                    self.forgotten.push(process);
                }
            }
        }
        if let Some(reattach) = restore.reattach
            && !self.commands.contains_key(&reattach.id)
        {
            let failure = StartFailed {
                reason: StartFailure::Other,
                message: "the command to reattach had ended".to_owned(),
                errno: 0,
            };
            let id = reattach.id;
            self.channel.send(&ToHost::StartFailed { id, failure });
        }
        Ok(())
    }

    fn start(&mut self, id: u32, spec: Box<Exec>) {
        if self.commands.contains_key(&id) || self.kept.has(id) {
            let failure = StartFailed {
                reason: StartFailure::Other,
                message: format!("command {id} is still running"),
                errno: 0,
            };
            self.channel.send(&ToHost::StartFailed { id, failure });
        } else if let Err(spec) = self.kept.start(id, spec, &self.sandbox) {
            self.spawn(id, &spec);
        }
    }

    /// Starts an operation that a kept process has not begun.
    fn reassign(&mut self, reassigned: Reassigned) {
        let (id, left) = match reassigned {
            Reassigned::Fresh(id, spec) => (id, self.kept.start_fresh(id, spec, &self.sandbox)),
            Reassigned::Ordinary(id, spec) => (id, Err(spec)),
        };
        if let Err(spec) = left {
            self.spawn(id, &spec);
        }
    }

    fn spawn(&mut self, id: u32, spec: &Exec) {
        let kept = self.kept.pids();
        match self.sandbox.spawn(id, spec, &mut self.watches, &kept) {
            Ok((process, ends)) => {
                let command = Command::new(id, process, ends, spec.output_window);
                self.commands.insert(id, command);
            }
            Err(failure) => self.channel.send(&ToHost::StartFailed { id, failure }),
        }
    }

    fn read_report(&mut self, id: u32, has_ended: bool) {
        let started = self
            .commands
            .get_mut(&id)
            .is_none_or(|command| command.read_report(has_ended, &mut self.channel));
        if !started {
            self.commands.remove(&id);
        }
    }

    fn check_process(&mut self, id: u32) {
        // After a process has ended, its report is complete.
        self.read_report(id, true);
        if let Some(command) = self.commands.get_mut(&id) {
            command.check_process();
        }
    }

    /// Queues the remaining output of ended commands, and their exit statuses, while there is room.
    fn finish_commands(&mut self, buffer: &mut [u8; MAX_DATA]) {
        let ended: Vec<u32> = self
            .round()
            .filter(|(_, command)| !command.runs())
            .map(|(&id, _)| id)
            .collect();
        for id in ended {
            let Some(command) = self.commands.get_mut(&id) else {
                continue;
            };
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                while !self.channel.is_full()
                    && command.read_output(stream, buffer, &mut self.channel) == Progress::Some
                {
                }
            }
            if let Some(status) = command.finished() {
                self.channel.send(&ToHost::Exited { id, status });
                if let Some(command) = self.commands.remove(&id) {
                    self.abandoned.extend(command.into_outputs());
                }
            }
        }
    }
}

/// Reads and drops a stream's data. Returns false if the stream has no writer any more.
fn discard(stream: &OwnedFd, buffer: &mut [u8; MAX_DATA]) -> bool {
    match rustix::io::read(stream, buffer) {
        Ok(0) => false,
        Ok(_) => true,
        Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use micabox_wire::Decoder;

    use super::*;

    fn exec(program: &str, stdin: bool) -> Exec {
        Exec {
            argv: vec![program.as_bytes().to_vec()],
            fallback: Vec::new(),
            env: Vec::new(),
            cwd: Vec::new(),
            make_cwd: false,
            user: String::new(),
            tty: None,
            stdin,
            output_window: 0,
            confinement: micabox_wire::Confinement::default(),
        }
    }

    #[test]
    fn nothing_is_said_of_stdin_before_the_start_is_reported() {
        let (mut host, agent) = UnixStream::pair().unwrap();
        let mut server = Server::new(Channel::new(agent.into()).unwrap(), Sandbox::here());
        let mut buffer = Box::new([0; MAX_DATA]);
        server.start(1, Box::new(exec("true", true)));
        // With the process, the reader of its stdin has ended.
        let process = &server.commands.get(&1).unwrap().process.handle;
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        poll(&mut ended, None).unwrap();
        let ready = server.wait().unwrap();
        let of_stdin = ready
            .iter()
            .any(|(source, _)| matches!(source, Source::Stdin(_)));
        assert!(!of_stdin);

        while !server.commands.is_empty() {
            server.turn(&mut buffer).unwrap();
        }
        drop(server);
        let mut sent = Vec::new();
        host.read_to_end(&mut sent).unwrap();
        let mut messages = Decoder::<ToHost>::new();
        messages.push(&sent);
        let first = messages.next_message().unwrap();
        assert!(
            matches!(first, Some(ToHost::Started { id: 1, .. })),
            "{first:?}"
        );
    }

    #[test]
    fn a_queue_that_empties_at_once_leaves_no_ended_command_behind() {
        let (_host, agent) = UnixStream::pair().unwrap();
        // Everything that the agent queues fits at once, as in a virtio-serial port.
        rustix::net::sockopt::set_socket_send_buffer_size(&agent, 1 << 20).unwrap();
        let mut server = Server::new(Channel::new(agent.into()).unwrap(), Sandbox::here());
        let mut buffer = Box::new([0; MAX_DATA]);
        server.start(1, Box::new(exec("echo", false)));
        while server.commands.get(&1).is_some_and(Command::runs) {
            server.turn(&mut buffer).unwrap();
        }
        // Other commands' output fills the queue in the turn in which the credit arrives.
        server
            .handle(ToGuest::Credit {
                id: 1,
                stream: OutputStream::Stdout,
                bytes: 1000,
            })
            .unwrap();
        while !server.channel.is_full() {
            server.channel.send(&ToHost::Output {
                id: 2,
                stream: OutputStream::Stdout,
                data: vec![0; MAX_DATA],
            });
        }
        server.finish(&mut buffer).unwrap();
        assert!(!server.channel.has_unsent());
        assert!(server.commands.is_empty());
    }
}
