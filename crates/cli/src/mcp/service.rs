//! The protocol's side: requests come here, and become calls and reads in threads.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::{Semaphore, watch};

use super::call::Call;
use super::lines::Open;
use super::progress::{self, Step};
use super::tool::{TOOLS, failed};
use super::{Server, resources};
use crate::failure::Failure;

/// Most calls at a time; others wait. With [`WAITS`], fewer than the runtime has threads, of which stdin needs one.
const CALLS: usize = 256;

/// Most calls at a time that only wait for what others do: these leave the places of calls to what is quick.
const WAITS: usize = 128;

/// The first version of the protocol in which tools have structured results.
const STRUCTURED: ProtocolVersion = ProtocolVersion::V_2025_06_18;

const INSTRUCTIONS: &str = "Sandboxes are virtual machines made from OCI images (python:3.12-slim, debian:12). \
    Create one with create_sandbox, then use it with run_command, read_file and write_file: files and \
    background processes stay between calls. A sandbox ends with this session unless keep_sandbox is called, \
    and what is in it is lost then; stop_sandbox ends it earlier.";

/// The server of one client.
#[derive(Debug)]
pub struct Service {
    server: Arc<Server>,
    open: Arc<Open>,
    calls: Semaphore,
    waits: Semaphore,
}

impl Service {
    /// No calls yet.
    pub fn new(server: Arc<Server>, open: Arc<Open>) -> Self {
        Self {
            server,
            open,
            calls: Semaphore::new(CALLS),
            waits: Semaphore::new(WAITS),
        }
    }

    /// Does blocking work in a thread, unless the request is cancelled while it waits for one.
    async fn in_a_thread<T: Send + 'static>(
        &self,
        places: &Semaphore,
        cancelled: impl Future<Output = ()> + Send,
        work: impl FnOnce(&Server) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let _permit = tokio::select! {
            Ok(permit) = places.acquire() => permit,
            () = cancelled => return Err(Failure::new("cancelled")),
            else => return Err(Failure::new("the server ends")),
        };
        let server = Arc::clone(&self.server);
        let done = tokio::task::spawn_blocking(move || work(&server)).await;
        done.unwrap_or_else(|error| Err(Failure::of(&error).context("working in a thread")))
    }
}

fn is_structured(context: &RequestContext<RoleServer>) -> bool {
    // Versions are dates.
    context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= STRUCTURED.as_str())
}

impl ServerHandler for Service {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .build();
        let mica = Implementation::new("mica", env!("CARGO_PKG_VERSION")).with_title("Micabox");
        ServerConfig::new(capabilities)
            .with_server_info(mica)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tools: Vec<_> = TOOLS.iter().map(|tool| (tool.describe)()).collect();
        if !is_structured(&context) {
            tools.iter_mut().for_each(|tool| tool.output_schema = None);
        }
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = TOOLS.iter().find(|tool| tool.name == request.name) else {
            let unknown = format!("no tool {}: tools/list lists them", request.name);
            return Err(ErrorData::invalid_params(unknown, None));
        };
        let is_structured = is_structured(&context);
        let (steps, report) = match context.meta.get_progress_token() {
            Some(token) => {
                let (steps, last) = watch::channel(Step::default());
                let report = progress::report(last, context.peer.clone(), token);
                (Some(steps), Some(tokio::spawn(report)))
            }
            None => (None, None),
        };
        let cancelled = context.ct.clone().cancelled_owned();
        let room = self.open.room_of(&context.id);
        let call = Call::new(context, steps);
        let arguments = request.arguments.unwrap_or_default();
        let places = if (tool.waits)(&arguments) {
            &self.waits
        } else {
            &self.calls
        };
        let done = self.in_a_thread(places, cancelled, move |server| {
            // Until the call has ended: the client may have cancelled it before.
            let _room = room;
            (tool.call)(arguments, server, &call)
        });
        let mut result = match done.await {
            Ok(result) => result,
            Err(failure) => failed(&failure),
        };
        if !is_structured {
            result.structured_content = None;
        }
        // After the result, the token stands for nothing.
        if let Some(report) = report {
            report.abort();
            let _ = report.await;
        }
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let listed = self
            .in_a_thread(&self.calls, context.ct.cancelled_owned(), resources::list)
            .await;
        let listed = listed.map_err(|failure| resources::error(&failure))?;
        Ok(ListResourcesResult::with_all_items(listed))
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = resources::templates();
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let room = self.open.room_of(&context.id);
        let cancelled = context.ct.cancelled_owned();
        let read = self.in_a_thread(&self.calls, cancelled, move |server| {
            let _room = room;
            resources::read(server, &request.uri)
        });
        let read = read.await.map_err(|failure| resources::error(&failure))?;
        Ok(read.into())
    }
}
