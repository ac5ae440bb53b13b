//! The calls of `filesystem.Filesystem`.

use std::future::ready;
use std::path::Path;
use std::sync::Arc;

use micabox::{Error, FileKind};
use micabox_async::Files;
use serde::{Deserialize, Serialize};

use super::accounts::{Accounts, Caller};
use super::entry::Entry;
use super::{entry, watch};
use crate::e2b::call::Call;
use crate::e2b::connect;
use crate::e2b::http::{Answer, Request};
use crate::e2b::list;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;
use crate::e2b::server::Server;

/// Levels of a list, if all are wanted.
const LEVELS: u32 = 256;

/// The fields of calls for a file. What is empty is left out by clients: of a path, that is where relative ones begin.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Ask {
    path: String,
}

/// The fields of `ListDir`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct List {
    path: String,
    depth: u32,
}

/// The fields of `Move`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Move {
    source: String,
    destination: String,
}

/// The reply of most calls.
#[derive(Debug, Serialize)]
struct Described {
    entry: Entry,
}

/// Answers a call.
pub async fn answer(
    server: Arc<Server>,
    served: Served,
    user: Option<String>,
    call: &str,
    request: Request,
) -> Answer {
    if call == "WatchDir" {
        return watch::stream(server, served, user, request).await;
    }
    let body = request.into_body();
    let (server, of, user) = (&server, &served, user.as_deref());
    match call {
        "CreateWatcher" => connect::call(body, |ask| watch::create(server, of, user, ask)).await,
        "GetWatcherEvents" => connect::answer(body, |ask| watch::events(server, of, ask)).await,
        "RemoveWatcher" => connect::call(body, |ask| ready(watch::remove(server, of, &ask))).await,
        "Stat" => connect::call(body, |ask| stat(of, user, ask)).await,
        "MakeDir" => connect::call(body, |ask| make(of, user, ask)).await,
        "Move" => connect::call(body, |ask| rename(of, user, ask)).await,
        "Remove" => connect::call(body, |ask| remove(of, user, ask)).await,
        "ListDir" => {
            let call = Arc::clone(body.call());
            connect::answer(body, |ask| list(of, user, ask, call)).await
        }
        call => connect::unknown(call),
    }
}

/// Returns the path of what is to be removed or renamed, which is no home by having been forgotten.
fn named<'a>(field: &str, path: &'a str) -> Result<&'a str, Problem> {
    let missing = || Problem::invalid(format!("the {field} is missing"));
    (!path.is_empty()).then_some(path).ok_or_else(missing)
}

async fn described(files: &Files, path: &Path) -> Result<Described, Problem> {
    let entry = entry::of(files, path).await?;
    Ok(Described { entry })
}

async fn stat(served: &Served, user: Option<&str>, ask: Ask) -> Result<Described, Problem> {
    let caller = Caller::of(served, user).await?;
    described(caller.files(), &caller.path(&ask.path).await?).await
}

async fn list(served: &Served, user: Option<&str>, ask: List, call: Arc<Call>) -> Answer {
    let caller = Caller::of(served, user).await?;
    let path = caller.path(&ask.path).await?;
    let files = caller.files();
    if files.stat(&path).await?.kind != FileKind::Directory {
        let message = format!("path is not a directory: {}", path.display());
        return Err(Problem::invalid(message));
    }
    let accounts = Accounts::read(files, &call).await?;
    let depth = match ask.depth {
        0 => 1,
        depth => depth.min(LEVELS),
    };
    let mut list = list::List::new("{\"entries\":[", &call);
    let mut entries = files.entries(&path, depth).await?;
    while let Some(found) = entries.next().await {
        let found = found?;
        let full = path.join(&found.path);
        let entry = entry::describe(files, &full, &found.stat, &accounts);
        list.add(&entry.await?).await?;
    }
    Ok(list.finish("]}"))
}

async fn make(served: &Served, user: Option<&str>, ask: Ask) -> Result<Described, Problem> {
    let caller = Caller::of(served, user).await?;
    let path = caller.path(&ask.path).await?;
    let files = caller.files();
    match files.stat(&path).await {
        Ok(stat) if stat.kind == FileKind::Directory => {
            let message = format!("directory already exists: {}", path.display());
            return Err(Problem::new(Kind::Exists, message));
        }
        Ok(_) => {
            let message = format!("path exists and is no directory: {}", path.display());
            return Err(Problem::invalid(message));
        }
        Err(Error::File { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    files.make_directory(&path, true).await?;
    described(files, &path).await
}

async fn rename(served: &Served, user: Option<&str>, ask: Move) -> Result<Described, Problem> {
    let caller = Caller::of(served, user).await?;
    let from = caller.path(named("source", &ask.source)?).await?;
    let to = caller.path(named("destination", &ask.destination)?).await?;
    let files = caller.files();
    // What is missing is made only for what is there.
    files.stat_link(&from).await?;
    if let Some(parent) = to.parent() {
        files.make_directory(parent, true).await?;
    }
    files.rename(&from, &to, true).await?;
    described(files, &to).await
}

async fn remove(served: &Served, user: Option<&str>, ask: Ask) -> Result<connect::Done, Problem> {
    let caller = Caller::of(served, user).await?;
    let path = caller.path(named("path", &ask.path)?).await?;
    match caller.files().remove(&path, true).await {
        // As `rm -rf`.
        Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    Ok(connect::Done {})
}
