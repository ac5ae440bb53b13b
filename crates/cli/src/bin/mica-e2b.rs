//! The program `mica-e2b`.

fn main() -> std::process::ExitCode {
    micabox_cli::e2b()
}
