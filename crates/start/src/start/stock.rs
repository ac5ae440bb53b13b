//! What a pool's machines are started from.

use micabox_disks::snapshot as memory;
use micabox_error::{Error, random};
use micabox_ground::hex;
use micabox_image::Store;
use micabox_vmm::{Backend, Begin, Snapshot};

use super::Start;
use crate::GuestFiles;
use crate::owner::{self, Job, Owner};
use crate::plan::Plan;
use crate::template::Template;

/// A template, and everything else that another machine of a pool is started from. Its files are
/// open, so removing the image or the template does not affect it.
pub struct Stock {
    start: Start,
    backend: Box<dyn Backend>,
    guest: GuestFiles,
    plan: Plan,
    template: Template,
    saved: Snapshot,
}

impl Start {
    /// Returns whether a machine of a pool can be this one's: whether everything that is not in the
    /// template's key can be given to it afterwards.
    pub(super) fn can_be_pooled(&self) -> bool {
        self.spec.can_be_pooled() && self.owner_log.is_none()
    }

    /// Opens what a pool's machines are started from. Makes the template if there is none.
    pub fn stock(self) -> Result<(Store, Stock), Error> {
        let backend = micabox_vmm::choose(self.spec.backend)?;
        if !backend.limits().snapshots {
            let backend = backend.name();
            return Err(micabox_vmm::Error::NoSnapshots { backend }.into());
        }
        let guest = match &self.guest {
            Some(files) => files.clone(),
            None => GuestFiles::find()?,
        };
        let store = self.store.clone();
        let shared = store.shared()?;
        let plan = self.plan(&*backend)?.plan;
        drop(shared);
        let template = self.template(&plan, &guest, &*backend);
        let template = template.filter(|_| self.can_be_pooled());
        let template = template.ok_or(Error::NoPool)?;
        if template.machine().is_none() {
            // The first sandbox makes it.
            drop(self.clone().create()?);
        }
        let machine = template.machine().ok_or(Error::NoPool)?;
        let saved = memory::open(template.directory())?;
        let start = self.with_template(&template, machine);
        Ok((
            store,
            Stock {
                start,
                backend,
                guest,
                plan,
                template,
                saved,
            },
        ))
    }
}

impl Stock {
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Starts an owner with a machine, for a sandbox that comes later.
    pub fn start(&mut self) -> Result<Owner, Error> {
        if self.saved.touched.is_none()
            && let Ok(saved) = memory::open(self.template.directory())
        {
            // The first sandbox of the template has made the list meanwhile.
            self.saved = saved;
        }
        let id = hex(random::<6>()?);
        let (machine, files) = self.start.machine_job(
            format!("mica-pool-{id}"),
            &*self.backend,
            &self.plan,
            &Begin::Restore(self.saved.clone()),
            &self.guest.cmdline,
        );
        let job = Job::Pooled(Box::new(machine));
        owner::start(&job, files.iter(), None).map_err(|source| Error::System {
            what: "starting an owner for the pool",
            source,
        })
    }
}
