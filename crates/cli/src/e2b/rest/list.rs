//! `GET /sandboxes`, in pages.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::header::HeaderValue;
use hyper::{StatusCode, Uri};
use serde::Serialize;

use super::view;
use crate::e2b::Server;
use crate::e2b::http::{self, Answer, Response, blocking, query};
use crate::e2b::problem::Problem;
use crate::e2b::sandbox::{self, Served};

/// Most entries of a page.
const PAGE: usize = 100;

/// What a client wants to see.
struct Filter {
    metadata: BTreeMap<String, String>,
    states: Option<Vec<String>>,
    template: Option<String>,
}

impl Filter {
    fn of(uri: &Uri) -> Self {
        let pairs = |text: String| -> BTreeMap<String, String> {
            // What the clients have quoted before they made a query of it.
            let decoded = |text: &str| {
                percent_encoding::percent_decode_str(text)
                    .decode_utf8_lossy()
                    .into_owned()
            };
            let pairs = form_urlencoded::parse(text.as_bytes());
            pairs
                .map(|(name, value)| (decoded(&name), decoded(&value)))
                .collect()
        };
        let text = uri.query().unwrap_or_default();
        // A list is one parameter with commas, or several.
        let states = form_urlencoded::parse(text.as_bytes());
        let states = states.filter(|(name, _)| name == "state");
        let states: Vec<String> = states
            .flat_map(|(_, value)| value.split(',').map(str::to_owned).collect::<Vec<_>>())
            .collect();
        Self {
            metadata: query(uri, "metadata").map(pairs).unwrap_or_default(),
            states: Some(states).filter(|states| !states.is_empty()),
            template: query(uri, "template"),
        }
    }

    fn shows(&self, served: &Served) -> bool {
        let state = if served.is_paused() {
            "paused"
        } else {
            "running"
        };
        let label = &served.label;
        let mut wanted = self.metadata.iter();
        wanted.all(|(name, value)| label.metadata.get(name) == Some(value))
            && (self.states.as_ref()).is_none_or(|states| states.iter().any(|s| s == state))
            && (self.template.as_ref()).is_none_or(|template| *template == label.template)
    }
}

/// Lists sandboxes, newest first unless the client wants it otherwise.
pub async fn list(server: &Arc<Server>, uri: &Uri) -> Answer {
    let filter = Filter::of(uri);
    let is_oldest_first = query(uri, "order").as_deref() == Some("asc");
    let page = Page::of(uri)?;
    let all = server.sandboxes.clone();
    blocking(move || {
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
    pub fn of(uri: &Uri) -> Result<Self, Problem> {
        let number = |name: &str| match query(uri, name) {
            None => Ok(None),
            Some(text) => {
                let number = text.parse::<usize>().map(Some);
                number.map_err(|_| Problem::invalid(format!("{name} is not a number")))
            }
        };
        Ok(Self {
            from: number("nextToken")?.unwrap_or(0),
            count: number("limit")?.unwrap_or(PAGE).clamp(1, PAGE),
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
