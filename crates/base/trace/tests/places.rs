//! Test that every tracepoint is used in the crate that the table of tracepoints names.

use forebay_trace::points::POINTS;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn read(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, text);
        } else if path.extension().is_some_and(|e| e == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// Returns the repository's top directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Returns the directory of a crate: below a folder of `crates`, in `crates` itself or in `tools`.
fn folder(name: &str) -> PathBuf {
    let wings = std::fs::read_dir(root().join("crates")).unwrap();
    let mut wings: Vec<PathBuf> = wings.map(|wing| wing.unwrap().path()).collect();
    wings.extend([root().join("crates"), root().join("tools")]);
    let mut places = wings.iter().map(|wing| wing.join(name));
    let found = places.find(|place| place.join("Cargo.toml").is_file());
    found.unwrap_or_else(|| panic!("there is no crate {name}"))
}

#[test]
fn every_point_stands_where_the_table_says() {
    let mut sources: HashMap<&str, String> = HashMap::new();
    for point in POINTS {
        let source = sources.entry(point.place).or_insert_with(|| {
            let mut text = String::new();
            read(&folder(point.place).join("src"), &mut text);
            text
        });
        assert!(
            source.contains(point.name),
            "{} isn't in the crate {}",
            point.name,
            point.place
        );
    }
}

#[test]
fn the_reference_lists_all() {
    let mut text = String::from(
        "# Tracepoints\n\nWhat each says, and in which crate it stands. Made from the table in\n\
         `crates/base/trace/src/points.rs` by\n\
         `FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p forebay-trace`.\n\
         How they are used: [tracing](../howto/tracing.md).\n\n\
         | id | name | crate | says | fields |\n|---|---|---|---|---|\n",
    );
    for (id, point) in POINTS.iter().enumerate() {
        let fields: Vec<String> = (point.fields.iter())
            .map(|(name, kind)| format!("`{name}: {kind:?}`"))
            .collect();
        text += &format!(
            "| {id} | {} | {} | {} | {} |\n",
            point.name,
            point.place,
            point.template,
            fields.join(", ")
        );
    }
    let file = root().join("docs/reference/tracepoints.md");
    if std::env::var_os("FOREBAY_WRITE_DOCS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&file).unwrap_or_default(),
        text,
        "docs/reference/tracepoints.md is stale: FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p forebay-trace"
    );
}
