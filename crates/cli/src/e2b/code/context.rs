//! Contexts: interpreters that stay.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use micabox::{FileKind, Handle};
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::interpreter::Interpreter;
use super::language;
use crate::e2b::envd::Place;
use crate::e2b::http::{Pieces, blocking};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;
use crate::e2b::token;

/// Most contexts of a sandbox.
const MOST: usize = 32;

/// How long an interrupted interpreter may take until it is killed.
const GRACE: Duration = Duration::from_secs(5);

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
    pub async fn common(&self, served: &Served) -> Result<Arc<Context>, Problem> {
        let is_common = |context: &Arc<Context>| context.is_common;
        match self.of(served.id()).into_iter().find(is_common) {
            Some(context) => Ok(context),
            None => self.add(served, None, true).await,
        }
    }

    /// Makes a context.
    pub async fn make(
        &self,
        served: &Served,
        language: Option<String>,
        directory: Option<String>,
    ) -> Result<Arc<Context>, Problem> {
        language::checked(language)?;
        self.add(served, directory, false).await
    }

    async fn add(
        &self,
        served: &Served,
        directory: Option<String>,
        is_common: bool,
    ) -> Result<Arc<Context>, Problem> {
        let again = served.clone();
        let directory = blocking(move || {
            let place = Place::of(&again, None)?;
            let Some(directory) = directory else {
                return Ok(place.base().to_owned());
            };
            let path = place.path(&directory)?;
            match place.files().stat(&path)?.kind {
                FileKind::Directory => Ok(path),
                _ => Err(Problem::invalid(format!("{directory} is not a directory"))),
            }
        });
        let directory = directory.await?;
        let id = token::random();
        let context = Arc::new(Context {
            id: id.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?,
            language: language::PYTHON,
            directory,
            is_common,
            interpreter: tokio::sync::Mutex::default(),
            process: Mutex::default(),
        });
        let mut all = self.lock();
        // A sandbox that ended by itself is noticed here.
        all.retain(|_, contexts| !contexts.iter().any(|context| context.is_lost()));
        let ours = all.entry(served.id().to_owned()).or_default();
        if let Some(other) = ours.iter().find(|other| is_common && other.is_common) {
            // Two have asked for the first one.
            return Ok(Arc::clone(other));
        }
        if ours.len() == MOST {
            let message = format!("the sandbox has {MOST} contexts already");
            return Err(Problem::new(Kind::TooMany, message));
        }
        ours.push(Arc::clone(&context));
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

    /// Forgets a sandbox that is gone.
    pub fn forget(&self, sandbox: &str) {
        self.lock().remove(sandbox);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Arc<Context>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Describes it.
    pub fn view(&self) -> Value {
        json!({"id": self.id, "language": self.language, "cwd": self.directory.to_string_lossy()})
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Option<Handle>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut kept = self.interpreter.lock().await;
        if pieces.is_closed() {
            return;
        }
        let run = self
            .attempt(served, code, &variables, pieces, &mut kept)
            .await;
        if let Err(problem) = run {
            kept.take();
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
                let started = Interpreter::start(served, Some(&self.directory)).await?;
                *self.process() = Some(started.handle());
                kept.insert(started)
            }
        };
        let number = interpreter.ask(code, variables).await?;
        loop {
            let reply = tokio::select! {
                biased;
                () = pieces.closed() => {
                    return give_up(interpreter, number).await;
                }
                reply = interpreter.next() => reply?,
            };
            if reply.get("request").and_then(Value::as_u64) != Some(number) {
                continue; // of one that was interrupted
            }
            let is_end = reply.get("type") == Some(&json!("end"));
            if let Some(told) = told(reply) {
                let _ = pieces.send(Ok(line(&told))).await;
            }
            if is_end {
                return Ok(());
            }
        }
    }
}

/// Interrupts code. Fails if it does not end.
async fn give_up(interpreter: &mut Interpreter, number: u64) -> Result<(), Problem> {
    interpreter.interrupt();
    let rest = async {
        loop {
            let reply = interpreter.next().await?;
            let is_ours = reply.get("request").and_then(Value::as_u64) == Some(number);
            if is_ours && reply.get("type") == Some(&json!("end")) {
                return Ok(());
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

/// Returns the client's message for a reply; None if there is none.
fn told(mut reply: Map<String, Value>) -> Option<Value> {
    reply.remove("request");
    let kind = reply.get("type")?.as_str()?.to_owned();
    match kind.as_str() {
        "stdout" | "stderr" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |since| since.as_nanos());
            reply.insert("timestamp".to_owned(), json!(u64::try_from(now).ok()?));
        }
        "result" => {
            let is_display = reply.remove("display").is_some();
            reply.insert("is_main_result".to_owned(), json!(!is_display));
        }
        "error" => {}
        "end" => {
            let count = reply.get("count").cloned();
            return Some(json!({"type": "number_of_executions", "execution_count": count}));
        }
        _ => return None,
    }
    Some(Value::Object(reply))
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}
