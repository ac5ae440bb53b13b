//! Terminals: the command gets one, and the user's terminal is restored afterwards.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;

use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{LocalModes, tcgetattr};

use crate::support::{Home, PATIENCE, wait, wait_until};

/// A `mica run` on a terminal of 40 lines of 100 characters.
struct Session {
    terminal: Pty,
    child: Child,
    seen: String,
}

impl Session {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let (terminal, slave) = pty_process::blocking::open().unwrap();
        terminal.resize(Size::new(40, 100)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_mica"))
            .args(arguments)
            .env("MICABOX_HOME", home.store())
            .env("MICABOX_CONFIG", "/dev/null")
            .env("DOCKER_CONFIG", home.path())
            .spawn(slave)
            .unwrap();
        Self {
            terminal,
            child,
            seen: String::new(),
        }
    }

    fn write(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until `text` has appeared, and forgets everything up to its end.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
            let timeout = PATIENCE.try_into().unwrap();
            let ready = poll(&mut fds, Some(&timeout)).unwrap();
            assert!(ready > 0, "never saw {text:?} after {:?}", self.seen);
            let mut buffer = [0; 4096];
            let count = self.terminal.read(&mut buffer).unwrap_or(0);
            assert!(count > 0, "ended without {text:?} after {:?}", self.seen);
            self.seen
                .push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }

    /// Returns whether the terminal edits and echoes lines, as in the beginning.
    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

#[test]
fn a_password_is_hidden_and_an_interrupt_shows_what_is_typed_again() {
    let home = Home::empty();
    let mut session = Session::start(&home, &["login", "-u", "me", "127.0.0.1:1"]);
    session.expect("Password: ");
    wait_until("what is typed is hidden", || !session.is_cooked());
    // With Ctrl-C.
    session.write("secret\x03");
    let end = session.child.wait().unwrap();
    assert_eq!(end.signal(), Some(rustix::process::Signal::INT.as_raw()));
    assert!(session.is_cooked());
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = session.terminal.read(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
        session.seen.push_str(&text);
    }
    assert!(!session.seen.contains("secret"), "{}", session.seen);
}

#[test]
#[ignore = "needs a built guest"]
fn a_shell_runs_on_a_terminal() {
    let home = Home::new();
    let mut session = Session::start(&home, &["run", "-it", "--rm", "box", "sh"]);
    session.expect("# ");
    assert!(!session.is_cooked());
    session.write("stty size; tty; test -t 2 && echo stderr too\n");
    session.expect("40 100\r\n");
    session.expect("/dev/pts/");
    session.expect("stderr too\r\n");

    // A separate shell: the interactive one is not in the foreground while it waits.
    let script = "trap \"echo resized\" WINCH; echo waiting; while :; do sleep 0.05; done";
    session.write(&format!("sh -c '{script}'\n"));
    session.expect("waiting\r\n");
    session.terminal.resize(Size::new(50, 120)).unwrap();
    session.expect("resized\r\n");
    // Ctrl-C is a key like any other, for the shell inside.
    session.write("\x03");
    session.expect("# ");
    session.write("stty size\n");
    session.expect("50 120\r\n");
    session.write("exit 9\n");
    assert_eq!(wait(&mut session.child), 9);
    assert!(session.is_cooked());
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn the_terminal_is_restored_however_a_sandbox_ends() {
    let home = Home::new();
    let script = "echo ready; while :; do sleep 0.05; done";
    for signal in ["TERM", "HUP", "INT"] {
        let mut session = Session::start(&home, &["run", "-it", "--rm", "box", "sh", "-c", script]);
        session.expect("ready");
        assert!(!session.is_cooked());
        let pid = session.child.id().to_string();
        let mut kill = std::process::Command::new("kill");
        kill.args(["-s", signal, &pid]).status().unwrap();
        assert!(wait(&mut session.child) > 128);
        assert!(session.is_cooked(), "{signal}");
    }
    let mut session = Session::start(&home, &["run", "-it", "--rm", "box", "no-such-program"]);
    session.expect("no-such-program");
    assert_eq!(wait(&mut session.child), 127);
    assert!(session.is_cooked());
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn without_i_the_terminal_is_unchanged_and_ctrl_c_is_a_signal() {
    let home = Home::new();
    let script = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done";
    let mut session = Session::start(&home, &["run", "-t", "--rm", "box", "sh", "-c", script]);
    session.expect("ready");
    assert!(session.is_cooked());
    session.write("\x03");
    session.expect("caught");
    assert_eq!(wait(&mut session.child), 3);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn the_detach_keys_leave_a_sandbox_and_attach_returns_to_it() {
    let home = Home::new();
    let mut session = Session::start(&home, &["run", "-it", "--name", "it", "box", "sh"]);
    session.expect("# ");
    session.write("kept=yes\n");
    session.expect("# ");
    session.write("\x10\x11");
    session.expect("detached");
    assert_eq!(wait(&mut session.child), 0);
    assert!(session.is_cooked());

    // A command with a terminal of its own, in a sandbox without a client now.
    let mut session = Session::start(&home, &["exec", "-it", "it", "sh"]);
    session.expect("# ");
    // The prompt may be here before mica, which waits for the command's start, has set the terminal up.
    wait_until("the terminal is set up", || !session.is_cooked());
    session.write("stty size; tty\n");
    session.expect("40 100\r\n");
    session.expect("/dev/pts/1\r\n");
    session.terminal.resize(Size::new(50, 120)).unwrap();
    session.write("sleep 0.5; stty size\n");
    session.expect("50 120\r\n");
    // Half of the keys are keys like any other: the last line again, which Ctrl-U removes.
    session.write("\x10\x15exit 4\n");
    assert_eq!(wait(&mut session.child), 4);
    assert!(session.is_cooked());

    let attach = ["attach", "--detach-keys", "ctrl-a", "it"];
    let mut session = Session::start(&home, &attach);
    session.write("echo $kept; stty size\n");
    session.expect("yes\r\n");
    session.expect("40 100\r\n");
    session.write("\x01");
    session.expect("detached");
    assert_eq!(wait(&mut session.child), 0);
    assert!(session.is_cooked());
    let mut session = Session::start(&home, &["attach", "it"]);
    session.write("exit 5\n");
    assert_eq!(wait(&mut session.child), 5);
    assert!(session.is_cooked());
    assert_eq!(home.output(&["wait", "it"]).ok(), "5\n");
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}
