//! Finds the folders of the workspace, for tests that read its source.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder of each crate, by its name without `forebay-`. Folders inside `crates`
/// (wings) hold crates, and so does `tools`.
#[allow(
    dead_code,
    reason = "a part of each test that includes it, and `limits.rs` needs only the root"
)]
pub fn crates() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root().join("crates"), root().join("tools")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.join("Cargo.toml").is_file() {
                let name = path.file_name().unwrap().to_str().unwrap();
                found.insert(name.to_owned(), path);
            } else if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    assert!(found.len() > 15, "only {} crates were found", found.len());
    found
}
