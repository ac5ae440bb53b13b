//! What `mica exec` does in a running sandbox, on any backend.

use std::io::{Read, Write};
use std::process::Stdio;

use super::{Finished, Home, Running, wait_until};

const KILL: i32 = 9;
const USR1: i32 = 10;
const TERM: i32 = 15;

/// The sandbox's own settings, which commands have as well.
pub const FLAGS: [&str; 6] = ["-e", "A=1", "-w", "/tmp", "-u", "app"];

/// Its command: prints a line when it runs, and ends by SIGTERM with 7.
pub const WAITS: &str = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done";

/// A sandbox to run commands in.
pub struct Sandbox<'a> {
    pub home: &'a Home,
    pub name: &'a str,
}

impl Sandbox<'_> {
    /// Runs a command to its end.
    pub fn exec(&self, flags: &[&str], command: &[&str]) -> Finished {
        let arguments = [&["exec"], flags, &[self.name], command].concat();
        self.home.output(&arguments)
    }

    /// Runs a script to its end.
    pub fn script(&self, flags: &[&str], script: &str) -> Finished {
        self.exec(flags, &["sh", "-c", script])
    }

    /// Starts a script whose first line is `ready`.
    pub fn ready(&self, script: &str) -> Running {
        let arguments = ["exec", self.name, "sh", "-c", script];
        let mut running = self.home.start(&arguments);
        assert_eq!(running.line(), "ready");
        running
    }

    /// Returns whether a process runs in the sandbox.
    pub fn has(&self, pid: &str) -> bool {
        self.exec(&["-u", "0"], &["kill", "-0", pid]).code() == 0
    }

    /// Commands have Docker's exit codes, and streams of their own.
    pub fn has_exit_codes(&self) {
        let finished = self.script(&[], "echo out; echo err >&2; exit 3");
        let streams = (finished.stdout(), finished.stderr());
        assert_eq!(streams, ("out\n".to_owned(), "err\n".to_owned()));
        assert_eq!(finished.code(), 3);
        for (code, flags, command) in [
            (0, &[][..], &["true"][..]),
            (127, &[], &["/nope"]),
            (127, &[], &["no-such-program"]),
            (126, &["-u", "0"], &["/srv/run"]),
            (143, &[], &["sh", "-c", "kill -TERM $$"]),
            (124, &["--timeout", "0.2"], &["sleep", "1000"]),
        ] {
            let finished = self.exec(flags, command);
            assert_eq!(finished.code(), code, "{command:?}: {}", finished.stderr());
        }
    }

    /// Commands have the environment, user and directory of the sandbox, unless flags say otherwise.
    pub fn has_surroundings(&self) {
        let look = "echo $A $FROM_IMAGE $B; pwd; id -u; id -g; echo $HOME";
        let plain = self.script(&[], look).ok();
        assert_eq!(plain, "1 yes\n/tmp\n1000\n1000\n/home/app\n");
        let file = self.home.path().join("variables");
        std::fs::write(&file, "A=from a file\nB=2\n").unwrap();
        let flags = ["--env-file", file.to_str().unwrap(), "-e", "A=3"];
        let own = ["-u", "0:50", "-w", "/home"];
        let changed = self.script(&[&flags[..], &own].concat(), look).ok();
        assert_eq!(changed, "3 yes 2\n/home\n0\n50\n/root\n");
        // A directory that is misspelt is not made.
        let missing = self.exec(&["-w", "/made/here"], &["true"]);
        assert_eq!(missing.code(), 125);
        let said = missing.stderr();
        assert!(
            said.contains("working directory /made/here: no such file"),
            "{said}"
        );
        assert_eq!(self.exec(&[], &["ls", "/made"]).code(), 1);
        // Without -i, stdin is empty; with it, it is ours.
        assert_eq!(self.exec(&[], &["cat"]).ok(), "");
        let mut mica = self.home.mica(&["exec", "-i", self.name, "cat"]);
        let input = std::fs::File::open(&file).unwrap();
        let echoed = Finished::of({
            mica.stdin(input);
            mica
        });
        assert_eq!(echoed.ok(), "A=from a file\nB=2\n");
    }

    /// Processes are listed as they are, without a program of the image.
    pub fn lists_processes(&self) {
        let mut running = self.ready("echo ready; echo $$; exec sleep 1000");
        let pid = running.line();
        let listed = |arguments: &[&str]| {
            let top = [&["top"], arguments, &[self.name]].concat();
            self.home.output(&top)
        };
        wait_until("it sleeps", || {
            let json = listed(&["--json"]).json();
            let mut all = json.as_array().unwrap().iter();
            all.any(|process| {
                let is_it = process["pid"].as_u64() == pid.parse().ok();
                is_it && process["command"] == "sleep 1000" && process["state"] == "S"
            })
        });
        let top = self
            .home
            .output(&["top", self.name, "-o", "pid,uid,args"])
            .ok();
        let mut lines = top.lines();
        let heading: Vec<_> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(heading, ["PID", "UID", "CMD"]);
        let rows: Vec<Vec<_>> = lines
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(
            rows.contains(&vec![&*pid, "1000", "sleep", "1000"]),
            "{top}"
        );
        assert!(rows.iter().all(|row| row.len() >= 3), "{top}");
        let json = self.home.output(&["top", "--json", self.name]).json();
        let json = json.as_array().unwrap();
        // The first command sleeps, or starts to: another process is there at times.
        assert!(json.len().abs_diff(rows.len()) <= 1, "{json:?}\n{top}");
        let it = json
            .iter()
            .find(|process| process["pid"].as_u64() == pid.parse().ok());
        let it = it.unwrap();
        assert_eq!((&it["uid"], &it["state"]), (&1000.into(), &"S".into()));
        assert!(it["age"].as_f64().unwrap() < 1000.0 && it["resident"].is_u64());
        running.signal(TERM);
        assert_eq!(running.wait(), 143);
    }

    /// So many bytes arrive whole, in and out, through pipes; meanwhile a reader that is stuck stops
    /// nothing but its own command.
    pub fn passes_on(&self, bytes: u64) {
        let mut stuck = self.ready("echo ready; exec yes");
        let mut cat = self.home.mica(&["exec", "-i", self.name, "cat"]);
        cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut cat = cat.spawn().unwrap();
        let mut stdin = cat.stdin.take().unwrap();
        let block: Vec<u8> = (0..65_521_u32).map(|number| (number * 7) as u8).collect();
        let expected = block.clone();
        let writer = std::thread::spawn(move || {
            let mut left = bytes;
            while left > 0 {
                let count = left.min(block.len() as u64);
                stdin.write_all(&block[..count as usize]).unwrap();
                left -= count;
            }
        });
        let mut stdout = cat.stdout.take().unwrap();
        let mut buffer = vec![0; expected.len()];
        let mut received = 0;
        while received < bytes {
            let wanted = (bytes - received).min(buffer.len() as u64) as usize;
            stdout.read_exact(&mut buffer[..wanted]).unwrap();
            assert!(buffer[..wanted] == expected[..wanted], "at {received}");
            received += wanted as u64;
        }
        assert_eq!(stdout.read(&mut buffer).unwrap(), 0);
        writer.join().unwrap();
        assert!(cat.wait().unwrap().success());
        assert!(stuck.is_running());
        // Without its reader it ends as in a shell.
        assert_eq!(super::wait(&mut stuck.close()), 141);
    }

    /// A command gets mica's signals, and dies with mica unless it is detached.
    pub fn ends_with_its_caller(&self) {
        let traps = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.02; done";
        let running = self.ready(traps);
        running.signal(USR1);
        assert_eq!(running.wait(), 9);
        let running = self.ready(traps);
        running.signal(TERM);
        assert_eq!(running.wait(), 143);

        let mut running = self.ready("echo ready; echo $$; exec sleep 1000");
        let pid = running.line();
        assert!(self.has(&pid));
        running.signal(KILL);
        running.wait();
        wait_until("the command dies with its caller", || !self.has(&pid));

        // A copy has what was written in the original.
        self.exec(&[], &["rm", "-f", "/tmp/pid"]).ok();
        let detached = self.script(&["-d"], "echo $$ >/tmp/pid; echo unseen; exec sleep 1000");
        assert_eq!(detached.ok(), "");
        let mut pid = String::new();
        wait_until("it runs", || {
            pid = self.exec(&[], &["cat", "/tmp/pid"]).stdout();
            !pid.is_empty()
        });
        assert!(self.has(pid.trim()));
        self.exec(&[], &["kill", pid.trim()]).ok();
        let failed = self.exec(&["-d"], &["/nope"]);
        assert_eq!(failed.code(), 127);
    }

    /// So many commands run at once: none ends before all have begun.
    pub fn runs_at_once(&self, count: usize) {
        self.exec(&[], &["mkfifo", "/tmp/gate"]).ok();
        // Each has the FIFO open before it is known to run, and reads a line that stays until then.
        let script = "exec 3<>/tmp/gate; echo begun; read line <&3; echo $0; exit $(($0 % 100))";
        let numbers: Vec<_> = (0..count).map(|number| number.to_string()).collect();
        let commands: Vec<_> = numbers
            .iter()
            .map(|number| {
                let arguments = ["exec", self.name, "sh", "-c", script, number];
                self.home.start(&arguments)
            })
            .collect();
        let mut commands: Vec<Running> = commands;
        for command in &mut commands {
            assert_eq!(command.line(), "begun");
        }
        let lines = format!("yes '' | head -n {count} >/tmp/gate");
        self.script(&[], &lines).ok();
        for (number, mut command) in commands.into_iter().enumerate() {
            assert_eq!(command.line(), number.to_string());
            assert_eq!(command.wait(), number as i32 % 100);
        }
    }
}
