//! Ports of programs in a sandbox: requests for them, WebSockets too, are passed on as they are.

use std::sync::Arc;

use super::Server;
use super::http::{Answer, Request};
use super::problem::Problem;
use super::sandbox::Served;

/// Passes a request on.
pub async fn answer(
    _server: Arc<Server>,
    _served: Served,
    port: u16,
    _request: Request,
) -> Answer {
    Err(Problem::unsupported(format!("port {port}")))
}
