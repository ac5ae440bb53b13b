//! Contexts: interpreters that stay.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use micabox::{FileKind, Sandboxes};
use micabox_async::Handle;
use micabox_ground::lock;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::interpreter::Interpreter;
use super::language;
use crate::e2b::envd::Caller;
use crate::e2b::http::{Pieces, blocking};
use crate::e2b::places::{self, Account, Bounds};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::{self, Served};
use crate::e2b::token;

/// How long an interrupted interpreter may take until it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Time between two interrupts of the same code.
const AGAIN: Duration = Duration::from_millis(100);

/// The contexts of all sandboxes, by the sandboxes' IDs.
#[derive(Debug, Default)]
pub struct Contexts(Mutex<HashMap<String, Vec<Arc<Context>>>>);

/// An interpreter, which is started when it is needed.
#[derive(Debug)]
pub struct Context {
    id: String,
    language: &'static str,
    directory: PathBuf,
    /// Whether it is the one for code without a context.
    is_common: bool,
    /// Locked while code runs.
    interpreter: tokio::sync::Mutex<Option<Interpreter>>,
    /// The interpreter's process, which is killed to restart it.
    process: Mutex<Option<Handle>>,
    account: Account,
    _permit: places::Permit,
}

impl Contexts {
    /// Returns a sandbox's contexts.
    pub fn of(&self, sandbox: &str) -> Vec<Arc<Context>> {
        self.lock().get(sandbox).cloned().unwrap_or_default()
    }

    /// Finds a sandbox's context.
    pub fn find(&self, sandbox: &str, id: &str) -> Result<Arc<Context>, Problem> {
        let mut all = self.of(sandbox).into_iter();
        let found = all.find(|context| context.id == id);
        found.ok_or_else(|| Problem::not_found(format!("Context {id} not found")))
    }

    /// Returns the context for code without one.
    pub async fn common(
        &self,
        bounds: &Bounds,
        sandboxes: &Sandboxes,
        served: &Served,
    ) -> Result<Arc<Context>, Problem> {
        let is_common = |context: &Arc<Context>| context.is_common;
        match self.of(served.id()).into_iter().find(is_common) {
            Some(context) => Ok(context),
            None => self.add(bounds, sandboxes, served, None, true).await,
        }
    }

    /// Makes a context.
    pub async fn make(
        &self,
        bounds: &Bounds,
        sandboxes: &Sandboxes,
        served: &Served,
        language: Option<String>,
        directory: Option<String>,
    ) -> Result<Arc<Context>, Problem> {
        language::checked(language)?;
        self.add(bounds, sandboxes, served, directory, false).await
    }

    async fn add(
        &self,
        bounds: &Bounds,
        sandboxes: &Sandboxes,
        served: &Served,
        directory: Option<String>,
        is_common: bool,
    ) -> Result<Arc<Context>, Problem> {
        self.forget_lost();
        let room = match bounds.contexts.take(served.id()) {
            Ok(room) => room,
            Err(_) => {
                self.forget_ended(sandboxes).await?;
                bounds.contexts.take(served.id())?
            }
        };
        let caller = Caller::of(served, None).await?;
        let directory = match directory {
            None => caller.base().to_owned(),
            Some(directory) => {
                let path = caller.path(&directory).await?;
                if caller.files().stat(&path).await?.kind != FileKind::Directory {
                    let message = format!("{directory} is not a directory");
                    return Err(Problem::invalid(message));
                }
                path
            }
        };
        let id = token::random();
        let context = Arc::new(Context {
            id: id.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?,
            language: language::PYTHON,
            directory,
            is_common,
            interpreter: tokio::sync::Mutex::default(),
            process: Mutex::default(),
            account: Account::new(bounds, served.id()),
            _permit: room,
        });
        let mut all = self.lock();
        let ours = all.entry(served.id().to_owned()).or_default();
        if let Some(other) = ours.iter().find(|other| is_common && other.is_common) {
            // Two have asked for the first one.
            return Ok(Arc::clone(other));
        }
        // Clients take the last one for the newest.
        let at = if is_common { 0 } else { ours.len() };
        ours.insert(at, Arc::clone(&context));
        Ok(context)
    }

    /// Removes a context, and ends its interpreter.
    pub async fn remove(&self, sandbox: &str, id: &str) -> Result<(), Problem> {
        let context = self.find(sandbox, id)?;
        if let Some(ours) = self.lock().get_mut(sandbox) {
            ours.retain(|other| other.id != id);
        }
        context.restart().await;
        Ok(())
    }

    /// Forgets sandboxes that are not there any more.
    async fn forget_ended(&self, sandboxes: &Sandboxes) -> Result<(), Problem> {
        let all = sandboxes.clone();
        let there = blocking(move || sandbox::all(&all)).await?;
        self.lock()
            .retain(|id, _| there.iter().any(|served| served.id() == id));
        Ok(())
    }

    /// Forgets sandboxes that ended by themselves, as far as their interpreters say so.
    fn forget_lost(&self) {
        let mut all = self.lock();
        all.retain(|_, contexts| !contexts.iter().any(|context| context.is_lost()));
    }

    /// Forgets a sandbox that is gone.
    pub fn forget(&self, sandbox: &str) {
        self.lock().remove(sandbox);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Arc<Context>>>> {
        lock(&self.0)
    }
}

impl Context {
    /// Describes it.
    pub fn view(&self) -> Value {
        json!({"id": self.id, "language": self.language, "cwd": self.directory.to_string_lossy()})
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Option<Handle>> {
        lock(&self.process)
    }

    fn is_lost(&self) -> bool {
        let kept = self.interpreter.try_lock();
        kept.is_ok_and(|kept| kept.as_ref().is_some_and(Interpreter::is_lost))
    }

    /// Ends its interpreter, and with it the code that it runs; the next code has a new one.
    pub async fn restart(&self) {
        if let Some(process) = self.process().take() {
            process.signal(Signal::KILL.as_raw());
        }
        if let Ok(mut interpreter) = timeout(GRACE, self.interpreter.lock()).await {
            interpreter.take();
        }
    }

    /// Runs code, and sends what it says as lines of JSON. A client that leaves interrupts it.
    pub async fn run(
        &self,
        served: &Served,
        code: &str,
        variables: BTreeMap<String, String>,
        pieces: &Pieces,
    ) {
        let mut kept = tokio::select! {
            biased;
            () = pieces.closed() => return,
            kept = self.interpreter.lock() => kept,
        };
        let run = self
            .attempt(served, code, &variables, pieces, &mut kept)
            .await;
        if let Err(problem) = run {
            kept.take();
            // A handle would keep the connection to the sandbox.
            self.process().take();
            if problem.kind == Kind::Gone {
                // Clients look whether the sandbox is there when a reply ends too early.
                let _ = pieces.send(Err(io::Error::other(problem.message))).await;
                return;
            }
            let error = json!({
                "type": "error",
                "name": "InterpreterError",
                "value": problem.message,
                "traceback": problem.message,
            });
            let _ = pieces.send(Ok(line(&error))).await;
        }
        let _ = pieces
            .send(Ok(line(&json!({"type": "end_of_execution"}))))
            .await;
    }

    async fn attempt(
        &self,
        served: &Served,
        code: &str,
        variables: &BTreeMap<String, String>,
        pieces: &Pieces,
        kept: &mut Option<Interpreter>,
    ) -> Result<(), Problem> {
        let interpreter = match kept {
            Some(interpreter) => interpreter,
            None => {
                let start = Interpreter::start(served, self.account.clone(), &self.directory);
                let started = unless_left(pieces, start).await?;
                *self.process() = Some(started.handle());
                kept.insert(started)
            }
        };
        let number = unless_left(pieces, interpreter.ask(code, variables)).await?;
        loop {
            let (reply, room) = tokio::select! {
                biased;
                () = pieces.closed() => {
                    return give_up(interpreter, number).await;
                }
                reply = interpreter.next() => reply?,
            };
            if reply.request != Some(number) {
                continue; // of one that was interrupted
            }
            let is_end = reply.kind == "end";
            if let Some(line) = reply.line() {
                let _ = pieces.send(Ok(with_room(line, room))).await;
            }
            if is_end {
                return Ok(());
            }
        }
    }
}

/// Waits for what an interpreter does before it runs code. Fails if the client leaves.
async fn unless_left<T>(
    pieces: &Pieces,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    tokio::select! {
        biased;
        () = pieces.closed() => Err(Problem::new(Kind::Gone, "the client has left")),
        done = work => done,
    }
}

/// Interrupts code until it ends: an interpreter that has not read it yet ignores that. Fails if it does not end.
async fn give_up(interpreter: &mut Interpreter, number: u64) -> Result<(), Problem> {
    let mut again = tokio::time::interval(AGAIN);
    let rest = async {
        loop {
            tokio::select! {
                _ = again.tick() => interpreter.interrupt(),
                reply = interpreter.next() => {
                    let (reply, _) = reply?;
                    if reply.request == Some(number) && reply.kind == "end" {
                        return Ok(());
                    }
                }
            }
        }
    };
    let late = || {
        Problem::new(
            Kind::Deadline,
            "the code does not end when it is interrupted",
        )
    };
    timeout(GRACE, rest).await.unwrap_or_else(|_| Err(late()))
}

/// A line that has its room until the client has it.
fn with_room(line: Vec<u8>, room: Option<places::Permit>) -> Bytes {
    struct Held(
        Vec<u8>,
        #[expect(dead_code, reason = "it is free when this is dropped")] places::Permit,
    );
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    match room {
        Some(room) => Bytes::from_owner(Held(line, room)),
        None => line.into(),
    }
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}
