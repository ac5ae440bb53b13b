//! The program `mica-mcp`.

fn main() -> std::process::ExitCode {
    micabox_cli::mcp()
}
