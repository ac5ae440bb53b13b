//! The calls about changes of files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use micabox::{FileChange, FileKind, Watch};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::accounts::Place;
use super::events;
use crate::e2b::Server;
use crate::e2b::connect::{self, Messages, Piece, Timing};
use crate::e2b::http::{Answer, Request, blocking};
use crate::e2b::incoming::Incoming;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;

/// How often a watch checks that its client is still connected.
const LOOK: Duration = Duration::from_millis(500);

/// Changes that wait for a client.
const PIECES: usize = 64;

/// What is watched.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ask {
    path: String,
    recursive: bool,
    include_entry: bool,
}

/// Which watch.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Which {
    watcher_id: String,
}

/// A watch that has begun.
struct Begun {
    watch: Watch,
    place: Place,
    path: PathBuf,
    has_entries: bool,
}

fn begin(served: &Served, user: Option<&str>, ask: &Ask) -> Result<Begun, Problem> {
    let place = Place::of(served, user)?;
    let path = place.path(&ask.path)?;
    let stat = place.files().stat(&path)?;
    if stat.kind != FileKind::Directory {
        let message = format!("path is not a directory: {}", path.display());
        return Err(Problem::invalid(message));
    }
    let watch = place.files().watch(&path, ask.recursive)?;
    Ok(Begun {
        watch,
        place,
        path,
        has_entries: ask.include_entry,
    })
}

impl Begun {
    /// Sends changes until the client is gone: `tell` returns false then.
    fn run(mut self, mut tell: impl FnMut(Told) -> bool) {
        loop {
            let told = match self.watch.next_within(LOOK) {
                Ok(Some(event)) if event.change == FileChange::Overflow => Told::Missing,
                Ok(Some(event)) => match events::of(&event) {
                    Some(mut told) => {
                        if self.has_entries {
                            events::complete(&mut told, &event, self.place.files(), &self.path);
                        }
                        Told::Event(told)
                    }
                    None => continue,
                },
                Ok(None) => Told::Nothing,
                Err(error) => Told::End(error.into()),
            };
            let is_over = matches!(told, Told::End(_));
            if !tell(told) || is_over {
                return;
            }
        }
    }
}

/// What a watch says.
enum Told {
    Event(Value),
    /// Changes that it does not know.
    Missing,
    /// Nothing has changed for a while.
    Nothing,
    End(Problem),
}

/// `CreateWatcher`
pub async fn create(
    server: &Arc<Server>,
    served: Served,
    user: Option<String>,
    ask: Ask,
) -> Result<Value, Problem> {
    let ticket = server.watchers.ticket()?;
    let id = served.id().to_owned();
    let begun = blocking(move || begin(&served, user.as_deref(), &ask)).await?;
    let (name, changes) = server.watchers.keep(&id)?;
    let (server, kept) = (Arc::clone(server), name.clone());
    tokio::task::spawn_blocking(move || {
        let _ticket = ticket;
        begun.run(|told| {
            let Some(watcher) = changes.upgrade() else {
                return false;
            };
            match told {
                Told::Event(event) => watcher.push(event),
                Told::Missing => watcher.miss(),
                Told::Nothing => {}
                Told::End(why) if why.kind == Kind::Gone => {
                    // A sandbox that has ended takes no requests.
                    let _ = server.watchers.remove(&id, &kept);
                }
                Told::End(why) => watcher.end(why),
            }
            true
        });
    });
    Ok(json!({"watcherId": name}))
}

/// `GetWatcherEvents`
pub fn events(server: &Server, served: &Served, which: &Which) -> Result<Value, Problem> {
    let watcher = server.watchers.find(served.id(), &which.watcher_id)?;
    Ok(json!({"events": watcher.take()?}))
}

/// `RemoveWatcher`
pub fn remove(server: &Server, served: &Served, which: &Which) -> Result<Value, Problem> {
    server.watchers.remove(served.id(), &which.watcher_id)?;
    Ok(json!({}))
}

/// `WatchDir`
pub async fn stream(
    server: Arc<Server>,
    served: Served,
    user: Option<String>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let told = tell(&server, served, user, body).await;
    let timing = Timing::of(&head.headers);
    Ok(connect::relay(told, timing, &json!({"keepalive": {}})))
}

async fn tell(
    server: &Server,
    served: Served,
    user: Option<String>,
    body: Incoming,
) -> Result<mpsc::Receiver<Piece>, Problem> {
    let ask: Ask = Messages::new(body).only().await?;
    let ticket = server.watchers.ticket()?;
    let begun = blocking(move || begin(&served, user.as_deref(), &ask)).await?;
    let (pieces, rest) = mpsc::channel(PIECES);
    let start = connect::message(&json!({"start": {}}));
    let _ = pieces.send(Piece::Message(start)).await;
    tokio::task::spawn_blocking(move || {
        let _ticket = ticket;
        begun.run(|told| {
            let piece = match told {
                Told::Nothing => return !pieces.is_closed(),
                Told::Event(event) => {
                    Piece::Message(connect::message(&json!({"filesystem": event})))
                }
                Told::Missing => {
                    let message = "there were too many changes, and some are missing";
                    Piece::End(Some(Problem::new(Kind::TooMany, message)))
                }
                Told::End(why) => Piece::End(Some(why)),
            };
            let is_over = matches!(piece, Piece::End(_));
            pieces.blocking_send(piece).is_ok() && !is_over
        });
    });
    Ok(rest)
}
