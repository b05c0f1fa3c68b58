//! `forebay version`: shows what this build is, for people and for bug reports.

use crate::fail::Fail;
use crate::output::{json, write};
use serde_json::json as value;

/// Formats that must be the same for two builds to work together, with their versions.
const FORMATS: [(&str, u32, &str); 2] = [
    (
        "pool",
        forebay_client::FORMAT,
        "records, control region and media of a pool",
    ),
    (
        "network",
        forebay_net::envelope::VERSION as u32,
        "messages between the nodes of a pool",
    ),
];

/// Returns the features with which this build was compiled.
fn features() -> Vec<&'static str> {
    let mut all = vec!["buckets", "fuse"];
    if cfg!(feature = "etcd") {
        all.insert(1, "etcd");
    }
    all
}

pub fn version(as_json: bool) -> Result<u8, Fail> {
    let version = env!("CARGO_PKG_VERSION");
    if as_json {
        let formats: serde_json::Map<String, _> = FORMATS
            .iter()
            .map(|(name, n, _)| ((*name).to_owned(), value!(n)))
            .collect();
        json(&value!({
            "version": version, "formats": formats, "features": features(),
            "target": TARGET,
        }))?;
        return Ok(0);
    }
    let mut text = format!("forebay {version} ({TARGET})\n");
    for (name, number, what) in FORMATS {
        text += &format!("format {name:8} {number:3}   {what}\n");
    }
    text += &format!("features        {}\n", features().join(", "));
    write(text.as_bytes())?;
    Ok(0)
}

const TARGET: &str = "x86_64 Linux, glibc";
