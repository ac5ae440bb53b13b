//! `mica port`

use micabox::{Error, Protocol, Publish};
use serde::Serialize;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json};
use micabox_program::settings;

/// List the ports of this machine that lead to a running sandbox
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,

    /// Only this port of the sandbox
    #[arg(value_name = "PORT[/tcp|/udp]", value_parser = port)]
    port: Option<(u16, Protocol)>,
}

#[derive(Serialize)]
struct Json {
    port: u16,
    protocol: String,
    host_address: String,
    host_port: u16,
}

/// Lists ports.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let sandbox = sandboxes.get(&args.sandbox)?;
    let record = sandbox.record();
    if !record.status.is_live() {
        return Err(Error::DoesNotRun(record.name.clone()).into());
    }
    let is_meant = |port: &&Publish| {
        args.port
            .is_none_or(|wanted| wanted == (port.guest, port.protocol))
    };
    let ports: Vec<_> = record.published.iter().filter(is_meant).collect();
    if let (Some((port, protocol)), true) = (args.port, ports.is_empty()) {
        let message = format!(
            "port {port}/{protocol} of sandbox {} is not published",
            record.name
        );
        return Err(Failure::new(message).hint("`mica run -p HOST:GUEST` publishes a port"));
    }
    if args.json {
        let ports = ports.iter().map(|port| Json {
            port: port.guest,
            protocol: port.protocol.to_string(),
            host_address: port.host.ip().to_string(),
            host_port: port.host.port(),
        });
        print_json(&ports.collect::<Vec<_>>())?;
        return Ok(0);
    }
    let lines = ports.iter().map(|port| match args.port {
        Some(_) => format!("{}\n", port.host),
        None => format!("{}/{} -> {}\n", port.guest, port.protocol, port.host),
    });
    print(&lines.collect::<String>())?;
    Ok(0)
}

fn port(text: &str) -> Result<(u16, Protocol), &'static str> {
    let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return Err("expected /tcp or /udp after the port"),
    };
    match port.parse() {
        Ok(port) if port != 0 => Ok((port, protocol)),
        _ => Err("expected a port, 1 to 65535"),
    }
}
