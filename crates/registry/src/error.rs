//! What can go wrong between a registry and us, and whether asking again may help.

use std::time::Duration;

use crate::credentials::CredentialError;
use micabox_oci::Digest;

/// Why something could not be had from a registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {direction} {host}: {reason}", direction = direction.of(what))]
pub struct RegistryError {
    /// What was to be done.
    pub direction: Direction,
    /// What was asked for: a reference, or a blob's digest.
    pub what: String,
    /// Who was asked: a registry or a mirror.
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

/// Which way something was to go.
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
    /// No connection: no such host, nobody listening, no network.
    #[error("cannot connect to {host}: {problem}")]
    Connect {
        /// The registry, its token server, or where it redirects to.
        host: String,
        /// What the system said.
        problem: String,
    },
    /// A connection, but no trust.
    #[error("no secure connection: {0}")]
    Tls(String),
    /// The other side went silent.
    #[error("nothing arrived for {} seconds", .0.as_secs_f32())]
    Stalled(Duration),
    /// The other side hung up.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// 401: credentials are missing or wrong.
    #[error("{0}")]
    Unauthorized(Unauthorized),
    /// 403.
    #[error("access denied{}", colon(.0))]
    Forbidden(String),
    /// 404 for a manifest.
    #[error("it has no such image or tag{}", colon(.0))]
    NoImage(String),
    /// 404 for a blob.
    #[error("it lacks this part of the image, which its manifest names")]
    NoBlob,
    /// 404 for a repository that is to get something.
    #[error("it has no such repository, and makes none{}", colon(.0))]
    NoRepository(String),
    /// 413.
    #[error(
        "it takes no transfer of that size{}: the registry, or a proxy in front of it, has a \
         limit that must be raised there", colon(.0)
    )]
    TooMuch(String),
    /// 429.
    #[error("it limits how often it may be asked{}: wait, or log in for a higher limit", wants(.0))]
    RateLimited(Option<Duration>),
    /// 5xx, or another answer that says: later.
    #[error("it answers {status}{}", colon(message))]
    Server {
        /// The HTTP status.
        status: u16,
        /// What it says about it.
        message: String,
        /// How long it wants us to wait.
        retry_after: Option<Duration>,
    },
    /// An answer that no registry should give.
    #[error("it answers {status}{}", colon(message))]
    Unexpected {
        /// The HTTP status.
        status: u16,
        /// What it says about it.
        message: String,
    },
    /// A redirect that can't be followed.
    #[error("its redirect can't be followed: {0}")]
    Redirect(String),
    /// The token server's answer is unusable.
    #[error("its token server {0}")]
    Token(String),
    /// A document that is too large to be one.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(u64),
    /// A blob that isn't as long as the manifest says.
    #[error("it is {actual} bytes long, but the manifest says {declared}")]
    Size {
        /// Bytes, according to the manifest.
        declared: u64,
        /// Bytes, according to the registry.
        actual: u64,
    },
    /// Something else than what was asked for.
    #[error("its digest is {actual} instead of {expected}: it was damaged or replaced")]
    Digest {
        /// What was asked for.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// The settings for this registry can't be applied.
    #[error("{0}")]
    Settings(String),
    /// The last of several attempts.
    #[error("{last} (gave up after {attempts} attempts)")]
    GaveUp {
        /// How many there were.
        attempts: u32,
        /// How the last one ended.
        last: Box<Reason>,
    },
}

/// Why a registry doesn't let us in, in the order in which to look for the cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// Nobody logged in.
    #[error("there is no such image, or it wants a login: `docker login {0}`, then try again")]
    Anonymous(String),
    /// Nobody logged in, and nobody may push without.
    #[error("it wants a login: `docker login {0}`, then try again")]
    AnonymousPush(String),
    /// Somebody did, but that isn't enough.
    #[error("it refuses the credentials{}: `docker login {registry}` again, or check that they \
             give access to this repository", user.as_deref().map(|user| format!(" of `{user}`")).unwrap_or_default())]
    Refused {
        /// Where to log in.
        registry: String,
        /// Whose credentials, if that is known.
        user: Option<String>,
    },
    /// There seem to be credentials.
    #[error("it wants a login. {0}")]
    Unavailable(CredentialError),
    /// The registry asks in a way we don't know.
    #[error("it wants a kind of login that isn't known: {0}")]
    Scheme(String),
}

fn colon(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(": {message}"),
    }
}

fn wants(pause: &Option<Duration>) -> String {
    pause
        .map(|pause| format!(" and asks for a pause of {} seconds", pause.as_secs()))
        .unwrap_or_default()
}

impl Reason {
    /// Whether the same question may be answered differently in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::Stalled(_)
                | Self::Broken(_)
                | Self::RateLimited(_)
                | Self::Server { .. }
        )
    }

    /// Whether another registry with the same image may be asked instead. Not after it sent
    /// something: whoever serves altered bytes should be noticed, not worked around.
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

    /// Whether it says that the host as such is of no use at the moment.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::GaveUp { last, .. } => last.is_outage(),
            Self::Tls(_) => true,
            other => other.is_passing(),
        }
    }

    /// How long the registry wants us to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited(pause) => *pause,
            Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
