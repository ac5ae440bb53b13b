//! The calls of `filesystem.Filesystem`.

use std::future::ready;
use std::path::Path;
use std::sync::Arc;

use micabox::{Error, FileKind, Files};
use serde::Deserialize;
use serde_json::{Value, json};

use super::accounts::{Accounts, Place};
use super::{entry, watch};
use crate::e2b::http::{Answer, Request, blocking};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;
use crate::e2b::{Server, connect};

/// Most entries of a list.
const ENTRIES: usize = 100_000;

/// Levels of a list, if all are wanted.
const LEVELS: u32 = 256;

/// The fields of all calls but those about changes.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ask {
    path: String,
    source: String,
    destination: String,
    depth: u32,
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
    let perform: fn(&Place, &Ask) -> Result<Value, Problem> = match call {
        "CreateWatcher" => {
            return connect::call(body, |ask| watch::create(&server, served, user, ask)).await;
        }
        "GetWatcherEvents" => {
            return connect::call(body, |ask| ready(watch::events(&server, &served, &ask))).await;
        }
        "RemoveWatcher" => {
            return connect::call(body, |ask| ready(watch::remove(&server, &served, &ask))).await;
        }
        "Stat" => stat,
        "ListDir" => list,
        "MakeDir" => make,
        "Move" => rename,
        "Remove" => remove,
        call => return connect::unknown(call),
    };
    connect::call(body, |ask| {
        blocking(move || {
            let place = Place::of(&served, user.as_deref())?;
            perform(&place, &ask)
        })
    })
    .await
}

fn described(files: &Files, path: &Path) -> Result<Value, Problem> {
    let entry = entry::of(files, path, &Accounts::read(files))?;
    Ok(json!({"entry": entry}))
}

fn stat(place: &Place, ask: &Ask) -> Result<Value, Problem> {
    described(place.files(), &place.path(&ask.path)?)
}

fn list(place: &Place, ask: &Ask) -> Result<Value, Problem> {
    let path = place.path(&ask.path)?;
    let files = place.files();
    if files.stat(&path)?.kind != FileKind::Directory {
        let message = format!("path is not a directory: {}", path.display());
        return Err(Problem::invalid(message));
    }
    let accounts = Accounts::read(files);
    let mut entries = Vec::new();
    let depth = match ask.depth {
        0 => 1,
        depth => depth.min(LEVELS),
    };
    for found in files.list(&path, depth)? {
        let found = found?;
        if entries.len() == ENTRIES {
            let message = format!("the directory has more than {ENTRIES} entries");
            return Err(Problem::new(Kind::TooLarge, message));
        }
        let full = path.join(&found.path);
        entries.push(entry::describe(&full, &found.stat, found.target, &accounts));
    }
    Ok(json!({"entries": entries}))
}

fn make(place: &Place, ask: &Ask) -> Result<Value, Problem> {
    let path = place.path(&ask.path)?;
    let files = place.files();
    match files.stat(&path) {
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
    files.make_directory(&path, true)?;
    described(files, &path)
}

fn rename(place: &Place, ask: &Ask) -> Result<Value, Problem> {
    let (from, to) = (place.path(&ask.source)?, place.path(&ask.destination)?);
    let files = place.files();
    // What is missing is made only for what is there.
    files.stat_link(&from)?;
    if let Some(parent) = to.parent() {
        files.make_directory(parent, true)?;
    }
    files.rename(&from, &to, true)?;
    described(files, &to)
}

fn remove(place: &Place, ask: &Ask) -> Result<Value, Problem> {
    let path = place.path(&ask.path)?;
    match place.files().remove(&path, true) {
        // As `rm -rf`.
        Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    Ok(json!({}))
}
