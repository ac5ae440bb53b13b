//! The protocol's side: requests come here, and become calls and reads, in threads where they block.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::JoinHandle;

use super::call::Call;
use super::lines::Open;
use super::progress::{self, Step};
use super::resources;
use super::tools::{TOOLS, Work, failed};
use crate::mcp::server::Server;
use micabox_program::failure::Failure;

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
        let _place = place(places, cancelled).await?;
        let server = Arc::clone(&self.server);
        done(tokio::task::spawn_blocking(move || work(&server))).await
    }

    /// Does work that waits, unless the request is cancelled before it may begin.
    async fn in_a_task<T: Send + 'static>(
        &self,
        places: &Semaphore,
        cancelled: impl Future<Output = ()> + Send,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let _place = place(places, cancelled).await?;
        // It is done to its end, as work in a thread is.
        done(tokio::spawn(work)).await
    }
}

/// Waits for a place.
async fn place<'a>(
    places: &'a Semaphore,
    cancelled: impl Future<Output = ()>,
) -> Result<SemaphorePermit<'a>, Failure> {
    tokio::select! {
        Ok(permit) = places.acquire() => Ok(permit),
        () = cancelled => Err(Failure::new("cancelled")),
        else => Err(Failure::new("the server ends")),
    }
}

/// Waits for the end of work.
async fn done<T>(work: JoinHandle<Result<T, Failure>>) -> Result<T, Failure> {
    let done = work.await;
    done.unwrap_or_else(|error| Err(Failure::of(&error).context("working on a request")))
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
        // The room is taken until the call has ended: the client may have cancelled it before.
        let done = match tool.call {
            Work::InAThread(work) => {
                let work = move |server: &Server| {
                    let _room = room;
                    work(arguments, server, &call)
                };
                self.in_a_thread(places, cancelled, work).await
            }
            Work::Waiting(work) => {
                let work = work(arguments, Arc::clone(&self.server), call);
                let work = async move {
                    let _room = room;
                    work.await
                };
                self.in_a_task(places, cancelled, work).await
            }
        };
        let mut result = match done {
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
        let server = Arc::clone(&self.server);
        let read = self.in_a_task(&self.calls, cancelled, async move {
            let _room = room;
            resources::read(&server, &request.uri).await
        });
        let read = read.await.map_err(|failure| resources::error(&failure))?;
        Ok(read.into())
    }
}
