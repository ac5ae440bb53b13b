//! The calls about changes of files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use micabox::{FileChange, FileEvent, FileKind};
use micabox_async::Watch;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::accounts::Caller;
use super::entry;
use super::events::Event;
use super::watchers::Watcher;
use crate::e2b::connect::{self, Done, Messages, Piece, Timing};
use crate::e2b::http::{self, Answer, Request};
use crate::e2b::incoming::Incoming;
use crate::e2b::places;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;
use crate::e2b::server::Server;

/// How long a sandbox may take to say what has changed.
const ANSWER: Duration = Duration::from_secs(30);

/// Changes that wait for a client.
const PIECES: usize = 64;

/// What is watched.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Ask {
    path: String,
    recursive: bool,
    #[serde(alias = "include_entry")]
    include_entry: bool,
    /// Whether what other machines have may be watched, which is never refused here.
    #[serde(alias = "allow_network_mounts", rename = "allowNetworkMounts")]
    _allow_network_mounts: bool,
}

/// Which watch.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Which {
    #[serde(alias = "watcher_id")]
    watcher_id: String,
}

/// A watch that has begun.
struct Begun {
    watch: Watch,
    shown: Shown,
    /// Until it ends.
    _permit: places::Permit,
}

/// What is said of a change.
struct Shown {
    caller: Caller,
    path: PathBuf,
    has_entries: bool,
}

async fn begin(
    server: &Server,
    served: &Served,
    user: Option<&str>,
    ask: Ask,
) -> Result<Begun, Problem> {
    let room = server.watchers.room(&server.bounds.watches, served.id());
    let room = room.await?;
    let caller = Caller::of(served, user).await?;
    let path = caller.path(&ask.path).await?;
    let stat = caller.files().stat(&path).await?;
    if stat.kind != FileKind::Directory {
        let message = format!("path is not a directory: {}", path.display());
        return Err(Problem::invalid(message));
    }
    Ok(Begun {
        watch: caller.files().watch(&path, ask.recursive).await?,
        shown: Shown {
            caller,
            path,
            has_entries: ask.include_entry,
        },
        _permit: room,
    })
}

impl Begun {
    /// Waits for a change. Nothing is lost if the future is dropped.
    async fn next(&mut self) -> Result<FileEvent, Problem> {
        match self.watch.next().await {
            Some(event) => Ok(event?),
            // What is watched is gone, and nothing more changes.
            None => std::future::pending().await,
        }
    }
}

impl Shown {
    async fn report(&self, event: Result<FileEvent, Problem>) -> Report {
        let event = match event {
            Ok(event) => event,
            Err(problem) => return Report::End(problem),
        };
        if event.change == FileChange::Overflow {
            return Report::Missing;
        }
        let Some(mut change) = Event::of(&event) else {
            return Report::Nothing;
        };
        if self.has_entries {
            let files = self.caller.files();
            let path = self.path.join(&event.path);
            change.entry = entry::of(files, &path).await.ok();
        }
        Report::Event(Box::new(change))
    }
}

/// What a watch says.
enum Report {
    Event(Box<Event>),
    /// Changes that it does not know.
    Missing,
    /// A change that clients know nothing of.
    Nothing,
    End(Problem),
}

/// `CreateWatcher`
pub async fn create(
    server: &Arc<Server>,
    served: &Served,
    user: Option<&str>,
    ask: Ask,
) -> Result<Value, Problem> {
    let begun = begin(server, served, user, ask).await?;
    let id = served.id().to_owned();
    let (asks, asked) = mpsc::channel(1);
    let (name, watcher) = server.watchers.keep(&id, asks)?;
    let (server, kept) = (Arc::clone(server), name.clone());
    tokio::spawn(async move {
        if let Some(why) = follow(begun, &watcher, asked).await
            && why.kind == Kind::Gone
        {
            // A sandbox that has ended takes no requests.
            let _ = server.watchers.remove(&id, &kept);
        }
    });
    Ok(json!({"watcherId": name}))
}

/// Notes changes until the watch is removed, or its end, which is returned.
async fn follow(
    mut begun: Begun,
    watcher: &std::sync::Weak<Watcher>,
    mut asked: mpsc::Receiver<oneshot::Sender<()>>,
) -> Option<Problem> {
    loop {
        let (events, answer) = tokio::select! {
            // None when it is removed.
            answer = asked.recv() => {
                let answer = answer?;
                match timeout(ANSWER, begun.watch.so_far()).await {
                    Ok(Ok(events)) => (events.into_iter().map(Ok).collect(), Some(answer)),
                    Ok(Err(error)) => (vec![Err(error.into())], Some(answer)),
                    Err(_) => continue,
                }
            }
            event = begun.next() => (vec![event], None),
        };
        for event in events {
            let report = begun.shown.report(event).await;
            let watcher = watcher.upgrade()?;
            match report {
                Report::Event(event) => watcher.push(&event),
                Report::Missing => watcher.miss(),
                Report::Nothing => {}
                Report::End(why) => {
                    watcher.end(why.clone());
                    return Some(why);
                }
            }
        }
        if let Some(answer) = answer {
            // The client may be gone.
            let _ = answer.send(());
        }
    }
}

/// `GetWatcherEvents`
pub async fn events(server: &Server, served: &Served, which: Which) -> Answer {
    let watcher = server.watchers.find(served.id(), &which.watcher_id)?;
    watcher.ask(ANSWER).await?;
    Ok(http::json_text(watcher.take()?))
}

/// `RemoveWatcher`
pub fn remove(server: &Server, served: &Served, which: &Which) -> Result<Done, Problem> {
    server.watchers.remove(served.id(), &which.watcher_id)?;
    Ok(Done {})
}

/// `WatchDir`
pub async fn stream(
    server: Arc<Server>,
    served: Served,
    user: Option<String>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let timing = Timing::of(&head.headers)?;
    let pieces = send(&server, served, user, body).await;
    Ok(connect::relay(pieces, timing, &json!({"keepalive": {}})))
}

/// Sends changes to a client as they happen.
async fn send(
    server: &Server,
    served: Served,
    user: Option<String>,
    body: Incoming,
) -> Result<mpsc::Receiver<Piece>, Problem> {
    let ask: Ask = Messages::new(body).only().await?;
    let mut begun = begin(server, &served, user.as_deref(), ask).await?;
    let (pieces, rest) = mpsc::channel(PIECES);
    let start = connect::message(&json!({"start": {}}));
    let _ = pieces.send(Piece::Message(start)).await;
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                () = pieces.closed() => return,
                event = begun.next() => event,
            };
            let piece = match begun.shown.report(event).await {
                Report::Nothing => continue,
                Report::Event(event) => {
                    Piece::Message(connect::message(&json!({"filesystem": event})))
                }
                Report::Missing => {
                    let message = "there were too many changes, and some are missing";
                    Piece::End(Some(Problem::new(Kind::TooMany, message)))
                }
                Report::End(why) => Piece::End(Some(why)),
            };
            let is_over = matches!(piece, Piece::End(_));
            if pieces.send(piece).await.is_err() || is_over {
                return;
            }
        }
    });
    Ok(rest)
}
