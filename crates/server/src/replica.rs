//! `mica store serve`, in `mica-server`.

use std::sync::Arc;
use std::time::Duration;

use micabox_replica::{Access, Replica, Report, Tls, Upstream};
use micabox_transfer::{PullOptions, Settings};
use tokio::net::TcpListener;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, write_stderr};
use micabox_program::serving::ReplicaArgs;
use micabox_program::{settings, visible};

/// The line of `mica-server`, which has no other command below `store`.
#[derive(Debug, clap::Args)]
pub struct Line {
    #[command(subcommand)]
    command: Only,
}

#[derive(Debug, clap::Subcommand)]
enum Only {
    Serve(ReplicaArgs),
}

/// Serves until a signal ends this process.
pub fn execute(line: Line) -> Outcome {
    let Only::Serve(args) = line.command;
    let store = settings::store()?;
    let access = match &args.token_file {
        Some(file) => Access::from_file(file).map_err(|error| Failure::of(&error))?,
        None => Access::default(),
    };
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let tls = Tls::from_files(certificate, key, args.client_ca.as_deref());
            Some(tls.map_err(|error| Failure::of(&error))?)
        }
        _ => None,
    };
    warn(&args, &access, tls.as_ref())?;
    let upstream = upstream(&args)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        // What a rush of requests has needed is not kept.
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .map_err(|error| Failure::of(&error).context("starting the server"))?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await.map_err(|error| {
            Failure::of(&error).context(&format!("listening at {}", args.listen))
        })?;
        let address = listener.local_addr().map_err(|e| Failure::of(&e))?;
        // A program that started this one waits for this line.
        print(&format!("{scheme}://{address}\n"))?;
        let replica = Replica::new(store, args.erofs, access, tls, upstream, report());
        let served = micabox_replica::serve(replica, listener).await;
        served.map_err(|error| Failure::of(&error))
    });
    // Pulls end with the process; what they have is continued by the next one.
    runtime.shutdown_background();
    served?;
    Ok(0)
}

/// Refuses an address that other machines can reach without a token, a certificate or `--anonymous`. Warns of HTTP
/// without TLS there.
fn warn(args: &ReplicaArgs, access: &Access, tls: Option<&Tls>) -> Result<(), Failure> {
    let ip = args.listen.ip();
    if ip.is_loopback() {
        return Ok(());
    }
    let knows_clients = tls.is_some_and(Tls::knows_clients);
    if access.is_open() && !knows_clients && !args.anonymous {
        return Err(Failure::new(format!(
            "{ip} can be reached from other machines, and any client there could pull every image of the store"
        ))
        .hint("give --token-file or --client-ca, or --anonymous if that is what you want"));
    }
    if tls.is_none() {
        write_stderr(&format!(
            "mica: {ip} can be reached from other machines, and what is said is not encrypted\n"
        ));
    }
    Ok(())
}

fn upstream(args: &ReplicaArgs) -> Result<Option<Upstream>, Failure> {
    let mut settings = Settings::clone(&*settings::settings()?);
    settings.keep_blobs |= args.keep_blobs;
    let options = PullOptions::new(Arc::new(settings));
    Ok(Upstream::new(args.pull_through.clone(), options, report()))
}

/// Says on stderr what the server's owner should know.
fn report() -> Report {
    Arc::new(|line| write_stderr(&format!("mica: {}\n", visible::line(line))))
}
