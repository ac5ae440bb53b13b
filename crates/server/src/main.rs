//! The program `mica-server`.

fn main() -> std::process::ExitCode {
    micabox_server::main()
}
