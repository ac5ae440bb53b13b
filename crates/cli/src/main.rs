//! The program `mica`.

fn main() -> std::process::ExitCode {
    micabox_cli::main()
}
