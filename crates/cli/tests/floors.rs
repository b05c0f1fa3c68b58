//! The floors of the house: a crate depends on crates of lower floors only, and the modules of a
//! crate import each other in one direction only.
//!
//! Each manifest declares its crate's floor (`[package.metadata.forebay] floor = 3`). The picture
//! in ARCHITECTURE.md shows the same. Imports of modules are read from the source
//! (`floors/imports.rs`); what is built for tests only doesn't count.

#[path = "floors/imports.rs"]
mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A crate of the workspace.
struct Crate {
    dir: PathBuf,
    floor: u32,
    /// All that it depends on, but for its tests.
    needs: BTreeSet<String>,
}

/// The crates of the workspace by name, without `forebay-`.
fn crates() -> BTreeMap<String, Crate> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(dir.join("Cargo.toml")) else {
            continue;
        };
        let (mut section, mut name, mut floor, mut needs) = ("", "", None, BTreeSet::new());
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
            match (section, key) {
                ("package", "name") => name = value.trim_matches('"'),
                ("package.metadata.forebay", "floor") => floor = value.parse().ok(),
                _ if is_needed && !line.starts_with('#') => {
                    needs.insert(key.trim_end_matches(".workspace").to_owned());
                }
                _ => {}
            }
        }
        let short = name.strip_prefix("forebay-").expect(name).to_owned();
        let floor = floor.unwrap_or_else(|| panic!("{name} declares no floor"));
        all.insert(short, Crate { dir, floor, needs });
    }
    assert!(all.len() > 15, "only {} crates were found", all.len());
    all
}

#[test]
fn each_crate_depends_on_lower_floors_only() {
    let all = crates();
    let mut wrong = Vec::new();
    for (name, one) in &all {
        for needed in one.needs.iter().filter_map(|n| n.strip_prefix("forebay-")) {
            let below = &all[needed];
            if below.floor >= one.floor {
                wrong.push(format!(
                    "{name} (floor {}) depends on {needed} (floor {})",
                    one.floor, below.floor
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The node store builds and passes its tests without a network.
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

/// The names in a row of boxes of the picture, `  5   | preload | | fuse |   faces`.
fn boxes(line: &str) -> impl Iterator<Item = &str> {
    let all = line.split('|').skip(1).step_by(2).map(str::trim);
    all.filter(|name| !name.is_empty())
}

#[test]
fn the_picture_shows_the_floors_of_the_manifests() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let floors = text.split_once("## The floors").expect("its heading").1;
    let picture = floors.split("```").nth(1).expect("a picture");
    let mut shown: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for line in picture.lines().filter(|l| l.contains('|')) {
        let number = line.split('|').next().unwrap().trim();
        let number = number.parse().expect("each row has its floor");
        let names = boxes(line).map(str::to_owned);
        shown.entry(number).or_default().extend(names);
    }
    let mut declared: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (name, one) in crates() {
        declared.entry(one.floor).or_default().insert(name);
    }
    assert_eq!(shown, declared, "ARCHITECTURE.md (left), the manifests");
    let table: BTreeSet<&str> = floors
        .lines()
        .filter_map(|l| l.strip_prefix("| ")?.split(" |").next())
        .collect();
    for name in declared.values().flatten() {
        let has_row = table.contains(name.as_str());
        assert!(has_row, "the table of ARCHITECTURE.md lacks {name}");
    }
}

#[test]
fn modules_import_in_one_direction() {
    let mut wrong = Vec::new();
    for (name, one) in crates() {
        let found = imports::of_crate(&one.dir.join("src"));
        let cycles = imports::cycles(&found);
        if !cycles.is_empty() {
            wrong.push(format!(
                "{name}: its modules import each other:\n{}",
                imports::describe(&found, &cycles)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
