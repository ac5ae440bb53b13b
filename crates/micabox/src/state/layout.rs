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

/// Moves them out of the specification.
pub(crate) fn put_beside(value: &mut Value) {
    let Some(all) = value.as_object_mut() else {
        return;
    };
    let Some(Value::Object(spec)) = all.get_mut("spec") else {
        return;
    };
    let moved: Vec<_> = BESIDE
        .iter()
        .filter_map(|name| spec.remove_entry(*name))
        .collect();
    all.extend(moved);
}

/// Moves them into the specification, which records of older versions lack for sandboxes that can't be started again.
pub(crate) fn put_inside(value: &mut Value) {
    let Some(all) = value.as_object_mut() else {
        return;
    };
    let moved: Vec<_> = BESIDE
        .iter()
        .filter_map(|name| all.remove_entry(*name))
        .collect();
    let spec = all
        .entry("spec")
        .or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(spec) = spec {
        spec.extend(moved);
    }
}
