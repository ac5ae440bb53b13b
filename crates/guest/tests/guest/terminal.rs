//! Commands on a terminal.

use micabox_wire::{Exec, ExitStatus, ToGuest, ToHost, TtySize};

use crate::host::{Host, command, shell};

const SIZE: TtySize = TtySize {
    rows: 24,
    columns: 80,
};

fn on_terminal(spec: Exec) -> Exec {
    Exec {
        tty: Some(SIZE),
        stdin: true,
        ..spec
    }
}

fn type_in(host: &mut Host, text: &[u8]) {
    let data = text.to_vec();
    host.send(ToGuest::Stdin { id: 1, data });
}

fn exited(host: &mut Host) -> ExitStatus {
    loop {
        match host.receive() {
            ToHost::Exited { id: 1, status } => return status,
            ToHost::Output { .. } | ToHost::StdinCredit { .. } | ToHost::StdinClosed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_commands_terminal_is_its_controlling_one_and_has_the_right_size() {
    let mut spec = on_terminal(shell(
        "stty size; test -t 0 && test -t 1 && test -t 2 && echo all; \
         stty size < /dev/tty; echo $TERM; echo error >&2",
    ));
    spec.stdin = false;
    let run = Host::new().run(spec);
    assert_eq!(run.text(), "24 80\r\nall\r\n24 80\r\nxterm\r\nerror\r\n");
    assert_eq!(run.stderr, b"");
}

#[test]
fn a_terminals_new_size_is_announced() {
    let mut host = Host::new();
    // A signal just before a read would be lost until the read ends; a sleep ends.
    let script = "trap 'stty size; exit 9' WINCH; echo ready; while :; do sleep 0.05; done";
    host.exec(1, on_terminal(shell(script)));
    host.started(1);
    host.output_with(1, "ready");
    let size = TtySize {
        rows: 50,
        columns: 132,
    };
    host.send(ToGuest::Resize { id: 1, size });
    host.output_with(1, "50 132\r\n");
    assert_eq!(exited(&mut host), ExitStatus::Exited(9));
}

#[test]
fn control_characters_do_what_they_do() {
    let mut host = Host::new();
    // Ctrl-C reaches the foreground job, through the terminal.
    host.exec(1, on_terminal(shell("echo ready; exec sleep 1000")));
    host.started(1);
    host.output_with(1, "ready");
    type_in(&mut host, b"\x03");
    assert_eq!(exited(&mut host), ExitStatus::Signaled(2));
    // Ctrl-D ends input.
    host.exec(1, on_terminal(command(&["cat"])));
    host.started(1);
    type_in(&mut host, b"line\n\x04");
    assert_eq!(exited(&mut host), ExitStatus::Exited(0));
    // So does the end of the host's input.
    host.exec(1, on_terminal(shell("cat; echo over")));
    host.started(1);
    type_in(&mut host, b"line\n");
    host.send(ToGuest::CloseStdin { id: 1 });
    host.output_with(1, "over");
    assert_eq!(exited(&mut host), ExitStatus::Exited(0));
}

#[test]
fn no_output_on_a_terminal_is_lost() {
    let mut host = Host::new();
    let wanted: String = (1..=20_000).map(|line| format!("{line}\r\n")).collect();
    for window in [100, 5000, 1 << 20] {
        let mut spec = on_terminal(shell("seq 20000; exit 2"));
        spec.output_window = window;
        let run = host.run(Exec {
            stdin: false,
            ..spec
        });
        assert!(run.text() == wanted, "window {window}");
        assert_eq!(run.status(), ExitStatus::Exited(2));
    }
}

#[test]
fn a_terminal_survives_a_command_that_lets_go_of_it() {
    let script = "exec 3<&- 0<&- 1>&- 2>&-; cat /proc/uptime > /dev/null; echo back > /dev/tty";
    let mut spec = on_terminal(shell(script));
    spec.stdin = false;
    assert_eq!(Host::new().run(spec).text(), "back\r\n");
}

#[test]
fn a_background_job_does_not_delay_the_end() {
    let mut host = Host::new();
    let script = "trap '' HUP; yes > /dev/null & echo $!; exit 3";
    let mut spec = on_terminal(shell(script));
    spec.stdin = false;
    let run = host.run(spec);
    assert_eq!(run.status(), ExitStatus::Exited(3));
    let run = host.run(command(&["kill", "-9", run.text().trim()]));
    assert_eq!(run.status(), ExitStatus::Exited(0));
}
