//! Passes a command's streams on: output from the guest, and stdin from a descriptor.

use micabox_wire::{MAX_DATA, OutputStream, ToGuest};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::Owner;
use super::client::ClientId;
use super::command::{Input, InputOf};
use super::output::{Sink, log_stream, pipe};
use crate::protocol::{Failure, Kind, Reply};

impl Owner {
    /// Passes output on to its sink.
    pub(super) fn pass_on(&mut self, id: u32, stream: OutputStream, data: &[u8]) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        let client = command.client();
        let output = command.output(stream);
        let clients = &mut self.clients;
        let broken = output.copies.write(data, |(client, number), bytes| {
            if let Some(client) = clients.get_mut(client) {
                client.data(number, pipe(stream), bytes);
            }
        });
        let written = match &output.sink {
            Sink::Frames => {
                if let Some((client, number)) = client
                    && let Some(client) = self.clients.get_mut(client)
                {
                    client.data(number, pipe(stream), data);
                }
                // The client's credit comes when it has consumed the output.
                Ok(0)
            }
            Sink::Log => {
                if let Some(registrar) = &mut self.registrar {
                    registrar.log(log_stream(stream), data);
                }
                Ok(data.len())
            }
            Sink::Held | Sink::Discard | Sink::Broken | Sink::Descriptor(_) => output.write(data),
        };
        match written {
            Ok(count) => {
                let credit = output.handed_on(count);
                self.guest.credit(id, stream, credit);
            }
            Err(why) => self.output_broken(id, stream, true, why),
        }
        for (client, why) in broken {
            self.copy_broken(id, client, why);
        }
        self.drop_of_killed(id);
    }

    /// Handles the descriptor of an output's copy that is writable, or that nothing reads any more.
    pub(super) fn write_copy(
        &mut self,
        id: u32,
        stream: OutputStream,
        client: (ClientId, u32),
        ready: PollFlags,
    ) {
        if ready.intersects(PollFlags::OUT) {
            self.write_copies(id, stream);
        } else {
            self.copy_broken(id, client, Errno::PIPE);
        }
    }

    /// Writes what is pending to an output's copies.
    pub(super) fn write_copies(&mut self, id: u32, stream: OutputStream) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        let is_running = command.status().is_none();
        let output = command.output(stream);
        let clients = &mut self.clients;
        let broken = output.copies.write(&[], |(client, number), bytes| {
            if let Some(client) = clients.get_mut(client) {
                client.data(number, pipe(stream), bytes);
            }
        });
        let credit = output.handed_on(0).filter(|_| is_running);
        self.guest.credit(id, stream, credit);
        for (client, why) in broken {
            self.copy_broken(id, client, why);
        }
        self.complete(id);
    }

    /// Detaches a client from a command because nothing reads the copy of its output, or it can't be written.
    fn copy_broken(&mut self, id: u32, client: (ClientId, u32), why: Errno) {
        let reply = match why {
            Errno::PIPE => Reply::Detached,
            why => {
                let why = std::io::Error::from(why);
                let message = format!("writing the command's output: {why}");
                Reply::Failed(Failure::new(Kind::Invalid, message))
            }
        };
        self.clients.send(client.0, client.1, &reply);
        self.leave_attached(id, client);
    }

    /// Handles an output's descriptor that is writable, or that nothing reads any more.
    pub(super) fn write_output(&mut self, id: u32, stream: OutputStream, ready: PollFlags) {
        if ready.intersects(PollFlags::OUT) {
            self.pass_on(id, stream, &[]);
            self.complete(id);
        } else if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            let command = self.commands.get(id);
            // A program gets SIGPIPE only when it writes.
            let waits = command.is_some_and(|command| command.sigpipe);
            let matters = stream == OutputStream::Stdout && !waits;
            self.output_broken(id, stream, matters, Errno::PIPE);
        }
    }

    /// Handles an output that nothing reads any more, or that can't be written. If it belongs to the command with the
    /// sandbox's lifetime and `matters` (it is stdout, or more was to be written), the command and
    /// the sandbox end, unless the command continues without its client: its output is then dropped.
    /// Another command gets SIGPIPE, if it was started so.
    fn output_broken(&mut self, id: u32, stream: OutputStream, matters: bool, why: Errno) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        if why != Errno::PIPE {
            let why = std::io::Error::from(why).to_string();
            if command.lifetime {
                self.end.unwritten = Some(why.clone());
            }
            command.unwritten.get_or_insert(why);
        }
        let continues = command.lifetime && command.detach;
        let output = command.output(stream);
        let credit = output.discard();
        if continues {
            output.sink = Sink::Discard;
        } else if !matters {
            output.sink = Sink::Broken;
        }
        let (lifetime, has_ended) = (command.lifetime, command.status().is_some());
        let sigpipe = command.sigpipe;
        if !has_ended {
            self.guest.credit(id, stream, credit);
        }
        if matters && lifetime && !continues {
            self.unseen(id);
        } else if matters && sigpipe {
            self.signal(id, libc::SIGPIPE);
        }
        self.complete(id);
    }

    /// Reads a command's stdin from its descriptor.
    pub(super) fn read_stdin(&mut self, id: u32, buffer: &mut [u8]) {
        let room = self.guest.link.outbox.stdin_room();
        let Some(command) = self.commands.get_mut(id).filter(|command| command.runs()) else {
            return;
        };
        // An attached client may have left since poll(2).
        if !matches!(command.stdin, Input::Descriptor(_)) {
            return;
        }
        let most = command.stdin_window.available().min(MAX_DATA).min(room);
        let part = buffer.get_mut(..most).unwrap_or_default();
        if part.is_empty() {
            return;
        }
        match command.stdin.read(part) {
            Some(0) => {}
            Some(count) => {
                let data = part.get(..count).unwrap_or_default().to_vec();
                // No more was read than the window allows.
                let _ = command.stdin_window.take(count);
                self.guest.send(ToGuest::Stdin { id, data });
            }
            None => match command.input_of.take() {
                // The command keeps its stdin when an attached client's ends.
                Some(InputOf { ends: false, .. }) => command.stdin = Input::Idle,
                _ => {
                    command.stdin = Input::Closed;
                    self.guest.send(ToGuest::CloseStdin { id });
                }
            },
        }
    }
}
