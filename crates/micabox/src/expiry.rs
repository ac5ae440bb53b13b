//! Tells owners when their sandboxes end by themselves.

use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_owner::Client;
use micabox_owner::protocol::{Reply, Request};
use micabox_spec::Expiry;

/// How long an owner may take to reply.
const ANSWER: Duration = Duration::from_secs(30);

/// What an owner says about the end of its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expires {
    /// What was asked for; zero is never.
    pub expiry: Expiry,
    /// How long it is from now until the end that [`Expiry::max_life`] sets; None if it sets none. The owner
    /// measures it, whatever the wall clock does.
    pub left: Option<Duration>,
}

/// Tells an owner. Returns what it has now.
pub(crate) fn set(expiry: &Expiry, client: &mut Client) -> Result<Expires, Error> {
    let millis = |time: Duration| match u64::try_from(time.as_millis()) {
        // Never is something else.
        Ok(0) if !time.is_zero() => 1,
        Ok(millis) => millis,
        Err(_) => u64::MAX,
    };
    let request = Request::Expire {
        idle_timeout: expiry.idle_timeout.map(millis),
        max_life: expiry.max_life.map(millis),
    };
    ask(client, &request)
}

/// Tells an owner to end its sandbox in so long from now.
pub(crate) fn end_in(client: &mut Client, time: Duration) -> Result<Expires, Error> {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    ask(client, &Request::EndIn { millis })
}

fn ask(client: &mut Client, request: &Request) -> Result<Expires, Error> {
    let asked = client.request(1, request, &[]);
    let reply = asked.and_then(|()| client.reply(1, Instant::now().checked_add(ANSWER)));
    match reply {
        Ok(Some(Reply::Expires {
            idle_timeout,
            max_life,
            left,
        })) => Ok(Expires {
            expiry: Expiry {
                idle_timeout: Some(Duration::from_millis(idle_timeout)),
                max_life: Some(Duration::from_millis(max_life)),
            },
            left: left.map(Duration::from_millis),
        }),
        Ok(Some(Reply::Failed(failure))) => Err(failure.into()),
        _ => Err(Error::OwnerGone),
    }
}
