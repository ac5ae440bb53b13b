//! What is wrong with a request, in the shapes that E2B's clients read.

use std::io;

use hyper::StatusCode;
use micabox::{Error, ErrorKind, StartFailure};
use serde_json::json;

use super::http::{self, Response};
use micabox_program::failure::Failure;

/// Why a request has no result.
#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: Kind,
    pub message: String,
}

/// What a client can do about it: a status of HTTP, and a code of the Connect protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong.
    Invalid,
    /// A token is missing or wrong.
    Unauthenticated,
    /// The sandbox does not let its user.
    Forbidden,
    /// Nothing has this name.
    NotFound,
    /// It is there already.
    Exists,
    /// It is in the state that is asked for.
    Conflict,
    /// The request is too large.
    TooLarge,
    /// Its address is too long.
    TooLong,
    /// There are too many.
    TooMany,
    /// This server does not do it.
    Unsupported,
    /// The sandbox is gone, or paused.
    Gone,
    /// Its time is over.
    Deadline,
    /// A disk is full.
    Full,
    /// This machine has failed.
    Internal,
}

impl Kind {
    /// The status of HTTP.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Exists | Self::Conflict => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooLong => StatusCode::URI_TOO_LONG,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Unsupported => StatusCode::NOT_IMPLEMENTED,
            Self::Gone => StatusCode::BAD_GATEWAY,
            Self::Deadline => StatusCode::REQUEST_TIMEOUT,
            Self::Full => StatusCode::INSUFFICIENT_STORAGE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The code of the Connect protocol.
    pub fn code(self) -> &'static str {
        match self {
            Self::Invalid => "invalid_argument",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "permission_denied",
            Self::NotFound => "not_found",
            Self::Exists => "already_exists",
            Self::Conflict => "failed_precondition",
            Self::TooLarge | Self::TooLong | Self::TooMany | Self::Full => "resource_exhausted",
            Self::Unsupported => "unimplemented",
            Self::Gone => "unavailable",
            Self::Deadline => "deadline_exceeded",
            Self::Internal => "internal",
        }
    }
}

impl Problem {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// A sandbox that is not there, in words by which E2B's clients know that.
    pub fn no_sandbox() -> Self {
        Self::new(Kind::Gone, "The sandbox was not found")
    }

    /// The same for the API.
    pub fn unknown_sandbox(id: &str) -> Self {
        Self::not_found(format!("sandbox \"{id}\" was not found"))
    }

    /// The reply of the API, and of files.
    pub fn reply(&self) -> Response {
        let status = self.kind.status();
        let body = json!({"code": status.as_u16(), "message": self.message});
        http::json(status, &body)
    }
}

/// Without its hint: that is a command of this machine's user, and not a call of E2B's.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind.map_or(Kind::Internal, of), failure.message())
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::File { source, .. } => of_file(source),
            Error::Start(failed) => match failed.reason {
                StartFailure::NoSuchUser => Kind::Unauthenticated,
                _ => Kind::Invalid,
            },
            Error::Paused | Error::DoesNotRun(_) | Error::NoSuchSandbox(_) | Error::OwnerGone => {
                return Self::no_sandbox();
            }
            error => of(error.kind()),
        };
        if kind == Kind::Gone {
            return Self::no_sandbox();
        }
        Self {
            kind,
            ..Self::from(Failure::from(error))
        }
    }
}

impl From<micabox::StoreError> for Problem {
    fn from(error: micabox::StoreError) -> Self {
        Error::from(error).into()
    }
}

fn of(kind: ErrorKind) -> Kind {
    match kind {
        ErrorKind::NotFound => Kind::NotFound,
        ErrorKind::NameInUse | ErrorKind::InUse => Kind::Conflict,
        ErrorKind::NotRunning | ErrorKind::Disconnected => Kind::Gone,
        ErrorKind::Invalid | ErrorKind::Unsupported => Kind::Invalid,
        ErrorKind::TimedOut => Kind::Deadline,
        ErrorKind::Full => Kind::Full,
        _ => Kind::Internal,
    }
}

fn of_file(error: &io::Error) -> Kind {
    use io::ErrorKind as E;
    match error.kind() {
        E::NotFound => Kind::NotFound,
        E::AlreadyExists => Kind::Exists,
        E::PermissionDenied | E::ReadOnlyFilesystem => Kind::Forbidden,
        E::StorageFull | E::QuotaExceeded => Kind::Full,
        E::NotADirectory | E::IsADirectory | E::InvalidInput | E::InvalidFilename => Kind::Invalid,
        E::DirectoryNotEmpty | E::CrossesDevices => Kind::Invalid,
        _ => Kind::Internal,
    }
}
