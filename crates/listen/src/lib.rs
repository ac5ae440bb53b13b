//! Bounds on HTTP clients that are not authenticated yet: number of connections, idle time, transfer rate.
//!
//! A server takes a connection with [`accept`], reads it through [`Patient`], and says by [`Connection::set_used`]
//! which requests were let in. [`http`] has the bounds of heads, [`ended`] is how such a server ends.

mod connections;
mod holding;
mod pace;
mod patient;

pub use connections::{CONNECTIONS, Connection, Connections};
pub use holding::Holding;
pub use pace::Pace;
pub use patient::{Paced, Patient, Reading};

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// How long a client may take for the head of a request; also how long it may wait before the next one.
pub const HEAD: Duration = Duration::from_secs(30);

/// Most bytes of the head of a request, and most headers.
const HEAD_BYTES: usize = 64 << 10;
const HEADERS: usize = 100;

/// Pause before accepting again where it failed: too many descriptors are open, for one.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns HTTP/1.1 with bounds on heads.
#[must_use]
pub fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .max_header_size(HEAD_BYTES);
    http
}

/// Waits for the next connection that has a place.
///
/// # Errors
///
/// The listener's error, if accepting won't work again.
pub async fn accept(
    listener: &TcpListener,
    connections: &Arc<Connections>,
) -> io::Result<(TcpStream, Connection)> {
    loop {
        connections.room().await;
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if is_passing(&error) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let _ = stream.set_nodelay(true);
        if let Some(connection) = connections.enter(address.ip().to_canonical()) {
            return Ok((stream, connection));
        }
    }
}

/// Returns a socket that has a byte when a signal asks this process to end (SIGINT, SIGTERM).
///
/// # Errors
///
/// The system has no sockets or handlers left.
pub fn ended() -> io::Result<UnixStream> {
    let (read, write) = std::os::unix::net::UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    UnixStream::from_std(read)
}

/// Returns whether accepting may work again: all errors but those of a listener that is none. Those of a connection
/// that failed before it was accepted, and of the network, come this way too (accept(2)).
fn is_passing(error: &io::Error) -> bool {
    let lasting = [
        Errno::BADF,
        Errno::INVAL,
        Errno::NOTSOCK,
        Errno::OPNOTSUPP,
        Errno::FAULT,
    ];
    let lasting = lasting.map(|errno| Some(errno.raw_os_error()));
    !lasting.contains(&error.raw_os_error())
}
