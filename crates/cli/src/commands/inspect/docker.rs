//! Images and sandboxes in Docker's documents, as scripts and tools read them: what Docker has, and mica as well.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use micabox::{BaseName, MountSource, Record, Setup, Status};
use micabox_image::store::Image;
use serde_json::{Map, Value, json};

use micabox_program::output::rfc3339;

/// Docker's moment for what has not happened.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Returns an image's document. `names` are all of its names, and `config` is its config as it was pulled.
pub fn image(image: &Image, names: &[String], config: &Value) -> Value {
    let layers = image.layers.iter();
    let digest = image.manifest_digest.to_string();
    let repositories: BTreeSet<String> = names
        .iter()
        .map(|name| format!("{}@{digest}", repository(name)))
        .collect();
    let bytes = layers.clone().map(|layer| layer.record.blocks);
    let bytes: u64 = bytes.map(|blocks| blocks.saturating_mul(4096)).sum();
    json!({
        "Id": digest,
        "RepoTags": names,
        "RepoDigests": repositories,
        "Created": config["created"],
        "Author": config["author"].as_str().unwrap_or_default(),
        "Architecture": config["architecture"],
        "Variant": config["variant"].as_str().unwrap_or_default(),
        "Os": config["os"],
        "Size": bytes,
        "Config": run(&config["config"]),
        "RootFS": {
            "Type": "layers",
            "Layers": layers.map(|layer| layer.diff_id.to_string()).collect::<Vec<_>>(),
        },
    })
}

/// Returns what a container of an image runs, with all the fields that Docker has.
fn run(config: &Value) -> Value {
    let mut all = json!({
        "User": "", "ExposedPorts": null, "Env": [], "Entrypoint": null, "Cmd": null, "Volumes": null,
        "WorkingDir": "", "Labels": null, "StopSignal": "", "OnBuild": null, "Healthcheck": null, "Shell": null,
        "Hostname": "", "Domainname": "", "Image": "", "Tty": false, "OpenStdin": false, "StdinOnce": false,
        "AttachStdin": false, "AttachStdout": false, "AttachStderr": false,
    });
    if let (Some(all), Some(config)) = (all.as_object_mut(), config.as_object()) {
        all.extend(config.clone());
    }
    all
}

/// Returns a name without its tag or digest.
fn repository(name: &str) -> &str {
    let (name, _) = name.split_once('@').unwrap_or((name, ""));
    match name.rfind(':') {
        Some(at) if name.rfind('/').is_none_or(|slash| slash < at) => {
            name.get(..at).unwrap_or(name)
        }
        _ => name,
    }
}

/// Returns a sandbox's document.
pub fn sandbox(record: &Record) -> Value {
    let (image, digest) = match &record.base {
        BaseName::Image(name) => (record.base.to_string(), name.digest.clone()),
        base => (base.to_string(), String::new()),
    };
    let command = record.defaults.as_ref();
    let environment = command.map(|command| command.env.iter());
    let environment: Vec<String> = environment
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{}={}", text(name), text(value)))
        .collect();
    let program = record
        .spec
        .command
        .as_ref()
        .map(|command| command.argv.iter());
    let program: Vec<String> = program.into_iter().flatten().map(text).collect();
    let ports = ports(record);
    let machine = &record.spec.machine;
    json!({
        "Id": record.id,
        "Name": format!("/{}", record.name),
        "Created": moment(record.created),
        "Path": program.first().map_or("", String::as_str),
        "Args": program.iter().skip(1).collect::<Vec<_>>(),
        "State": state(&record.status, record.machine.map(|machine| machine.pid.into())),
        "Image": digest,
        "Driver": "erofs",
        "Platform": "linux",
        "RestartCount": 0,
        "Mounts": mounts(&record.spec.setup),
        "Config": {
            "Image": image,
            "User": command.map_or("", |command| command.user.as_str()),
            "Env": environment,
            "Cmd": program,
            "WorkingDir": command.map_or(String::new(), |command| text(&command.workdir)),
            "Labels": record.spec.labels,
            "Tty": command.is_some_and(|command| command.tty.is_some()),
            "OpenStdin": command.is_some_and(|command| command.stdin),
            "ExposedPorts": ports.keys().map(|port| (port.clone(), json!({}))).collect::<Map<_, _>>(),
        },
        "HostConfig": {
            "AutoRemove": record.auto_remove,
            "Memory": u64::from(machine.memory_mib) << 20,
            "NanoCpus": u64::from(machine.cpu_quota.unwrap_or(u32::from(record.cpus()) * 1000)) * 1_000_000,
            "PortBindings": ports,
            "Privileged": false,
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        },
        "NetworkSettings": {"IPAddress": "", "Networks": {}, "Ports": ports},
    })
}

fn text(text: &OsString) -> String {
    text.to_string_lossy().into_owned()
}

fn moment(seconds: i64) -> String {
    rfc3339(seconds.try_into().unwrap_or(0))
}

fn state(status: &Status, pid: Option<i64>) -> Value {
    let live = status.is_live();
    let (started, finished, code, error) = match status {
        Status::Running { since } | Status::Paused { since } => {
            (moment(*since), NEVER.to_owned(), 0, None)
        }
        Status::Exited { code, at, error } => {
            (NEVER.to_owned(), moment(*at), *code, error.as_deref())
        }
        Status::Created | Status::Starting | Status::Dead => {
            (NEVER.to_owned(), NEVER.to_owned(), 0, None)
        }
    };
    json!({
        "Status": super::super::ps::state(status),
        "Running": live,
        "Paused": matches!(status, Status::Paused { .. }),
        "Restarting": false,
        "OOMKilled": false,
        "Dead": matches!(status, Status::Dead),
        "Pid": pid.filter(|_| live).unwrap_or(0),
        "ExitCode": code,
        "Error": error.unwrap_or_default(),
        "StartedAt": started,
        "FinishedAt": finished,
    })
}

fn mounts(setup: &Setup) -> Vec<Value> {
    let mounts = setup.mounts.iter().map(|mount| {
        let (kind, name, source) = match &mount.source {
            MountSource::Tmpfs(_) => ("tmpfs", None, String::new()),
            MountSource::Volume(volume) => ("volume", Some(&volume.name), String::new()),
            MountSource::Image(image) => ("image", None, image.image.digest.clone()),
            MountSource::Bind(bind) => ("bind", None, bind.source.clone()),
        };
        let mut document = json!({
            "Type": kind,
            "Source": source,
            "Destination": mount.target,
            "Mode": if mount.read_only { "ro" } else { "" },
            "RW": !mount.read_only,
            "Propagation": "",
        });
        if let Some(name) = name {
            document["Name"] = name.as_str().into();
            document["Driver"] = "local".into();
        }
        document
    });
    mounts.collect()
}

/// Returns the published ports, by the sandbox's own.
fn ports(record: &Record) -> BTreeMap<String, Vec<Value>> {
    let mut ports: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for port in &record.published {
        let of_guest = format!("{}/{}", port.guest, port.protocol);
        ports.entry(of_guest).or_default().push(json!({
            "HostIp": port.host.ip().to_string(),
            "HostPort": port.host.port().to_string(),
        }));
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_a_name_without_its_tag() {
        for (name, expected) in [
            ("docker.io/library/debian:12", "docker.io/library/debian"),
            ("localhost:5000/a", "localhost:5000/a"),
            ("localhost:5000/a:1", "localhost:5000/a"),
            ("localhost:5000/a@sha256:12", "localhost:5000/a"),
        ] {
            assert_eq!(repository(name), expected);
        }
    }
}
