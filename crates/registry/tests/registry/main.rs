//! Credentials and headers.

mod credentials;
mod headers;
mod mirrors;
