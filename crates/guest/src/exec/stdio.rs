//! A command's standard streams: pipes, or a terminal.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use micabox_wire::TtySize;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// The agent's ends of a command's streams, non-blocking.
#[derive(Debug)]
pub struct AgentEnds {
    /// The write end of stdin; None if the command has no stdin.
    pub stdin: Option<OwnedFd>,
    /// The read end of stdout, or of the terminal.
    pub stdout: OwnedFd,
    /// The read end of stderr; None on a terminal.
    pub stderr: Option<OwnedFd>,
    /// The command's side of its terminal, held while the command runs: if no process had it open,
    /// the terminal would hang up and lose later output.
    pub terminal: Option<OwnedFd>,
}

/// The command's ends of its streams.
#[derive(Debug)]
pub struct CommandEnds {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// Creates pipes for stdout, stderr and, if `stdin`, stdin; otherwise stdin is `/dev/null`.
pub fn pipes(stdin: bool) -> rustix::io::Result<(AgentEnds, CommandEnds)> {
    let (stdout, command_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, command_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdin, command_stdin) = if stdin {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        (Some(write), read)
    } else {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        (None, rustix::fs::open("/dev/null", flags, Mode::empty())?)
    };
    // The flag belongs to the agent's open file only: the command's end still blocks.
    for end in [Some(&stdout), Some(&stderr), stdin.as_ref()] {
        end.map_or(Ok(()), set_nonblocking)?;
    }
    let agent = AgentEnds {
        stdin,
        stdout,
        stderr: Some(stderr),
        terminal: None,
    };
    let command = CommandEnds {
        stdin: command_stdin,
        stdout: command_stdout,
        stderr: command_stderr,
    };
    Ok((agent, command))
}

/// Creates a terminal of `size` in the devpts filesystem mounted at `terminals`, or at `/dev/pts`.
pub fn terminal(
    terminals: Option<BorrowedFd<'_>>,
    size: TtySize,
    stdin: bool,
) -> rustix::io::Result<(AgentEnds, CommandEnds)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = match terminals {
        Some(directory) => rustix::fs::openat(directory, "ptmx", flags, Mode::empty())?,
        None => rustix::fs::openat(CWD, "/dev/ptmx", flags, Mode::empty())?,
    };
    rustix::pty::unlockpt(&master)?;
    // Opened by name, it could be another file by now; this is the master's own peer.
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    resize(&master, size)?;
    set_nonblocking(&master)?;
    let agent = AgentEnds {
        stdin: stdin.then(|| duplicate(&master)).transpose()?,
        stderr: None,
        terminal: Some(duplicate(&slave)?),
        stdout: master,
    };
    let command = CommandEnds {
        stdin: duplicate(&slave)?,
        stdout: duplicate(&slave)?,
        stderr: slave,
    };
    Ok((agent, command))
}

/// Sets a terminal's size through either side; its foreground processes get SIGWINCH.
pub fn resize(terminal: impl AsFd, size: TtySize) -> rustix::io::Result<()> {
    rustix::termios::tcsetwinsize(
        terminal,
        Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )
}

fn duplicate(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    // Not below 3, so that it does not become a standard stream.
    fcntl_dupfd_cloexec(fd, 3)
}

/// Makes reads and writes through `fd` non-blocking.
pub fn set_nonblocking(fd: &OwnedFd) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// A standard stream, unbuffered.
pub struct Stream<'a>(pub BorrowedFd<'a>);

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, buffer)?)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
