//! Snapshots, which are templates as well. A client reaches those that clients have made.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::{StatusCode, Uri};
use micabox::{NewSnapshot, Snapshot};
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{self, Page};
use crate::e2b::http::{self, Answer, blocking, waiting};
use crate::e2b::label;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::query::Query;
use crate::e2b::saved::{self, Saved};
use crate::e2b::server::Server;
use crate::e2b::token;

/// The parameters of a list.
const PARAMETERS: [&str; 4] = ["sandboxID", "name", "limit", "nextToken"];

/// The body of a request for one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct New {
    name: Option<String>,
    /// Whether to save the memory; unless that is said, it is saved where it can be.
    memory: Option<bool>,
}

/// Saves a sandbox, which continues. A client's snapshot of the same name is there until the new one is complete.
pub async fn create(server: &Arc<Server>, id: &str, new: New) -> Answer {
    let served = server.found(id).await?;
    let name = match &new.name {
        Some(name) => name.clone(),
        None => {
            let random = token::random();
            let random = random.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
            let digits = random.get(..8).unwrap_or_default();
            format!("{}-{digits}", served.record().short_id())
        }
    };
    let note = Saved::new(served.id(), &served.label).text();
    let to = NewSnapshot {
        name: name.clone(),
        labels: BTreeMap::from([(label::NAME.to_owned(), note)]),
        replaces: Some(saved::is_ours),
    };
    waiting(id, move || {
        let sandbox = &served.sandbox;
        match new.memory {
            Some(true) => sandbox.snapshot_with_memory(to).map(drop),
            Some(false) => sandbox.snapshot(to).map(drop),
            None => sandbox
                .snapshot_with_memory(to.clone())
                .map(drop)
                .or_else(|_| sandbox.snapshot(to).map(drop)),
        }?;
        Ok(())
    })
    .await?;
    Ok(http::json(StatusCode::CREATED, &view(&name)))
}

fn view(name: &str) -> Value {
    json!({"snapshotID": name, "names": [name]})
}

/// Lists snapshots, of one sandbox if that is asked for.
pub async fn list(server: &Arc<Server>, uri: &Uri) -> Answer {
    let query = Query::of(uri, &PARAMETERS)?;
    let page = Page::of(&query)?;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let (sandbox, name) = (owned(query.text("sandboxID")?), owned(query.text("name")?));
    let all = server.sandboxes.clone();
    blocking(move || {
        let is_shown = |snapshot: &Snapshot| {
            Saved::of(snapshot).is_some_and(|saved| {
                sandbox.as_ref().is_none_or(|id| *id == saved.sandbox)
                    && name.as_ref().is_none_or(|name| *name == snapshot.name)
            })
        };
        let mut found = all.snapshots()?;
        found.retain(is_shown);
        let (shown, next) = page.cut(found);
        let shown: Vec<_> = shown.iter().map(|one| view(&one.name)).collect();
        Ok(list::reply(&shown, next))
    })
    .await
}

/// Removes a snapshot. Images are not removed: other programs have them too.
pub async fn remove(server: &Arc<Server>, name: &str) -> Answer {
    let (all, name) = (server.sandboxes.clone(), name.to_owned());
    blocking(move || {
        if saved::find(&all, &name).is_none() {
            return Err(Problem::not_found(format!(
                "no snapshot `{name}` was made by E2B's clients"
            )));
        }
        Ok(all.remove_snapshot(&name)?)
    })
    .await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}
