//! Ends pulls before their end.

use tokio::sync::watch;

/// Cancels pulls, from any thread. Clones cancel the same ones.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(watch::Sender<bool>);

impl Cancellation {
    /// Lets pulls with these options fail with [`Cancelled`](crate::PullError::Cancelled), those that begin
    /// later too.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Waits for that.
    pub(crate) async fn cancelled(&self) {
        // It fails without a sender, and this is one.
        let _ = self.0.subscribe().wait_for(|is| *is).await;
    }
}
