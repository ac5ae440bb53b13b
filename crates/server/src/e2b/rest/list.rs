//! `GET /sandboxes`, in pages.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, FixedOffset};
use hyper::header::HeaderValue;
use hyper::{StatusCode, Uri};
use serde::Serialize;

use super::view;
use crate::e2b::http::{self, Answer, Response, waiting};
use crate::e2b::places::OF_API;
use crate::e2b::problem::Problem;
use crate::e2b::query::Query;
use crate::e2b::sandbox::{self, Served};
use crate::e2b::server::Server;

/// The parameters.
const PARAMETERS: [&str; 7] = [
    "metadata",
    "state",
    "startedAfter",
    "template",
    "order",
    "limit",
    "nextToken",
];

/// Most entries of a page.
const PAGE: usize = 100;

/// What a client wants to see.
struct Filter {
    metadata: BTreeMap<String, String>,
    states: Option<Vec<String>>,
    /// Milliseconds since 1970.
    started_after: Option<i64>,
    template: Option<String>,
}

impl Filter {
    fn of(query: &Query) -> Result<Self, Problem> {
        let metadata = query.text("metadata")?.map(pairs).transpose()?;
        let states = query.list("state");
        let unknown = |state: &&&str| !["running", "paused"].contains(*state);
        if let Some(state) = states.iter().flatten().find(unknown) {
            return Err(Problem::invalid(format!("no sandbox is `{state}`")));
        }
        let after = query.parsed::<DateTime<FixedOffset>>("startedAfter")?;
        Ok(Self {
            metadata: metadata.unwrap_or_default(),
            states: states.map(|states| states.into_iter().map(str::to_owned).collect()),
            started_after: after.map(|after| after.timestamp_millis()),
            template: query.text("template")?.map(str::to_owned),
        })
    }

    fn shows(&self, served: &Served) -> bool {
        let state = if served.is_paused() {
            "paused"
        } else {
            "running"
        };
        let label = &served.label;
        let started = i64::try_from(served.started().as_millis()).unwrap_or(i64::MAX);
        let mut wanted = self.metadata.iter();
        wanted.all(|(name, value)| label.metadata.get(name) == Some(value))
            && (self.states.as_ref()).is_none_or(|states| states.iter().any(|s| s == state))
            && self.started_after.is_none_or(|after| started >= after)
            && (self.template.as_ref()).is_none_or(|template| *template == label.template)
    }
}

/// Reads metadata as a client writes them in a query, each name once.
fn pairs(text: &str) -> Result<BTreeMap<String, String>, Problem> {
    // What the clients have quoted before they made a query of it.
    let decoded = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
        decoded.into_owned()
    };
    let mut all = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let name = decoded(&name);
        if let Some(before) = all.insert(name.clone(), decoded(&value))
            && all.get(&name) != Some(&before)
        {
            return Err(Problem::invalid(format!(
                "metadata can't be two things at once: `{name}`"
            )));
        }
    }
    Ok(all)
}

/// Lists sandboxes, newest first unless the client wants it otherwise.
pub async fn list(server: &Arc<Server>, uri: &Uri) -> Answer {
    let query = Query::of(uri, &PARAMETERS)?;
    let filter = Filter::of(&query)?;
    let is_oldest_first = match query.text("order")? {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(order) => return Err(Problem::invalid(format!("order can't be `{order}`"))),
    };
    let page = Page::of(&query)?;
    let all = server.sandboxes.clone();
    // Each is asked when its time is over.
    waiting(OF_API, move || {
        let mut all = sandbox::all(&all)?;
        all.retain(|served| filter.shows(served));
        all.sort_by_key(|served| {
            let record = served.record();
            Reverse((record.created, record.created_nanos))
        });
        if is_oldest_first {
            all.reverse();
        }
        let (shown, next) = page.cut(all);
        let shown: Vec<_> = shown.iter().map(view::listed).collect();
        Ok(reply(&shown, next))
    })
    .await
}

/// A part of a list.
pub struct Page {
    from: usize,
    count: usize,
}

impl Page {
    pub fn of(query: &Query) -> Result<Self, Problem> {
        let count = query.parsed("limit")?.unwrap_or(PAGE);
        if count == 0 {
            return Err(Problem::invalid("limit can't be 0"));
        }
        Ok(Self {
            from: query.parsed("nextToken")?.unwrap_or(0),
            count: count.min(PAGE),
        })
    }

    /// Returns the part, and where the next one begins if there is one.
    pub fn cut<T>(&self, all: Vec<T>) -> (Vec<T>, Option<usize>) {
        let next = self.from.saturating_add(self.count);
        let next = Some(next).filter(|next| *next < all.len());
        let part = all.into_iter().skip(self.from).take(self.count);
        (part.collect(), next)
    }
}

/// The reply with a part of a list.
pub fn reply(shown: &impl Serialize, next: Option<usize>) -> Response {
    let mut reply = http::json(StatusCode::OK, shown);
    if let Some(next) = next {
        let next = HeaderValue::from(next);
        reply.headers_mut().insert("x-next-token", next);
    }
    reply
}
