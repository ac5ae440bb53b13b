//! Commands that run in the background.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use micabox::ErrorKind;
use micabox_ground::lock;

use super::call::Call;
use super::job::Job;
use super::ran::Ran;
use micabox_program::failure::Failure;

/// Most commands whose output is kept; those that have ended longest ago make room.
const KEPT: usize = 64;

/// The commands of a session, by their numbers.
#[derive(Debug, Default)]
pub struct Background(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    jobs: BTreeMap<u64, Arc<Job>>,
}

impl Background {
    /// Keeps a command that was started.
    pub fn keep(&self, job: Arc<Job>, call: &Call) -> Result<Ran, Failure> {
        if call.is_cancelled() {
            // Its client will not learn its number.
            job.kill();
            return Err(Failure::new("cancelled"));
        }
        let mut kept = self.lock();
        if kept.jobs.len() >= KEPT {
            let mut jobs = kept.jobs.iter();
            let ended = jobs.find(|(_, job)| job.has_ended());
            let Some(number) = ended.map(|(number, _)| *number) else {
                job.kill();
                return Err(
                    Failure::new(format!("{KEPT} commands run in the background"))
                        .hint("kill_command ends one"),
                );
            };
            kept.jobs.remove(&number);
        }
        kept.last += 1;
        let number = kept.last;
        kept.jobs.insert(number, Arc::clone(&job));
        drop(kept);
        Ok(Ran::new(Some(number), job.news()?))
    }

    /// Finds a command by its number.
    pub fn job(&self, number: u64) -> Result<Arc<Job>, Failure> {
        let kept = self.lock();
        let job = kept.jobs.get(&number).map(Arc::clone);
        job.ok_or_else(|| {
            let what = format!("no command {number} in the background of this session");
            Failure::of_kind(ErrorKind::NotFound, what)
                .hint("run_command with `background` starts one and says its number")
        })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        lock(&self.0)
    }
}
