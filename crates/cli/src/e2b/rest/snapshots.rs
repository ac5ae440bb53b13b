//! Snapshots, which are templates as well.

use std::sync::Arc;

use hyper::{StatusCode, Uri};
use micabox::Snapshot;
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{self, Page};
use crate::e2b::http::{self, Answer, blocking, query};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::{Server, token};

/// The body of a request for one.
#[derive(Debug, Deserialize)]
pub struct New {
    name: Option<String>,
    /// Whether to save the memory; unless that is said, it is saved where it can be.
    memory: Option<bool>,
}

/// Saves a sandbox, which continues.
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
    let (all, saved) = (server.sandboxes.clone(), name.clone());
    blocking(move || {
        let sandbox = &served.sandbox;
        // A snapshot of this name is replaced.
        match all.remove_snapshot(&saved) {
            Ok(()) | Err(micabox::Error::NoSuchSnapshot(_)) => {}
            Err(error) => return Err(error.into()),
        }
        match new.memory {
            Some(true) => sandbox.snapshot_with_memory(&saved).map(drop),
            Some(false) => sandbox.snapshot(&saved).map(drop),
            None => sandbox
                .snapshot_with_memory(&saved)
                .map(drop)
                .or_else(|_| sandbox.snapshot(&saved).map(drop)),
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
    let page = Page::of(uri)?;
    let (sandbox, name) = (query(uri, "sandboxID"), query(uri, "name"));
    let all = server.sandboxes.clone();
    blocking(move || {
        let of = match &sandbox {
            // One that is gone has the beginning of its ID in the names of its snapshots alone.
            Some(id) => all.get(id).ok().map(|found| found.record().name.clone()),
            None => None,
        };
        let short = sandbox.as_deref().and_then(|id| id.get(..12));
        let is_of = |snapshot: &Snapshot| {
            sandbox.is_none()
                || of.as_ref().is_some_and(|name| *name == snapshot.sandbox)
                || short.is_some_and(|id| snapshot.name.starts_with(&format!("{id}-")))
        };
        let mut found = all.snapshots()?;
        found.retain(|one| is_of(one) && name.as_ref().is_none_or(|name| *name == one.name));
        let (shown, next) = page.cut(found);
        let shown: Vec<_> = shown.iter().map(|one| view(&one.name)).collect();
        Ok(list::reply(&shown, next))
    })
    .await
}

/// Removes a snapshot. Images are not removed: other programs have them too.
pub async fn remove(server: &Arc<Server>, name: &str) -> Answer {
    let (all, name) = (server.sandboxes.clone(), name.to_owned());
    blocking(move || Ok(all.remove_snapshot(&name)?)).await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}
