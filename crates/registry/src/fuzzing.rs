//! Entry points for `fuzz/` to the parsers of registries' response headers.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::auth::Challenge;
use crate::{retry, transfer};

/// Parses `WWW-Authenticate` into its challenges: scheme, realm, service and scope.
pub fn challenges(value: &[u8]) -> Vec<[Option<String>; 4]> {
    let fields = |challenge: &Challenge| {
        let get = |name| challenge.get(name).map(str::to_owned);
        let scheme = Some(challenge.scheme.clone());
        [scheme, get("realm"), get("service"), get("scope")]
    };
    let found = Challenge::all(&headers(WWW_AUTHENTICATE, value));
    found.iter().map(fields).collect()
}

/// Parses `Content-Range` into the first byte, the last one and the total length.
pub fn content_range(value: &str) -> Option<(u64, Option<u64>, Option<u64>)> {
    let range = transfer::ContentRange::parse(value)?;
    Some((range.first, range.last, range.total))
}

/// Parses `Retry-After` into the requested pause.
pub fn retry_after(value: &[u8]) -> Option<Duration> {
    retry::retry_after(&headers(RETRY_AFTER, value))
}

fn headers(name: HeaderName, value: &[u8]) -> HeaderMap {
    let value = HeaderValue::from_bytes(value).ok();
    value.map(|value| (name, value)).into_iter().collect()
}
