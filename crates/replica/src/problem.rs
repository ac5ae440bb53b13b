//! Errors as clients of registries expect them.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;

/// The error codes of the distribution specification that a read-only registry has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    BlobUnknown,
    DigestInvalid,
    ManifestUnknown,
    NameInvalid,
    NameUnknown,
    Unauthorized,
    /// Nobody may ask so.
    Denied,
    Unsupported,
    TooManyRequests,
    /// A range that the blob doesn't have.
    Range,
    /// None of the specification's: a registry behind this one fails.
    Gateway,
    /// None of the specification's: something failed here.
    Unknown,
}

impl Code {
    fn text(self) -> &'static str {
        match self {
            Self::BlobUnknown => "BLOB_UNKNOWN",
            Self::DigestInvalid => "DIGEST_INVALID",
            Self::ManifestUnknown => "MANIFEST_UNKNOWN",
            Self::NameInvalid => "NAME_INVALID",
            Self::NameUnknown => "NAME_UNKNOWN",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::Denied => "DENIED",
            Self::Unsupported => "UNSUPPORTED",
            Self::TooManyRequests => "TOOMANYREQUESTS",
            Self::Range => "RANGE_INVALID",
            Self::Gateway | Self::Unknown => "UNKNOWN",
        }
    }

    pub fn status(self) -> StatusCode {
        match self {
            Self::BlobUnknown | Self::ManifestUnknown | Self::NameUnknown => StatusCode::NOT_FOUND,
            Self::DigestInvalid | Self::NameInvalid => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::Unsupported => StatusCode::NOT_FOUND,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::Range => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::Gateway => StatusCode::BAD_GATEWAY,
            Self::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Why a request gets nothing.
#[derive(Debug)]
pub struct Problem {
    pub code: Code,
    pub message: String,
    /// When to ask again.
    pub after: Option<Duration>,
    /// What the server's owner is told.
    pub why: Option<String>,
}

impl Problem {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            after: None,
            why: None,
        }
    }

    /// There is more to do than this server does at a time.
    pub fn busy(message: impl Into<String>, after: Duration) -> Self {
        Self {
            after: Some(after),
            ..Self::new(Code::TooManyRequests, message)
        }
    }

    /// Something failed here. The client is told what, and the server's owner why: paths are not for clients.
    pub fn ours(what: &str, why: impl Into<String>) -> Self {
        Self {
            why: Some(why.into()),
            ..Self::new(Code::Unknown, format!("{what}: the server says why"))
        }
    }

    /// Returns the document that clients read.
    pub fn document(&self) -> Vec<u8> {
        let error = json!({"code": self.code.text(), "message": self.message});
        json!({"errors": [error]}).to_string().into_bytes()
    }
}
