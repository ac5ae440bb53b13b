//! Wrong input: the table that all SDKs share, sdk/cases.json.

use std::time::Duration;

use super::support::{Fixture, builder, until_there};
use micabox::{Mount, Reference, StartFailure, Tmpfs};
use micabox_async::{
    Builder, Command, Error, ErrorKind, ExecOptions, ExitStatus, Sandbox, blocking,
};
use serde_json::Value;

/// Returns whether a case has no counterpart here: there is no helper whose death this would be, a dropped
/// future has no outcome (the tests of what is dropped have those), and stdin has one owner by its type.
fn is_of_other_languages(case: &Value) -> bool {
    let is = |field: &str, value: &str| case[field].as_str() == Some(value);
    is("before", "helper_killed")
        || is("during", "helper_killed")
        || is("during", "cancelled")
        || is("during", "command_killed_by_another")
        || is("do", "take_stdin")
}

/// Options are methods of the builder here, and their values have types: the compiler refuses these.
const OF_OPTIONS: [&str; 4] = [
    "an option with a wrong value",
    "an option that no sandbox has",
    "an option of a command's",
    "an option of a wrong type",
];

fn box_of(fixture: &Fixture) -> Builder {
    let small = Tmpfs {
        size_bytes: Some(64 << 10),
        ..Tmpfs::default()
    };
    builder(fixture).mount(Mount::tmpfs("/small", small))
}

/// Returns a value of the table, with what stands for another one replaced.
fn whole(value: &Value, name: &str) -> Value {
    match value {
        Value::Array(values) => values.iter().map(|value| whole(value, name)).collect(),
        Value::Object(fields) if fields.contains_key("of") => name.into(),
        Value::Object(fields) => match fields.get("repeat").and_then(Value::as_array) {
            Some(repeat) => {
                let count = usize::try_from(repeat[1].as_u64().unwrap()).unwrap();
                repeat[0].as_str().unwrap().repeat(count).into()
            }
            None => {
                let fields = fields.iter();
                let fields = fields.map(|(field, value)| (field.clone(), whole(value, name)));
                Value::Object(fields.collect())
            }
        },
        other => other.clone(),
    }
}

fn command(case: &Value) -> Command {
    let argv: Vec<String> = match &case["cmd"] {
        Value::String(script) => vec!["sh".into(), "-c".into(), script.clone()],
        words => serde_json::from_value(words.clone()).unwrap(),
    };
    Command {
        env: vec![("PATH".into(), "/bin".into())],
        user: case["user"].as_str().unwrap_or_default().into(),
        workdir: case["cwd"].as_str().unwrap_or_default().into(),
        ..Command::new(argv)
    }
}

/// What a case came to.
#[derive(Debug)]
enum Outcome {
    Error(Error),
    /// An exit code that is not 0: a result in Rust, as with `std::process`.
    Exited(i32),
}

async fn create(case: &Value, fixture: &Fixture) -> Result<(), Error> {
    let options = &case["options"];
    if let Some(name) = options["snapshot"].as_str() {
        let (all, name) = (fixture.sandboxes(), name.to_owned());
        return blocking(move || all.snapshot(&name)).await.map(drop);
    }
    let Some(name) = case["image"].as_str() else {
        let name = options["name"].as_str().unwrap();
        return Sandbox::create(box_of(fixture).name(name)).await.map(drop);
    };
    let (store, name) = (fixture.store.clone(), name.to_owned());
    if name.parse::<Reference>().is_err() {
        // It can't be pulled under such a name either.
        let image = blocking(move || store.image(&name)).await;
        return Err(image.unwrap_err().into());
    }
    let image = blocking(move || store.image(&name)).await?;
    Sandbox::create(Builder::new(&fixture.store, &image))
        .await
        .map(drop)
}

async fn perform(case: &Value, fixture: &Fixture, sandbox: &Sandbox) -> Result<Option<i32>, Error> {
    let text = |field: &str| case[field].as_str().unwrap();
    let commands = sandbox.commands();
    match text("do") {
        "create" => create(case, fixture).await?,
        "connect" => drop(Sandbox::connect(&fixture.sandboxes(), text("sandbox")).await?),
        "run" => {
            let options = ExecOptions {
                timeout: case["seconds"].as_f64().map(Duration::from_secs_f64),
                ..ExecOptions::piped(false)
            };
            let finished = commands.run_with(&command(case), options).await?;
            if let ExitStatus::Exited(code @ 1..) = finished.status {
                return Ok(Some(code));
            }
        }
        "attach" => {
            let pid = u32::try_from(case["pid"].as_u64().unwrap()).unwrap();
            drop(commands.attach(pid).await?);
        }
        "read" => drop(sandbox.files().read(text("path")).await?),
        "write" => {
            let data = text("data").as_bytes();
            sandbox.files().write(text("path"), data).await?;
        }
        "host" => {
            let port = u16::try_from(case["port"].as_u64().unwrap()).unwrap();
            sandbox.host(port)?;
        }
        "fork" => {
            let count = u16::try_from(case["count"].as_u64().unwrap()).unwrap();
            drop(sandbox.fork(count).await?);
        }
        other => panic!("{other}"),
    }
    Ok(None)
}

/// Checks that an error is of the table's class and kind.
fn check(case: &Value, outcome: &Outcome) {
    let class = case["error"].as_str().unwrap();
    let error = match outcome {
        Outcome::Error(error) => error,
        Outcome::Exited(code) => {
            assert_eq!((class, *code), ("CommandExit", 7));
            return;
        }
    };
    let kind = error.kind();
    let is_of_class = match class {
        "InvalidArgument" => kind == ErrorKind::Invalid,
        "NotFound" => kind == ErrorKind::NotFound,
        "SandboxNotFound" => matches!(error, Error::NoSuchSandbox(_)),
        "NameInUse" => kind == ErrorKind::NameInUse,
        "SandboxNotRunning" => kind == ErrorKind::NotRunning,
        "Disconnected" => kind == ErrorKind::Disconnected,
        "Unsupported" => kind == ErrorKind::Unsupported,
        "Timeout" => kind == ErrorKind::TimedOut,
        "NotEnoughSpace" => kind == ErrorKind::Full,
        "File" => matches!(error, Error::File { .. }),
        "FileNotFound" => matches!(error, Error::File { .. }) && kind == ErrorKind::NotFound,
        "CommandStart" => matches!(error, Error::Start(_)),
        // Any.
        "Sandbox" => true,
        other => panic!("{other}"),
    };
    assert!(is_of_class, "{class}: {kind:?} {error}");
    match (case["kind"].as_str(), error) {
        // Rust has these in the error itself, with kinds of their reasons.
        (Some("start"), Error::Start(failed)) => {
            let reason = match case["reason"].as_str().unwrap() {
                "not_found" => StartFailure::NotFound,
                "not_executable" => StartFailure::NotExecutable,
                "no_such_user" => StartFailure::NoSuchUser,
                "bad_workdir" => StartFailure::BadWorkdir,
                "other" => StartFailure::Other,
                other => panic!("{other}"),
            };
            assert_eq!(failed.reason, reason, "{error}");
        }
        (Some("file"), Error::File { .. }) | (None, _) => {}
        (Some(expected), _) => {
            assert_eq!(serde_json::to_value(kind).unwrap(), expected, "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn wrong_input_has_the_same_error_in_every_language() {
    let table: Value = serde_json::from_str(include_str!("../../../../sdk/cases.json")).unwrap();
    let cases = table["cases"].as_array().unwrap();
    assert!(cases.len() > 20);
    let fixture = Fixture::new();
    let shared = Sandbox::create(box_of(&fixture)).await.unwrap();
    let mut left: Vec<&str> = OF_OPTIONS.into();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        if left.contains(&name) {
            left.retain(|option| *option != name);
            continue;
        }
        if is_of_other_languages(case) {
            continue;
        }
        eprintln!("{name}");
        // By this client or another one.
        let is_killed = |when: &str| {
            case[when]
                .as_str()
                .is_some_and(|how| how.contains("killed"))
        };
        let own = if is_killed("before") || is_killed("during") {
            Sandbox::create(box_of(&fixture)).await.unwrap()
        } else {
            shared.clone()
        };
        let kill = async || {
            if case.to_string().contains("by_another") {
                let other = own.record().name.clone();
                let other = Sandbox::connect(&fixture.sandboxes(), &other)
                    .await
                    .unwrap();
                other.kill().await.unwrap();
            } else {
                own.kill().await.unwrap();
            }
        };
        if is_killed("before") {
            kill().await;
            // Waits until this client's connection has ended as well.
            own.kill().await.unwrap();
        }
        let is_killed_during = is_killed("during");
        let killed = async {
            if is_killed_during {
                until_there(&own, "sleep 100").await;
                kill().await;
            }
        };
        let case = whole(case, &shared.record().name);
        let performed = perform(&case, &fixture, &own);
        let (performed, ()) = tokio::join!(performed, killed);
        let outcome = match performed {
            Err(error) => Outcome::Error(error),
            Ok(Some(code)) => Outcome::Exited(code),
            Ok(None) => panic!("{name}: it succeeded"),
        };
        check(&case, &outcome);
    }
    assert!(left.is_empty(), "not in the table: {left:?}");
}
