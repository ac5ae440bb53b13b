//! Handles the user's terminal: its size and raw mode.

use std::io::{self, IsTerminal};

use micabox::TtySize;
use rustix::fd::BorrowedFd;
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

use super::options::AttachOptions;
use micabox_program::failure::Failure;
use micabox_program::output::raw;

/// A terminal's size if it is not known.
const DEFAULT_SIZE: TtySize = TtySize {
    rows: 24,
    columns: 80,
};

/// Returns the size of the command's terminal, if it gets one.
pub fn wanted(options: &AttachOptions) -> Result<Option<TtySize>, Failure> {
    if options.tty && options.interactive && !io::stdin().is_terminal() {
        return Err(
            Failure::new("stdin is not a terminal, so it can't be the command's")
                .hint("omit -t to pipe data in"),
        );
    }
    Ok(options.tty.then(|| size().unwrap_or(DEFAULT_SIZE)))
}

/// Returns the size of the user's terminal, whichever stream is connected to it.
pub fn size() -> Option<TtySize> {
    [stdin(), raw::stdout_fd(), raw::stderr_fd()]
        .into_iter()
        .find_map(|fd| {
            let size = tcgetwinsize(fd).ok()?;
            (size.ws_row > 0 && size.ws_col > 0).then_some(TtySize {
                rows: size.ws_row,
                columns: size.ws_col,
            })
        })
}

/// Returns whether this process may use its terminal now: then it is this process that keys stop.
pub fn is_foreground() -> bool {
    [stdin(), raw::stdout_fd(), raw::stderr_fd()]
        .into_iter()
        .any(|fd| tcgetpgrp(fd).is_ok_and(|group| group == getpgrp()))
}

/// The user's terminal in raw mode: every key goes to the command. Dropping it restores the
/// terminal's settings.
#[derive(Debug)]
pub struct Raw {
    terminal: BorrowedFd<'static>,
    before: Termios,
}

impl Raw {
    /// Puts stdin's terminal into raw mode; None if there is none.
    pub fn enter() -> Result<Option<Self>, Failure> {
        let terminal = stdin();
        if !isatty(terminal) {
            return Ok(None);
        }
        let failed = |error: rustix::io::Errno| {
            Failure::of(&io::Error::from(error)).context("setting up the terminal")
        };
        let before = tcgetattr(terminal).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Some(Self { terminal, before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Waits for pending output, which was written for raw mode.
        let _ = tcsetattr(self.terminal, OptionalActions::Drain, &self.before);
    }
}
