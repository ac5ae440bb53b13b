//! Connections: how many, how long they may say nothing, and what ends the server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use micabox_listen::{Connection, Connections, Patient};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::call::Call;
use super::{http, incoming, route};
use crate::e2b::server::Server;
use micabox_program::failure::Failure;
use micabox_program::output::{print, write_stderr};

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
    let mut end = micabox_listen::ended().map_err(failed)?;
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
            accepted = micabox_listen::accept(&listener, &connections) => accepted,
            _ = end.read_u8() => break,
        };
        let (stream, connection) =
            accepted.map_err(|error| failed(error).context("accepting connections"))?;
        tokio::spawn(attend(Arc::clone(&server), stream, Arc::new(connection)));
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
    let connection = micabox_listen::http()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        // The client has its own idea of what went wrong.
        _ = connection => {}
        () = place.given_up() => {}
    }
}
