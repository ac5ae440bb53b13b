//! Connections: how many, how long they may say nothing, and what ends the server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::connections::{Call, Connection, Connections, Patient};
use super::{Server, http, incoming, route};
use crate::failure::Failure;
use crate::output::{print, write_stderr};

/// How long a client may take for the head of a request; also how long it may wait before the next one.
const HEAD: Duration = Duration::from_secs(30);

/// Most bytes of the head of a request, and most headers.
const HEAD_BYTES: usize = 64 << 10;
const HEADERS: usize = 100;

/// Listens where the flags say.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    if !address.ip().is_loopback() {
        write_stderr(&format!(
            "mica: {} can be reached from other machines, and what is said is not encrypted\n",
            address.ip()
        ));
    }
    TcpListener::bind(address)
        .await
        .map_err(|error| Failure::of(&error).context(&format!("listening at {address}")))
}

/// Serves until a signal ends this process.
pub async fn serve(
    server: Server,
    listener: TcpListener,
    address: SocketAddr,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::of(&error);
    let mut end = end().map_err(failed)?;
    // A program that started this one waits for these lines.
    print(&format!(
        "export E2B_API_URL=http://{address}\nexport E2B_SANDBOX_URL=http://{address}\n\
         export E2B_API_KEY={}\n",
        server.key.text()
    ))?;
    let server = Arc::new(server);
    let deadlines = tokio::spawn(Arc::clone(&server).attend());
    let connections = Arc::new(Connections::default());
    loop {
        let accepted = tokio::select! {
            accepted = async { connections.room().await; listener.accept().await } => accepted,
            _ = end.read_u8() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_passing(&error) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            Err(error) => return Err(failed(error).context("accepting connections")),
        };
        let _ = stream.set_nodelay(true);
        if let Some(connection) = connections.enter(address.ip()) {
            tokio::spawn(attend(Arc::clone(&server), stream, Arc::new(connection)));
        }
    }
    deadlines.abort();
    Ok(())
}

/// Answers a client's requests until it leaves, or its place is needed by another.
async fn attend(server: Arc<Server>, stream: TcpStream, place: Arc<Connection>) {
    let of = Arc::clone(&place);
    let stream = Patient::new(stream);
    let reading = stream.reading();
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        let call = Arc::new(Call::new(&of));
        let reading = reading.clone();
        async move {
            let (request, rest) = incoming::split(request, Arc::clone(&call));
            let reply = route::answer(server, request).await;
            rest.receive().await;
            reading.begin(&reply);
            Ok::<_, Infallible>(reply.map(|body| http::holding(body, call)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .max_header_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        // The client has its own idea of what went wrong.
        _ = connection => {}
        () = place.given_up() => {}
    }
}

/// Returns a socket that has a byte when a signal asks this process to end.
fn end() -> io::Result<UnixStream> {
    let (read, write) = std::os::unix::net::UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    UnixStream::from_std(read)
}

/// Returns whether accepting may work again: the client is gone already, or too many descriptors are open.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    let too_many = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    too_many.contains(&error.raw_os_error())
        || matches!(
            error.kind(),
            E::ConnectionAborted | E::ConnectionReset | E::Interrupted
        )
}
