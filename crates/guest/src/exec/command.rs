//! One command: its process, its streams, and its messages to the host.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use micabox_wire::{
    ExitStatus, MAX_DATA, OutputStream, ReceiveWindow, SendWindow, ToHost, TtySize, WindowError,
};
use rustix::io::Errno;
use rustix::termios::SpecialCodeIndex;

use super::channel::Channel;
use super::spawn::{Outcome, Process};
use super::stdio::{self, AgentEnds};
use crate::sandbox::child::{kill, kill_group};

/// Bytes of stdin that the agent holds for a command: several messages, so that the command never
/// waits for the host while the host has data.
pub const STDIN_WINDOW: u32 = 256 * 1024;

/// More than a terminal buffers between a writer and its master: 8 KiB of buffers and the line
/// discipline's 4 KiB.
const TERMINAL_BUFFER: usize = 64 * 1024;

/// A command, from its fork to its last message.
#[derive(Debug)]
pub struct Command {
    pub id: u32,
    pub process: Process,
    pub stdin: Option<Stdin>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    /// The command's side of its terminal, while the command runs.
    terminal: Option<OwnedFd>,
    status: Option<ExitStatus>,
    /// The process's number inside the sandbox, once the host has been notified of the start.
    announced: Option<u32>,
}

/// A command's stdin.
#[derive(Debug)]
pub struct Stdin {
    pub pipe: OwnedFd,
    pub queue: VecDeque<u8>,
    window: ReceiveWindow,
    /// The host has sent the end of stdin.
    ends: bool,
}

/// A command's stdout or stderr.
#[derive(Debug)]
pub struct Output {
    pub pipe: OwnedFd,
    window: SendWindow,
    /// Once the process has ended: the number of bytes that it left behind. Later output comes from
    /// other processes that hold the stream open, and is not waited for.
    left: Option<usize>,
}

impl Command {
    pub fn new(id: u32, process: Process, ends: AgentEnds, output_window: u32) -> Self {
        let output = |pipe| Output {
            pipe,
            window: SendWindow::new(output_window),
            left: None,
        };
        Self {
            id,
            process,
            stdin: ends.stdin.map(|pipe| Stdin {
                pipe,
                queue: VecDeque::new(),
                window: ReceiveWindow::new(STDIN_WINDOW),
                ends: false,
            }),
            stdout: Some(output(ends.stdout)),
            stderr: ends.stderr.map(output),
            terminal: ends.terminal,
            status: None,
            announced: None,
        }
    }

    /// Returns the given stream, while it is open.
    pub fn output(&mut self, stream: OutputStream) -> &mut Option<Output> {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    /// Reads the new process's report about its start. Returns false if the start failed, which
    /// ends the command.
    pub fn read_report(&mut self, has_ended: bool, channel: &mut Channel) -> bool {
        let Some(report) = &mut self.process.report else {
            return true;
        };
        match report.read(has_ended) {
            None => return true,
            Some(Outcome::Started(pid)) => self.announce(pid, channel),
            Some(Outcome::Failed(failure)) => {
                let id = self.id;
                channel.send(&ToHost::StartFailed { id, failure });
                self.process.reap();
                return false;
            }
        }
        self.process.report = None;
        true
    }

    fn announce(&mut self, pid: u32, channel: &mut Channel) {
        self.announced = Some(pid);
        channel.send(&ToHost::Started {
            id: self.id,
            pid,
            stdin_window: self.stdin.as_ref().map_or(0, |s| s.window.size()),
        });
    }

    /// Continues the command for another host, with new windows and a new announcement.
    pub fn reattached(&mut self, output_window: u32, channel: &mut Channel) {
        for output in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            output.window = SendWindow::new(output_window);
        }
        if let Some(stdin) = &mut self.stdin {
            stdin.window = ReceiveWindow::new(STDIN_WINDOW);
        }
        if let Some(pid) = self.announced {
            self.announce(pid, channel);
        }
    }

    /// Continues the command without a host, and closes its stdin. Returns its process, which must
    /// be waited for, and its output streams.
    pub fn forgotten(self) -> (Process, impl Iterator<Item = OwnedFd>) {
        let outputs = [self.stdout, self.stderr].into_iter().flatten();
        (self.process, outputs.map(|output| output.pipe))
    }

    /// Whether output is wanted: it has credit, and the command's start is decided.
    pub fn wants_output(&self, output: &Output) -> bool {
        self.process.report.is_none() && output.window.available() > 0
    }

    /// Returns stdin, once the host has been notified of the start: a process may end before its report is
    /// read, and no message of a command may come before that of its start.
    pub fn polled_stdin(&self) -> Option<&Stdin> {
        self.stdin.as_ref().filter(|_| self.announced.is_some())
    }

    /// Sends one piece of output, if there is any, and credit for it.
    pub fn read_output(
        &mut self,
        stream: OutputStream,
        buffer: &mut [u8; MAX_DATA],
        channel: &mut Channel,
    ) -> Progress {
        let id = self.id;
        let slot = self.output(stream);
        let Some(output) = slot else {
            return Progress::None;
        };
        let most = output
            .window
            .available()
            .min(output.left.unwrap_or(MAX_DATA))
            .min(MAX_DATA);
        let Some(buffer) = buffer.get_mut(..most).filter(|b| !b.is_empty()) else {
            return Progress::None;
        };
        match rustix::io::read(&output.pipe, &mut *buffer) {
            Ok(count @ 1..) => {
                // `most` is within the window, so there is credit for it.
                if output.window.take(count).is_err() {
                    return Progress::None;
                }
                if let Some(left) = &mut output.left {
                    *left = left.saturating_sub(count);
                }
                channel.send_output(id, stream, buffer.get(..count).unwrap_or_default());
                Progress::Some
            }
            Err(Errno::AGAIN) => {
                if let Some(left) = &mut output.left {
                    *left = 0;
                }
                Progress::None
            }
            Err(Errno::INTR) => Progress::Some,
            // End of file, which a terminal reports as EIO.
            Ok(0) | Err(_) => {
                *slot = None;
                Progress::None
            }
        }
    }

    /// Queues stdin from the host.
    pub fn queue_stdin(&mut self, data: &[u8], channel: &mut Channel) -> Result<(), WindowError> {
        // Data that arrives after the command closed its stdin was sent before that was known.
        let Some(stdin) = &mut self.stdin else {
            return Ok(());
        };
        stdin.window.received(data.len())?;
        stdin.queue.extend(data);
        self.write_stdin(channel);
        Ok(())
    }

    /// Handles the end of stdin from the host.
    pub fn end_stdin(&mut self, channel: &mut Channel) {
        if let Some(stdin) = &mut self.stdin
            && !stdin.ends
        {
            stdin.ends = true;
            if let Some(terminal) = &self.terminal {
                stdin.queue.extend(end_of_file_character(terminal));
            }
            self.write_stdin(channel);
        }
    }

    /// Writes queued stdin to the command, as much as it accepts now.
    pub fn write_stdin(&mut self, channel: &mut Channel) {
        let id = self.id;
        let Some(stdin) = &mut self.stdin else {
            return;
        };
        let mut written = 0;
        let closed = loop {
            let (bytes, _) = stdin.queue.as_slices();
            if bytes.is_empty() {
                break false;
            }
            match rustix::io::write(&stdin.pipe, bytes) {
                Ok(count) => {
                    stdin.queue.drain(..count);
                    written += count;
                }
                Err(Errno::AGAIN) => break false,
                Err(Errno::INTR) => {}
                Err(_) => break true,
            }
        };
        if closed {
            self.close_stdin(channel);
        } else if stdin.ends {
            if stdin.queue.is_empty() {
                self.stdin = None;
            }
        } else if let Some(bytes) = stdin.window.handed_on(written) {
            channel.send(&ToHost::StdinCredit { id, bytes });
        }
    }

    /// Handles that the command no longer reads its stdin.
    pub fn close_stdin(&mut self, channel: &mut Channel) {
        if let Some(stdin) = self.stdin.take()
            && !stdin.ends
        {
            channel.send(&ToHost::StdinClosed { id: self.id });
        }
    }

    /// Adds credit for a stream.
    pub fn grant(&mut self, stream: OutputStream, bytes: u32) -> Result<(), WindowError> {
        // Credit for a stream that has ended was sent before that was known.
        self.output(stream)
            .as_mut()
            .map_or(Ok(()), |output| output.window.grant(bytes))
    }

    /// Sends a signal to the process, unless it has ended.
    pub fn signal(&self, signal: i32) {
        if self.may_be_sent(signal) {
            kill(self.process.pid, signal);
        }
    }

    /// Sends a signal to the process's group, unless the process has ended: until then its number stands
    /// for no other group.
    pub fn signal_group(&self, signal: i32) {
        if self.may_be_sent(signal) && !kill_group(self.process.pid, signal) {
            // It has not begun its session yet.
            kill(self.process.pid, signal);
        }
    }

    fn may_be_sent(&self, signal: i32) -> bool {
        (1..=libc::SIGRTMAX()).contains(&signal) && self.status.is_none()
    }

    /// Sets the terminal's size.
    pub fn resize(&self, size: TtySize) {
        if let Some(terminal) = &self.terminal {
            // Ignored: there is no remedy if the terminal refuses it.
            let _ = stdio::resize(terminal, size);
        }
    }

    /// Whether the process is not known to have ended.
    pub fn runs(&self) -> bool {
        self.status.is_none()
    }

    /// Checks whether the process has ended, and if so how much output it has left.
    pub fn check_process(&mut self) {
        let Some(status) = self.process.wait() else {
            return;
        };
        self.status = Some(status);
        self.stdin = None;
        if self.terminal.take().is_some() {
            if let Some(output) = &mut self.stdout {
                output.left = Some(TERMINAL_BUFFER);
            }
            return;
        }
        for output in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            let left = rustix::io::ioctl_fionread(&output.pipe).unwrap_or(0);
            output.left = Some(usize::try_from(left).unwrap_or(usize::MAX));
        }
    }

    /// Returns how the process ended, once all its output has been sent.
    pub fn finished(&self) -> Option<ExitStatus> {
        let sent =
            |output: &Option<Output>| output.as_ref().is_none_or(|output| output.left == Some(0));
        self.status
            .filter(|_| sent(&self.stdout) && sent(&self.stderr))
    }

    /// Returns the streams that other processes still hold open.
    pub fn into_outputs(self) -> impl Iterator<Item = OwnedFd> {
        [self.stdout, self.stderr]
            .into_iter()
            .flatten()
            .map(|output| output.pipe)
    }
}

/// Whether more may be read immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    None,
    Some,
}

/// Returns the character that ends input on a terminal with its current settings; None in raw mode,
/// in which no character does.
fn end_of_file_character(terminal: &OwnedFd) -> Option<u8> {
    let settings = rustix::termios::tcgetattr(terminal).ok()?;
    settings
        .local_modes
        .contains(rustix::termios::LocalModes::ICANON)
        .then(|| settings.special_codes[SpecialCodeIndex::VEOF])
}
