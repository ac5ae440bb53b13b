//! Doors for `fuzz/` to the headers of registries' answers.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::auth::Challenge;
use crate::{retry, transfer};

/// Ways to log in as `WWW-Authenticate` offers them: scheme, realm, service and scope.
pub fn challenges(value: &[u8]) -> Vec<[Option<String>; 4]> {
    let found = Challenge::all(&headers(WWW_AUTHENTICATE, value));
    let found = found.iter().map(|challenge| {
        let get = |name| challenge.get(name).map(str::to_owned);
        let scheme = Some(challenge.scheme.clone());
        [scheme, get("realm"), get("service"), get("scope")]
    });
    found.collect()
}

/// The first byte and the length in all, as `Content-Range` has them.
pub fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    transfer::content_range(value)
}

/// The pause that `Retry-After` asks for.
pub fn retry_after(value: &[u8]) -> Option<Duration> {
    retry::retry_after(&headers(RETRY_AFTER, value))
}

fn headers(name: HeaderName, value: &[u8]) -> HeaderMap {
    let value = HeaderValue::from_bytes(value).ok();
    value.map(|value| (name, value)).into_iter().collect()
}
