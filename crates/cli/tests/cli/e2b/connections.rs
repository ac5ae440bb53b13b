//! Connections of the server to the owners of sandboxes.

use serde_json::json;

use super::{HOST, on_this_kernel};
use crate::support::e2b::Server;
use crate::support::{Home, wait_until};

fn sockets(owner: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{owner}/fd")).unwrap();
    let links = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

#[test]
#[ignore = "needs root and a built guest"]
fn requests_share_a_connection_to_the_owner_which_ends_after_them() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let owner = home.owner();
    let script = "echo begun; while read line; do echo \"got $line\"; done; exit 3";
    let (pid, mut events) = server.start(&made, script, true);
    assert_eq!(events.line(), "begun\n");
    // The creator's connection has ended by now.
    let one = sockets(owner);
    let which = json!({"pid": pid});
    let mut other = server.stream(&made, "Connect", &json!({"process": which}));
    assert_eq!(other.pid(), pid);
    let input = json!({"process": which, "input": {"stdin": "b25lCg=="}});
    assert_eq!(server.process(&made, "SendInput", &input).0, 200);
    for events in [&mut events, &mut other] {
        assert_eq!(events.line(), "got one\n");
    }
    let (status, said) = server.files(&made, "Stat", &json!({"path": "/tmp"}));
    assert_eq!(status, 200, "{said}");
    assert_eq!(sockets(owner), one);
    // The first client leaves, and the command goes on.
    drop(events);
    let close = json!({"process": which});
    assert_eq!(server.process(&made, "CloseStdin", &close).0, 200);
    assert_eq!(other.rest(), (String::new(), 3));
    wait_until("nothing uses the connection", || sockets(owner) == one - 1);
    let (status, said) = server.files(&made, "Stat", &json!({"path": "/tmp"}));
    assert_eq!(status, 200, "{said}");
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}
