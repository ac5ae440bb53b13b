//! Interpreters that are not what they seem.

use serde_json::{Value, json};

use super::{HOST, on_this_kernel};
use crate::support::Home;
use crate::support::e2b::{Made, Server};

/// A python3 that answers code with a list of as many bytes as the code says.
const HOSTILE: &str = r#"#!/bin/sh
octal() { printf '\\%03o' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)); }
frame() { printf "$(octal ${#1})"; printf %s "$1"; }
frame '{"type":"ready"}'
request=0
while length=$(dd bs=1 count=4 2>/dev/null | od -An -tu4 | tr -d ' ') && [ -n "$length" ]; do
    request=$((request + 1))
    size=$(dd bs=1 count=$length 2>/dev/null | sed 's/.*"code":"\([0-9]*\).*/\1/')
    begin="{\"request\":$request,\"type\":\"result\",\"text\":\"x\",\"list\":[0"
    printf "$(octal $((${#begin} + size + 2)))"
    printf %s "$begin"
    yes , | head -n $((size / 2)) | tr '\n' 0
    printf ']}'
    frame "{\"request\":$request,\"type\":\"end\",\"count\":$request}"
done
"#;

fn peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse::<u64>().unwrap() >> 10
}

fn execute(server: &Server, made: &Made, code: &str) -> Vec<Value> {
    let headers = made.headers("application/json").replace("49983", "49999");
    let body = json!({"code": code}).to_string();
    let (status, said) = server.ask("POST /execute", &headers, body.as_bytes());
    assert_eq!(status, 200);
    let said = said.text();
    said.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_result_takes_a_bounded_part_of_the_servers_memory() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    assert_eq!(
        server.upload(&made, "/bin/python3", HOSTILE.as_bytes()),
        200
    );
    server.run(&made, "chmod +x /bin/python3");
    let said = execute(&server, &made, "1000");
    assert_eq!(said[0]["type"], "result");
    assert_eq!(said[0]["list"].as_array().unwrap().len(), 501);
    assert_eq!(said[0]["is_main_result"], true);
    let end = json!({"type": "number_of_executions", "execution_count": 1});
    assert_eq!(said[1..], [end, json!({"type": "end_of_execution"})]);

    // As a tree it would take half a gibibyte.
    let large = 15 << 20;
    let said = execute(&server, &made, &large.to_string());
    assert_eq!(said[0]["list"].as_array().unwrap().len(), large / 2 + 1);
    // One that is too large says so, and the interpreter goes on.
    let said = execute(&server, &made, &(70 << 20).to_string());
    assert_eq!(said[0]["name"], "ResultTooLarge", "{said:?}");
    let said = execute(&server, &made, "10");
    assert_eq!(said[1]["execution_count"], 4);
    let peak = peak(&server);
    assert!(peak < 150, "{peak} MiB");
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}
