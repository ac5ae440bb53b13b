//! A client of `mica mcp` that writes and reads JSON-RPC itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::support::Home;

pub struct Client {
    pub process: Child,
    pub stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    requests: u64,
    /// What was received between requests and replies.
    notifications: Vec<Value>,
}

impl Client {
    /// Of a server whose sandboxes may share this machine's kernel, as most tests have them.
    pub fn new(home: &Home) -> Self {
        Self::allowed(home, &["--allow-host-backend"])
    }

    /// Of a server that was started with these flags.
    pub fn allowed(home: &Home, flags: &[&str]) -> Self {
        Self::begin(home, flags, "2025-06-18")
    }

    pub fn of_version(home: &Home, version: &str) -> Self {
        Self::begin(home, &[], version)
    }

    fn begin(home: &Home, flags: &[&str], version: &str) -> Self {
        let mut process = home.mica(&[&["mcp"], flags].concat());
        let process = process.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = process.spawn().unwrap();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().unwrap());
        let mut client = Self {
            process,
            stdin,
            stdout: BufReader::new(stdout),
            requests: 0,
            notifications: Vec::new(),
        };
        let client_info = json!({"name": "test", "version": "1"});
        let hello = client.ok(
            "initialize",
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client_info}),
        );
        assert_eq!(hello["protocolVersion"], version, "{hello}");
        assert_eq!(hello["serverInfo"]["name"], "mica", "{hello}");
        assert!(hello["capabilities"]["tools"].is_object(), "{hello}");
        assert!(hello["capabilities"]["resources"].is_object(), "{hello}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    pub fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Sends a request; its number.
    pub fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.stdout.read_line(&mut line).unwrap() > 0, "it ended");
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0");
        message
    }

    /// Receives until this is the message of a call's progress. Calls that say nothing new are reported as well.
    pub fn wait_for_message(&mut self, message: &str) {
        while self.receive()["params"]["message"] != message {}
    }

    /// The reply to a request, all of it.
    pub fn reply(&mut self, id: u64) -> Value {
        loop {
            let message = self.receive();
            if message["id"] == id {
                return message;
            }
            assert!(message["method"].is_string(), "{message}");
            self.notifications.push(message);
        }
    }

    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, &params);
        self.reply(id)
    }

    /// The result of a request that is met.
    pub fn ok(&mut self, method: &str, params: Value) -> Value {
        let mut reply = self.ask(method, params);
        assert!(reply["result"].is_object(), "{reply}");
        reply["result"].take()
    }

    /// The error of a request that breaks the protocol's rules.
    pub fn error(&mut self, method: &str, params: Value) -> (i64, String) {
        let reply = self.ask(method, params);
        let error = &reply["error"];
        let words = error["message"]
            .as_str()
            .unwrap_or_else(|| panic!("{reply}"));
        (error["code"].as_i64().unwrap(), words.to_owned())
    }

    /// The result of a tool.
    pub fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let mut result = self.ok("tools/call", json!({"name": name, "arguments": arguments}));
        assert_eq!(result["isError"], false, "{result}");
        let structured = result["structuredContent"].take();
        // For clients that know text only: as it is, or in JSON.
        let text = result["content"][0]["text"].as_str().unwrap();
        match &structured {
            read if read["content"].is_string() => assert_eq!(text, read["content"]),
            ran if ran["stdout"].is_string() => {
                assert!(text.contains(ran["stdout"].as_str().unwrap()), "{text}");
            }
            other => assert_eq!(serde_json::from_str::<Value>(text).unwrap(), *other),
        }
        structured
    }

    /// The text of a tool's result.
    pub fn text(&mut self, name: &str, arguments: Value) -> String {
        let result = self.ok("tools/call", json!({"name": name, "arguments": arguments}));
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// What a tool says that fails.
    pub fn refused(&mut self, name: &str, arguments: Value) -> String {
        let result = self.ok("tools/call", json!({"name": name, "arguments": arguments}));
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result["structuredContent"], Value::Null);
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// The result of a tool, and the progress that it reports.
    pub fn watched(&mut self, name: &str, arguments: Value) -> (Value, Vec<Value>) {
        self.notifications.clear();
        let watched =
            json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "it"}});
        let result = self.ok("tools/call", watched);
        assert_eq!(result["isError"], false, "{result}");
        let mut steps = std::mem::take(&mut self.notifications);
        let steps = steps.iter_mut().map(|step| step["params"].take());
        // A call that was cancelled may have been reported once more.
        let steps: Vec<_> = steps.filter(|step| step["progressToken"] == "it").collect();
        let done = steps.iter().map(|step| step["progress"].as_f64().unwrap());
        assert!(done.is_sorted_by(|a, b| a < b), "{steps:?}");
        (result["structuredContent"].clone(), steps)
    }

    pub fn create(&mut self, name: &str) -> String {
        let options = json!({"backend": "host"});
        let made = self.tool(
            "create_sandbox",
            json!({"image": "box", "name": name, "network": false, "env": {"A": "b"}, "options": options}),
        );
        assert_eq!(made["name"], name);
        made["id"].as_str().unwrap().to_owned()
    }

    /// Runs a script; its exit code and stdout.
    pub fn sh(&mut self, sandbox: &str, script: &str) -> (i64, String) {
        let ran = self.tool(
            "run_command",
            json!({"sandbox": sandbox, "command": script}),
        );
        (
            ran["exit_code"].as_i64().unwrap(),
            ran["stdout"].as_str().unwrap().to_owned(),
        )
    }

    /// Closes stdin, and waits for the end.
    pub fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}
