//! The layout of records and of saved machines in JSON. Settings that lists of sandboxes show are beside the specification,
//! all others are in it.

use serde_json::{Map, Value};

/// The settings that are beside it. A new one is not: it is in the specification.
const BESIDE: [&str; 7] = [
    "memory_mib",
    "cpus",
    "cpu_quota",
    "disk_rate",
    "upper",
    "setup",
    "labels",
];

/// Where the specification is.
const SPEC: &str = "spec";

/// Where one without a first command is: versions before this layout read a record whose `spec` has none as damaged.
const WITHOUT_COMMAND: &str = "settings";

/// Moves them out of the specification.
pub fn put_beside(value: &mut Value) {
    let Some(all) = value.as_object_mut() else {
        return;
    };
    let Some(Value::Object(mut spec)) = all.remove(SPEC) else {
        return;
    };
    let moved = BESIDE.iter().filter_map(|name| spec.remove_entry(*name));
    all.extend(moved.collect::<Vec<_>>());
    let key = match spec.get("command") {
        None | Some(Value::Null) => WITHOUT_COMMAND,
        Some(_) => SPEC,
    };
    all.insert(key.to_owned(), spec.into());
}

/// Moves them into the specification, which records of versions before this layout lack for sandboxes that can't be started
/// again. `required` are the names of those that are always there.
///
/// # Errors
/// The name of one that is not.
pub fn put_inside(value: &mut Value, required: &[&'static str]) -> Result<(), &'static str> {
    let Some(all) = value.as_object_mut() else {
        return Ok(());
    };
    let is_missing = |name: &&&str| !all.contains_key(**name);
    if let Some(name) = required.iter().find(is_missing) {
        return Err(name);
    }
    let moved = BESIDE.iter().filter_map(|name| all.remove_entry(*name));
    let moved: Vec<_> = moved.collect();
    let spec = all.remove(WITHOUT_COMMAND).or_else(|| all.remove(SPEC));
    let mut spec = spec.unwrap_or_else(|| Map::new().into());
    if let Value::Object(spec) = &mut spec {
        spec.extend(moved);
        // A sandbox of a version that did not say so is kept.
        spec.entry("auto_remove").or_insert(false.into());
    }
    all.insert(SPEC.to_owned(), spec);
    Ok(())
}
