//! A registry of images, on the loopback interface.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process of Debian's docker-registry. It ends when this is dropped.
pub struct DockerRegistry {
    process: Child,
    host: String,
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl DockerRegistry {
    /// Runs a registry that stores everything in `directory`. `more` is added to its settings.
    ///
    /// # Panics
    /// If docker-registry is not installed, or ends.
    #[must_use]
    pub fn start(directory: &Path, more: &str) -> Self {
        let root = directory.join("registry");
        let config = format!(
            "version: 0.1\nlog:\n  level: info\n  accesslog:\n    disabled: true\n\
             storage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:0\n{more}",
            root.display()
        );
        let file = directory.join("registry.yml");
        fs::write(&file, config).unwrap();
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry is installed; run scripts/setup");
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        let host = loop {
            line.clear();
            let count = log.read_line(&mut line).unwrap();
            assert!(count > 0, "docker-registry ended");
            if let Some((_, rest)) = line.split_once("listening on ") {
                let end = rest.find(['"', ',']).unwrap_or(rest.len());
                break rest[..end].trim().to_owned();
            }
        };
        // The registry would block if its log were not read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { process, host }
    }

    /// Returns its address and port.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Pushes the OCI layout in `directory` as `repository:tag`, with skopeo.
    ///
    /// # Panics
    /// If skopeo is not installed, or fails.
    pub fn push(&self, directory: &Path, to: &str, options: &[&str]) {
        let output = Command::new("skopeo")
            .args([
                "copy",
                "--quiet",
                "--insecure-policy",
                "--all",
                "--preserve-digests",
            ])
            .args(options)
            .arg(format!("oci:{}", directory.display()))
            .arg(format!("docker://{}/{to}", self.host))
            .output()
            .expect("skopeo is installed; run scripts/setup");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
