//! Errors of requests to a registry, and whether a retry may help.

use std::time::Duration;

use crate::credentials::CredentialError;
use micabox_oci::Digest;

/// Why a transfer from or to a registry failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {direction} {host}: {reason}", direction = direction.of(what))]
pub struct RegistryError {
    /// Direction of the transfer.
    pub direction: Direction,
    /// What was requested: a reference, or a blob's digest.
    pub what: String,
    /// The host that was asked: a registry or a mirror.
    pub host: String,
    /// What went wrong.
    #[source]
    pub reason: Box<Reason>,
}

impl RegistryError {
    pub(crate) fn new(what: &str, host: &str, reason: Reason) -> Self {
        Self {
            direction: Direction::Fetch,
            what: what.to_owned(),
            host: host.to_owned(),
            reason: Box::new(reason),
        }
    }
}

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the registry to us.
    Fetch,
    /// From us to the registry.
    Push,
}

impl Direction {
    fn of(self, what: &str) -> String {
        match self {
            Self::Fetch => format!("fetch {what} from"),
            Self::Push => format!("push {what} to"),
        }
    }
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// No connection: unknown host, no listener, no network.
    #[error("cannot connect to {host}: {problem}")]
    Connect {
        /// The registry, its token server, or where it redirects to.
        host: String,
        /// The system's error message.
        problem: String,
    },
    /// TLS failed, for example because of an untrusted certificate.
    #[error("no secure connection: {0}")]
    Tls(String),
    /// The peer sent nothing for too long.
    #[error("nothing arrived for {} seconds", .0.as_secs_f32())]
    Stalled(Duration),
    /// The peer closed the connection.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// 401: credentials are missing or wrong.
    #[error("{0}")]
    Unauthorized(Unauthorized),
    /// 403.
    #[error("access denied{}", colon(.0))]
    Forbidden(String),
    /// 404 for the interface itself.
    #[error("it is not a registry{}", colon(.0))]
    NoRegistry(String),
    /// 404 for a manifest.
    #[error("it has no such image or tag{}", colon(.0))]
    NoImage(String),
    /// 404 for a blob.
    #[error("it lacks this part of the image, which its manifest names")]
    NoBlob,
    /// 404 for a repository to push to.
    #[error("it has no such repository, and makes none{}", colon(.0))]
    NoRepository(String),
    /// 413.
    #[error(
        "it takes no transfer of that size{}: the registry, or a proxy in front of it, has a \
         limit that must be raised there", colon(.0)
    )]
    TooMuch(String),
    /// 429.
    #[error(
        "it limits how often it may be asked{}{}: wait, or log in for a higher limit",
        wants(pause),
        said(message)
    )]
    RateLimited {
        /// The pause that the registry asks for.
        pause: Option<Duration>,
        /// The response's message.
        message: String,
    },
    /// 5xx, or another response that asks for a later attempt.
    #[error("it answers {status}{}", or_phrase(message, *status))]
    Server {
        /// The HTTP status.
        status: u16,
        /// The response's message.
        message: String,
        /// The pause that the registry asks for.
        retry_after: Option<Duration>,
    },
    /// A response that no registry should send.
    #[error("it answers {status}{}", or_phrase(message, *status))]
    Unexpected {
        /// The HTTP status.
        status: u16,
        /// The response's message.
        message: String,
    },
    /// HTML where a registry's answer should be.
    #[error(
        "it sends a web page, as proxies and login pages do: open the registry's address in a browser \
         to see which"
    )]
    WebPage,
    /// A redirect that can't be followed.
    #[error("its redirect can't be followed: {0}")]
    Redirect(String),
    /// The token server's answer is unusable.
    #[error("its token server {0}")]
    Token(String),
    /// An answer to a request for a part of a blob that is not this part.
    #[error("it sends no parts of layers")]
    NoRanges,
    /// A document larger than the limit.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(u64),
    /// A blob whose length isn't the one in the manifest.
    #[error("it is {actual} bytes long, but the manifest says {declared}")]
    Size {
        /// Bytes, according to the manifest.
        declared: u64,
        /// Bytes, according to the registry.
        actual: u64,
    },
    /// Contents with another digest than the requested one.
    #[error("its digest is {actual} instead of {expected}: it was damaged or replaced")]
    Digest {
        /// The requested digest.
        expected: Digest,
        /// The digest of what was received.
        actual: Digest,
    },
    /// The settings for this registry can't be applied.
    #[error("{0}")]
    Settings(String),
    /// Every attempt failed.
    #[error("{last} (gave up after {attempts} attempts)")]
    GaveUp {
        /// Number of attempts.
        attempts: u32,
        /// Why the last one failed.
        last: Box<Reason>,
    },
}

/// Why a registry refuses access, in the order in which to look for the cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// No credentials are configured.
    #[error("no such image, or it needs a login: `mica login {0}`, then try again")]
    Anonymous(String),
    /// No credentials are configured, and a push requires some.
    #[error("it needs a login: `mica login {0}`, then try again")]
    AnonymousPush(String),
    /// The registry refuses the configured credentials.
    #[error("it refuses the credentials{}: `mica login {registry}` again, or check that they \
             give access to this repository", user.as_deref().map(|user| format!(" of `{user}`")).unwrap_or_default())]
    Refused {
        /// Where to log in.
        registry: String,
        /// User of the credentials, if known.
        user: Option<String>,
    },
    /// Credentials are configured, but can't be read.
    #[error("it needs a login. {0}")]
    Unavailable(CredentialError),
    /// The registry requires an authentication scheme that we don't support.
    #[error("it needs a kind of login that is not supported: {0}")]
    Scheme(String),
}

fn colon(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(": {message}"),
    }
}

/// Returns a response's message, or else the usual words for its status.
fn or_phrase(message: &str, status: u16) -> String {
    let status = reqwest::StatusCode::from_u16(status).ok();
    match status.and_then(|status| status.canonical_reason()) {
        Some(phrase) if message.is_empty() => format!(" ({phrase})"),
        _ => colon(message),
    }
}

/// Quotes what the registry says, if it says something.
fn said(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(" ({message})"),
    }
}

fn wants(pause: &Option<Duration>) -> String {
    pause
        .map(|pause| format!(" and asks for a pause of {} seconds", pause.as_secs()))
        .unwrap_or_default()
}

impl Reason {
    /// Returns whether a retry of the same request may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::Stalled(_)
                | Self::Broken(_)
                | Self::RateLimited { .. }
                | Self::Server { .. }
        )
    }

    /// Returns whether another registry with the same image may be asked instead. Not after this
    /// one sent contents: a host that serves altered bytes should be noticed, not worked around.
    pub(crate) fn allows_fallback(&self) -> bool {
        match self {
            Self::GaveUp { last, .. } => last.allows_fallback(),
            Self::TooLarge(_)
            | Self::Size { .. }
            | Self::Digest { .. }
            | Self::TooMuch(_)
            | Self::Settings(_) => false,
            _ => true,
        }
    }

    /// Returns whether there is no such image, as far as the registry says.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::GaveUp { last, .. } => last.is_missing(),
            Self::NoImage(_) | Self::Unauthorized(Unauthorized::Anonymous(_)) => true,
            _ => false,
        }
    }

    /// Returns whether no connection to the host could be made.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::GaveUp { last, .. } => last.is_unreachable(),
            other => matches!(other, Self::Connect { .. } | Self::Tls(_)),
        }
    }

    /// Returns whether the host as a whole is unusable at the moment.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::GaveUp { last, .. } => last.is_outage(),
            Self::Tls(_) => true,
            other => other.is_passing(),
        }
    }

    /// Returns the pause that the registry asks for.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { pause, .. } => *pause,
            Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
