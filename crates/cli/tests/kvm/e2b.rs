//! E2B's API for what needs a machine's memory: snapshots, forks, pauses. `scripts/test-kvm` runs this.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::e2b::{Made, Server};
use crate::support::{Home, wait_until};

/// Counts in a variable of its own, and keeps the number in a file that is never seen empty.
const COUNTS: &str =
    "n=0; while :; do n=$((n+1)); echo $n >/tmp/next; mv /tmp/next /tmp/n; sleep 0.1; done";

/// What a copy has for itself alone.
const OWN: &str =
    "cat /etc/machine-id; hostname; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '";

/// Seconds until a sandbox's end: more than an emulated machine takes.
const TIMEOUT: u64 = 1200;

fn number(server: &Server, made: &Made) -> u32 {
    let text = server.run(made, "cat /tmp/n");
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?}"))
}

/// Fails unless a sandbox's command has counted further than `before`, and goes on.
fn counts_on(server: &Server, made: &Made, before: u32) {
    let first = number(server, made);
    assert!(first >= before, "{first} after {before}");
    wait_until("it counts", || number(server, made) > first);
}

#[test]
fn a_commands_state_is_in_snapshots_and_forks() {
    let home = Home::new();
    let flags = ["--with=backend=kvm", "--with=memory=256m", "--with=cold"];
    let server = Server::new(&home, &flags);
    let new = |template: &str| json!({"templateID": template, "timeout": TIMEOUT, "allow_internet_access": false});
    let original = server.create(&new("box"));
    let (counter, events) = server.start(&original, COUNTS, false);
    drop(events);
    server.run(&original, "while ! [ -e /tmp/n ]; do sleep 0.1; done");
    wait_until("it has a past", || number(&server, &original) >= 5);

    let path = |of: &Made, what: &str| format!("POST /sandboxes/{}/{what}", of.id);
    let save = json!({"name": "past", "memory": true});
    let (status, saved) = server.api(&path(&original, "snapshots"), &save);
    assert_eq!(
        (status, &saved["snapshotID"]),
        (201, &json!("past")),
        "{saved}"
    );
    let listed = home.output(&["snapshot", "ls", "--json"]).json();
    assert_eq!(listed[0]["memory"]["memory_mib"], 256);

    // What a machine that continues can't be given any more is refused.
    for late in [
        json!({"envVars": {"A": "b"}}),
        json!({"allow_internet_access": true}),
        json!({"network": {"denyOut": ["192.0.2.1"]}}),
    ] {
        let mut new = json!({"templateID": "past", "timeout": TIMEOUT});
        let fields = new.as_object_mut().unwrap();
        fields.extend(late.as_object().unwrap().clone());
        let (status, refused) = server.api("POST /sandboxes", &new);
        assert_eq!(status, 400, "{late}: {refused}");
    }

    // A copy of what was, and copies of what is.
    let past = server.create(&new("past"));
    counts_on(&server, &past, 5);
    let now = number(&server, &original);
    let (status, forked) = server.api(
        &path(&original, "fork"),
        &json!({"count": 2, "timeout": TIMEOUT}),
    );
    assert_eq!(status, 201, "{forked}");
    let forks = forked.as_array().unwrap().iter();
    let forks: Vec<Made> = forks.map(|fork| Made::of(&fork["sandbox"])).collect();
    assert_eq!(forks.len(), 2);
    let copies = [&past, &forks[0], &forks[1]];
    let mut seen = BTreeSet::new();
    for made in copies.into_iter().chain([&original]) {
        let own = server.run(made, OWN);
        let own = own.lines().map(str::to_owned);
        // The machine's ID is the sandbox's.
        for one in own.chain([made.token.clone()]) {
            assert!(one.len() >= 12 && seen.insert(one.clone()), "{one} twice");
        }
    }
    for fork in &forks {
        counts_on(&server, fork, now);
    }
    // A copy's own token is needed, and the original's is not enough.
    let wrong = Made {
        id: past.id.clone(),
        token: original.token.clone(),
    };
    assert_eq!(server.process(&wrong, "List", &json!({})).0, 401);

    // A client that goes meanwhile leaves no copy.
    let sandboxes = || home.sandboxes().len();
    let before = sandboxes();
    let ask = json!({"count": 2, "timeout": TIMEOUT});
    let fork = path(&original, "fork");
    wait_until("a client goes before its answer", || {
        let answer = server.abandon(&fork, &ask, || sandboxes() > before);
        for copy in answer.iter().flat_map(|copies| copies.as_array().unwrap()) {
            server.delete(&Made::of(&copy["sandbox"]));
        }
        wait_until("no copy is left", || sandboxes() == before);
        answer.is_none()
    });

    // While it is paused it does not count, and then it goes on.
    let info = |of: &Made| {
        server
            .api(&format!("GET /sandboxes/{}", of.id), &json!({}))
            .1
    };
    let fork = &forks[0];
    assert_eq!(server.api(&path(fork, "pause"), &json!({})).0, 204);
    assert_eq!(info(fork)["state"], "paused");
    assert_eq!(server.process(fork, "List", &json!({})).0, 502);
    let (status, _) = server.api(&path(fork, "connect"), &json!({"timeout": TIMEOUT}));
    assert_eq!((status, &info(fork)["state"]), (201, &json!("running")));
    counts_on(&server, fork, now);

    // The command is that of the original alone.
    let kill = json!({"process": {"pid": counter}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(server.process(&original, "SendSignal", &kill).0, 200);
    assert_eq!(server.process(fork, "SendSignal", &kill).0, 404);
    counts_on(&server, fork, now);
    for made in copies.into_iter().chain([&original]) {
        server.delete(made);
    }
    let (status, _) = server.api("DELETE /templates/past", &json!({}));
    assert_eq!(status, 204);
    home.assert_nothing_left();
}
