//! Starts a sandbox from its builder: with a machine of a pool, by restoring a template, or with a
//! machine of its own.

use std::time::{Duration, Instant};

use micabox_disks::snapshot as memory;
use micabox_error::Error;
use micabox_image::store::Lock;
use micabox_spec::Setup;
use micabox_state::Directory;
use micabox_vmm::{Backend, Begin, MachineFile};
use tracing::{debug, info_span};

use super::Start;
use super::attempt::Machine;
use super::planned::Planned;
use crate::GuestFiles;
use crate::creator::Creator;
use crate::pool;
use crate::template::Template;

/// How long a machine runs idle before it is saved as a template. Its kernel frees what the boot
/// has left when it is idle (RCU). Otherwise every copy would, which is a fifth of the pages that a
/// copy changes until its first output.
const AFTER_BOOT: Duration = Duration::from_millis(100);

/// The ways to a sandbox's machine, and what they share. They are tried in the order of their methods.
struct Ways<'a> {
    start: &'a Start,
    begun: Instant,
    /// The one that is expected to work.
    backend: Box<dyn Backend>,
    guest: GuestFiles,
    /// Keeps the image in the store until the sandbox has a lease on it.
    shared: Lock,
    planned: Planned,
    template: Option<Template>,
}

impl Start {
    /// Starts the sandbox and waits until it is ready for commands.
    pub fn create(self) -> Result<Creator, Error> {
        let begun = Instant::now();
        let _span = info_span!("create", base = %self.base.name()).entered();
        self.check()?;
        if let Some(id) = &self.resumed {
            // The machine of a killed owner uses its files, and holds the lock of a root disk, until
            // it has ended.
            drop(Directory::open(self.store.root())?.hold_for_start(id)?);
        }
        let ways = Ways::of(&self, begun)?;
        if let Some(sandbox) = ways.take_pooled()? {
            return Ok(sandbox);
        }
        ways.make_template()?;
        if let Some(sandbox) = ways.restore_template()? {
            return Ok(sandbox);
        }
        ways.start_own()
    }
}

impl<'a> Ways<'a> {
    /// Plans the machine for the backend that is expected to work.
    fn of(start: &'a Start, begun: Instant) -> Result<Self, Error> {
        let backend = micabox_vmm::expect(start.spec.backend)?;
        let guest = match &start.guest {
            Some(files) => files.clone(),
            None if backend.limits().own_kernel => GuestFiles::find()?,
            None => GuestFiles::find_agent()?,
        };
        let shared = start.store.shared()?;
        let planned = start.plan(&*backend)?;
        let template = start.template(&planned.plan, &guest, &*backend);
        Ok(Self {
            start,
            begun,
            backend,
            guest,
            shared,
            planned,
            template,
        })
    }

    /// Takes a machine that a pool has restored from the template, if there is one.
    fn take_pooled(&self) -> Result<Option<Creator>, Error> {
        let start = self.start;
        let Some(template) = self.template.as_ref().filter(|_| start.can_be_pooled()) else {
            return Ok(None);
        };
        let Some(connection) = pool::claim(start.store.root(), template) else {
            return Ok(None);
        };
        let pooled = Machine::Pooled {
            connection,
            template: template.directory(),
        };
        match self.attempt(start, pooled) {
            // The pool had none left, or its machine has ended.
            Err(Error::Boot(lost)) => {
                debug!(error = %lost, "no machine from the pool");
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Makes the template by another sandbox, if there is none and this one can't become it.
    fn make_template(&self) -> Result<(), Error> {
        let start = self.start;
        if let Some(template) = &self.template
            && start.spec.setup != Setup::default()
            && template.machine().is_none()
            && micabox_vmm::choose(start.spec.backend)?.name() == self.backend.name()
        {
            // A template has nothing of one sandbox's own: one without a setup makes it.
            debug!("making the template");
            drop(start.bare().create()?);
        }
        Ok(())
    }

    /// Restores the template, if there is one.
    fn restore_template(&self) -> Result<Option<Creator>, Error> {
        let start = self.start;
        let Some(template) = &self.template else {
            return Ok(None);
        };
        let Some(machine) = template.machine() else {
            return Ok(None);
        };
        let Ok(saved) = memory::open(template.directory()) else {
            return Ok(None);
        };
        // Keeps the template from being pruned meanwhile.
        let _kept = start.store.shared()?;
        let warm = start.with_template(template, machine);
        let restored = Machine::Owned {
            begin: Begin::Restore(saved),
            cmdline: &self.guest.cmdline,
        };
        match self.attempt(&warm, restored) {
            // Saved on another processor, or damaged: the template is removed, and made again
            // after a boot.
            Err(Error::Boot(lost)) => {
                debug!(error = %lost, "the template can't be restored: removed");
                template.discard();
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Tries a way that another one may follow.
    fn attempt(&self, start: &Start, machine: Machine<'_>) -> Result<Creator, Error> {
        let plan = self.planned.plan.clone();
        let shared = self.start.store.shared()?;
        start.attempt(shared, &*self.backend, plan, None, machine, self.begun)
    }

    /// Boots the machine, or restores the snapshot that the sandbox starts from. Makes the template
    /// after a boot, if this sandbox can become it.
    fn start_own(self) -> Result<Creator, Error> {
        let Self {
            start,
            begun,
            mut backend,
            guest,
            shared,
            mut planned,
            mut template,
        } = self;
        // A machine that was saved has run here. Otherwise none may have, or not like this.
        if start.machine().is_none() {
            let tried = micabox_vmm::choose(start.spec.backend)?;
            if tried.name() != backend.name() {
                // A root disk is locked once.
                drop(planned);
                planned = start.plan(&*tried)?;
                template = start.template(&planned.plan, &guest, &*tried);
            }
            backend = tried;
        }
        let Planned { plan, claim, saved } = planned;
        let begin = match saved {
            Some(saved) => Begin::Restore(saved),
            None => Begin::Boot {
                // The host backend reads only the agent's file.
                kernel: MachineFile::open(if backend.limits().own_kernel {
                    &guest.kernel
                } else {
                    &guest.initrd
                })?,
                initrd: MachineFile::open(&guest.initrd)?,
            },
        };
        let machine = Machine::Owned {
            begin,
            cmdline: &guest.cmdline,
        };
        let sandbox = start.attempt(shared, &*backend, plan, claim, machine, begun)?;
        if let Some(template) = template.filter(|_| start.spec.setup == Setup::default()) {
            template.make(|directory| {
                std::thread::sleep(AFTER_BOOT);
                sandbox.save(directory)
            });
        }
        Ok(sandbox)
    }
}
