//! A tool's call: how it is cancelled, and how it says how far it is.

use rmcp::RoleServer;
use rmcp::service::RequestContext;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::progress::Step;

/// What a tool needs to know of its request.
#[derive(Debug)]
pub struct Call {
    context: RequestContext<RoleServer>,
    runtime: Handle,
    /// None if the client did not ask.
    steps: Option<watch::Sender<Step>>,
}

/// Ends when dropped.
#[derive(Debug)]
pub struct Watch(JoinHandle<()>);

impl Call {
    /// Makes one, in the runtime.
    pub fn new(context: RequestContext<RoleServer>, steps: Option<watch::Sender<Step>>) -> Self {
        Self {
            context,
            runtime: Handle::current(),
            steps,
        }
    }

    /// Returns whether the client has cancelled the call, or is gone.
    pub fn is_cancelled(&self) -> bool {
        self.context.ct.is_cancelled()
    }

    /// Waits until the client cancels the call, or is gone.
    pub async fn cancelled(&self) {
        self.context.ct.cancelled().await;
    }

    /// Does something quick when the client cancels the call or is gone, for as long as the result is
    /// kept.
    pub fn when_cancelled(&self, then: impl FnOnce() + Send + 'static) -> Watch {
        let token = self.context.ct.clone();
        Watch(self.runtime.spawn(async move {
            token.cancelled().await;
            then();
        }))
    }

    /// Returns where to say how far the call is, if the client wants to know.
    pub fn steps(&self) -> Option<watch::Sender<Step>> {
        self.steps.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
