//! A host for tests. By default, its agent is a thread of this process that runs commands on this
//! machine.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use micabox_guest::exec::{Channel, Sandbox, Server, Stop};
use micabox_wire::{
    Confinement, Exec, ExitStatus, OutputStream, ReceiveWindow, SendWindow, StartFailed, ToGuest,
    ToHost, read_message, write_message,
};

/// The host's end of the stream, and the server's thread if it runs here.
pub struct Host {
    pub stream: UnixStream,
    server: Option<JoinHandle<Stop>>,
}

/// The output and exit status of a command.
#[derive(Debug, Default)]
pub struct Run {
    pub pid: u32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub stdin_closed: bool,
    pub status: Option<Result<ExitStatus, StartFailed>>,
}

impl Run {
    pub fn status(&self) -> ExitStatus {
        match &self.status {
            Some(Ok(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub fn failure(&self) -> &StartFailed {
        match &self.status {
            Some(Err(failure)) => failure,
            other => panic!("{other:?}"),
        }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// A command `argv` with this machine's PATH, without stdin, with a large window.
pub fn command(argv: &[&str]) -> Exec {
    Exec {
        fallback: Vec::new(),
        argv: argv
            .iter()
            .map(|argument| argument.as_bytes().to_vec())
            .collect(),
        env: Vec::new(),
        cwd: Vec::new(),
        make_cwd: false,
        user: String::new(),
        tty: None,
        stdin: false,
        output_window: 64 * 1024,
        confinement: Confinement::default(),
    }
}

/// A command that runs `script` with sh.
pub fn shell(script: &str) -> Exec {
    command(&["/bin/sh", "-c", script])
}

impl Host {
    pub fn new() -> Self {
        let (stream, agent) = UnixStream::pair().unwrap();
        // Room for more than the agent queues, as a virtio-serial port has.
        rustix::net::sockopt::set_socket_send_buffer_size(&agent, 1 << 20).unwrap();
        let server = thread::spawn(move || {
            let channel = Channel::new(agent.into()).unwrap();
            Server::new(channel, Sandbox::here()).serve()
        });
        let server = Some(server);
        Self { stream, server }
    }

    /// Creates the host of an agent at the other end of `stream`.
    pub fn over(stream: UnixStream) -> Self {
        let server = None;
        Self { stream, server }
    }

    pub fn send(&mut self, message: ToGuest) {
        write_message(&mut self.stream, &message).unwrap();
    }

    pub fn exec(&mut self, id: u32, spec: Exec) {
        let spec = Box::new(spec);
        self.send(ToGuest::Exec { id, spec });
    }

    pub fn receive(&mut self) -> ToHost {
        read_message(&mut self.stream)
            .unwrap()
            .expect("the server hung up")
    }

    /// Receives `Started` for `id`.
    pub fn started(&mut self, id: u32) -> u32 {
        match self.receive() {
            ToHost::Started {
                id: started, pid, ..
            } if started == id => pid,
            other => panic!("{other:?}"),
        }
    }

    /// Receives output of `id` until it contains `wanted`.
    pub fn output_with(&mut self, id: u32, wanted: &str) -> String {
        let mut text = String::new();
        while !text.contains(wanted) {
            match self.receive() {
                ToHost::Output { id: of, data, .. } if of == id => {
                    text.push_str(std::str::from_utf8(&data).unwrap());
                }
                other => panic!("{other:?} after {text:?}"),
            }
        }
        text
    }

    /// Runs one command until it exits.
    pub fn run(&mut self, spec: Exec) -> Run {
        self.run_with(spec, b"")
    }

    /// Runs one command with `input` on its stdin.
    pub fn run_with(&mut self, mut spec: Exec, input: &[u8]) -> Run {
        spec.stdin |= !input.is_empty();
        let window = spec.output_window;
        let stdin = spec.stdin;
        self.exec(1, spec);
        self.follow(&[1], window, if stdin { Some(input) } else { None })
            .remove(&1)
            .unwrap()
    }

    /// Follows started commands until they exit. Grants credit as a good host does, and checks that
    /// the guest keeps to it.
    pub fn follow(
        &mut self,
        ids: &[u32],
        window: u32,
        mut input: Option<&[u8]>,
    ) -> HashMap<u32, Run> {
        let mut runs: HashMap<u32, Run> = ids.iter().map(|&id| (id, Run::default())).collect();
        let mut windows = HashMap::new();
        let mut stdin = SendWindow::new(0);
        while runs.values().any(|run| run.status.is_none()) {
            match self.receive() {
                ToHost::Started {
                    id,
                    pid,
                    stdin_window,
                } => {
                    runs.get_mut(&id).unwrap().pid = pid;
                    stdin.grant(stdin_window).unwrap();
                    self.feed(id, &mut input, &mut stdin);
                }
                ToHost::StdinCredit { id, bytes } => {
                    stdin.grant(bytes).unwrap();
                    self.feed(id, &mut input, &mut stdin);
                }
                ToHost::StdinClosed { id } => {
                    runs.get_mut(&id).unwrap().stdin_closed = true;
                    input = None;
                }
                ToHost::Output { id, stream, data } => {
                    let receive = windows
                        .entry((id, stream))
                        .or_insert_with(|| ReceiveWindow::new(window));
                    receive.received(data.len()).expect("more than was granted");
                    let run = runs.get_mut(&id).unwrap();
                    match stream {
                        OutputStream::Stdout => run.stdout.extend(&data),
                        OutputStream::Stderr => run.stderr.extend(&data),
                    }
                    if let Some(bytes) = receive.handed_on(data.len()) {
                        self.send(ToGuest::Credit { id, stream, bytes });
                    }
                }
                ToHost::Exited { id, status } => {
                    runs.get_mut(&id).unwrap().status = Some(Ok(status));
                }
                ToHost::StartFailed { id, failure } => {
                    runs.get_mut(&id).unwrap().status = Some(Err(failure));
                }
                other => panic!("{other:?}"),
            }
        }
        runs
    }

    /// Sends as much input as there is credit for, then its end.
    fn feed(&mut self, id: u32, input: &mut Option<&[u8]>, window: &mut SendWindow) {
        let Some(left) = input else { return };
        while !left.is_empty() && window.available() > 0 {
            let count = left
                .len()
                .min(window.available())
                .min(micabox_wire::MAX_DATA);
            let (data, rest) = left.split_at(count);
            window.take(count).unwrap();
            let data = data.to_vec();
            self.send(ToGuest::Stdin { id, data });
            *left = rest;
        }
        if left.is_empty() {
            self.send(ToGuest::CloseStdin { id });
            *input = None;
        }
    }

    /// Closes the stream; returns why the server stopped.
    pub fn hang_up(self) -> Stop {
        drop(self.stream);
        self.server.unwrap().join().unwrap()
    }

    /// Waits for the server to stop by itself.
    pub fn stopped(self) -> Stop {
        self.server.unwrap().join().unwrap()
    }
}
