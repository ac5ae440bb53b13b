//! All options.

use super::row::{Opt, Row};
use super::{commands, files, life, limits, machine, network};

/// Returns all options.
pub fn all() -> impl Iterator<Item = &'static Opt> {
    fn of<T>(rows: &'static [Row<T>]) -> impl Iterator<Item = &'static Opt> {
        rows.iter().map(|row| &row.option)
    }
    of(life::OPTIONS)
        .chain(of(files::OPTIONS))
        .chain(of(machine::OPTIONS))
        .chain(of(limits::OPTIONS))
        .chain(of(network::OPTIONS))
        .chain(of(commands::OPTIONS))
}

/// Finds an option by its long name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Opt> {
    all().find(|option| option.name == name)
}

/// Returns the options in the lists of the SDKs, in their order.
#[must_use]
pub fn listed() -> Vec<&'static Opt> {
    let mut listed: Vec<_> = all().filter(|option| option.listed.is_some()).collect();
    listed.sort_by_key(|option| option.listed);
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_options_have_one_name_or_one_place() {
        let has_twins = |mut places: Vec<(u16, u16)>| {
            let count = places.len();
            places.sort_unstable();
            places.dedup();
            places.len() < count
        };
        let listed = all().filter_map(|option| option.listed.map(|place| (0, place)));
        assert!(!has_twins(listed.collect()));
        let below = all().filter_map(|option| option.below);
        let below = below.map(|(heading, place)| (heading as u16, place));
        assert!(!has_twins(below.collect()));
        for option in all() {
            let known = find(option.name).unwrap();
            assert!(std::ptr::eq(known, option), "{}", option.name);
        }
    }
}
