//! Makes sandboxes for a client.

use std::sync::Arc;

use micabox::builder::FromMemory;
use micabox::{Builder, Cancel, ExecOptions, Sandbox, Sandboxes, Stdio};

use micabox_image::progress::Progress;

use super::flags;
use super::message::Create;
use crate::failure::Failure;
use crate::run::{Preparation, shell_words};
use crate::{log, settings};

/// Makes an idle sandbox. `progress` is told of pulls.
pub fn create(
    create: &Create,
    cancel: Cancel,
    progress: Arc<dyn Progress>,
) -> Result<Sandbox, Failure> {
    let args = flags::parse(create)?;
    args.check()?;
    if let Some(name) = &args.from {
        let snapshot = settings::sandboxes(&settings::store()?)?.snapshot(name)?;
        if snapshot.memory.is_some() {
            return Err(Failure::new(format!(
                "the snapshot {name} has the memory of a machine, whose command has no client here"
            ))
            .hint(format!("`mica run -d --from {name}` starts it")));
        }
    }
    let prepared = Preparation {
        args: &args,
        tty: None,
        is_stopped: false,
        cancel,
        progress: Some(progress),
    }
    .prepare()?;
    Ok((prepared.create)()?)
}

/// Makes copies of a running sandbox, as many at a time as there are processors; all, or none.
pub fn fork(all: &Sandboxes, name: &str, count: u16) -> Result<Vec<Sandbox>, Failure> {
    fork_with(all, name, count, |builder, _| builder)
}

/// Makes copies as [`fork`] does. `complete` is given each copy's builder and number, from 0 on.
pub fn fork_with(
    all: &Sandboxes,
    name: &str,
    count: u16,
    complete: impl Fn(Builder<FromMemory>, u16) -> Builder<FromMemory> + Sync,
) -> Result<Vec<Sandbox>, Failure> {
    let moment = all.get(name)?.ephemeral_snapshot()?;
    let machine = moment.snapshot().memory.as_ref();
    let command = machine.filter(|machine| machine.has_first_command());
    let one = |number| -> Result<Sandbox, Failure> {
        let builder = log::in_owner(moment.restore()?, false);
        let mut builder = complete(builder, number);
        if let Some(machine) = command {
            builder = builder
                .reattach()
                .description(shell_words(&machine.spec.command.argv));
        }
        let sandbox = builder.create()?;
        if command.is_some() {
            let options = ExecOptions {
                stdin: Stdio::Idle,
                stdout: Stdio::Log,
                stderr: Stdio::Log,
                detach: true,
                lifetime: true,
                ..ExecOptions::default()
            };
            sandbox.reattach(options)?;
        }
        Ok(sandbox)
    };
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let left = std::sync::atomic::AtomicU16::new(count);
    let take = || {
        use std::sync::atomic::Ordering::Relaxed;
        left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
    };
    std::thread::scope(|scope| {
        let some = || {
            let mut made = Vec::new();
            while let Ok(left) = take() {
                made.push(one(left - 1)?);
            }
            Ok(made)
        };
        let threads = at_once.min(count.into());
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        let mut made = Vec::new();
        for thread in threads {
            let some: Result<Vec<Sandbox>, Failure> = thread
                .join()
                .unwrap_or_else(|_| Err(Failure::new("a thread that makes copies has failed")));
            made.extend(some?);
        }
        Ok(made)
    })
}
