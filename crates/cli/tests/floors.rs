//! Tests the layers: wings of crates, and files of a folder, import each other only in one
//! direction.
//!
//! `crates/base` doesn't depend on pools; `crates/core` is the pool. `crates/faces` and
//! `crates/services` depend on the core, but not on each other. `crates/cli` is the command.
//! `tools` isn't shipped, and only tests need it. The imports of files are read from the source
//! (`floors/imports.rs`), except code that is built only for tests.

#[path = "floors/imports.rs"]
mod imports;

mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// Each wing, with the other wings whose crates it may use.
const WINGS: [(&str, &[&str]); 6] = [
    ("base", &[]),
    ("core", &["base"]),
    ("faces", &["base", "core"]),
    ("services", &["base", "core"]),
    ("cli", &["base", "core", "faces", "services"]),
    ("tools", &["base", "core", "faces", "services", "cli"]),
];

/// A crate of the workspace.
struct Crate {
    dir: PathBuf,
    wing: String,
    /// The crates that it depends on, except those that only its tests need.
    needs: BTreeSet<String>,
}

/// Returns the crates of the workspace by name, without `forebay-`.
fn crates() -> BTreeMap<String, Crate> {
    let mut all = BTreeMap::new();
    for (name, dir) in workspace::crates() {
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let (mut section, mut needs) = ("", BTreeSet::new());
        for line in manifest.lines().map(str::trim) {
            if let Some(inner) = line.strip_prefix('[') {
                section = inner.trim_end_matches(']');
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            let is_needed = section.ends_with("dependencies") && !section.starts_with("dev-");
            if (section, key) == ("package", "name") {
                assert_eq!(value.trim_matches('"'), format!("forebay-{name}"));
            } else if is_needed && !line.starts_with('#') {
                needs.insert(key.trim_end_matches(".workspace").to_owned());
            }
        }
        let top = workspace::root();
        let below = dir.strip_prefix(&top).unwrap().to_str().unwrap();
        let wing = below.trim_start_matches("crates/").split('/').next();
        let wing = wing.unwrap().to_owned();
        all.insert(name, Crate { dir, wing, needs });
    }
    all
}

#[test]
fn each_wing_uses_those_below_it_only() {
    let all = crates();
    let mut wrong = Vec::new();
    for (name, one) in &all {
        let below = WINGS.iter().find(|(wing, _)| *wing == one.wing);
        let (_, below) = below.unwrap_or_else(|| panic!("{name} lies in no wing"));
        for needed in one.needs.iter().filter_map(|n| n.strip_prefix("forebay-")) {
            let other = &all[needed].wing;
            if *other != one.wing && !below.contains(&other.as_str()) {
                wrong.push(format!("{}/{name} depends on {other}/{needed}", one.wing));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The node store must build and pass its tests without a network.
#[test]
fn the_store_needs_no_network() {
    let all = crates();
    let mut reached = BTreeSet::from(["forebay-store".to_owned()]);
    let mut left: Vec<String> = reached.iter().cloned().collect();
    while let Some(next) = left.pop() {
        let Some(one) = next.strip_prefix("forebay-").map(|n| &all[n]) else {
            continue;
        };
        left.extend(one.needs.iter().filter(|n| !reached.contains(*n)).cloned());
        reached.extend(one.needs.iter().cloned());
    }
    assert!(reached.contains("forebay-media"), "{reached:?}");
    for network in ["forebay-net", "forebay-pool", "snow", "ureq"] {
        assert!(!reached.contains(network), "the store needs {network}");
    }
}

/// The picture in ARCHITECTURE.md must show each wing with its crates.
#[test]
fn the_picture_shows_all_crates() {
    let text = fs::read_to_string(workspace::root().join("ARCHITECTURE.md")).unwrap();
    let picture = text.split("```").nth(1).expect("a picture");
    let words: BTreeSet<&str> = picture.split(|c: char| !c.is_alphanumeric()).collect();
    for (name, one) in crates() {
        assert!(words.contains(name.as_str()), "the picture lacks {name}");
        assert!(words.contains(one.wing.as_str()), "it lacks {}", one.wing);
    }
}

#[test]
fn files_beside_each_other_import_in_one_direction() {
    let mut wrong = Vec::new();
    let mut looked = 0;
    for (name, one) in crates() {
        let source = imports::Source::of_crate(&one.dir.join("src"));
        for folder in source.folders() {
            let mut found = source.imports(&folder);
            if !folder.is_empty() {
                // Modules of a folder may use the items that the folder's own module defines.
                found.remove(imports::ROOT);
                found.values_mut().for_each(|to| {
                    to.remove(imports::ROOT);
                });
            }
            looked += 1;
            let cycles = imports::cycles(&found);
            let path = folder.join("/");
            if !cycles.is_empty() {
                wrong.push(format!(
                    "{name} {path}: its files import each other:\n{}",
                    imports::describe(&found, &cycles)
                ));
            }
        }
    }
    assert!(looked > 60, "only {looked} folders were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
