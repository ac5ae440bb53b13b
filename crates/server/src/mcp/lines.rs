//! The client's stdin and stdout: a message a line. rmcp's own reader passes over what it can't decode, and its client
//! waits for ever; this one answers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use micabox_ground::lock;
use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, GetMeta, JsonRpcMessage,
    RequestId,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::message::{self, Line};

/// Most bytes of a line.
const LINE: usize = 16 << 20;

/// Most requests that wait for their results.
const REQUESTS: usize = 1024;

/// Bytes of a line that needs no room of its own: what ends other calls is short.
const SMALL: usize = 64 << 10;

/// Most KiB of the longer lines whose requests are under way. Then no more is read of one.
const ROOM: usize = 64 << 10;

/// How long a line waits for room before it is refused.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most messages that wait for the client to read them; then no more of its own are read.
const UNREAD: usize = 64;

/// How long the client may take to read the last messages.
const GRACE: Duration = Duration::from_secs(5);

/// Both streams.
#[derive(Debug)]
pub struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    /// What is answered to a line whose rest is passed over.
    refused: Option<String>,
    /// What there is for lines, and what this one has of it.
    all_room: Arc<Semaphore>,
    room: Option<OwnedSemaphorePermit>,
    /// Until when it waits for that.
    waits: Option<Instant>,
    /// What is answered here, and not yet on its way.
    answers: VecDeque<String>,
    open: Arc<Open>,
    /// Whether the session has begun: what needs no answer means nothing before, and rmcp ends at it.
    has_begun: bool,
    output: Option<mpsc::Sender<Vec<u8>>>,
}

/// What writes the lines.
#[derive(Debug)]
pub struct Writer(JoinHandle<()>);

impl Writer {
    /// Waits until all is written, once the lines are gone, or until the client has taken too long to read it.
    pub async fn end(self) {
        let _ = tokio::time::timeout(GRACE, self.0).await;
    }
}

/// The requests without a result, with the room of their lines.
#[derive(Debug, Default)]
pub struct Open(Mutex<HashMap<RequestId, Option<OwnedSemaphorePermit>>>);

impl Open {
    /// Takes the room of a request's line from the protocol, which may forget the request before its call has ended.
    pub fn room_of(&self, id: &RequestId) -> Option<OwnedSemaphorePermit> {
        self.lock().get_mut(id)?.take()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Option<OwnedSemaphorePermit>>> {
        lock(&self.0)
    }
}

impl<R: AsyncRead + Unpin + Send> Lines<R> {
    /// Begins to write, in the runtime.
    pub fn new<W: AsyncWrite + Unpin + Send + 'static>(input: R, mut output: W) -> (Self, Writer) {
        let (sender, mut lines) = mpsc::channel::<Vec<u8>>(UNREAD);
        let writer = tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                if output.write_all(&line).await.is_err() || output.flush().await.is_err() {
                    return;
                }
            }
        });
        let lines = Self {
            input: BufReader::new(input),
            line: Vec::new(),
            refused: None,
            all_room: Arc::new(Semaphore::new(ROOM)),
            room: None,
            waits: None,
            answers: VecDeque::new(),
            open: Arc::default(),
            has_begun: false,
            output: Some(sender),
        };
        (lines, Writer(writer))
    }

    /// Returns what the requests that are under way have.
    pub fn open(&self) -> Arc<Open> {
        Arc::clone(&self.open)
    }

    /// Waits for room for a line that is not short, or refuses it.
    async fn make_room(&mut self) {
        if self.line.len() <= SMALL || self.room.is_some() {
            return;
        }
        let until = *self.waits.get_or_insert_with(|| Instant::now() + PATIENCE);
        // All that it may need: how long it will be is not known.
        let all = Arc::clone(&self.all_room).acquire_many_owned(kib(LINE));
        match timeout_at(until, all).await {
            Ok(room) => self.room = room.ok(),
            Err(_) => self.refused = Some(message::no_room(&std::mem::take(&mut self.line))),
        }
        self.waits = None;
    }

    /// Reads to the end of a line, or of the input: None if nothing is left there. May be dropped at any time, and called
    /// again.
    async fn read_line(&mut self) -> Option<Line> {
        loop {
            self.make_room().await;
            // As at its end.
            let available = self.input.fill_buf().await.unwrap_or_default();
            let end = available.iter().position(|&byte| byte == b'\n');
            let piece = available.get(..end.unwrap_or(available.len()));
            let piece = piece.unwrap_or_default();
            let is_over = available.is_empty();
            if is_over && self.line.is_empty() && self.refused.is_none() {
                return None;
            }
            if self.line.len() + piece.len() > LINE {
                self.refused = Some(message::too_long(LINE));
                self.line = Vec::new();
                self.room = None;
            }
            if self.refused.is_none() {
                self.line.extend_from_slice(piece);
            }
            let used = piece.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() || is_over {
                let line = std::mem::take(&mut self.line);
                if let Some(room) = &mut self.room {
                    let rest = room
                        .num_permits()
                        .saturating_sub(line.len().div_ceil(1 << 10));
                    drop(room.split(rest));
                }
                return Some(match self.refused.take() {
                    Some(answer) => Line::Refused(vec![answer]),
                    None => message::decode(&line),
                });
            }
        }
    }

    /// Returns a message that rmcp is to have.
    fn admit(
        &mut self,
        message: ClientJsonRpcMessage,
        room: Option<OwnedSemaphorePermit>,
    ) -> Option<ClientJsonRpcMessage> {
        match &message {
            JsonRpcMessage::Request(request) => {
                let mut open = self.open.lock();
                let why = if open.contains_key(&request.id) {
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
                open.insert(request.id.clone(), room);
                drop(open);
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
                    self.open.lock().remove(id);
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
            self.open.lock().remove(id);
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
            let line = self.read_line().await?;
            let room = self.room.take();
            match line {
                Line::Message(message) => {
                    if let Some(message) = self.admit(*message, room) {
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
        Ok(())
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use tokio::io::AsyncReadExt;

    use super::*;

    /// Returns what the next message is, unless the lines wait.
    fn next(lines: &mut Lines<&[u8]>) -> Option<RequestId> {
        let mut next = std::pin::pin!(lines.receive());
        let mut context = Context::from_waker(Waker::noop());
        match next.as_mut().poll(&mut context) {
            Poll::Ready(Some(JsonRpcMessage::Request(request))) => Some(request.id),
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => None,
        }
    }

    #[test]
    fn lines_whose_calls_are_under_way_are_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        let _in = runtime.enter();
        let call = |id: usize, length: usize| {
            let text = "x".repeat(length);
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{text}"}}}}"#
            ) + "\n"
        };
        let number = |id: usize| Some(RequestId::Number(i64::try_from(id).unwrap()));
        let (most, long) = ((ROOM << 10) / LINE, LINE - (1 << 10));
        let mut text: String = (0..most).map(|id| call(id, long)).collect();
        // A short one needs no room.
        text += &call(100, 10);
        text += &call(101, SMALL * 2);
        let (mut lines, _writer) = Lines::new(text.as_bytes(), tokio::io::sink());
        for id in (0..most).chain([100]) {
            assert_eq!(next(&mut lines), number(id));
        }
        assert_eq!(next(&mut lines), None);
        // A client that cancels a call has room again once the call has ended.
        let room = lines.open.room_of(&RequestId::Number(1));
        assert!(room.is_some());
        lines.open.lock().remove(&RequestId::Number(1));
        assert_eq!(next(&mut lines), None);
        drop(room);
        assert_eq!(next(&mut lines), number(101));
        // It takes no more than it needs.
        assert!(lines.all_room.available_permits() > kib(long) as usize / 2);
    }

    #[test]
    fn what_was_answered_is_written_when_the_lines_are_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        runtime.block_on(async {
            // A client that reads byte by byte.
            let (mut client, output) = tokio::io::duplex(1);
            let (mut lines, writer) = Lines::new(&b"nonsense\n"[..], output);
            assert!(lines.receive().await.is_none());
            drop(lines);
            let mut answer = String::new();
            tokio::join!(writer.end(), async {
                client.read_to_string(&mut answer).await.unwrap();
            });
            assert!(answer.ends_with("}\n"), "{answer}");
        });
    }
}
