//! What a command had written before it was killed.

use serde_json::json;

use super::{HOST, on_this_kernel};
use crate::support::Home;
use crate::support::e2b::Server;

/// Commands that see the same number of lines: the one that writes them waits.
const LOOKS: u32 = 10;

#[test]
#[ignore = "needs root and a built guest"]
fn a_client_that_reads_slowly_has_all_output_from_before_a_kill() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let script = "long=$(head -c 4000 /dev/zero | tr '\\0' x); lines=0; \
        while echo $lines $long; do lines=$((lines + 1)); echo $lines >/tmp/lines; done";
    let (pid, events) = server.start(&made, script, false);
    // Its client reads nothing, so it waits after some lines. If it does not yet, what it had written counts all the same.
    let (mut written, mut looks) = (0, 0);
    while looks < LOOKS {
        let now = server.run(&made, "cat /tmp/lines || true");
        let now: usize = now.trim().parse().unwrap_or(0);
        looks = if now > 0 && now == written {
            looks + 1
        } else {
            0
        };
        written = now;
    }
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(server.process(&made, "SendSignal", &kill).0, 200);
    let (said, code) = events.rest();
    assert_eq!(code, -1);
    let mut numbers = said
        .lines()
        .map(|line| line.split(' ').next().unwrap_or(""));
    for number in 0..written {
        assert_eq!(numbers.next(), Some(&*number.to_string()), "of {written}");
    }
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}
