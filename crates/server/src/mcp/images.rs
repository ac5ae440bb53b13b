//! The tool `list_images`.

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::tool::{Effect, InAThread, Tool};
use crate::mcp::server::Server;
use micabox_program::failure::Failure;

/// Arguments: none.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct ListImages {}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Images {
    /// The images that are on this machine.
    images: Vec<Image>,
}

/// An image.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Image {
    /// Its names.
    names: Vec<String>,
    /// Digest of its manifest.
    digest: String,
    /// Operating system and architecture.
    platform: String,
    /// Bytes on this machine, those that other images share included.
    size: u64,
}

impl Tool for ListImages {
    const NAME: &'static str = "list_images";
    const DESCRIPTION: &'static str = "Lists the images that are on this machine. create_sandbox pulls others \
        from registries.";
    const EFFECT: Effect = Effect::Reads;
    type Output = Images;
}

impl InAThread for ListImages {
    fn call(self, server: &Server, _call: &Call) -> Result<Images, Failure> {
        let images = server.sandboxes.store().images()?.into_iter().map(|image| {
            let names = image.references.iter();
            Image {
                names: names.map(|name| name.familiar()).collect(),
                digest: image.manifest_digest.to_string(),
                platform: image.platform,
                size: image.size,
            }
        });
        Ok(Images {
            images: images.collect(),
        })
    }
}
