//! mica-guest: PID 1 and agent inside a Micabox sandbox.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("mica-guest is the first process of a Micabox machine; it does nothing here");
        return ExitCode::FAILURE;
    }
    micabox_guest::run()
}
