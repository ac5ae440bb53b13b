//! Memory that clients, and files of a sandbox, take of the server.

use serde_json::{Value, json};

use super::{HOST, on_this_kernel};
use crate::support::Home;
use crate::support::e2b::{Server, message};

/// Characters of base64 whose message has room that leaves none for another one of the sandbox.
const LARGE: usize = 8_300_000;

fn streamed(length: usize) -> Value {
    json!({"data": {"input": {"stdin": "A".repeat(length)}}})
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_stream_of_input_keeps_no_room_for_a_message_that_is_written() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let (pid, events) = server.start(&made, "wc -c", true);
    let which = json!({"pid": pid});
    let begin = json!({"start": {"process": which}});
    // A stream that goes on, and says nothing.
    let silent = server.unfinished(&made, "StreamInput", &[begin.clone(), streamed(LARGE)]);
    let input = json!({"process": which, "input": {"stdin": "A".repeat(LARGE)}});
    let (status, said) = server.process(&made, "SendInput", &input);
    assert_eq!(status, 200, "{said}");
    // One whose messages grow.
    let lengths = [100_000, LARGE, 4, 100_000];
    let mut body = message(&begin);
    for length in lengths {
        body.extend(message(&streamed(length)));
    }
    let headers = made.headers("application/connect+json");
    let (status, said) = server.ask("POST /process.Process/StreamInput", &headers, &body);
    let said = said.text();
    assert!(status == 200 && !said.contains("error"), "{status} {said}");
    drop(silent);
    let close = json!({"process": which});
    assert_eq!(server.process(&made, "CloseStdin", &close).0, 200);
    let all = (3 * LARGE + 200_004) / 4 * 3;
    assert_eq!(events.rest(), (format!("{all}\n"), 0));
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn names_of_thousands_of_users_are_found() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    server.run(
        &made,
        "seq 1001 4000 | sed 's/.*/u&:x:&:&::\\/home\\/u&:/' >>/etc/passwd; \
         seq 1001 4000 | sed 's/.*/g&:x:&:u1,u2/' >>/etc/group; \
         seq 10000 60000 | sed 's/.*/behind&:x:&:&:::/' >>/etc/passwd; \
         mkdir /tmp/d; cd /tmp/d; for n in 1001 2500 4000 5000 60000; do echo >$n; chown $n:$n $n; done",
    );
    let name = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        (text("name"), text("owner"), text("group"))
    };
    let (status, list) = server.files(&made, "ListDir", &json!({"path": "/tmp/d"}));
    assert_eq!(status, 200, "{list}");
    let mut found: Vec<_> = list["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(name)
        .collect();
    found.sort();
    // What is behind the bytes that are read has its number.
    let expected = [
        ("1001", "u1001", "g1001"),
        ("2500", "u2500", "g2500"),
        ("4000", "u4000", "g4000"),
        ("5000", "5000", "5000"),
        ("60000", "60000", "60000"),
    ];
    let expected = expected.map(|(name, owner, group)| (name.into(), owner.into(), group.into()));
    assert_eq!(found, expected);
    for (path, expected) in expected.iter().map(|one| (&one.0, one)) {
        let ask = json!({"path": format!("/tmp/d/{path}")});
        let (status, stat) = server.files(&made, "Stat", &ask);
        assert_eq!((status, &name(&stat["entry"])), (200, expected));
    }
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}
