//! Copies of a machine, which continue where it was.

use std::sync::Mutex;

use micabox::builder::FromMemory;
use micabox::{Builder, EphemeralSnapshot, ExecOptions, Sandbox, SavedMachine, Stdio};
use micabox_ground::lock;

use super::shell_words::shell_words;
use micabox_program::failure::Failure;

/// Makes copies of a machine, as many at a time as there are processors, until one fails. Calls
/// `set_up(builder, index)` for each copy, and `then(result)` when it runs. Returns what `then` made of those that run,
/// and the first failure.
pub fn make<T: Send>(
    moment: &EphemeralSnapshot,
    count: u16,
    set_up: impl Fn(Builder<FromMemory>, u16) -> Builder<FromMemory> + Sync,
    then: impl Fn(Result<Sandbox, micabox::Error>) -> Result<T, Failure> + Sync,
) -> (Vec<T>, Option<Failure>) {
    let machine = moment.snapshot().memory.as_ref();
    let one = |number| {
        let builder = set_up(moment.restore()?, number);
        let builder = match machine.filter(|machine| machine.has_first_command()) {
            Some(_) => reattached(builder, machine),
            None => builder,
        };
        then(builder.create())
    };
    let made = Mutex::new((Vec::new(), None::<Failure>, count));
    let state = || lock(&made);
    // None when no more are to be made.
    let take = || {
        let mut state = state();
        let (_, failure, left) = &mut *state;
        *left = left.checked_sub(1).filter(|_| failure.is_none())?;
        Some(*left)
    };
    let work = || {
        while let Some(number) = take() {
            let result = one(number);
            let mut state = state();
            match result {
                Ok(copy) => state.0.push(copy),
                Err(failure) => state.1 = state.1.take().or(Some(failure)),
            }
        }
    };
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..at_once.min(count.into()) {
            scope.spawn(work);
        }
        work();
    });
    let (made, failure, _) = lock::into_inner(made);
    (made, failure)
}

/// Has a copy's first command be the one that its machine was saved with.
pub fn reattached(
    builder: Builder<FromMemory>,
    machine: Option<&SavedMachine>,
) -> Builder<FromMemory> {
    let builder = builder.reattach();
    let command = machine.and_then(|machine| machine.spec.command.as_ref());
    match command {
        Some(command) => builder.description(shell_words(&command.argv)),
        None => builder,
    }
}

/// Reattaches the first command of a copy without a terminal: its output goes to the sandbox's log, and
/// the sandbox ends with it.
pub fn reattach(sandbox: &Sandbox) -> Result<(), micabox::Error> {
    let options = ExecOptions {
        stdin: Stdio::Idle,
        stdout: Stdio::Log,
        stderr: Stdio::Log,
        detach: true,
        lifetime: true,
        ..ExecOptions::default()
    };
    sandbox.reattach(options).map(drop)
}
