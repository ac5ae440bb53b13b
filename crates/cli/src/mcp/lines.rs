//! The client's stdin and stdout: a message a line. rmcp's own reader passes over what it can't decode, and its client
//! waits for ever; this one answers.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, GetMeta, JsonRpcMessage,
    RequestId,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::message::{self, Line};

/// Most bytes of a line.
const LINE: usize = 16 << 20;

/// Most requests that wait for their results.
const REQUESTS: usize = 1024;

/// Most messages that wait for the client to read them; then no more of its own are read.
const UNREAD: usize = 64;

/// How long the client may take to read the last messages.
const GRACE: Duration = Duration::from_secs(5);

/// Both streams.
#[derive(Debug)]
pub struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    /// Whether the rest of a line is passed over.
    is_too_long: bool,
    /// What is answered here, and not yet on its way.
    answers: VecDeque<String>,
    /// The requests without a result.
    open: Arc<Mutex<HashSet<RequestId>>>,
    /// Whether the session has begun: what needs no answer means nothing before, and rmcp ends at it.
    has_begun: bool,
    output: Option<mpsc::Sender<Vec<u8>>>,
    writer: JoinHandle<()>,
}

impl<R: AsyncRead + Unpin + Send> Lines<R> {
    /// Begins to write, in the runtime.
    pub fn new<W: AsyncWrite + Unpin + Send + 'static>(input: R, mut output: W) -> Self {
        let (sender, mut lines) = mpsc::channel::<Vec<u8>>(UNREAD);
        let writer = tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                if output.write_all(&line).await.is_err() || output.flush().await.is_err() {
                    return;
                }
            }
        });
        Self {
            input: BufReader::new(input),
            line: Vec::new(),
            is_too_long: false,
            answers: VecDeque::new(),
            open: Arc::default(),
            has_begun: false,
            output: Some(sender),
            writer,
        }
    }

    /// Reads to the end of a line, or of the input: None if nothing is left there. May be dropped at any time, and called
    /// again.
    async fn read_line(&mut self) -> Option<Line> {
        loop {
            // As at its end.
            let available = self.input.fill_buf().await.unwrap_or_default();
            let end = available.iter().position(|&byte| byte == b'\n');
            let piece = available.get(..end.unwrap_or(available.len()));
            let piece = piece.unwrap_or_default();
            let is_over = available.is_empty();
            if is_over && self.line.is_empty() && !self.is_too_long {
                return None;
            }
            if self.line.len() + piece.len() > LINE {
                self.is_too_long = true;
                self.line = Vec::new();
            }
            if !self.is_too_long {
                self.line.extend_from_slice(piece);
            }
            let used = piece.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() || is_over {
                let line = std::mem::take(&mut self.line);
                return Some(if std::mem::take(&mut self.is_too_long) {
                    Line::Refused(vec![message::too_long(LINE)])
                } else {
                    message::decode(&line)
                });
            }
        }
    }

    /// Returns a message that rmcp is to have.
    fn admit(&mut self, message: ClientJsonRpcMessage) -> Option<ClientJsonRpcMessage> {
        match &message {
            JsonRpcMessage::Request(request) => {
                let mut open = lock(&self.open);
                let why = if open.contains(&request.id) {
                    Some("a request with this `id` has no result yet".to_owned())
                } else if open.len() == REQUESTS {
                    Some(format!("{REQUESTS} requests have no result yet"))
                } else {
                    None
                };
                if let Some(why) = why {
                    drop(open);
                    let id = serde_json::to_string(&request.id).ok();
                    let code = ErrorCode::INVALID_REQUEST;
                    let answer = message::refusal(id.as_deref(), code, &why);
                    self.answers.push_back(answer);
                    return None;
                }
                open.insert(request.id.clone());
                self.has_begun |= match &request.request {
                    ClientRequest::InitializeRequest(_) => true,
                    ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
                    // Of a version whose requests say what `initialize` did.
                    request => request.get_meta().protocol_version().is_some(),
                };
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // It gets no result.
                    lock(&self.open).remove(id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
        let is_request = matches!(message, JsonRpcMessage::Request(_));
        (is_request || self.has_begun).then_some(message)
    }
}

impl<R: AsyncRead + Unpin + Send> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let id = match &message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
        };
        if let Some(id) = id {
            lock(&self.open).remove(id);
        }
        let line = serde_json::to_vec(&message);
        let output = self.output.clone();
        async move {
            let mut line = line?;
            line.push(b'\n');
            let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
            let output = output.ok_or_else(gone)?;
            output.send(line).await.map_err(|_| gone())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            while !self.answers.is_empty() {
                let room = self.output.as_ref()?.reserve().await.ok()?;
                if let Some(answer) = self.answers.pop_front() {
                    room.send(format!("{answer}\n").into_bytes());
                }
            }
            match self.read_line().await? {
                Line::Message(message) => {
                    if let Some(message) = self.admit(*message) {
                        return Some(message);
                    }
                }
                Line::Refused(answers) => self.answers.extend(answers),
                Line::Nothing => {}
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output = None;
        let _ = tokio::time::timeout(GRACE, &mut self.writer).await;
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
