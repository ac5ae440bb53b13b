//! When sandboxes of E2B's API end, whatever the wall clock does meanwhile.

use std::process::Command;
use std::time::Duration;

use micabox::{Sandboxes, Store};
use serde_json::json;

use super::HOST;
use crate::support::Home;
use crate::support::e2b::Server;

#[test]
#[ignore = "needs root and a built guest"]
fn a_sandbox_has_its_deadline_from_its_start_on() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let new = |pauses: bool| {
        server.create(
            &json!({"templateID": "box", "timeout": 600, "allow_internet_access": false, "autoPause": pauses}),
        )
    };
    let sandboxes = Sandboxes::open(&Store::open(&home.store()).unwrap()).unwrap();
    // Not given later, when another time is left of it.
    for pauses in [false, true] {
        let made = new(pauses);
        let found = sandboxes.get(&made.id).unwrap();
        let life = found.expires().unwrap().expiry.max_life.unwrap();
        let years = Duration::from_secs(10 * 366 * 86_400);
        let expected = Duration::from_secs(600) + if pauses { years } else { Duration::ZERO };
        assert_eq!(life, expected);
        // What has no deadline says none.
        let path = format!("/sandboxes/{}", made.id);
        let end = |server: &Server| {
            let (_, info) = server.api(&format!("GET {path}"), &json!({}));
            info["endAt"].as_str().unwrap().to_owned()
        };
        assert!(&*end(&server) < "9");
        home.output(&["update", "--max-life", "0", &made.id]).ok();
        assert_eq!(end(&server), "9999-12-31T00:00:00Z");
        server.delete(&made);
    }
}

/// Steps the wall clock of the programs that have it loaded by the seconds in a file.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    FILE *file = clock == CLOCK_REALTIME ? fopen(getenv("STEP"), "re") : NULL;
    long step = 0;
    if (file) {
        if (fscanf(file, "%ld", &step) == 1) now->tv_sec += step;
        fclose(file);
    }
    return failed;
}
"#;

#[test]
#[ignore = "needs root and a built guest"]
fn a_step_of_the_wall_clock_changes_no_deadline() {
    let home = Home::new();
    let (source, clock) = (home.path().join("clock.c"), home.path().join("clock.so"));
    std::fs::write(&source, CLOCK).unwrap();
    let cc = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&clock, &source])
        .status();
    assert!(cc.unwrap().success());
    let step = home.path().join("step");
    let flags = ["--with=backend=host"];
    let server = Server::with(&home, &flags, &[("LD_PRELOAD", &clock), ("STEP", &step)]);
    let sandboxes = Sandboxes::open(&Store::open(&home.store()).unwrap()).unwrap();
    for by in ["-36000", "36000"] {
        for pauses in [false, true] {
            let new = json!({"templateID": "box", "timeout": 300, "allow_internet_access": false,
                "autoPause": pauses});
            let made = server.create(&new);
            std::fs::write(&step, by).unwrap();
            for (call, body) in [
                ("timeout", json!({"timeout": 400})),
                ("refreshes", json!({"duration": 500})),
                ("connect", json!({"timeout": 600})),
            ] {
                let line = format!("POST /sandboxes/{}/{call}", made.id);
                let (status, said) = server.api(&line, &body);
                assert!(status < 300, "{call}: {said}");
            }
            let found = sandboxes.get(&made.id).unwrap();
            let left = found.expires().unwrap().left.unwrap().as_secs();
            let left = left % (10 * 366 * 86_400);
            assert!((500..=600).contains(&left), "{by}: {left} seconds are left");
            let (_, info) = server.api(&format!("GET /sandboxes/{}", made.id), &json!({}));
            assert_eq!(info["state"], "running");
            server.delete(&made);
            std::fs::remove_file(&step).unwrap();
        }
    }
}
