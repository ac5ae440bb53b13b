//! Commands, in the foreground and in the background.

use super::*;

#[test]
#[ignore = "needs root and a built guest"]
fn commands_have_results_progress_and_an_end() {
    let home = Home::new();
    let mut client = Client::new(&home);
    let id = client.create("it");
    let ran = client.tool(
        "run_command",
        json!({"sandbox": "it", "command": "cat; echo $A $B >&2; id -u; pwd; exit 3", "stdin": "in\n",
            "env": {"B": "c"}, "user": "app", "workdir": "/tmp"}),
    );
    let expected = json!({"command": null, "running": false, "exit_code": 3, "timed_out": false,
        "stdout": "in\n1000\n/tmp\n", "stderr": "b c\n", "stdout_left_out": 0, "stderr_left_out": 0,
        "stdout_is_utf8": true, "stderr_is_utf8": true});
    assert_eq!(ran, expected);
    // As a model reads it.
    let both = json!({"sandbox": "it", "command": "echo one; printf '\\377\\n' >&2; exit 3"});
    let text = client.text("run_command", both);
    assert_eq!(
        text,
        "exit code 3\n\nstdout:\none\n\n\nstderr (bytes that are not UTF-8 are replaced):\n\u{fffd}\n"
    );
    let wrong = json!({"sandbox": "it", "command": "true", "workdir": "/opt/typo"});
    let said = client.refused("run_command", wrong);
    assert!(said.contains("/opt/typo: no such file"), "{said}");
    let said = client.refused("run_command", json!({"sandbox": id, "argv": ["no-such"]}));
    assert!(
        said.starts_with("no-such: executable file not found"),
        "{said}"
    );

    // The last line of an output, then more.
    assert_eq!(
        home.output(&["exec", "it", "mkfifo", "/tmp/next"]).code(),
        0
    );
    let slowly = "for i in 1 2 3; do echo step $i; read line </tmp/next; done";
    let slowly = json!({"sandbox": id, "command": slowly});
    let call =
        json!({"name": "run_command", "arguments": slowly, "_meta": {"progressToken": "it"}});
    let number = client.request("tools/call", &call);
    for i in 1..=3 {
        client.wait_for_message(&format!("step {i}"));
        let next = ["exec", "it", "sh", "-c", "echo >/tmp/next"];
        assert_eq!(home.output(&next).code(), 0);
    }
    let ran = client.reply(number);
    let ran = &ran["result"]["structuredContent"];
    assert_eq!(ran["stdout"], "step 1\nstep 2\nstep 3\n");
    // One that says nothing is told of all the same.
    let silent = json!({"sandbox": id, "command": "exec sleep 1000"});
    let call = json!({"name": "run_command", "arguments": silent, "_meta": {"progressToken": 7}});
    let number = client.request("tools/call", &call);
    let mut progress = || client.receive()["params"]["progress"].as_f64().unwrap();
    let (first, second) = (progress(), progress());
    assert!(first < second, "{first} {second}");
    let cancel = json!({"requestId": number});
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}));

    // What a sandbox sends is bounded.
    let much = "seq 1000000; printf '\\033[2J%01000d\\n' 0 >&2";
    let (ran, steps) = client.watched("run_command", json!({"sandbox": id, "command": much}));
    let stdout = ran["stdout"].as_str().unwrap();
    assert!(stdout.len() < 33_000, "{}", stdout.len());
    assert!(stdout.starts_with("1\n2\n") && stdout.ends_with("\n1000000\n"));
    let left_out = ran["stdout_left_out"].as_u64().unwrap();
    assert!(stdout.contains(&format!("[... {left_out} bytes left out ...]")));
    assert!(left_out > 6_800_000, "{left_out}");
    for step in steps {
        // Without one where the output was long in coming.
        let message = step["message"].as_str().unwrap_or_default();
        assert!(
            message.len() < 300 && !message.contains('\u{1b}'),
            "{message}"
        );
    }

    // A command that takes too long is ended, with what it has started.
    let started = Instant::now();
    let late = json!({"sandbox": id, "command": "sleep 1001; echo", "timeout": 0.2});
    let ran = client.tool("run_command", late);
    assert_eq!(
        (&ran["timed_out"], &ran["exit_code"]),
        (&json!(true), &json!(143))
    );
    // So is one that the client doesn't want any more. It gets no reply.
    let forever = json!({"sandbox": id, "command": "echo begun; sleep 1002; echo"});
    let call = json!({"name": "run_command", "arguments": forever, "_meta": {"progressToken": 1}});
    let number = client.request("tools/call", &call);
    client.wait_for_message("begun");
    let cancel = json!({"requestId": number, "reason": "enough"});
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}));
    wait_until("nothing of them runs", || {
        client.sh(&id, "ps | grep '[s]leep 100'").0 == 1
    });
    assert!(started.elapsed() < PATIENCE);
    client.end();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn commands_go_on_in_the_background_and_are_read_later() {
    let home = Home::new();
    let mut client = Client::new(&home);
    let id = client.create("it");
    let run = |script: &str| json!({"sandbox": id, "command": script, "background": true});
    let waits = "mkfifo /tmp/f; echo begun; read line </tmp/f; echo $line; exec sleep 1003";
    let begun = client.tool("run_command", run(waits));
    assert_eq!(
        (&begun["running"], &begun["exit_code"]),
        (&json!(true), &json!(null))
    );
    let number = begun["command"].as_u64().unwrap();
    let mut said = begun["stdout"].as_str().unwrap().to_owned();
    let mut read = |client: &mut Client, until: &str| {
        wait_until("it is read", || {
            let news = client.tool("read_output", json!({"command": number}));
            assert_eq!(news["running"], true, "{news}");
            said.push_str(news["stdout"].as_str().unwrap());
            said == until
        });
    };
    read(&mut client, "begun\n");
    client.sh(&id, "echo more >/tmp/f");
    read(&mut client, "begun\nmore\n");
    let killed = client.tool("kill_command", json!({"command": number}));
    assert_eq!(
        (&killed["running"], &killed["exit_code"]),
        (&json!(false), &json!(137))
    );
    // Its end can be read again.
    let again = client.tool("read_output", json!({"command": number, "wait": 60}));
    assert_eq!(again["exit_code"], 137);
    // One that ends is waited for; its output is bounded while nothing reads it.
    let much = client.tool("run_command", run("seq 1000000; exit 5"));
    let much = client.tool(
        "read_output",
        json!({"command": much["command"], "wait": 60}),
    );
    assert_eq!(much["exit_code"], 5);
    let said = much["stdout"].as_str().unwrap();
    assert!(
        said.len() < 33_000 && said.ends_with("\n1000000\n"),
        "{}",
        said.len()
    );
    // Those who wait for one take no place of what is quick.
    let sleeps = client.tool("run_command", run("exec sleep 1005"));
    let sleeps = sleeps["command"].as_u64().unwrap();
    let wait = json!({"name": "read_output", "arguments": {"command": sleeps, "wait": 1e18}});
    let waiting = (0..600).map(|_| client.request("tools/call", &wait));
    let waiting: Vec<_> = waiting.collect();
    client.tool("list_sandboxes", json!({}));
    for request in waiting {
        let cancel = json!({"requestId": request, "reason": "enough"});
        client.send(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}),
        );
    }
    client.tool("kill_command", json!({"command": sleeps}));
    let unknown = client.refused("read_output", json!({"command": 99}));
    assert!(unknown.contains("no command 99"), "{unknown}");
    let wrong = client.refused("kill_command", json!({"command": number, "signal": "NONE"}));
    assert!(wrong.contains("no such signal"), "{wrong}");
    // They end with the session, in a sandbox that does not.
    client.tool("run_command", run("exec sleep 1004"));
    client.tool("keep_sandbox", json!({"sandbox": id}));
    client.end();
    let mut client = Client::new(&home);
    wait_until("it is gone", || {
        client.sh("it", "ps | grep '[s]leep 1004'").0 == 1
    });
    client.tool("stop_sandbox", json!({"sandbox": "it", "grace": 0}));
    client.end();
    home.assert_nothing_left();
}
