//! `mica serve --e2b`, and requests as E2B's packages send them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{Home, PATIENCE};

/// The flag of a stream's last message.
const END: u8 = 2;

/// A server that runs.
pub struct Server {
    process: Child,
    address: String,
    pub key: String,
}

/// A sandbox, as its maker knows it.
#[derive(Debug)]
pub struct Made {
    pub id: String,
    pub token: String,
}

impl Server {
    pub fn new(home: &Home, flags: &[&str]) -> Self {
        Self::with(home, flags, &[])
    }

    /// Starts one with these variables.
    pub fn with(home: &Home, flags: &[&str], variables: &[(&str, &Path)]) -> Self {
        let begin = ["serve", "--e2b", "--listen", "127.0.0.1:0"];
        let mut mica = home.mica(&[&begin[..], flags].concat());
        mica.envs(variables.iter().copied());
        let mut process = mica.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let lines: Vec<String> = lines.take(3).map(Result::unwrap).collect();
        let value = |line: &str, name: &str| {
            let line = line.strip_prefix(&format!("export {name}=")).unwrap();
            line.trim_start_matches("http://").to_owned()
        };
        assert_eq!(
            value(&lines[0], "E2B_API_URL"),
            value(&lines[1], "E2B_SANDBOX_URL")
        );
        Self {
            process,
            address: value(&lines[0], "E2B_API_URL"),
            key: value(&lines[2], "E2B_API_KEY"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it, so that it can't clean up.
    pub fn kill(mut self) {
        self.end(Signal::KILL);
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_raw(self.process.id().cast_signed()).unwrap();
        let _ = kill_process(pid, signal);
        self.process.wait().unwrap()
    }

    /// Connects, without a word.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes, and returns all that comes.
    pub fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // A head that is too large is not read to its end.
        let _ = stream.write_all(bytes);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Returns the status of a request with these headers.
    pub fn status(&self, line: &str, headers: &str, body: &str) -> String {
        let reply = self.say(&request(line, headers, body.as_bytes()));
        reply.split(' ').nth(1).unwrap_or("none").to_owned()
    }

    /// Sends a request. Returns its status, and the body that is to be read.
    pub fn ask(&self, line: &str, headers: &str, body: &[u8]) -> (u16, Body) {
        let mut stream = self.connect();
        stream.write_all(&request(line, headers, body)).unwrap();
        Body::of(stream)
    }

    pub fn with_key(&self) -> String {
        format!("X-API-Key: {}\r\n", self.key)
    }

    /// Asks the API. Returns the status and the reply, null if it is empty.
    pub fn api(&self, line: &str, body: &Value) -> (u16, Value) {
        let headers = format!("Content-Type: application/json\r\n{}", self.with_key());
        let (status, body) = self.ask(line, &headers, body.to_string().as_bytes());
        (status, body.json())
    }

    /// Asks the API with a client that goes as soon as `has_begun`. Returns the answer if that came first.
    pub fn abandon(&self, line: &str, body: &Value, has_begun: impl Fn() -> bool) -> Option<Value> {
        let headers = format!("Content-Type: application/json\r\n{}", self.with_key());
        let mut client = self.connect();
        let asked = request(line, &headers, body.to_string().as_bytes());
        client.write_all(&asked).unwrap();
        super::wait_until("it has begun", has_begun);
        // To the server that is its end; what came before is still read.
        client.shutdown(Shutdown::Write).unwrap();
        let is_answered = client.peek(&mut [0]).unwrap() > 0;
        is_answered.then(|| Body::of(client).1.json())
    }

    /// Makes a sandbox.
    pub fn create(&self, body: &Value) -> Made {
        let (status, made) = self.api("POST /sandboxes", body);
        assert_eq!(status, 201, "{made}");
        Made::of(&made)
    }

    /// Ends a sandbox.
    pub fn delete(&self, made: &Made) {
        let (status, reply) = self.api(&format!("DELETE /sandboxes/{}", made.id), &json!({}));
        assert_eq!(status, 204, "{reply}");
    }

    /// Makes a call with one reply for a sandbox's commands.
    pub fn process(&self, made: &Made, call: &str, body: &Value) -> (u16, Value) {
        let headers = made.headers("application/json");
        let line = format!("POST /process.Process/{call}");
        let (status, body) = self.ask(&line, &headers, body.to_string().as_bytes());
        (status, body.json())
    }

    /// Makes a call with one reply for a sandbox's files.
    pub fn files(&self, made: &Made, call: &str, body: &Value) -> (u16, Value) {
        let headers = made.headers("application/json");
        let line = format!("POST /filesystem.Filesystem/{call}");
        let (status, body) = self.ask(&line, &headers, body.to_string().as_bytes());
        (status, body.json())
    }

    /// Writes a file.
    pub fn upload(&self, made: &Made, path: &str, contents: &[u8]) -> u16 {
        let headers = made.headers("application/octet-stream");
        let line = format!("POST /files?path={path}");
        self.ask(&line, &headers, contents).0
    }

    /// Reads a file.
    pub fn download(&self, made: &Made, path: &str) -> Vec<u8> {
        let line = format!("GET /files?path={path}");
        let (status, mut body) = self.ask(&line, &made.headers("text/plain"), b"");
        assert_eq!(status, 200);
        let mut contents = Vec::new();
        body.read_to_end(&mut contents).unwrap();
        contents
    }

    /// Makes a call whose reply is a stream.
    pub fn stream(&self, made: &Made, call: &str, body: &Value) -> Events {
        let headers = made.headers("application/connect+json");
        let line = format!("POST /process.Process/{call}");
        let (status, body) = self.ask(&line, &headers, &message(body));
        assert_eq!(status, 200);
        Events(body)
    }

    /// Sends a call whose reply is a stream with these messages, without the end of the request.
    pub fn unfinished(&self, made: &Made, call: &str, messages: &[Value]) -> TcpStream {
        let messages: Vec<u8> = messages.iter().flat_map(message).collect();
        let headers = made.headers("application/connect+json");
        let mut stream = self.connect();
        write!(
            stream,
            "POST /process.Process/{call} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\
             Transfer-Encoding: chunked\r\n{headers}\r\n{:x}\r\n",
            messages.len(),
        )
        .unwrap();
        stream
            .write_all(&[&messages, &b"\r\n"[..]].concat())
            .unwrap();
        stream
    }

    /// Starts a script. Returns its process ID, and what it says from then on.
    pub fn start(&self, made: &Made, script: &str, stdin: bool) -> (u64, Events) {
        let process = json!({"cmd": "/bin/bash", "args": ["-l", "-c", script], "envs": {}});
        let start = json!({"process": process, "stdin": stdin});
        let mut events = self.stream(made, "Start", &start);
        (events.pid(), events)
    }

    /// Runs a script. Returns what it has written to stdout.
    pub fn run(&self, made: &Made, script: &str) -> String {
        let (_, events) = self.start(made, script, false);
        let (said, code) = events.rest();
        assert_eq!(code, 0, "{script}: {said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            let status = self.end(Signal::TERM);
            assert!(status.success() || std::thread::panicking(), "{status}");
        }
    }
}

/// Encodes a message of a stream.
pub fn message(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = u32::try_from(body.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), body.as_bytes()].concat()
}

/// Encodes a request.
pub fn request(line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

impl Made {
    /// Reads what the API says of a new sandbox.
    pub fn of(made: &Value) -> Self {
        let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{made}"));
        Self {
            id: text("sandboxID").to_owned(),
            token: text("envdAccessToken").to_owned(),
        }
    }

    pub fn headers(&self, kind: &str) -> String {
        let Self { id, token } = self;
        format!(
            "Content-Type: {kind}\r\nConnect-Protocol-Version: 1\r\nE2b-Sandbox-Id: {id}\r\n\
             E2b-Sandbox-Port: 49983\r\nX-Access-Token: {token}\r\n"
        )
    }
}

/// A reply's body: in chunks, or up to the connection's end.
pub struct Body {
    stream: BufReader<TcpStream>,
    is_chunked: bool,
    /// Bytes left of a chunk.
    left: usize,
    is_over: bool,
}

impl Body {
    /// Reads a reply's head.
    fn of(stream: TcpStream) -> (u16, Self) {
        let mut stream = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            line.trim_end().to_lowercase()
        };
        let first = line();
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{first:?}"));
        let mut is_chunked = false;
        loop {
            match &*line() {
                "" => break,
                header => is_chunked |= header == "transfer-encoding: chunked",
            }
        }
        let body = Self {
            stream,
            is_chunked,
            left: 0,
            is_over: false,
        };
        (status, body)
    }

    pub fn text(mut self) -> String {
        let mut text = String::new();
        self.read_to_string(&mut text).unwrap();
        text
    }

    fn json(self) -> Value {
        match &*self.text() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}")),
        }
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if !self.is_chunked {
            return self.stream.read(buffer);
        }
        if self.left == 0 && !self.is_over {
            let line = self.line()?;
            let length = usize::from_str_radix(&line, 16);
            self.left = length.unwrap_or_else(|_| panic!("no length of a chunk: {line:?}"));
            self.is_over = self.left == 0;
        }
        if self.is_over {
            return Ok(0);
        }
        let most = self.left.min(buffer.len());
        let count = self.stream.read(&mut buffer[..most])?;
        self.left -= count;
        if self.left == 0 {
            self.line()?;
        }
        Ok(count)
    }
}

/// The messages of a stream of the Connect protocol. Dropping it is what a client's `disconnect` does.
pub struct Events(Body);

impl Iterator for Events {
    type Item = Value;

    /// Returns the next one; None at the end, which must not be a failure.
    fn next(&mut self) -> Option<Value> {
        let (flags, message) = self.message();
        if flags == END {
            assert_eq!(message["error"], Value::Null);
            return None;
        }
        Some(message["event"].clone())
    }
}

impl Events {
    /// Ends an unfinished request.
    pub fn of_unfinished(mut stream: TcpStream) -> Self {
        stream.write_all(b"0\r\n\r\n").unwrap();
        let (status, body) = Body::of(stream);
        assert_eq!(status, 200);
        Self(body)
    }

    fn message(&mut self) -> (u8, Value) {
        let mut head = [0; 5];
        self.0.read_exact(&mut head).unwrap();
        let [flags, length @ ..] = head;
        let mut message = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut message).unwrap();
        (flags, serde_json::from_slice(&message).unwrap())
    }

    /// Returns what a stream that fails before its first message says.
    pub fn failure(mut self) -> String {
        let (flags, message) = self.message();
        assert_eq!(flags, END);
        message["error"]["message"].as_str().unwrap().to_owned()
    }

    /// Returns the process ID, with which a command's stream begins.
    pub fn pid(&mut self) -> u64 {
        let first = self.next().unwrap();
        let pid = first["start"]["pid"].as_u64();
        pid.unwrap_or_else(|| panic!("{first}"))
    }

    /// Returns a line's worth of stdout: what it says until there is a line feed.
    pub fn line(&mut self) -> String {
        let mut said = String::new();
        while !said.ends_with('\n') {
            let event = self
                .next()
                .unwrap_or_else(|| panic!("the end after {said:?}"));
            said.push_str(&stdout(&event));
        }
        said
    }

    /// Returns all of stdout from here on, and the exit code.
    pub fn rest(self) -> (String, i64) {
        let (mut said, mut code) = (String::new(), None);
        for event in self {
            said.push_str(&stdout(&event));
            code = code.or(event["end"]["exitCode"].as_i64());
        }
        (said, code.unwrap())
    }
}

/// Returns what an event has of stdout.
fn stdout(event: &Value) -> String {
    let data = event["data"]["stdout"].as_str().unwrap_or_default();
    String::from_utf8(STANDARD.decode(data).unwrap()).unwrap()
}
