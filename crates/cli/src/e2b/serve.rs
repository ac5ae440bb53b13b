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
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::Semaphore;

use super::{Server, incoming, route};
use crate::failure::Failure;
use crate::output::{print, write_stderr};

/// Most connections at a time. A command that is watched has one.
const CONNECTIONS: usize = 1024;

/// How long a client may take for the head of a request.
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
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned();
        let accepted = tokio::select! {
            accepted = async { (place.await, listener.accept().await) } => accepted,
            _ = end.read_u8() => break,
        };
        let (place, stream) = match accepted {
            (Ok(place), Ok((stream, _))) => (place, stream),
            (_, Err(error)) if is_passing(&error) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            (_, Err(error)) => return Err(failed(error).context("accepting connections")),
            (Err(_), _) => break,
        };
        let _ = stream.set_nodelay(true);
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let server = Arc::clone(&server);
                async move {
                    let (request, rest) = incoming::split(request);
                    let reply = route::answer(server, request).await;
                    rest.receive().await;
                    Ok::<_, Infallible>(reply)
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
            // The client has its own idea of what went wrong.
            let _ = connection.await;
            drop(place);
        });
    }
    deadlines.abort();
    Ok(())
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
