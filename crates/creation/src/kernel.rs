//! What is done and reported before the start about the kernel that a sandbox will have.

use micabox_spec::options::MachineOptions;
use micabox_vmm::Acceleration;

use micabox_program::output;

/// Gets ready to start processes of a sandbox that shares this machine's kernel, if it will. Must be
/// called while there is one thread.
pub fn get_ready(machine: &MachineOptions) {
    if machine.shares_kernel() {
        micabox::fork_processes();
    }
}

/// Reports that a sandbox shares this machine's kernel, if it does.
pub fn report_what_is_shared(machine: &MachineOptions) {
    if machine.shares_kernel() && !machine.quiet {
        let owners = match micabox_vmm::host::has_one_user() {
            Some(why) => format!("; all its files belong to root inside, since {why}"),
            None => String::new(),
        };
        let unlimited = match micabox_vmm::control_groups() {
            Ok((_, controllers)) if controllers.contains(&"memory") => String::new(),
            Ok(_) => "; no control group limits its memory, files included".to_owned(),
            Err(why) => {
                format!("; no control group limits its memory, files included ({why})")
            }
        };
        output::write_stderr(&format!(
            "mica: this sandbox is no machine: it shares this machine's kernel (--backend host){owners}{unlimited}\n",
        ));
    }
}

/// Warns that a flag about real processors changes nothing, if the machine will be emulated.
pub fn warn_if_emulated(machine: &MachineOptions, flag: &str) {
    let Ok(backend) = micabox_vmm::expect(machine.backend) else {
        return;
    };
    if let Acceleration::Emulated { why } = backend.acceleration() {
        output::write_stderr(&format!(
            "mica: {flag} changes nothing: the machine is emulated ({why})\n"
        ));
    }
}
